//! Tests of the tree: its laws against a model that copies everything, its bytes, its refusals.

use super::*;
use crate::rng::Rng;
use bytes::BytesMut;

const fn g(n: u64) -> GenerationId {
    GenerationId(n)
}

const V: VolumeId = VolumeId(1);

fn bytes_of(tree: &Tree) -> BytesMut {
    let mut bytes = BytesMut::new();
    tree.encode(&mut bytes);
    bytes
}

/// A volume whose head is the last of `ids`; all others are its snapshots, oldest first.
fn chain(ids: &[u64]) -> Tree {
    let mut tree = Tree::default();
    tree.begin(V, g(ids[0]), None).unwrap();
    ids.windows(2).for_each(|pair| tree.branch(V, g(pair[0]), g(pair[1]), 4, 1000).unwrap());
    tree
}

fn merge(from: u64, into: u64, through: u32) -> Change {
    Change::Merge { from: g(from), into: g(into), through }
}

#[test]
fn removed_generation_goes_to_its_only_child() {
    let mut tree = chain(&[1, 2, 3]);
    assert_eq!(tree.remove(g(2)), Ok(vec![merge(2, 3, u32::MAX)]));
    assert_eq!(tree.path(g(3)).collect::<Vec<_>>(), [(g(3), u32::MAX), (g(1), u32::MAX)]);
    assert_eq!(tree.remove(g(1)), Ok(vec![merge(1, 3, u32::MAX)]));
    let last = tree.get(g(3)).copied().unwrap();
    assert_eq!((last.parent, last.family), (None, g(1)), "blocks of its family have its checksums");
    assert_eq!(tree.remove(g(3)), Ok(vec![Change::Discard(g(3))]));
    assert_eq!(tree.remove(g(3)), Err(TreeRefusal::Unknown(g(3))));
    assert!(tree.is_empty());
}

#[test]
fn snapshot_with_two_children_is_hidden_until_one_is_left() {
    let mut tree = chain(&[1, 2]);
    tree.begin(VolumeId(5), g(5), Some(g(1))).unwrap();
    assert_eq!(tree.remove(g(1)), Ok(vec![]), "the head and the clone need it");
    let hidden = tree.get(g(1)).copied().unwrap();
    assert_eq!((hidden.role, hidden.chunk_count, hidden.created_ms), (Role::Hidden(V), 0, 0));
    assert_eq!(tree.remove(g(1)), Err(TreeRefusal::NotSnapshot(g(1))));
    assert_eq!(tree.begin(VolumeId(6), g(6), Some(g(1))), Err(TreeRefusal::NotSnapshot(g(1))), "it has no name");
    let mut detached = tree.clone();
    assert_eq!(detached.detach(g(5)), Ok(vec![merge(1, 2, u32::MAX)]), "the clone was flattened");
    assert_eq!(tree.remove(g(5)), Ok(vec![Change::Discard(g(5)), merge(1, 2, u32::MAX)]), "the clone was removed");
    assert_eq!(tree.len(), 1);
}

#[test]
fn volume_shows_its_snapshots_and_a_clone_its_parents() {
    let mut tree = chain(&[1, 2, 3]);
    let (clone, other) = (VolumeId(5), VolumeId(6));
    tree.begin(clone, g(5), Some(g(2))).unwrap();
    tree.begin(other, g(6), Some(g(2))).unwrap();
    tree.shorten(g(6), 3).unwrap();
    let shown = |tree: &Tree, volume| {
        let shown = tree.shown().remove(&volume).unwrap_or_default();
        shown.into_iter().map(|(id, through)| (id.0, through)).collect::<Vec<_>>()
    };
    const ALL: u32 = u32::MAX;
    assert_eq!(shown(&tree, V), [(1, ALL), (2, ALL), (3, ALL)]);
    assert_eq!(shown(&tree, clone), [(1, ALL), (2, ALL), (5, ALL)]);
    assert_eq!(shown(&tree, other), [(1, 3), (2, 3), (6, ALL)], "it is shorter than its parent");
    tree.end(g(3)).unwrap();
    assert_eq!(tree.get(g(2)).map(|node| node.role), Some(Role::Hidden(V)));
    assert_eq!(shown(&tree, V), [], "a hidden generation is no volume");
    assert_eq!(shown(&tree, clone), [(2, ALL), (5, ALL)], "its parent took the blocks of the oldest one");
}

#[test]
fn cascade_ends_at_a_named_generation() {
    let mut tree = chain(&[1, 2, 3]);
    tree.begin(VolumeId(5), g(5), Some(g(2))).unwrap();
    tree.remove(g(2)).unwrap();
    let changes = tree.remove(g(5));
    assert_eq!(changes, Ok(vec![Change::Discard(g(5)), merge(2, 3, u32::MAX)]));
    assert_eq!(
        tree.get(g(1)).map(|node| node.role),
        Some(Role::Snapshot(V, SnapshotId(2))),
        "it has a name, so it stays"
    );
    assert_eq!(tree.path(g(3)).map(|(id, _)| id).collect::<Vec<_>>(), [g(3), g(1)]);
    tree.turn_back(g(3), Some(g(1)), g(6)).unwrap();
    assert_eq!(tree.remove(g(6)), Ok(vec![Change::Discard(g(6))]), "a snapshot without a child stays, too");
}

#[test]
fn snapshot_keeps_its_name_while_its_generation_changes_the_parent() {
    let mut tree = chain(&[1, 2, 3, 4]);
    let named = |tree: &Tree| tree.snapshots_of(V).map(|(id, at)| (id.0, at.0)).collect::<Vec<_>>();
    assert_eq!(named(&tree), [(2, 1), (3, 2), (4, 3)]);
    tree.remove(g(1)).unwrap();
    assert_eq!((named(&tree), tree.snapshot(SnapshotId(2))), (vec![(3, 2), (4, 3)], None));
    tree.begin(VolumeId(9), g(9), Some(g(2))).unwrap();
    tree.remove(g(2)).unwrap();
    assert_eq!(named(&tree), [(4, 3)], "a hidden generation has no name");
    assert_eq!(Tree::decode(&bytes_of(&tree)), Ok(tree));
}

#[test]
fn branch_that_is_taken_back_leaves_no_trace() {
    let mut tree = chain(&[1, 2]);
    let before = tree.clone();
    tree.branch(V, g(2), g(5), 4, 1000).unwrap();
    let mut shortened = tree.clone();
    shortened.shorten(g(5), 1).unwrap();
    assert_eq!(shortened.undo_branch(g(5)), Err(TreeRefusal::NotSnapshot(g(2))), "it hides a part of the parent");
    let mut cloned = tree.clone();
    cloned.begin(VolumeId(9), g(9), Some(g(2))).unwrap();
    assert_eq!(cloned.undo_branch(g(5)), Err(TreeRefusal::NotSnapshot(g(2))), "a clone shows the snapshot");
    assert_eq!(tree.undo_branch(g(2)), Err(TreeRefusal::NotHead(g(2))));
    assert_eq!(tree.undo_branch(g(5)), Ok(vec![Change::Discard(g(5))]));
    assert_eq!(tree, before);
    let mut later = before;
    later.branch(V, g(2), g(6), 4, 1000).unwrap();
    later.remove(g(2)).unwrap();
    assert_eq!(later.undo_branch(g(6)), Err(TreeRefusal::NotSnapshot(g(1))), "the snapshot of that branch is gone");
}

#[test]
fn ended_volume_leaves_what_clones_need() {
    let mut tree = chain(&[1, 2, 3, 4]);
    tree.begin(VolumeId(9), g(9), Some(g(2))).unwrap();
    let all: Vec<Change> = [4, 3].map(|id| Change::Discard(g(id))).into_iter().chain([merge(2, 9, u32::MAX)]).collect();
    assert_eq!(tree.end(g(4)), Ok(all.into_iter().chain([merge(1, 9, u32::MAX)]).collect()));
    assert_eq!(tree.iter().map(|(id, _)| id).collect::<Vec<_>>(), [g(9)]);
    assert_eq!(tree.end(g(9)), Ok(vec![Change::Discard(g(9))]));
    assert!(tree.is_empty() && tree.snapshots_of(V).next().is_none());
}

#[test]
fn through_is_the_least_of_the_edges() {
    let mut tree = chain(&[1, 2]);
    tree.shorten(g(2), 7).unwrap();
    tree.branch(V, g(2), g(3), 7, 0).unwrap();
    tree.shorten(g(3), 9).unwrap();
    assert_eq!(tree.path(g(3)).collect::<Vec<_>>(), [(g(3), u32::MAX), (g(2), 9), (g(1), 7)]);
    tree.shorten(g(3), 3).unwrap();
    tree.shorten(g(3), 5).unwrap();
    assert_eq!(tree.path(g(3)).collect::<Vec<_>>(), [(g(3), u32::MAX), (g(2), 3), (g(1), 3)], "growth shows nothing");
    assert_eq!(tree.remove(g(2)), Ok(vec![merge(2, 3, 3)]));
    assert_eq!(tree.path(g(3)).collect::<Vec<_>>(), [(g(3), u32::MAX), (g(1), 3)]);
    let mut alone = chain(&[4]);
    alone.shorten(g(4), 2).unwrap();
    assert_eq!(alone.get(g(4)).map(|node| node.through), Some(u32::MAX), "there is no parent to hide");
}

#[test]
fn refused_change_leaves_the_tree_as_it_was() {
    let mut tree = chain(&[3, 5]);
    tree.begin(VolumeId(9), g(9), None).unwrap();
    let before = tree.clone();
    assert_eq!(tree.begin(V, g(3), None), Err(TreeRefusal::Known(g(3))));
    assert_eq!(tree.begin(V, g(10), Some(g(5))), Err(TreeRefusal::NotSnapshot(g(5))), "a head has no child");
    assert_eq!(tree.begin(V, g(2), Some(g(3))), Err(TreeRefusal::NotAbove(g(2))));
    assert_eq!(tree.begin(V, g(10), Some(g(4))), Err(TreeRefusal::Unknown(g(4))));
    assert_eq!(tree.branch(V, g(3), g(10), 1, 1), Err(TreeRefusal::NotHead(g(3))));
    assert_eq!(tree.branch(VolumeId(2), g(5), g(10), 1, 1), Err(TreeRefusal::NotHead(g(5))));
    assert_eq!(tree.branch(V, g(5), g(4), 1, 1), Err(TreeRefusal::NotAbove(g(4))));
    assert_eq!(tree.turn_back(g(9), Some(g(3)), g(10)), Err(TreeRefusal::NotSnapshot(g(3))), "of another volume");
    assert_eq!(tree.turn_back(g(5), Some(g(3)), g(4)), Err(TreeRefusal::NotAbove(g(4))));
    assert_eq!(tree.turn_back(g(3), Some(g(3)), g(10)), Err(TreeRefusal::NotHead(g(3))));
    assert_eq!(
        (tree.detach(g(3)), tree.shorten(g(3), 1)),
        (Err(TreeRefusal::NotHead(g(3))), Err(TreeRefusal::NotHead(g(3))))
    );
    assert_eq!(tree, before);
}

#[test]
fn full_tree_takes_no_generation_and_its_bytes_have_a_limit() {
    let mut tree = chain(&[1]);
    (1..GENERATIONS_MAX as u64).for_each(|n| tree.branch(V, g(n), g(n + 1), 8192, 1_700_000_000_000).unwrap());
    let next = g(GENERATIONS_MAX as u64 + 1);
    assert_eq!(tree.begin(V, next, None), Err(TreeRefusal::Full));
    assert_eq!(tree.branch(V, g(GENERATIONS_MAX as u64), next, 1, 1), Err(TreeRefusal::Full));
    let mut bytes = bytes_of(&tree);
    assert_eq!(bytes.len(), GENERATIONS_MAX * 12 - 9, "a head has no length, time and name");
    assert_eq!(Tree::decode(&bytes), Ok(tree));
    // One node more: an id above, no parent, a head of another volume.
    bytes.extend([1, 0, 0]);
    assert_eq!(Tree::decode(&bytes), Err(TreeError::Shape));
}

#[test]
fn golden_bytes_of_a_tree_never_change() {
    let mut tree = chain(&[1, 0x102, 0x103]);
    tree.begin(VolumeId(0x200), g(0x200), Some(g(0x102))).unwrap();
    tree.shorten(g(0x200), 3).unwrap();
    tree.remove(g(1)).unwrap();
    tree.remove(g(0x102)).unwrap();
    let hex: String = bytes_of(&tree).iter().map(|byte| format!("{byte:02x}")).collect();
    let hidden = "8202_00_46_01_01";
    assert_eq!(hex, [hidden, "01_01_00", "fd01_fe01_48_03_8004"].concat().replace('_', ""));
    assert_eq!(Tree::decode(&bytes_of(&tree)), Ok(tree));
}

#[test]
fn one_encoding_of_each_tree() {
    let refused = |bytes: &[u8]| assert_eq!(Tree::decode(bytes), Err(TreeError::Shape), "{bytes:02x?}");
    let head: [u8; 3] = [1, 0, 0];
    assert_eq!(Tree::decode(&head), Ok(chain(&[1])));
    (1..3).for_each(|len| refused(&head[..len]));
    refused(&[0, 0, 0]);
    refused(&[0x81, 0, 0, 0]);
    refused(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0]);
    for (flags, field) in [(FLAG_FAMILY, 1), (FLAG_THROUGH, 1), (FLAG_LENGTH, 1), (FLAG_TIME, 1), (FLAG_VOLUME, 1)] {
        refused(&[1, 0, flags, field]);
    }
    refused(&[1, 0, 1 | FLAG_LENGTH, 0]);
    refused(&[1, 0, 3]);
    refused(&[1, 0, 0x80]);
    refused(&[1, 1, 0]);
    refused(&[2, 1, 0]);
    let snapshot = [1, 0, 1, 1];
    refused(&[1, 0, 1]);
    refused(&[1, 0, 1, 0]);
    refused(&[1, 0, 1, 2, 1, 1, 1, 1]);
    refused(&[&snapshot[..], &[1, 1, FLAG_FAMILY, 1]].concat());
    refused(&[&head[..], &[1, 1, 0]].concat());
    refused(&[&[1, 0, 2][..], &[1, 1, 0]].concat());
    assert!(Tree::decode(&[&snapshot[..], &[1, 1, FLAG_THROUGH, 9]].concat()).is_ok());
    assert!(Tree::decode(&[&[1, 0, 2][..], &[1, 1, 0], &[1, 2, 0]].concat()).is_ok(), "two need the hidden one");
}

const FLAG_FAMILY: u8 = 4;
const FLAG_THROUGH: u8 = 8;
const FLAG_LENGTH: u8 = 16;
const FLAG_TIME: u8 = 32;
const FLAG_VOLUME: u8 = 64;

#[test]
fn tree_lies_at_the_begin_of_a_decision_state() {
    let tree = chain(&[1, 2]);
    let mut state = BytesMut::new();
    tree.encode_decision(&mut state);
    let len = state.len();
    state.extend(b"rest");
    assert_eq!(Tree::of_decision(&state), Ok(tree));
    assert_eq!(Tree::of_decision(&[]), Ok(Tree::default()), "a new replica");
    assert_eq!(Tree::of_decision(&state[..len - 1]), Err(TreeError::Shape));
    let mut older = state.to_vec();
    older[0] = 3;
    assert_eq!(Tree::of_decision(&older), Err(TreeError::Version(3)));
}

/// Each generation as a full copy of its contents, and the blocks that a store holds for each.
#[derive(Default)]
struct Model {
    shown: BTreeMap<GenerationId, BTreeMap<u32, u64>>,
    own: BTreeMap<(GenerationId, u32), u64>,
    /// Head and length of each volume.
    volumes: BTreeMap<VolumeId, (GenerationId, u32)>,
}

const LEN: u32 = 6;

impl Model {
    fn read(&self, tree: &Tree, id: GenerationId, index: u32) -> u64 {
        let steps = tree.path(id).take_while(|(_, through)| index < *through);
        steps.filter_map(|(at, _)| self.own.get(&(at, index))).next().copied().unwrap_or(0)
    }

    fn put(&mut self, head: GenerationId, index: u32, value: u64) {
        self.own.insert((head, index), value);
        self.shown.get_mut(&head).expect("it is shown").insert(index, value);
    }

    fn drop_from(&mut self, id: GenerationId, from: u32) {
        self.own.retain(|(owner, index), _| *owner != id || *index < from);
    }

    fn take(&mut self, tree: &Tree, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Discard(id) => self.drop_from(id, 0),
                Change::Shorten { generation, from_chunk } => self.drop_from(generation, from_chunk),
                Change::Merge { from, into, through } => {
                    for index in 0..LEN.min(through) {
                        if let Some(value) = self.own.get(&(from, index)).copied() {
                            self.own.entry((into, index)).or_insert(value);
                        }
                    }
                    self.drop_from(from, 0);
                }
            }
        }
        self.shown.retain(|id, _| tree.get(*id).is_some());
    }

    fn check(&self, tree: &Tree) {
        for (id, shown) in &self.shown {
            for index in 0..LEN {
                let want = shown.get(&index).copied().unwrap_or(0);
                assert_eq!(self.read(tree, *id, index), want, "block {index} of {id}");
            }
        }
        assert_eq!(Tree::decode(&bytes_of(tree)).as_ref(), Ok(tree), "the bytes say all, and no law is broken");
        assert!(self.own.keys().all(|(id, _)| tree.get(*id).is_some()), "each block belongs to a generation");
        check_shown(tree);
    }
}

/// Compares what volumes show with the paths of all their generations.
fn check_shown(tree: &Tree) {
    let mut want: BTreeMap<VolumeId, BTreeMap<GenerationId, u32>> = BTreeMap::new();
    for (id, node) in tree.iter().filter(|(_, node)| !matches!(node.role, Role::Hidden(_))) {
        let of_volume = want.entry(node.role.volume()).or_default();
        for (generation, through) in tree.path(id) {
            let most = of_volume.entry(generation).or_default();
            *most = through.max(*most);
        }
    }
    assert_eq!(tree.shown(), want);
}

#[test]
fn tree_of_random_orders_keeps_its_laws() {
    let (mut rng, mut tree, mut model) = (Rng::new(1), Tree::default(), Model::default());
    let (mut next, mut steps, mut merges, mut hidden) = (1, 0, 0, 0);
    while steps < 13_000 {
        steps += 1;
        let pick =
            |rng: &mut Rng, from: &[GenerationId]| from.get(rng.below(from.len().max(1) as u64) as usize).copied();
        let snapshots: Vec<GenerationId> =
            tree.iter().filter(|(_, node)| matches!(node.role, Role::Snapshot(..))).map(|(id, _)| id).collect();
        let heads: Vec<GenerationId> = model.volumes.values().map(|(head, _)| *head).collect();
        let chosen = pick(&mut rng, &heads).map(|head| (head, tree.get(head).expect("a head").role.volume()));
        let snapshot = pick(&mut rng, &snapshots);
        let what = rng.below(100);
        let Some((head, volume)) = chosen.filter(|_| what > 3) else {
            if model.volumes.len() < 4 {
                let (id, parent) = (g(next), snapshot.filter(|_| what > 0));
                tree.begin(VolumeId(next), id, parent).expect("a new id");
                model.shown.insert(id, parent.map(|parent| model.shown[&parent].clone()).unwrap_or_default());
                model.volumes.insert(VolumeId(next), (id, LEN));
                next += 1;
            }
            continue;
        };
        let len = model.volumes[&volume].1;
        let index = rng.below(len.into()) as u32;
        match what {
            0..45 => model.put(head, index, rng.below(4)),
            45..60 if tree.len() < 40 => {
                let before = tree.clone();
                tree.branch(volume, head, g(next), len, steps).expect("a head");
                if rng.chance(1, 4) {
                    assert_eq!(tree.undo_branch(g(next)), Ok(vec![Change::Discard(g(next))]));
                    assert_eq!(tree, before);
                    next += 1;
                    continue;
                }
                model.shown.insert(g(next), model.shown[&head].clone());
                model.volumes.insert(volume, (g(next), len));
                next += 1;
            }
            45..80 => {
                let Some(gone) = snapshot else { continue };
                let changes = tree.remove(gone).expect("a snapshot");
                hidden += u32::from(changes.is_empty());
                merges += changes.iter().filter(|change| matches!(change, Change::Merge { .. })).count();
                model.take(&tree, &changes);
            }
            80..84 => {
                let of_volume = |id: &GenerationId| tree.get(*id).is_some_and(|node| node.role.volume() == volume);
                let own: Vec<GenerationId> = snapshots.iter().copied().filter(of_volume).collect();
                let to = pick(&mut rng, &own);
                let changes = tree.turn_back(head, to, g(next)).expect("a snapshot of the volume");
                let mut shown = to.map(|to| model.shown[&to].clone()).unwrap_or_default();
                tree.shorten(g(next), len).expect("a head");
                shown.retain(|index, _| *index < len);
                model.shown.insert(g(next), shown);
                model.volumes.insert(volume, (g(next), len));
                model.take(&tree, &changes);
                next += 1;
            }
            84..88 => {
                for index in 0..LEN {
                    let value = model.read(&tree, head, index);
                    model.put(head, index, value);
                }
                let changes = tree.detach(head).expect("a head");
                model.take(&tree, &changes);
            }
            88..92 => {
                let shorter = index.max(1);
                tree.shorten(head, shorter).expect("a head");
                model.drop_from(head, shorter);
                model.shown.get_mut(&head).expect("a head").retain(|index, _| *index < shorter);
                model.volumes.insert(volume, (head, shorter));
            }
            92..98 => _ = model.volumes.insert(volume, (head, LEN)),
            _ => {
                let changes = tree.remove(head).expect("a head");
                model.volumes.remove(&volume);
                model.take(&tree, &changes);
            }
        }
        model.check(&tree);
    }
    assert!(merges > 500 && hidden > 50, "{merges} merges and {hidden} hidden generations");
}
