//! An audit of the bank: reads a group snapshot of both volumes, whose balances must add up.

use super::{Ask, Turn, Workload, bank, name};
use device::{Answer, Request};
use std::collections::{BTreeMap, VecDeque};
use types::Errno;
use types::units::SECTOR;

/// Requests in flight.
const DEPTH: usize = 8;

/// A lane, and a place in it.
type Place = (usize, u64);

/// One audit.
pub struct Audit {
    /// `pool/volume@snapshot`, of both volumes.
    names: Vec<String>,
    /// Places that are left, with their volume's slot and offset.
    left: VecDeque<(Place, (usize, u64))>,
    /// By token, with the time of the request.
    inflight: BTreeMap<u64, (Place, (usize, u64), u64)>,
    seen: BTreeMap<Place, Vec<u8>>,
    next_token: u64,
    /// The snapshot was deleted, or bytes of it are damaged beyond the budget.
    over: bool,
}

impl Audit {
    pub fn new(names: Vec<String>, len_bytes: u64) -> Audit {
        let left = bank::places(len_bytes).collect();
        Audit { names, left, inflight: BTreeMap::new(), seen: BTreeMap::new(), next_token: 0, over: false }
    }

    fn give_up(&mut self) {
        (self.over, self.left) = (true, VecDeque::new());
    }
}

impl Workload for Audit {
    fn volumes(&self) -> Vec<String> {
        self.names.clone()
    }

    fn wants_more(&self) -> bool {
        !self.left.is_empty() && self.inflight.len() < DEPTH
    }

    fn next(&mut self, turn: &mut Turn<'_>) -> Option<Ask> {
        if self.inflight.len() >= DEPTH {
            return None;
        }
        let (place, (slot, offset)) = self.left.pop_front()?;
        let token = self.next_token;
        self.next_token += 1;
        self.inflight.insert(token, (place, (slot, offset), turn.now));
        Some(Ask { slot, request: Request::Read { offset, len: SECTOR }, token })
    }

    fn completed(&mut self, token: u64, result: Result<Answer, Errno>, turn: &mut Turn<'_>) -> Result<(), String> {
        let (place, ..) = self.inflight.remove(&token).ok_or_else(|| format!("token {token} was never asked"))?;
        match result {
            Ok(Answer::Data(bufs)) => {
                self.seen.insert(place, bufs.iter().flat_map(|buf| buf.iter().copied()).collect());
            }
            Ok(other) => return Err(format!("a read was answered with {other:?}")),
            Err(Errno::Damaged) if turn.lenient => self.give_up(),
            Err(Errno::Gone) if turn.removed => self.give_up(),
            Err(errno) => return Err(format!("a read of {:?} failed: {}", self.names, name(errno))),
        }
        match self.is_done() && !self.over {
            true => bank::audit(&self.seen).map_err(|what| format!("{:?}: {what}", self.names)),
            false => Ok(()),
        }
    }

    fn forget_inflight(&mut self) {
        let again = std::mem::take(&mut self.inflight).into_values().map(|(place, at, _)| (place, at));
        self.left.extend(again);
    }

    fn limit(&mut self, _more: u64) {}

    fn finish(&mut self) {}

    fn is_finishing(&self) -> bool {
        true
    }

    fn is_done(&self) -> bool {
        self.left.is_empty() && self.inflight.is_empty()
    }

    fn inflight(&self) -> usize {
        self.inflight.len()
    }

    fn operations(&self) -> u64 {
        self.left.len() as u64
    }

    fn answered(&self) -> u64 {
        self.seen.len() as u64
    }

    fn oldest(&self) -> Option<u64> {
        self.inflight.values().map(|(.., since)| *since).min()
    }

    fn waiting(&self) -> String {
        format!("{} of {:?}", self.inflight.len(), self.names)
    }
}
