//! Schedules aimed at state that goes back in time (R17): the metadata store is replaced by an older copy of itself,
//! while OSDs and clients go on.
//!
//! The system is told nothing of it. An administrator sees the refusal, and recovers the records. Ids of the lost records must
//! never be given out again, and writes to segments that only the lost records knew must stay readable.
//!
//! These schedules strike in aimed runs alone (see `aim`).

use super::aimed_logs::ms;
use super::{Class, Strike};
use crate::cluster::Cluster;
use control::admin::{AdminAsk, PoolCreate, RecoverAsk};
use control::found::{Found, Table, segment_batches};
use control::{Records, Standing};
use osd::ToolAnswer;
use std::collections::BTreeSet;
use std::time::Duration;
use types::control::SEGMENTS_PER_ASK_MAX;
use types::{PgId, ReplicaId, VolumeId};

/// Names of volumes and pools that come and go; a number follows.
const NAMES: u64 = 3;
/// Time between two looks at a new leader of meta.
const LOOK: Duration = Duration::from_millis(20);
/// Looks until the records are called behind, and until a recovery is over: five seconds each.
const LOOKS_MAX: u32 = 250;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::MetaWentBack => meta_went_back(s),
        other => unreachable!("{other:?} goes nowhere"),
    }
}

/// Ids that records have given out.
#[derive(Clone, Debug, Default)]
pub struct Given {
    volumes: BTreeSet<VolumeId>,
    replicas: BTreeSet<ReplicaId>,
}

impl Given {
    fn of(records: &Records) -> Given {
        let members = records.pgs.values().flat_map(|pg| &pg.members);
        Given { volumes: records.volumes.keys().copied().collect(), replicas: members.map(|m| m.replica).collect() }
    }

    fn add(&mut self, more: Given) {
        self.volumes.extend(more.volumes);
        self.replicas.extend(more.replicas);
    }

    fn without(&self, others: &Given) -> Given {
        Given { volumes: &self.volumes - &others.volumes, replicas: &self.replicas - &others.replicas }
    }

    /// Describes an id that both have.
    pub fn meets(&self, records: &Records) -> Option<String> {
        let now = Given::of(records);
        let volume = self.volumes.intersection(&now.volumes).next().map(|id| format!("volume {id}"));
        let replica = || self.replicas.intersection(&now.replicas).next().map(|id| format!("replica {id}"));
        volume.or_else(replica)
    }
}

/// Copies the store, changes records, and puts the copy in the store's place.
fn meta_went_back(s: &mut Strike<'_>) -> bool {
    if s.cluster.meta.standing() != Some(Standing::Sound) || !s.cluster.knows_first_volume() {
        return false;
    }
    let Some(before) = s.cluster.meta.records().map(Given::of) else { return false };
    let (copy, revision) = (s.cluster.meta.copy(), s.cluster.meta.revision());
    for _ in 0..s.rng.between(1, 4) {
        let at = ms(s, 0, 1500);
        s.after(at, change);
    }
    // The opener's session is in no copy that was made before it, so its process ends with the store.
    let reopens = s.rng.chance(1, 2);
    if reopens {
        let at = ms(s, 0, 800);
        s.after(at, |s| s.cluster.restart_client(false));
    }
    let at = ms(s, 100, 3000);
    // Notes the ids that are given out meanwhile, whether or not their records still exist.
    watch_given(s, 150);
    s.after(at, move |s| {
        watch_given(s, 0);
        s.cluster.stop_metas();
        s.cluster.meta.restore(copy);
        // Ids of a revision that only a minority of the OSDs keeps never left meta, and may be given out for the first
        // time.
        let known = s.cluster.kept_by_most() > revision;
        let lost = s.cluster.given.without(&before);
        tracing::info!(known, ?lost, "the metadata store went back");
        if known {
            s.cluster.lost_ids.push(lost);
        }
        if reopens {
            s.cluster.restart_client(false);
        }
        let gone = ms(s, 0, 500);
        s.after(gone, move |s| {
            s.cluster.start_meta();
            // Commands arrive before an administrator has seen what happened.
            change(s);
            until_judged(s, known, LOOKS_MAX);
        });
    });
    true
}

fn watch_given(s: &mut Strike<'_>, tries: u32) {
    if let Some(now) = s.cluster.meta.records().map(Given::of) {
        s.cluster.given.add(now);
    }
    if tries > 0 {
        s.after(LOOK, move |s| watch_given(s, tries - 1));
    }
}

/// Waits until a new leader has judged whether its records are behind. `known`: a majority of the OSDs keeps a later
/// revision on its devices than the records hold.
fn until_judged(s: &mut Strike<'_>, known: bool, tries: u32) {
    match s.cluster.meta.standing() {
        Some(Standing::Behind) => {
            change(s);
            let seen = ms(s, 0, 2000);
            s.after(seen, |s| recover(s, LOOKS_MAX));
        }
        Some(Standing::Sound) if known => {
            s.cluster.note_wrong("meta goes on from records that went back in time".to_owned());
        }
        // An OSD that keeps a later revision may say so later.
        _ if tries > 0 => s.after(LOOK, move |s| until_judged(s, known, tries - 1)),
        Some(Standing::Sound) => {}
        standing => s.cluster.note_wrong(format!("meta does not judge its records: {standing:?}")),
    }
}

/// Lets an administrator recover the records: first the watermarks, then the volumes.
fn recover(s: &mut Strike<'_>, tries: u32) {
    match s.cluster.meta.standing() {
        Some(Standing::Sound) => finish(s),
        _ if tries > 0 => {
            let dry_run = s.rng.chance(1, 4);
            let standing = "behind".to_owned();
            s.cluster.every_hold_ends();
            s.cluster.admin(AdminAsk::MetaRecover(RecoverAsk { dry_run, standing, ..RecoverAsk::default() }));
            if s.rng.chance(1, 8) {
                s.cluster.open_again();
            }
            s.after(LOOK, move |s| recover(s, tries - 1));
        }
        standing => s.cluster.note_wrong(format!("the records are not recovered: {standing:?}")),
    }
}

/// Lets the administrator fence the ended sessions, put segments back, and give the volumes back. A run does not end before.
fn finish(s: &mut Strike<'_>) {
    let pause = ms(s, 20, 300);
    let records = s.cluster.meta.records();
    let Some(records) = records.filter(|_| s.cluster.meta.standing() == Some(Standing::Sound)) else {
        return s.after(pause, finish);
    };
    if records.volumes.values().all(|v| !v.recovering) {
        s.cluster.open_again();
        for _ in 0..3 {
            let at = ms(s, 0, 800);
            s.after(at, change);
        }
        return;
    }
    let found = s.cluster.found(records);
    let standing = "sound".to_owned();
    let ask = RecoverAsk { standing, ..RecoverAsk::default() };
    for some in found.attached.chunks(SEGMENTS_PER_ASK_MAX) {
        s.cluster.admin(AdminAsk::MetaRecover(RecoverAsk { attached: some.to_vec(), ..ask.clone() }));
    }
    if found.attached.is_empty() && found.unread_pgs.is_empty() {
        let lengths = found.lengths();
        if !lengths.is_empty() {
            s.cluster.admin(AdminAsk::MetaRecover(RecoverAsk { lengths, ..ask.clone() }));
        }
        for segments in segment_batches(&found.segments) {
            s.cluster.admin(AdminAsk::MetaRecover(RecoverAsk { segments, ..ask.clone() }));
        }
        s.cluster.admin(AdminAsk::MetaRecover(RecoverAsk { finish: true, ..ask }));
    }
    s.after(pause, finish);
}

/// Submits a command that draws ids.
fn change(s: &mut Strike<'_>) {
    let n = s.rng.below(NAMES);
    if s.rng.chance(1, 3) {
        let (name, replicas) = (format!("lost{n}"), s.cluster.options.replicas);
        let pool =
            PoolCreate { name, replicas, domain: "osd".to_owned(), pg_count: 2, force: false, device_class: None };
        s.cluster.admin(AdminAsk::PoolCreate(pool));
    } else {
        let len_bytes = s.rng.between(1, 4096) << 20;
        s.cluster.admin(AdminAsk::VolumeCreate {
            name: format!("main/lost{n}"),
            len_bytes,
            stripe: types::Stripe::NONE,
            text: Default::default(),
        });
    }
}

impl Cluster {
    /// Returns the highest revision that a majority of the OSDs keeps on its devices; OSDs that do not run keep none.
    fn kept_by_most(&self) -> u64 {
        let mut kept: Vec<u64> = self.running().map(|(_, osd)| osd.watermarks_for_tools().revision).collect();
        kept.sort_unstable_by(|a, b| b.cmp(a));
        kept.get(self.osd_count() / 2).copied().unwrap_or(0)
    }

    /// Whether the records name the first volume, so that an older copy loses none of its data.
    fn knows_first_volume(&self) -> bool {
        let names = |v: &control::VolumeRecord| v.name.ends_with("/v") || v.name == "v";
        self.meta.records().is_some_and(|records| records.volumes.values().any(names))
    }

    /// The differences between the records and the PGs, as the OSDs that run show them.
    pub fn found(&self, records: &Records) -> Found {
        let pages = self.running().flat_map(|(_, osd)| osd.pages_for_tools());
        let table = |page: ToolAnswer| match page {
            ToolAnswer::Pg { report, chunks, attached, snapshots, .. } => {
                let leading = report.leading.is_some_and(|lead| lead.active);
                Some(Table { pg: report.pg, leading, chunks, attached, snapshots })
            }
            _ => None,
        };
        let tables: Vec<Table> = pages.filter_map(table).collect();
        // A PG of the copy may have been removed since: then no OSD has a replica of it.
        let here = |pg: &PgId| tables.iter().any(|table| table.pg == *pg);
        let all_run = self.running().count() == self.osd_count();
        let gone = records.pgs.keys().filter(|pg| all_run && !here(pg)).copied().collect();
        Found::compare(records, &tables, &gone)
    }

    /// Checks that no id of lost records is given out again.
    ///
    /// # Errors
    /// An id was given out again.
    pub(crate) fn ids_are_new(&self) -> Result<(), String> {
        let Some(records) = self.meta.records() else { return Ok(()) };
        let twice = self.lost_ids.iter().find_map(|lost| lost.meets(records));
        twice.map_or(Ok(()), |what| Err(format!("{what} was given out twice: lost records had given it out before")))
    }
}
