//! Limit of a client's requests in flight on a link, kept at either end.
//!
//! A request takes credit when it leaves (client) or arrives (OSD), and gives it back when its reply
//! arrives (client) or leaves (OSD). The OSD's count is therefore never above the client's, and a client
//! that keeps its own count can never be closed for exceeding it.
//!
//! Invariant: `bytes` is the sum of `held`.

use std::collections::BTreeMap;

/// The credit account of one link between a client and an OSD.
#[derive(Debug)]
pub struct Credit {
    ops_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// Requests in flight, with the credit that each has taken.
    held: BTreeMap<u64, u32>,
}

/// Breach of the credit rules by a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    #[error("more is in flight than was granted ({ops} operations, {bytes} B)")]
    Exceeded { ops: usize, bytes: usize },
    #[error("request {0} is in flight already")]
    Twice(u64),
    #[error("a reply to request {0}, which is not in flight")]
    Unknown(u64),
}

impl Credit {
    pub fn new(ops_max: u32, bytes_max: u64) -> Credit {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Credit { ops_max: ops_max as usize, bytes_max, bytes: 0, held: BTreeMap::new() }
    }

    /// Whether a request that costs `cost` fits beside `ops` and `bytes` more.
    pub fn admits(&self, ops: usize, bytes: usize, cost: usize) -> bool {
        self.held.len() + ops < self.ops_max && self.bytes.saturating_add(bytes).saturating_add(cost) <= self.bytes_max
    }

    /// Whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// # Errors
    /// When the request does not fit, or its id is in flight.
    pub fn take(&mut self, id: u64, cost: usize) -> Result<(), CreditError> {
        if !self.admits(0, 0, cost) {
            return Err(CreditError::Exceeded { ops: self.ops_max, bytes: self.bytes_max });
        }
        let cost = u32::try_from(cost).expect("a request's cost is at most a part");
        if self.held.insert(id, cost).is_some() {
            return Err(CreditError::Twice(id));
        }
        self.bytes += cost as usize;
        Ok(())
    }

    /// # Errors
    /// When no such request is in flight.
    pub fn give(&mut self, id: u64) -> Result<(), CreditError> {
        let cost = self.held.remove(&id).ok_or(CreditError::Unknown(id))? as usize;
        assert!(cost <= self.bytes, "credit given back that was never taken");
        self.bytes -= cost;
        Ok(())
    }
}
