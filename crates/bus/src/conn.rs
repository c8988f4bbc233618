//! One connection from the dial or the accept to its end, and the table of all connections.

use crate::config::LinkId;
use crate::credit::{Credit, CreditError};
use crate::greet::{Agreed, GreetError};
use crate::rx::Rx;
use crate::tx::Tx;
use env::{ConnId, NetError, Token};
use std::time::Duration;
use types::{OsdId, Time};
use wire::{Refuse, WireError};

/// Phase of a connection.
pub enum Phase {
    /// The env is connecting.
    Dialing { osd: OsdId },
    /// The dial was given up. The slot stays until the env answers; a connection that it brings is closed.
    Abandoned { osd: OsdId },
    /// The other side's hello is awaited.
    Greeting,
    /// A link. `credit` exists when one end is a client.
    Up { agreed: Agreed, credit: Option<Credit> },
    /// A refusal was sent; the other side may read it and close. Bytes that it sends meanwhile are dropped,
    /// because closing with unread bytes would reset the connection and destroy the refusal. `say` waits for the
    /// send that is in flight.
    Refusing { say: Option<Refuse> },
}

/// One connection.
pub struct Conn {
    /// `None` while dialling.
    pub net: Option<ConnId>,
    /// The OSD whose route holds this connection; `None` when it was accepted, or the dial was given up.
    pub dialled: Option<OsdId>,
    pub accepted: bool,
    pub phase: Phase,
    /// End of the phase. For a link: time of the next check for silence, `Time::NEVER` while no message is expected.
    pub deadline: Time,
    /// Time of the last received bytes.
    pub heard: Time,
    /// Time of the last ping.
    pub pinged: Time,
    /// Time at which requests came to be in flight, after none was.
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

/// Reason why a connection ended, or could not begin.
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
    #[error("no bytes were received for {0:?}")]
    Silent(Duration),
    #[error("no longer wanted")]
    Unwanted,
    #[error("made owner for another connection")]
    Evicted,
    /// The user of the connection ended it.
    #[error("{0}")]
    Judged(String),
}

impl LinkError {
    /// Whether the peer sent something that it may not send.
    pub fn is_peers_fault(&self) -> bool {
        matches!(self, LinkError::Wire(_) | LinkError::Credit(_) | LinkError::Role)
    }
}

/// Bits of a [`LinkId`] that name the slot; the rest counts connections.
const SLOT_BITS: u32 = 20;

/// All connections. A link's id gives its slot without a search, and differs for each connection that uses the slot.
#[derive(Default)]
pub struct Conns {
    slots: Vec<Option<(LinkId, Box<Conn>)>>,
    free: Vec<u32>,
    counter: u64,
}

fn slot_of(link: LinkId) -> usize {
    (link.0 & ((1 << SLOT_BITS) - 1)) as usize
}

/// Returns the token of a connection's operations.
pub fn token(owner: u8, link: LinkId) -> Token {
    Token::new(owner, (link.0 >> SLOT_BITS) as u32, slot_of(link) as u32)
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

    /// Returns the connection whose operation completed; `None` when it is gone.
    pub fn find(&self, token: Token) -> Option<LinkId> {
        let (link, _) = self.slots.get(token.key as usize)?.as_ref()?;
        ((link.0 >> SLOT_BITS) as u32 == token.generation).then_some(*link)
    }

    /// Counts the connections in all phases.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
