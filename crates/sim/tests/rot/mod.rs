//! Bits flip at home, under one OSD that runs: nothing but the reads of its blocks can notice.

use control::PoolState;
use control::admin::{AdminAsk, PoolCreate};
use sim::check::replicas;
use sim::cluster::Cluster;
use sim::options::Options;
use sim::workload::Kind;
use std::time::Duration;
use types::rng::Rng;
use types::units::CHUNK;
use types::{OsdId, PgId, VolumeId};

pub type Members = Vec<(PgId, Vec<OsdId>)>;

fn until(cluster: &mut Cluster, seconds: u64, what: &str, done: impl Fn(&Cluster) -> bool) {
    let deadline = cluster.world.now() + Duration::from_secs(seconds);
    while !done(cluster) {
        assert!(cluster.world.now() < deadline, "{what}: {}", cluster.describe());
        cluster.step(deadline);
    }
}

pub fn pass(cluster: &mut Cluster, time: Duration) {
    let end = cluster.world.now() + time;
    while cluster.world.now() < end {
        cluster.step(end);
    }
    cluster.failure().expect("all is well");
}

/// Returns three replicas of volumes that clients have begun to write.
pub fn begun(seed: u64, change: impl FnOnce(&mut Options)) -> (Cluster, Vec<VolumeId>) {
    let mut rng = Rng::new(seed);
    let mut options = Options { osds: 3, replicas: 3, pgs: 2, ..Options::draw(&mut rng) };
    options.engine.round_idle = Duration::from_millis(50);
    (options.shape.operations, options.shape.read_pct) = (600, 10);
    change(&mut options);
    let mut cluster = Cluster::new(seed, options);
    until(&mut cluster, 30, "OSDs reach meta", |c| c.osds_in_touch() == 3);
    let (name, domain) = ("main".to_owned(), "osd".to_owned());
    cluster.admin(AdminAsk::PoolCreate(PoolCreate {
        name,
        replicas: 3,
        domain,
        pg_count: 2,
        force: false,
        device_class: None,
    }));
    let pool = |c: &Cluster| c.meta.records().is_some_and(|r| r.pools.values().any(|p| p.state == PoolState::Ready));
    until(&mut cluster, 30, "the pool is made", pool);
    let wanted = cluster.options.workload.volumes(&cluster.options.shape);
    for (name, len_bytes) in &wanted {
        cluster.admin(AdminAsk::VolumeCreate {
            name: (*name).to_owned(),
            len_bytes: *len_bytes,
            stripe: types::Stripe::NONE,
            text: Default::default(),
        });
    }
    let made = |c: &Cluster| c.meta.records().map_or_else(Vec::new, |r| r.volumes.keys().copied().collect::<Vec<_>>());
    until(&mut cluster, 30, "the volumes are made", |c| made(c).len() == wanted.len());
    let volumes = made(&cluster);
    cluster.begin(&volumes, Duration::from_secs(2), &mut rng);
    (cluster, volumes)
}

/// Returns three replicas of a volume that was written and has come to rest at home.
pub fn at_rest(seed: u64) -> (Cluster, Vec<VolumeId>, Members) {
    let (mut cluster, volumes) = begun(seed, |_| {});
    pass(&mut cluster, Duration::from_secs(2));
    let pgs = come_to_rest(&mut cluster);
    (cluster, volumes, pgs)
}

pub fn come_to_rest(cluster: &mut Cluster) -> Members {
    cluster.hurry();
    until(cluster, 60, "all is answered", Cluster::work_done);
    pass(cluster, Duration::from_secs(2));
    let records = cluster.meta.records().expect("meta is up");
    records.pgs.values().map(|pg| (pg.pg, pg.members.iter().map(|m| m.osd).collect())).collect()
}

pub fn compare(cluster: &mut Cluster, volumes: &[VolumeId], pgs: &Members) -> Result<u64, String> {
    let chunks = cluster.options.shape.len_bytes.div_ceil(CHUNK) as u32;
    volumes.iter().map(|volume| replicas::check(cluster, *volume, chunks, pgs, &mut Vec::new())).sum()
}

#[test]
fn blocks_that_rot_under_one_osd_are_mended_with_the_bytes_of_the_others() {
    for seed in [3, 4] {
        let (mut cluster, volumes, pgs) = at_rest(seed);
        let before = compare(&mut cluster, &volumes, &pgs).expect("the replicas are equal");
        assert!(before > 0, "something was written");
        let image = cluster.rotting_image(0);
        let home = (1 << 20) + cluster.options.log_bytes;
        let pages = image.stored_pages(home, cluster.options.device_bytes - (1 << 20));
        // Tables lie before the data.
        pages.iter().rev().step_by(2).take(40).for_each(|page| image.flip_bit(page + 1234, 3));
        let met = compare(&mut cluster, &volumes, &pgs).expect_err("a rotten block is no bytes");
        assert!(met.contains("cannot be read"), "{met}");
        // Clients read everything, whichever OSD leads.
        cluster.owner().workload.as_mut().expect("it was begun").finish();
        until(&mut cluster, 60, "everything is read back", Cluster::work_done);
        cluster.owner().workload.as_ref().map_or(Ok(()), |w| w.check()).expect("what was written is read");
        assert_eq!(cluster.linear.violations().first().map(ToString::to_string), None);
        let mut passes = 0;
        while let Err(why) = compare(&mut cluster, &volumes, &pgs) {
            passes += 1;
            assert!(why.contains("cannot be read") && passes < 300, "seed {seed}: {why}");
            pass(&mut cluster, Duration::from_millis(100));
        }
        let bad = |c: &Cluster| c.running().map(|(_, osd)| osd.bad_blocks().len()).sum::<usize>();
        assert_eq!(bad(&cluster), 0, "seed {seed}: nothing is left to mend");
        assert_eq!(compare(&mut cluster, &volumes, &pgs), Ok(before), "as many bytes as before, and equal");
        cluster.failure().expect("no replica was quarantined");
    }
}

#[test]
fn blocks_that_rot_under_load_are_mended_without_a_rebuild() {
    let mut mended = 0;
    for seed in [5, 6, 7] {
        let (mut cluster, volumes) = begun(seed, |options| {
            let shape = &mut options.shape;
            (shape.window, shape.sectors_max, shape.depth, shape.operations) = (256 << 10, 3, 16, 4000);
            (options.workload, options.engine.round_pressure) = (Kind::Random, 0.1);
        });
        let home = (1 << 20) + cluster.options.log_bytes;
        let end = cluster.options.device_bytes - (1 << 20);
        for i in [0, 1, 0, 1] {
            pass(&mut cluster, Duration::from_millis(300));
            let image = cluster.rotting_image(i);
            let pages = image.stored_pages(home, end);
            // Tables lie before the data. A block that the two OSDs have in common stays good on the third.
            pages.iter().rev().take(12).for_each(|page| image.flip_bit(page + 1234, 3));
        }
        while !cluster.work_done() {
            pass(&mut cluster, Duration::from_millis(50));
            let rebuilt =
                cluster.running().find(|(_, osd)| !osd.repairing().is_empty() || osd.fill_for_tools().0.lost_homes > 0);
            assert!(rebuilt.is_none(), "seed {seed}: {}", cluster.describe());
        }
        let pgs = come_to_rest(&mut cluster);
        let mut passes = 0;
        while let Err(why) = compare(&mut cluster, &volumes, &pgs) {
            passes += 1;
            assert!(why.contains("cannot be read") && passes < 100, "seed {seed}: {why}");
            pass(&mut cluster, Duration::from_millis(100));
        }
        assert_eq!(cluster.linear.violations().first().map(ToString::to_string), None);
        cluster.failure().expect("no replica was quarantined");
        mended += cluster.running().map(|(_, osd)| osd.fill_for_tools().0.mended_blocks).sum::<u64>();
    }
    assert!(mended > 20, "{mended} blocks are repaired");
}

#[test]
fn what_rotted_on_every_disk_is_complained_of_and_what_is_down_is_silent() {
    let (mut cluster, _, _) = at_rest(3);
    cluster.speaks_up("all is well").expect_err("no member has a reason to complain");
    for i in 0..3 {
        let image = cluster.world.disk_image(cluster.osd_node(i), "device");
        let home = (1 << 20) + cluster.options.log_bytes;
        let pages = image.stored_pages(home, cluster.options.device_bytes - (1 << 20));
        pages.iter().rev().take(pages.len() / 2).for_each(|page| image.flip_bit(page + 1234, 3));
    }
    cluster.owner().workload.as_mut().expect("it was begun").finish();
    let complains = |c: &Cluster| c.running().any(|(_, osd)| !osd.complaints_for_tools().is_empty());
    until(&mut cluster, 60, "a member complains", complains);
    cluster.speaks_up("rotten").expect("it is said");
    let said: Vec<String> =
        cluster.running().flat_map(|(_, osd)| osd.complaints_for_tools()).map(|(_, why)| why).collect();
    assert!(said.iter().any(|why| why.starts_with("inconsistent: volume")), "{said:?}");
    (0..3).for_each(|i| cluster.stop_osd(i, false));
    assert!(cluster.speaks_up("down").expect_err("no fault ordered that").contains("nothing is heard"));
}
