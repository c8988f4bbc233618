//! One connection from the dial or the accept to its end, and the table of all of them.

use crate::config::LinkId;
use crate::credit::{Credit, CreditError};
use crate::greet::{Agreed, GreetError};
use crate::rx::Rx;
use crate::tx::Tx;
use env::{ConnId, NetError, Token};
use std::time::Duration;
use types::{OsdId, Time};
use wire::{Refuse, WireError};

/// How far a connection has come.
pub enum Phase {
    /// The env is connecting.
    Dialing { osd: OsdId },
    /// Nobody waits for the env's connecting any more; the slot waits for its answer, to close it.
    Abandoned { osd: OsdId },
    /// The other side's hello is awaited.
    Greeting,
    /// A link. `credit` is there when one end is a client.
    Up { agreed: Agreed, credit: Option<Credit> },
    /// A refusal was sent; the other side may read it and close. What it sends meanwhile is dropped,
    /// because closing with bytes unread would reset the connection and destroy the refusal. `say` waits for the
    /// send that is in flight.
    Refusing { say: Option<Refuse> },
}

/// One connection.
pub struct Conn {
    /// `None` while dialling.
    pub net: Option<ConnId>,
    /// The OSD whose route holds this connection; `None` when it was accepted, or has been given up.
    pub dialled: Option<OsdId>,
    pub accepted: bool,
    pub phase: Phase,
    /// End of the phase; for a link when its silence is judged next, `Time::NEVER` while nothing need come.
    pub deadline: Time,
    /// When bytes came last.
    pub heard: Time,
    /// When a sign of life was asked for last.
    pub pinged: Time,
    /// When the oldest of an unbroken row of requests in flight left.
    pub asked: Time,
    pub rx: Rx,
    pub tx: Tx,
}

impl Conn {
    pub fn new(net: Option<ConnId>, dialled: Option<OsdId>, phase: Phase) -> Conn {
        let accepted = dialled.is_none();
        Conn {
            net,
            dialled,
            accepted,
            phase,
            deadline: Time::NEVER,
            heard: Time::ZERO,
            asked: Time::ZERO,
            pinged: Time::ZERO,
            rx: Rx::default(),
            tx: Tx::default(),
        }
    }
}

/// Why a connection ended, or could not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("{0}")]
    Net(NetError),
    #[error("the dial was not answered in time")]
    DialTimeout,
    #[error("no hello came in time")]
    HelloTimeout,
    #[error("refused by the other side: BSLT-{}: {}", .0.code, .0.reason)]
    RefusedThere(Refuse),
    #[error("refused: {0}")]
    RefusedHere(#[from] GreetError),
    #[error("bad bytes: {0}")]
    Wire(#[from] WireError),
    #[error("broken protocol: {0}")]
    Credit(#[from] CreditError),
    #[error("broken protocol: a message that this peer may not send")]
    Role,
    #[error("replaced by a newer connection of the same peer")]
    Replaced,
    #[error("{bytes} B in {messages} messages wait for it, and it does not take them")]
    Overflow { bytes: usize, messages: usize },
    #[error("its address has changed")]
    Moved,
    #[error("nothing was heard for {0:?}")]
    Silent(Duration),
    #[error("no longer wanted")]
    Unwanted,
    #[error("made room for another connection")]
    Evicted,
    /// The room that uses the connection ended it.
    #[error("{0}")]
    Judged(String),
}

impl LinkError {
    /// Whether the peer has sent what it may not.
    pub fn is_peers_fault(&self) -> bool {
        matches!(self, LinkError::Wire(_) | LinkError::Credit(_) | LinkError::Role)
    }
}

/// Bits of a [`LinkId`] that name the slot; the rest counts connections.
const SLOT_BITS: u32 = 20;

/// All connections. The id of a link leads to its slot without a search, and tells the lives of a slot apart.
#[derive(Default)]
pub struct Conns {
    slots: Vec<Option<(LinkId, Box<Conn>)>>,
    free: Vec<u32>,
    counter: u64,
}

fn slot_of(link: LinkId) -> usize {
    (link.0 & ((1 << SLOT_BITS) - 1)) as usize
}

/// The token of a connection's operations.
pub fn token(room: u8, link: LinkId) -> Token {
    Token::new(room, (link.0 >> SLOT_BITS) as u32, slot_of(link) as u32)
}

impl Conns {
    pub fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.slots.iter().flatten().map(|(_, conn)| &**conn)
    }

    pub fn insert(&mut self, conn: Conn) -> LinkId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        assert!(slot < 1 << SLOT_BITS, "connections are bounded");
        self.counter += 1;
        let link = LinkId(self.counter << SLOT_BITS | u64::from(slot));
        self.slots[slot as usize] = Some((link, Box::new(conn)));
        link
    }

    pub fn get(&self, link: LinkId) -> Option<&Conn> {
        self.slots.get(slot_of(link))?.as_ref().filter(|(id, _)| *id == link).map(|(_, conn)| &**conn)
    }

    pub fn get_mut(&mut self, link: LinkId) -> Option<&mut Conn> {
        self.slots.get_mut(slot_of(link))?.as_mut().filter(|(id, _)| *id == link).map(|(_, conn)| &mut **conn)
    }

    pub fn remove(&mut self, link: LinkId) -> Option<Box<Conn>> {
        self.get(link)?;
        self.free.push(slot_of(link) as u32);
        self.slots[slot_of(link)].take().map(|(_, conn)| conn)
    }

    /// Whose operation completed; `None` when its connection is gone.
    pub fn find(&self, token: Token) -> Option<LinkId> {
        let (link, _) = self.slots.get(token.key as usize)?.as_ref()?;
        ((link.0 >> SLOT_BITS) as u32 == token.generation).then_some(*link)
    }

    /// Connections in all phases.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
