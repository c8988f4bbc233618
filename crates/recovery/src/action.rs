//! Facts that the loop gives, and actions that it carries out.

use types::{Index, IoBuf, OsdId, PgId, ReplicaId, Term, Time};
use wire::Message;

/// Facts of the OSD at this moment.
pub trait View {
    fn now(&self) -> Time;

    /// Whether a connection to the OSD is up.
    fn reaches(&self, osd: OsdId) -> bool;

    /// Whether a leader of the PG was heard lately.
    fn is_led(&self, pg: PgId) -> bool;

    /// Whether the log has room for payloads that come back.
    fn can_refill(&self) -> bool;
}

/// One step that the OSD's loop carries out.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Send { to: OsdId, message: Message },
    /// The peer sent bytes that fail their checksum: its connection is closed.
    BadPeer { osd: OsdId },
    /// Give this payload, which matches the replica's own record, to the engine.
    Refill { replica: ReplicaId, index: Index, term: Term, payload: IoBuf },
    /// The replica fails. Its log before the entry `from` is its past.
    FailBefore { replica: ReplicaId, from: Index, reason: String },
    /// Report to meta soon: what is known of lost data has changed.
    Report,
}
