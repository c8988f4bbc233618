//! The cluster that is measured: its volumes, and which parts of them a layout uses.

use super::rows::{LARGE_DEPTH, Layout, Row, SPREAD};
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape};
use crate::http;
use crate::session::{Open, Session};
use anyhow::{Context, Result, anyhow, ensure};
use bench::load::{Load, LoadConfig, Pattern};
use device::Request;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use types::{BLOCK, IoBufMut, SEGMENT};

/// PGs of the pool: enough with a segment that one OSD leads for [`Layout::OneLeader`].
const PGS: u32 = 4 * SPREAD;
/// Data of a layout but [`Layout::Nbd`].
const DATA: u64 = 1 << 30;
/// Length of each piece when the data is spread.
pub const PIECE: u64 = DATA / SPREAD as u64;
const NBD_BYTES: u64 = 4 * SEGMENT;
const DEVICE: u64 = 12 << 30;
const FILL_BLOCK: u64 = 1 << 20;
const WIDE: &str = "wide";
const DESTAGE_MAX: Duration = Duration::from_secs(120);
/// Bytes of an OSD that may wait for a destage round when a burst begins.
const DIRTY_MAX: f64 = (16 << 20) as f64;

/// Work of one client process.
#[derive(Clone, Debug)]
pub struct Target {
    pub volume: String,
    pub pieces: Vec<u64>,
    pub span: u64,
    pub depth: u32,
    /// Whether it writes large requests, which are not counted, beside those of the row.
    pub is_beside: bool,
}

/// A segment of the wide volume, its PG and the OSD that leads it.
#[derive(Clone, Debug)]
struct Segment {
    start: u64,
    pg: String,
    leader: u64,
}

pub struct Stage {
    pub cluster: Cluster,
    wide: String,
    /// Segments of the wide volume, one for each PG.
    segments: Vec<Segment>,
    /// Pieces of volumes that hold data: volume, start and length.
    filled: BTreeSet<(String, u64, u64)>,
    /// URI of the volume behind the NBD server.
    pub uri: Option<String>,
}

impl Stage {
    /// Starts a cluster with a volume that has a segment in every PG.
    ///
    /// # Errors
    /// The cluster does not come up.
    pub fn up(base: &Path, shape: Shape) -> Result<Stage> {
        let shape = Shape { device_bytes: DEVICE, pgs: PGS, ..shape };
        let cluster = Cluster::up(base, "bench", shape)?;
        let wide = cluster.volume(WIDE, u64::from(PGS) * SEGMENT)?;
        let (segments, filled) = (Vec::new(), BTreeSet::new());
        let mut stage = Stage { cluster, wide, segments, filled, uri: None };
        stage.allocate()?;
        Ok(stage)
    }

    /// Writes one block to each segment, and finds the PG that has received it.
    fn allocate(&mut self) -> Result<()> {
        let mut session = Session::open(self.cluster.basalt.metas(), &self.wide, Open::default())?;
        let mut before = self.segments_by_pg()?;
        // From the last to the first: the client requests segments ahead of a sequential writer.
        for start in (0..u64::from(PGS)).rev().map(|n| n * SEGMENT) {
            let buf = IoBufMut::new(BLOCK as usize).freeze();
            let request = Request::Write { offset: start, buf, fua: false };
            session.call(request)?.map_err(|errno| anyhow!("writing at {start}: {errno}"))?;
            let after = self.segments_by_pg()?;
            let grown = after.iter().find(|(pg, count)| before.get(*pg) != Some(count));
            let pg = grown.with_context(|| format!("no PG has received the segment at {start}"))?.0.clone();
            self.segments.push(Segment { start, pg, leader: 0 });
            before = after;
        }
        session.close()?;
        self.cluster.basalt.wait_healthy(READY_MAX)?;
        self.find_leaders()
    }

    fn segments_by_pg(&self) -> Result<BTreeMap<String, u64>> {
        let pgs = self.cluster.basalt.pgs()?;
        let count = |pg: &serde_json::Value| Some((pg["pg"].as_str()?.to_owned(), pg["segments"].as_u64()?));
        Ok(pgs.iter().filter_map(count).collect())
    }

    /// Waits until the OSDs have destaged what was written, so that no round runs within a burst.
    ///
    /// # Errors
    /// They have not after [`DESTAGE_MAX`].
    pub fn destage(&self) -> Result<()> {
        clock::wait_until("the end of all destage rounds", DESTAGE_MAX, || {
            for n in self.cluster.ids() {
                let figures = http::metrics(self.cluster.osd_http(n))?;
                let dirty = figures.get("basalt_osd_overlay_bytes").context("an OSD reports its overlay")?;
                if *dirty > DIRTY_MAX {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(())
    }

    /// Notes the leaders: they may have changed since the last row.
    ///
    /// # Errors
    /// A PG has no leader for [`READY_MAX`].
    pub fn find_leaders(&mut self) -> Result<()> {
        let leader = |pg: &serde_json::Value| Some((pg["pg"].as_str()?.to_owned(), pg["leader"].as_u64()?));
        clock::wait_until("a leader of each PG", READY_MAX, || {
            let leaders: BTreeMap<String, u64> = self.cluster.basalt.pgs()?.iter().filter_map(leader).collect();
            let known = |segment: &mut Segment| {
                segment.leader = leaders.get(&segment.pg).copied().unwrap_or(0);
                segment.leader != 0
            };
            Ok(self.segments.iter_mut().all(known))
        })?;
        Ok(())
    }

    /// Returns the starts of [`SPREAD`] segments in PGs of their own, taken from one OSD after another, or all from the
    /// OSD that leads most.
    fn starts(&self, one_leader: bool) -> Result<Vec<u64>> {
        let mut by_leader: BTreeMap<u64, BTreeMap<&str, u64>> = BTreeMap::new();
        for segment in &self.segments {
            by_leader.entry(segment.leader).or_default().entry(&segment.pg).or_insert(segment.start);
        }
        let mut hands: Vec<Vec<u64>> = by_leader.into_values().map(|pgs| pgs.into_values().collect()).collect();
        if one_leader {
            hands.sort_by_key(|hand| std::cmp::Reverse(hand.len()));
            hands.truncate(1);
        }
        let longest = hands.iter().map(Vec::len).max().unwrap_or(0);
        let dealt = (0..longest).flat_map(|turn| hands.iter().filter_map(move |hand| hand.get(turn).copied()));
        let mut starts: Vec<u64> = dealt.take(SPREAD as usize).collect();
        ensure!(starts.len() == SPREAD as usize, "only {} PGs for the layout (one leader: {one_leader})", starts.len());
        starts.sort_unstable();
        Ok(starts)
    }

    /// Returns what each client of a row is to use, and fills it if it is new.
    ///
    /// # Errors
    /// The cluster fails.
    pub fn targets(&mut self, row: &Row) -> Result<Vec<Target>> {
        let target = |volume, pieces, span| Target { volume, pieces, span, depth: row.depth, is_beside: false };
        let wide = |pieces: Vec<u64>, span| target(self.wide.clone(), pieces, span);
        let targets = match row.layout {
            Layout::OnePg => vec![wide(vec![self.starts(false)?[0]], DATA)],
            Layout::OneLeader => vec![wide(self.starts(true)?, DATA)],
            Layout::Spread => vec![wide(self.starts(false)?, DATA)],
            Layout::Volumes => self.volumes(row.depth / SPREAD)?,
            Layout::Striped => {
                let volume = self.volume("striped", DATA, &["--stripe-count", &SPREAD.to_string()])?;
                vec![target(volume, vec![0], DATA)]
            }
            Layout::Beside => {
                let volume = self.volume("large", DATA, &[])?;
                let large = Target { depth: LARGE_DEPTH, is_beside: true, ..target(volume, vec![0], DATA) };
                vec![wide(self.starts(false)?, DATA), large]
            }
            Layout::Nbd => {
                let volume = self.volume("nbd", NBD_BYTES, &[])?;
                vec![target(volume, vec![0], NBD_BYTES)]
            }
        };
        for target in &targets {
            let len = target.span / target.pieces.len() as u64;
            for start in &target.pieces {
                if self.filled.insert((target.volume.clone(), *start, len)) {
                    fill(&self.cluster, &target.volume, *start, len)?;
                }
            }
        }
        if row.layout == Layout::Nbd && self.uri.is_none() {
            self.uri = Some(self.cluster.export(&targets[0].volume)?);
        }
        Ok(targets)
    }

    fn volumes(&mut self, depth: u32) -> Result<Vec<Target>> {
        let target = |n| -> Result<Target> {
            let volume = self.volume(&format!("v{n}"), SEGMENT, &[])?;
            Ok(Target { volume, pieces: vec![0], span: PIECE, depth, is_beside: false })
        };
        (0..SPREAD).map(target).collect()
    }

    /// Returns the name of a volume, and creates it if it is new.
    fn volume(&self, name: &str, bytes: u64, flags: &[&str]) -> Result<String> {
        let full = format!("{}/{name}", crate::cluster::POOL);
        if !self.filled.iter().any(|(volume, ..)| *volume == full) {
            let create = ["volume", "create", &full, &bytes.to_string()];
            self.cluster.basalt.run(&[&create[..], flags].concat())?;
        }
        Ok(full)
    }
}

/// Writes each byte of a piece once.
fn fill(cluster: &Cluster, volume: &str, start: u64, len: u64) -> Result<()> {
    let mut session = Session::open(cluster.basalt.metas(), volume, Open::default())?;
    let config = LoadConfig {
        pattern: Pattern::Sequential,
        block_bytes: FILL_BLOCK as u32,
        depth: 8,
        duration: Duration::from_secs(600),
        ops_max: len / FILL_BLOCK,
        offset_bytes: start,
        span_bytes: len,
        ..LoadConfig::default()
    };
    let mut load = Load::new(config, session.now())?;
    let (mut requests, mut done) = (Vec::new(), Vec::new());
    loop {
        let now = session.begin();
        session.device().completions(&mut done);
        for completion in done.drain(..) {
            load.completed(now, completion.token, &completion.result);
        }
        if load.is_done(now) {
            break;
        }
        load.next_requests(now, &mut requests);
        for (request, token) in requests.drain(..) {
            ensure!(session.device().submit(now, request, token).is_ok(), "the device takes fewer than 8 requests");
        }
        session.finish(load.next_deadline(now))?;
    }
    let report = load.report(session.now());
    ensure!(report.is_clean(), "filling {volume}: {:?}", report.errors);
    session.close()
}
