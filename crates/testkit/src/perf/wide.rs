//! A volume with a segment in every PG, from which layouts take pieces by leader.

use super::rows::SPREAD;
use crate::clock;
use crate::cluster::{Cluster, READY_MAX};
use crate::session::{Open, Session};
use anyhow::{Context, Result, anyhow, ensure};
use device::Request;
use std::collections::BTreeMap;
use types::{BLOCK, IoBufMut, SEGMENT};

/// A segment, its PG and the OSD that leads it.
#[derive(Clone, Debug)]
struct Segment {
    start: u64,
    pg: String,
    leader: u64,
}

#[derive(Debug)]
pub struct Wide {
    /// `pool/volume`.
    pub name: String,
    /// One for each PG.
    segments: Vec<Segment>,
}

impl Wide {
    /// Creates a volume with a segment for each PG of the pool, and writes one block to each, so that it is allocated.
    ///
    /// # Errors
    /// The cluster fails.
    pub fn create(cluster: &Cluster, name: &str, pgs: u32) -> Result<Wide> {
        let name = cluster.volume(name, u64::from(pgs) * SEGMENT)?;
        let mut session = Session::open(cluster.basalt.metas(), &name, Open::default())?;
        let mut before = segments_by_pg(cluster)?;
        let mut segments = Vec::new();
        // From the last to the first: the client requests segments ahead of a sequential writer.
        for start in (0..u64::from(pgs)).rev().map(|n| n * SEGMENT) {
            let buf = IoBufMut::new(BLOCK as usize).freeze();
            let request = Request::Write { offset: start, buf, fua: false };
            session.call(request)?.map_err(|errno| anyhow!("writing at {start}: {errno}"))?;
            let after = segments_by_pg(cluster)?;
            let grown = after.iter().find(|(pg, count)| before.get(*pg) != Some(count));
            let pg = grown.with_context(|| format!("no PG has received the segment at {start}"))?.0.clone();
            segments.push(Segment { start, pg, leader: 0 });
            before = after;
        }
        session.close()?;
        cluster.basalt.wait_healthy(READY_MAX)?;
        let mut wide = Wide { name, segments };
        wide.find_leaders(cluster)?;
        Ok(wide)
    }

    /// Notes the leaders: they may have changed since the last row.
    ///
    /// # Errors
    /// A PG has no leader for [`READY_MAX`].
    pub fn find_leaders(&mut self, cluster: &Cluster) -> Result<()> {
        let leader = |pg: &serde_json::Value| Some((pg["pg"].as_str()?.to_owned(), pg["leader"].as_u64()?));
        clock::wait_until("a leader of each PG", READY_MAX, || {
            let leaders: BTreeMap<String, u64> = cluster.basalt.pgs()?.iter().filter_map(leader).collect();
            let known = |segment: &mut Segment| {
                segment.leader = leaders.get(&segment.pg).copied().unwrap_or(0);
                segment.leader != 0
            };
            Ok(self.segments.iter_mut().all(known))
        })?;
        Ok(())
    }

    /// Returns the OSD that leads the first segment.
    pub fn leader(&self) -> u64 {
        self.segments[0].leader
    }

    /// Returns the starts of [`SPREAD`] segments in PGs of their own, taken from one OSD after another, or all from the
    /// OSD that leads most.
    ///
    /// # Errors
    /// There are fewer PGs.
    pub fn starts(&self, one_leader: bool) -> Result<Vec<u64>> {
        let mut by_leader: BTreeMap<u64, BTreeMap<&str, u64>> = BTreeMap::new();
        for segment in &self.segments {
            by_leader.entry(segment.leader).or_default().entry(&segment.pg).or_insert(segment.start);
        }
        let mut hands: Vec<Vec<u64>> = by_leader.into_values().map(|pgs| pgs.into_values().collect()).collect();
        if one_leader {
            hands.sort_by_key(|hand| std::cmp::Reverse(hand.len()));
            hands.truncate(1);
        }
        let mut starts = deal(&hands);
        ensure!(starts.len() == SPREAD as usize, "only {} PGs for the layout (one leader: {one_leader})", starts.len());
        starts.sort_unstable();
        Ok(starts)
    }
}

/// Takes [`SPREAD`] at most, one from each hand after the other.
pub fn deal(hands: &[Vec<u64>]) -> Vec<u64> {
    let longest = hands.iter().map(Vec::len).max().unwrap_or(0);
    let dealt = (0..longest).flat_map(|turn| hands.iter().filter_map(move |hand| hand.get(turn).copied()));
    dealt.take(SPREAD as usize).collect()
}

fn segments_by_pg(cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    let pgs = cluster.basalt.pgs()?;
    let count = |pg: &serde_json::Value| Some((pg["pg"].as_str()?.to_owned(), pg["segments"].as_u64()?));
    Ok(pgs.iter().filter_map(count).collect())
}

#[cfg(test)]
mod tests {
    use super::deal;

    #[test]
    fn hands_are_dealt_in_turn_until_there_are_enough() {
        assert_eq!(deal(&[vec![1, 2, 3], vec![4], vec![5, 6]]), [1, 4, 5, 2, 6, 3]);
        let many: Vec<u64> = (0..100).collect();
        assert_eq!(deal(&[many.clone(), many]).len(), 16);
        assert!(deal(&[]).is_empty());
    }
}
