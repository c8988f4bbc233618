//! The record of a volume: its length, and its place in the trash.
//!
//! Fields that came after the first version have defaults, so records of that version can still be read.

use super::held::{Held, Holding};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use types::control::{Base, CHUNKS_KEPT};
use types::faults::Fault;
use types::limits::VOLUME_LEN_MAX;
use types::units::CHUNKS_PER_SEGMENT;
use types::{CHUNK, Epoch, GenerationId, PoolId, QosLimits, SnapshotId, Stripe, VolumeId, WhenFull};

/// Life cycle of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    Ready,
    /// Its data is kept until the time in `trash`. A program that does not know the state refuses the records: it would give the
    /// name away, or the data.
    Trashed,
    Deleting,
}

/// A volume. While it is not `settled`, its attach record of this epoch is not known to
/// be committed in all its PGs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    pub id: VolumeId,
    pub pool: PoolId,
    pub name: String,
    pub len_bytes: u64,
    pub epoch: Epoch,
    /// The clients that may write.
    #[serde(flatten)]
    pub held: Held,
    /// Writers that were let out: not each of its PGs has a record without them yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<Holding>,
    /// The last ones that no PG takes a write of any more, so that a repeated fence finds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fenced: Vec<Holding>,
    pub settled: bool,
    pub state: VolumeState,
    pub created_ms: u64,
    /// A recovery of the records ended its hold and is not finished: its segments may be incomplete (ADR 0011).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovering: bool,
    /// Fixed at creation.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub stripe: Stripe,
    /// Free text and labels of administrators.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Another length that is not valid yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<Resize>,
    /// Orders its lengths: it rises with each step of a shrink.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub len_epoch: u32,
    /// Set while the volume is in the trash, and while it is deleted from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trash: Option<Trash>,
    /// The highest generation that an order of the volume has named; 0: none but its first one.
    #[serde(default, skip_serializing_if = "is_first")]
    pub newest: GenerationId,
    /// It turns back to a snapshot; not all its PGs have done so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// The snapshot with whose contents it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<Base>,
    /// Number of its ancestors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub depth: u32,
    /// Not all PGs of a clone have begun it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cloning: bool,
    /// It gets copies of all that it shows of its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flatten: Option<Flatten>,
    /// Limits of its own; `None`: those of its pool are in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<QosLimits>,
    /// Faults that are rehearsed on it.
    #[serde(default, skip_serializing_if = "Faults::is_unused")]
    pub faults: Faults,
    #[serde(default, skip_serializing_if = "is_of_client")]
    pub when_full: WhenFull,
}

fn is_of_client(policy: &WhenFull) -> bool {
    *policy == WhenFull::Client
}

/// The rehearsed faults of a volume, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// The highest number that was given out: a client must not take a new fault for an old one.
    pub last: u32,
    pub list: Vec<FaultRecord>,
}

impl Faults {
    fn is_unused(&self) -> bool {
        self.last == 0 && self.list.is_empty()
    }
}

/// A rehearsed fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    pub id: u32,
    pub fault: Fault,
    /// Its begin and its end, by the wall clock of the leading metadata server.
    pub since_ms: u64,
    pub until_ms: u64,
    /// The administrator that asked for it.
    #[serde(default)]
    pub by: String,
}

/// The intent to give a volume another length. It becomes `len_bytes` when each PG of the volume has committed an attach record with
/// the chunks of that length; a shorter one has more steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    pub len_bytes: u64,
    pub since_ms: u64,
    /// The administrator that asked for it.
    #[serde(default)]
    pub by: String,
    /// Set while the volume gets shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrink: Option<Shrink>,
}

/// How a volume gets shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shrink {
    /// Data behind the new end goes; without it, the shrink ends when there is some.
    pub discard: bool,
    /// The volume is taken from a client that does not stop to use what is behind the new end.
    pub force: bool,
    /// No client uses what is behind the new end, and the PGs take the shorter length: there is no way back.
    pub ordered: bool,
}

/// The intent to turn a volume back to a snapshot. It is done when each PG of the volume has committed an attach record with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    pub snapshot: SnapshotId,
    /// The number of the new head. A recovery of the records gives the volume a higher one, and must not repeat what a PG has done.
    pub to: GenerationId,
    pub since_ms: u64,
    /// The administrator that asked for it.
    #[serde(default)]
    pub by: String,
}

/// The intent to copy all that a clone shows of its parent. It is done when no PG of the volume needs the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flatten {
    pub since_ms: u64,
    /// The administrator that asked for it.
    #[serde(default)]
    pub by: String,
}

/// A removed volume whose data is still kept. The record's own name is a key that no administrator can give, so the old one is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trash {
    /// The name that it had in its pool.
    pub name: String,
    pub since_ms: u64,
    /// Its deletion begins then, by the wall clock of the leading metadata server.
    pub until_ms: u64,
    #[serde(default)]
    pub by: String,
}

fn is_first(newest: &GenerationId) -> bool {
    newest.0 == 0
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_whole(stripe: &Stripe) -> bool {
    !stripe.is_striped()
}

impl VolumeRecord {
    /// Returns the number of chunks of the volume; the last ones may lie partly or wholly outside.
    pub fn chunk_count(&self) -> u32 {
        self.chunks_of(self.len_bytes)
    }

    /// Returns the number of chunks of the volume if it had this length.
    pub fn chunks_of(&self, len_bytes: u64) -> u32 {
        u32::try_from(self.stripe.chunk_count(len_bytes)).expect("VOLUME_LEN_MAX bounds it")
    }

    /// Returns the least length at which the volume has so many chunks, in whole ones. The columns of a striped segment come
    /// together.
    pub fn len_of_chunks(&self, count: u32) -> u64 {
        let unit = if self.stripe.is_striped() { CHUNKS_PER_SEGMENT } else { 1 };
        (u64::from(count.div_ceil(unit)) * u64::from(unit) * CHUNK).min(VOLUME_LEN_MAX)
    }

    /// Returns the number of chunks that its PGs must take. It comes before the length: a write above the old end finds its chunk in
    /// each PG. During a recovery the length may be an older, shorter one, and no PG may drop what lies above it (R17).
    pub fn attached_chunks(&self) -> u32 {
        match (self.state, &self.resize) {
            (VolumeState::Deleting, _) => 0,
            _ if self.recovering => CHUNKS_KEPT,
            (_, Some(Resize { len_bytes, shrink: Some(Shrink { ordered: true, .. }), .. })) => {
                self.chunks_of(*len_bytes)
            }
            (_, Some(resize)) => self.chunks_of(resize.len_bytes.max(self.len_bytes)),
            (_, None) => self.chunk_count(),
        }
    }

    /// Returns the length that clients may use, with its epoch: behind the end of a shrink they must not write any more.
    pub fn usable(&self) -> (u32, u64) {
        let end = self.resize.as_ref().map_or(u64::MAX, |resize| resize.len_bytes);
        (self.len_epoch, self.len_bytes.min(end))
    }

    /// The shrink that goes on.
    pub fn shrink(&self) -> Option<Shrink> {
        self.resize.as_ref().and_then(|resize| resize.shrink)
    }

    /// Returns the head with which the volume comes to another PG.
    pub fn head(&self) -> GenerationId {
        self.newest.max(GenerationId::first_of(self.id))
    }

    /// Returns the snapshot that the head stands on, in PGs that do not know the head. A PG that was recovered from an old replica may have
    /// lost a clone, so each of its attach records names its base.
    pub fn base(&self) -> Option<Base> {
        let own = |rollback: &Rollback| Base { volume: self.id, snapshot: rollback.snapshot, to: rollback.to };
        self.rollback.as_ref().map(own).or(self.clone_of)
    }

    /// Whether its contents are about to become those of a snapshot: no client may see them yet.
    pub fn changes_contents(&self) -> bool {
        self.rollback.is_some() || self.cloning
    }

    /// Returns the name that users gave it, without the pool.
    pub fn shown_name(&self) -> &str {
        self.trash.as_ref().map_or(&self.name, |trash| &trash.name)
    }

    /// Returns the key of a volume in the trash, in place of its name. It is no legal name, so no volume has it.
    pub fn trash_key(&self) -> String {
        format!(".trash.{}", self.id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = r#"{"id":7,"pool":1,"name":"v","len_bytes":1073741824,"epoch":3,"session":0,"holder":null,
        "settled":true,"state":"ready","created_ms":5}"#;

    #[test]
    fn record_of_the_first_version_is_read_and_written_as_it_was() {
        let record: VolumeRecord = serde_json::from_str(FIRST).expect("it is read");
        assert!(
            record.trash.is_none() && record.resize.is_none() && record.labels.is_empty() && record.limits.is_none()
        );
        assert_eq!((record.attached_chunks(), record.shown_name()), (64, "v"));
        let written = serde_json::to_value(&record).expect("plain data");
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(FIRST).expect("JSON"), "no field more");
    }

    #[test]
    fn faults_are_kept_whatever_number_the_record_has_given_out() {
        let mut volume = serde_json::from_str::<serde_json::Value>(FIRST).expect("JSON");
        let fault = r#"{"id":4,"fault":{"effect":"pause","percent":10,"reads":true,"writes":false},"since_ms":8,
            "until_ms":9008,"by":"ann"}"#;
        let fault: serde_json::Value = serde_json::from_str(fault).expect("JSON");
        volume["faults"] = serde_json::json!({ "last": 0, "list": [fault] });
        let record: VolumeRecord = serde_json::from_value(volume).expect("it is read");
        let again = serde_json::to_value(&record).expect("plain data");
        assert_eq!(serde_json::from_value::<VolumeRecord>(again).expect("it is read"), record);
    }

    #[test]
    fn attach_records_name_the_longer_length_and_none_in_a_recovery() {
        let record: VolumeRecord = serde_json::from_str(FIRST).expect("it is read");
        let resize = Some(Resize { len_bytes: (3 << 30) + 512, since_ms: 0, by: String::new(), shrink: None });
        let longer = VolumeRecord { resize, ..record.clone() };
        assert_eq!(longer.attached_chunks(), 3 * 64 + 1);
        let striped = VolumeRecord { stripe: Stripe::new(65536, 4).expect("a layout"), ..longer.clone() };
        assert_eq!(striped.attached_chunks(), 4 * 64);
        assert_eq!((striped.len_of_chunks(3 * 64 + 1), longer.len_of_chunks(3 * 64 + 1)), (4 << 30, (3 << 30) + CHUNK));
        assert_eq!(VolumeRecord { recovering: true, ..longer.clone() }.attached_chunks(), CHUNKS_KEPT);
        assert_eq!(VolumeRecord { state: VolumeState::Deleting, ..longer }.attached_chunks(), 0);
        let trash = Trash { name: "v".into(), since_ms: 0, until_ms: 9, by: String::new() };
        let trashed =
            VolumeRecord { name: record.trash_key(), state: VolumeState::Trashed, trash: Some(trash), ..record };
        assert_eq!((trashed.attached_chunks(), trashed.shown_name()), (64, "v"));
        assert!(!crate::names::is_valid(&trashed.name), "no administrator can give that name");
    }
}
