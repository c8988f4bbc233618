//! The cluster that is measured: its volumes, and which parts of them a layout uses.

use super::rows::{LARGE_DEPTH, Layout, Row, SPREAD};
use super::wide::{Wide, deal};
use crate::clock;
use crate::cluster::{Cluster, Shape};
use crate::http;
use crate::session::{Open, Session};
use anyhow::{Context, Result, ensure};
use bench::load::{Load, LoadConfig, Pattern};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use types::{BLOCK, SEGMENT};

/// PGs of the pool: enough with a segment that one OSD leads for [`Layout::OneLeader`].
const PGS: u32 = 4 * SPREAD;
/// Data of a layout but [`Layout::Nbd`].
const DATA: u64 = 1 << 30;
/// Length of each piece when the data is spread.
pub const PIECE: u64 = DATA / SPREAD as u64;
/// Most volumes that are made for [`Layout::Volumes`] until every OSD leads its part.
const VOLUMES_MAX: usize = 4 * SPREAD as usize;
const NBD_BYTES: u64 = 4 * SEGMENT;
const FILL_BLOCK: u64 = 1 << 20;
const FILL_MAX: Duration = Duration::from_secs(600);
/// Snapshots of [`Layout::Snapshots`], and blocks that are written between two of them: 0.1 % of the data.
const SNAPSHOTS: u64 = 100;
const BETWEEN: u64 = DATA / BLOCK / 1000;
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

pub struct Stage {
    pub cluster: Cluster,
    wide: Wide,
    /// The volume of [`Layout::Snapshots`], once it is asked for.
    aged: Option<Wide>,
    /// Volumes of one segment, from which [`Layout::Volumes`] takes its own.
    singles: Vec<Wide>,
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
        let shape = Shape { pgs: PGS, ..shape };
        let cluster = Cluster::up(base, "bench", shape)?;
        let wide = Wide::create(&cluster, "wide", PGS)?;
        Ok(Stage { cluster, wide, aged: None, singles: Vec::new(), filled: BTreeSet::new(), uri: None })
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
    /// A PG has no leader.
    pub fn find_leaders(&mut self) -> Result<()> {
        let volumes = std::iter::once(&mut self.wide).chain(&mut self.aged).chain(&mut self.singles);
        volumes.into_iter().try_for_each(|volume| volume.find_leaders(&self.cluster))
    }

    /// Returns what each client of a row is to use, and fills it if it is new.
    ///
    /// # Errors
    /// The cluster fails.
    pub fn targets(&mut self, row: &Row) -> Result<Vec<Target>> {
        let target = |volume, pieces, span| Target { volume, pieces, span, depth: row.depth, is_beside: false };
        let wide = |pieces: Vec<u64>, span| target(self.wide.name.clone(), pieces, span);
        let targets = match row.layout {
            Layout::OnePg => vec![wide(vec![self.wide.starts(false)?[0]], DATA)],
            Layout::OneLeader => vec![wide(self.wide.starts(true)?, DATA)],
            Layout::Spread => vec![wide(self.wide.starts(false)?, DATA)],
            Layout::Snapshots => {
                let (name, starts) = self.aged()?;
                vec![target(name, starts, DATA)]
            }
            Layout::Volumes => self.volumes(row.depth / SPREAD)?,
            Layout::Striped => {
                let volume = self.volume("striped", DATA, &["--stripe-count", &SPREAD.to_string()])?;
                vec![target(volume, vec![0], DATA)]
            }
            Layout::Beside => {
                let volume = self.volume("large", DATA, &[])?;
                let large = Target { depth: LARGE_DEPTH, is_beside: true, ..target(volume, vec![0], DATA) };
                vec![wide(self.wide.starts(false)?, DATA), large]
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

    /// Returns the volume of [`Layout::Snapshots`] and its pieces. It is made, filled and written between snapshots when it is new.
    fn aged(&mut self) -> Result<(String, Vec<u64>)> {
        if let Some(aged) = &self.aged {
            return Ok((aged.name.clone(), aged.starts(false)?));
        }
        let aged = Wide::create(&self.cluster, "aged", PGS)?;
        let (name, starts) = (aged.name.clone(), aged.starts(false)?);
        for start in &starts {
            self.filled.insert((name.clone(), *start, PIECE));
            fill(&self.cluster, &name, *start, PIECE)?;
        }
        for n in 0..SNAPSHOTS {
            self.cluster.basalt.run(&["snapshot", "create", &format!("{name}@s{n}")])?;
            let config = LoadConfig {
                ops_max: BETWEEN,
                span_bytes: DATA,
                pieces: starts.clone(),
                seed: n,
                duration: FILL_MAX,
                ..LoadConfig::default()
            };
            write(&self.cluster, &name, config)?;
        }
        self.aged = Some(aged);
        Ok((name, starts))
    }

    /// Returns volumes of one segment each, led by all OSDs in equal parts. A segment goes to the OSD that leads fewest, so the first
    /// ones may be led by one or two OSDs.
    fn volumes(&mut self, depth: u32) -> Result<Vec<Target>> {
        let ids: Vec<u64> = self.cluster.ids().into_iter().map(u64::from).collect();
        let hands = loop {
            let led_by = |osd: u64| (0..).zip(&self.singles).filter_map(move |(n, v)| (v.leader() == osd).then_some(n));
            let hands: Vec<Vec<u64>> = ids.iter().map(|osd| led_by(*osd).collect()).collect();
            if deal(&hands).len() == SPREAD as usize
                && hands.iter().all(|hand| hand.len() >= SPREAD as usize / ids.len())
            {
                break hands;
            }
            let count = self.singles.len();
            ensure!(
                count < VOLUMES_MAX,
                "of {count} volumes, the OSDs lead {:?}",
                hands.iter().map(Vec::len).collect::<Vec<_>>()
            );
            self.singles.push(Wide::create(&self.cluster, &format!("v{count}"), 1)?);
        };
        let target = |n: u64| {
            let volume = self.singles[n as usize].name.clone();
            Target { volume, pieces: vec![0], span: PIECE, depth, is_beside: false }
        };
        Ok(deal(&hands).into_iter().map(target).collect())
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
    let config = LoadConfig {
        pattern: Pattern::Sequential,
        block_bytes: FILL_BLOCK as u32,
        depth: 8,
        duration: FILL_MAX,
        ops_max: len / FILL_BLOCK,
        offset_bytes: start,
        span_bytes: len,
        ..LoadConfig::default()
    };
    write(cluster, volume, config)
}

/// Runs a load on a volume until its end.
fn write(cluster: &Cluster, volume: &str, config: LoadConfig) -> Result<()> {
    let mut session = Session::open(cluster.basalt.metas(), volume, Open::default())?;
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
            ensure!(
                session.device().submit(now, request, token).is_ok(),
                "the device takes fewer requests than the load has"
            );
        }
        session.finish(load.next_deadline(now))?;
    }
    let report = load.report(session.now());
    ensure!(report.is_clean(), "writing to {volume}: {:?}", report.errors);
    session.close()
}
