//! Bytes of a tree: the nodes ascending by id, each with what differs from its parent.
//!
//! Invariant: each tree has one encoding, and no bytes cause a panic or an allocation beyond `GENERATIONS_MAX` nodes.

use super::{GENERATIONS_MAX, Node, Role, Tree};
use crate::{GenerationId, SnapshotId, VolumeId};
use bytes::{Buf, BufMut, BytesMut};
use std::collections::BTreeMap;

/// Version of the decision state that a tree lies in.
pub const DECISION_VERSION: u16 = 4;
/// Most bytes of one node.
pub const NODE_LEN_MAX: usize = 2 * VARINT_MAX + 1 + 3 * VARINT_MAX + 2 * VARINT_32_MAX + VARINT_MAX;

const VARINT_MAX: usize = 10;
const VARINT_32_MAX: usize = 5;
/// Bytes before the tree in a decision state: version, reserved, length of the tree.
const HEAD_LEN: usize = 8;

const ROLE: u8 = 0b11;
const FAMILY: u8 = 1 << 2;
const THROUGH: u8 = 1 << 3;
const LENGTH: u8 = 1 << 4;
const TIME: u8 = 1 << 5;
const VOLUME: u8 = 1 << 6;
const KNOWN: u8 = ROLE | FAMILY | THROUGH | LENGTH | TIME | VOLUME;

/// The bytes of a tree, and those behind it in a decision state.
pub type TreeAndRest<'a> = (&'a [u8], &'a [u8]);

/// Reason why bytes are no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error("the tree ends early, breaks its rules, or exceeds its limits")]
    Shape,
    #[error("decision state of version {0} is not known, only {DECISION_VERSION}")]
    Version(u16),
}

impl Tree {
    /// Appends the bytes of the tree.
    pub fn encode(&self, out: &mut BytesMut) {
        let mut last = 0;
        for (id, node) in &self.nodes {
            put_varint(out, id.0 - last);
            put_varint(out, node.parent.map_or(0, |parent| id.0 - parent.0));
            last = id.0;
            let (volume, role) = (node.role.volume(), role_code(node.role));
            let usual = self.usual_volume(*id, node.parent);
            // A generation with a parent is of the family of that one.
            let family = node.parent.is_none() && node.family != *id;
            let through = node.through != u32::MAX;
            let (length, time) = (node.chunk_count != 0, node.created_ms != 0);
            let flags =
                [(family, FAMILY), (through, THROUGH), (length, LENGTH), (time, TIME), (volume != usual, VOLUME)];
            out.put_u8(flags.iter().filter(|(is, _)| *is).fold(role, |all, (_, flag)| all | flag));
            let fields = [node.family.0, node.through.into(), node.chunk_count.into(), node.created_ms, volume.0];
            let written = flags.iter().zip(fields).filter(|((is, _), _)| *is);
            written.for_each(|(_, field)| put_varint(out, field));
            if let Role::Snapshot(_, name) = node.role {
                put_varint(out, name.0 - id.0);
            }
        }
    }

    /// Reads the bytes of a tree.
    ///
    /// # Errors
    /// For anything that `encode` does not produce.
    pub fn decode(mut bytes: &[u8]) -> Result<Tree, TreeError> {
        let mut tree = Tree::default();
        let mut last = 0;
        while bytes.has_remaining() {
            let (id, node) = tree.get_node(&mut bytes, last)?;
            if tree.nodes.len() >= GENERATIONS_MAX {
                return Err(TreeError::Shape);
            }
            last = id.0;
            tree.nodes.insert(id, node);
            if let Role::Snapshot(_, name) = node.role
                && tree.snapshots.insert(name, id).is_some()
            {
                return Err(TreeError::Shape);
            }
        }
        tree.check_hidden()?;
        Ok(tree)
    }

    /// Reads the tree in the bytes of a decision state. No bytes: the empty tree of a new replica.
    ///
    /// # Errors
    /// For bytes that are no decision state of this version, or whose tree is none.
    pub fn of_decision(bytes: &[u8]) -> Result<Tree, TreeError> {
        match Tree::split_decision(bytes)? {
            Some((tree, _)) => Tree::decode(tree),
            None => Ok(Tree::default()),
        }
    }

    /// Splits a decision state into the bytes of its tree and those behind it; `None` without bytes.
    ///
    /// # Errors
    /// For another version, a reserved field that is not zero, or a tree that is longer than the bytes.
    pub fn split_decision(bytes: &[u8]) -> Result<Option<TreeAndRest<'_>>, TreeError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut head = bytes;
        let version = head.try_get_u16_le().map_err(|_| TreeError::Shape)?;
        if version != DECISION_VERSION {
            return Err(TreeError::Version(version));
        }
        let reserved = head.try_get_u16_le().map_err(|_| TreeError::Shape)?;
        let len = head.try_get_u32_le().map_err(|_| TreeError::Shape)? as usize;
        if reserved != 0 || len > head.len() {
            return Err(TreeError::Shape);
        }
        Ok(Some(bytes[HEAD_LEN..].split_at(len)))
    }

    /// Appends the head of a decision state, and the tree.
    pub fn encode_decision(&self, out: &mut BytesMut) {
        let begin = out.len();
        out.put_u16_le(DECISION_VERSION);
        out.put_u16_le(0);
        out.put_u32_le(0);
        self.encode(out);
        let len = (out.len() - begin - HEAD_LEN) as u32;
        out[begin + 4..begin + HEAD_LEN].copy_from_slice(&len.to_le_bytes());
    }

    /// Reads the next node; all lower ones are in the tree.
    fn get_node(&self, bytes: &mut &[u8], last: u64) -> Result<(GenerationId, Node), TreeError> {
        let step = get_varint(bytes)?;
        let id = GenerationId(last.checked_add(step).filter(|_| step > 0).ok_or(TreeError::Shape)?);
        let parent = match get_varint(bytes)? {
            0 => None,
            below => Some(GenerationId(id.0.checked_sub(below).ok_or(TreeError::Shape)?)),
        };
        let above = match parent {
            Some(parent) => Some(*self.nodes.get(&parent).filter(|node| !node.role.is_head()).ok_or(TreeError::Shape)?),
            None => None,
        };
        let flags = bytes.try_get_u8().map_err(|_| TreeError::Shape)?;
        let mut field = |flag: u8, usual: u64| match flags & flag {
            0 => Ok(usual),
            // A field that is written differs from its usual value.
            _ => get_varint(bytes).and_then(|value| if value == usual { Err(TreeError::Shape) } else { Ok(value) }),
        };
        let family = GenerationId(field(FAMILY, above.map_or(id.0, |above| above.family.0))?);
        let through = field(THROUGH, u32::MAX.into())?;
        let (chunk_count, created_ms) = (field(LENGTH, 0)?, field(TIME, 0)?);
        let volume = VolumeId(field(VOLUME, self.usual_volume(id, parent).0)?);
        let role = match flags & ROLE {
            0 => Role::Head(volume),
            // A snapshot has the number of the head that came after it.
            1 => {
                let above = get_varint(bytes)?;
                let name = id.0.checked_add(above).filter(|_| above > 0).ok_or(TreeError::Shape)?;
                Role::Snapshot(volume, SnapshotId(name))
            }
            2 => Role::Hidden(volume),
            _ => return Err(TreeError::Shape),
        };
        let of_child = if parent.is_some() { FAMILY } else { THROUGH };
        let of_snapshot = if matches!(role, Role::Snapshot(..)) { 0 } else { LENGTH | TIME };
        if flags & !(KNOWN & !of_child & !of_snapshot) != 0 {
            return Err(TreeError::Shape);
        }
        let small = |value: u64| u32::try_from(value).map_err(|_| TreeError::Shape);
        let (through, chunk_count) = (small(through)?, small(chunk_count)?);
        Ok((id, Node { parent, family, through, role, chunk_count, created_ms }))
    }

    /// The volume of a generation when its node names none: that of the parent, or the volume that began with the generation.
    fn usual_volume(&self, id: GenerationId, parent: Option<GenerationId>) -> VolumeId {
        parent.map_or(VolumeId(id.0), |parent| self.nodes[&parent].role.volume())
    }

    /// Refuses a hidden generation that should have been merged or discarded.
    fn check_hidden(&self) -> Result<(), TreeError> {
        let mut counts: BTreeMap<GenerationId, usize> = BTreeMap::new();
        self.nodes.values().filter_map(|node| node.parent).for_each(|parent| *counts.entry(parent).or_default() += 1);
        let is_needed = |(id, node): (&GenerationId, &Node)| {
            !matches!(node.role, Role::Hidden(_)) || counts.get(id).is_some_and(|count| *count > 1)
        };
        if self.nodes.iter().all(is_needed) { Ok(()) } else { Err(TreeError::Shape) }
    }
}

fn role_code(role: Role) -> u8 {
    match role {
        Role::Head(_) => 0,
        Role::Snapshot(..) => 1,
        Role::Hidden(_) => 2,
    }
}

/// Appends seven bits a byte, the lowest first; the top bit says that more follow.
fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn get_varint(bytes: &mut &[u8]) -> Result<u64, TreeError> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = bytes.try_get_u8().map_err(|_| TreeError::Shape)?;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return Err(TreeError::Shape);
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            // A last byte of zeros would be a second encoding.
            return if byte == 0 && shift > 0 { Err(TreeError::Shape) } else { Ok(value) };
        }
    }
    Err(TreeError::Shape)
}
