//! The clients that have a volume open for writing, as its record names them (R6, ADR 0039).

use super::VolumeRecord;
use serde::{Deserialize, Serialize};
use types::writers::{Writer, Writers};
use types::{Epoch, SessionId};

/// The client that opened a volume. `client` and `ask` name its request, so that a repeated one is no second open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub name: String,
    pub address: String,
    pub since_ms: u64,
    pub client: u64,
    pub ask: u64,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

/// A writer, with the epoch of its open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    pub session: SessionId,
    pub epoch: Epoch,
    pub holder: Holder,
}

/// The writers of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Held {
    /// Those of a multi-writer volume, by their epochs. A program that does not know them finds no session, and refuses the record.
    Shared { writers: Vec<Holding> },
    /// The only one, with the epoch of the volume; none with session 0.
    Exclusive { session: SessionId, holder: Option<Holder> },
}

impl Held {
    /// No client writes to a volume that takes one writer at a time.
    pub const NOT: Held = Held::Exclusive { session: SessionId(0), holder: None };

    /// Returns the writers of a volume that has none.
    pub fn by_none(multi_writer: bool) -> Held {
        if multi_writer { Held::Shared { writers: Vec::new() } } else { Held::NOT }
    }
}

/// Writers that a record remembers while they leave, and those that it remembers afterwards: of more, the latest ones.
const LEAVING_MAX: usize = 32;
const FENCED_MAX: usize = 8;

fn keep_latest(list: &mut Vec<Holding>, max: usize) {
    list.drain(..list.len().saturating_sub(max));
}

impl VolumeRecord {
    /// Returns the volume with these writers alone, under a new epoch. The others are leaving until each of its PGs has that (`settled`).
    pub fn with_writers(&self, held: Held, epoch: Epoch, settled: bool) -> VolumeRecord {
        let mut next = VolumeRecord { held, epoch, settled, ..self.clone() };
        let gone = self.holders().filter(|(of, _)| next.holder_of(of.session).is_none());
        let gone: Vec<Holding> =
            gone.map(|(of, holder)| Holding { session: of.session, epoch: of.epoch, holder: holder.clone() }).collect();
        next.leaving.extend(gone);
        keep_latest(&mut next.leaving, LEAVING_MAX);
        if settled {
            next.let_out_in_each_pg();
        }
        next
    }

    /// Notes that each PG has the record of this epoch: the writers that were leaving are fenced.
    pub fn let_out_in_each_pg(&mut self) {
        self.fenced.append(&mut self.leaving);
        keep_latest(&mut self.fenced, FENCED_MAX);
    }

    /// Whether each of its PGs refuses all writers that it does not name. A recovery may find more PGs.
    pub fn refuses_others(&self) -> bool {
        self.settled && !self.recovering
    }

    pub fn is_multi_writer(&self) -> bool {
        matches!(self.held, Held::Shared { .. })
    }

    /// Returns the clients that have it open for writing, in the order of their opens.
    pub fn holders(&self) -> impl Iterator<Item = (Writer, &Holder)> {
        let (only, several) = match &self.held {
            Held::Exclusive { session, holder } => {
                let writer = Writer { epoch: self.epoch, session: *session };
                (holder.as_ref().filter(|_| session.0 != 0).map(|holder| (writer, holder)), &[][..])
            }
            Held::Shared { writers } => (None, &writers[..]),
        };
        let one = |of: &Holding| Writer { epoch: of.epoch, session: of.session };
        only.into_iter().chain(several.iter().map(move |of| (one(of), &of.holder)))
    }

    /// Returns the writers that its attach records name. One that no plan would write into the record is none of them.
    pub fn writers(&self) -> Writers {
        let known = self.holders().filter(|(writer, _)| writer.epoch <= self.epoch);
        known.fold(Writers::NONE, |list, (writer, _)| list.with(writer).unwrap_or(list))
    }

    pub fn is_held(&self) -> bool {
        self.holders().next().is_some()
    }

    /// Returns the client of a session that may write.
    pub fn holder_of(&self, session: SessionId) -> Option<&Holder> {
        self.holders().find(|(writer, _)| writer.session == session).map(|(_, holder)| holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> Holder {
        Holder { name: "vm-7".into(), address: "10.0.0.7:1".into(), since_ms: 1, client: 2, ask: 3 }
    }

    fn record(fields: &str) -> Result<VolumeRecord, serde_json::Error> {
        let text = format!(
            r#"{{"id":7,"pool":1,"name":"v","len_bytes":1073741824,"epoch":9,{fields},"settled":true,"state":"ready",
            "created_ms":5}}"#
        );
        serde_json::from_str(&text)
    }

    #[test]
    fn records_name_one_writer_or_several() {
        let holder_json = serde_json::to_string(&holder()).expect("plain data");
        let one = record(&format!(r#""session":4,"holder":{holder_json}"#)).expect("the form of the first version");
        assert!(one.is_held() && !one.is_multi_writer() && one.holder_of(SessionId(4)) == Some(&holder()));
        assert_eq!(one.writers(), Writers::one(SessionId(4), Epoch(9)), "it has the epoch of the volume");

        let none = record(r#""session":0,"holder":null"#).expect("the form of the first version");
        assert!(!none.is_held() && none.writers().is_empty() && none.held == Held::NOT);

        let of = |session, epoch| Holding { session: SessionId(session), epoch: Epoch(epoch), holder: holder() };
        let shared = VolumeRecord { held: Held::Shared { writers: vec![of(4, 7), of(6, 8)] }, ..none.clone() };
        let written = serde_json::to_value(&shared).expect("plain data");
        assert!(written.get("session").is_none(), "a program that knows one writer refuses it: {written}");
        assert_eq!(serde_json::from_value::<VolumeRecord>(written).expect("it is read"), shared);
        assert!(shared.writers().has(SessionId(6), Epoch(8)) && !shared.writers().has(SessionId(6), Epoch(9)));
        assert_eq!((shared.holder_of(SessionId(4)), shared.holder_of(SessionId(5))), (Some(&holder()), None));

        let damaged =
            VolumeRecord { held: Held::Shared { writers: vec![of(4, 10), of(6, 8), of(7, 8)] }, ..none.clone() };
        assert_eq!(damaged.writers(), Writers::one(SessionId(6), Epoch(8)), "an epoch to come, and one twice");

        let empty = VolumeRecord { held: Held::by_none(true), ..none };
        assert!(empty.is_multi_writer() && !empty.is_held());
        let written = serde_json::to_value(&empty).expect("plain data");
        assert_eq!(serde_json::from_value::<VolumeRecord>(written).expect("it is read"), empty);
        assert!(record(r#""epochs":1"#).is_err(), "a record without either is damaged");
    }
}
