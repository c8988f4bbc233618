//! The steps of a lookup, the owner and the family, over changes of a tree.

use super::*;
use bytes::BytesMut;
use types::VolumeId;

fn id(generation: u64) -> GenerationId {
    GenerationId(generation)
}

/// A lineage with the changes that a tree orders.
#[derive(Default)]
struct Store {
    tree: Tree,
    lineage: Lineage,
}

impl Store {
    fn order(&mut self, change: impl FnOnce(&mut Tree) -> Vec<Change>) -> Vec<GenerationId> {
        let changes = change(&mut self.tree);
        self.lineage.apply(Arc::new(self.tree.clone()), &changes)
    }

    fn begin(&mut self, volume: u64, parent: Option<u64>) {
        self.order(|tree| {
            tree.begin(VolumeId(volume), id(volume), parent.map(id)).expect("it fits");
            Vec::new()
        });
    }

    fn branch(&mut self, volume: u64, from: u64, to: u64) {
        self.order(|tree| {
            tree.branch(VolumeId(volume), id(from), id(to), 9, 1).expect("it fits");
            Vec::new()
        });
    }

    fn remove(&mut self, generation: u64) -> Vec<GenerationId> {
        self.order(|tree| tree.remove(id(generation)).expect("it is there"))
    }

    fn shorten(&mut self, head: u64, count: u32) {
        self.order(|tree| {
            tree.shorten(id(head), count).expect("it is a head");
            Vec::new()
        });
    }

    fn steps(&self, from: u64, index: u32, view: View) -> Vec<u64> {
        self.lineage.steps(id(from), index, view).map(|g| g.0).collect()
    }

    fn full(&self, from: u64, index: u32) -> Vec<u64> {
        self.steps(from, index, View::Full)
    }
}

#[test]
fn generation_without_older_ones_has_one_step() {
    let mut store = Store::default();
    assert_eq!(store.full(5, 0), [5], "the tree does not have it");
    store.begin(5, None);
    assert_eq!(store.full(5, 0), [5]);
    let chunk = ChunkKey { generation: id(5), index: 3 };
    assert!(!store.lineage.shows_older(chunk));
    assert_eq!((store.lineage.family(id(5)), store.lineage.family(id(6))), (id(5), id(6)));
}

#[test]
fn steps_end_where_a_shorter_volume_hid_its_parent() {
    let mut store = Store::default();
    store.begin(1, None);
    store.branch(1, 1, 2);
    store.shorten(2, 4);
    store.branch(1, 2, 3);
    assert_eq!(store.full(3, 3), [3, 2, 1]);
    assert_eq!(store.full(3, 4), [3, 2]);
    assert_eq!(store.steps(3, 3, View::Delta), [3]);
    // The heir inherits the edge with the blocks.
    assert_eq!(store.remove(2), []);
    assert_eq!((store.full(3, 3), store.full(3, 4)), (vec![3, 2, 1], vec![3, 2]));
    assert_eq!(store.remove(1), []);
    assert_eq!((store.full(3, 3), store.full(3, 4)), (vec![3, 2, 1], vec![3, 2]));
    assert_eq!((store.steps(3, 3, View::Delta), store.steps(3, 4, View::Delta)), (vec![3, 2, 1], vec![3, 2]));
}

#[test]
fn lookup_from_a_dissolved_generation_goes_on_in_the_list_of_its_heir() {
    let mut store = Store::default();
    store.begin(1, None);
    (1..5).for_each(|n| store.branch(1, n, n + 1));
    store.remove(3);
    store.remove(2);
    store.remove(4);
    assert_eq!(store.full(5, 0), [5, 4, 3, 2, 1], "the newest first");
    for from in [4, 3, 2] {
        assert_eq!(store.full(from, 0), (1..=from).rev().collect::<Vec<_>>());
        assert_eq!(store.steps(from, 0, View::Delta), (2..=from).rev().collect::<Vec<_>>());
        assert_eq!((store.lineage.owner(id(from)), store.lineage.family(id(from))), (id(5), id(1)));
    }
    assert_eq!(store.lineage.owner(id(1)), id(1));
    // The head goes with all that it has.
    assert_eq!(store.remove(5), [5, 4, 3, 2].map(id));
    assert_eq!(store.full(1, 0), [1]);
}

#[test]
fn clones_share_the_family_and_the_older_generations() {
    let mut store = Store::default();
    store.begin(1, None);
    store.branch(1, 1, 2);
    store.begin(7, Some(1));
    store.remove(1);
    assert_eq!((store.full(7, 0), store.full(2, 0)), (vec![7, 1], vec![2, 1]), "a hidden generation shows");
    assert_eq!(store.remove(2), [id(2)]);
    assert_eq!((store.steps(7, 0, View::Delta), store.lineage.owner(id(1))), (vec![7, 1], id(7)));
    assert_eq!(store.lineage.place(ChunkKey { generation: id(7), index: 2 }, 3).family, id(1));
}

#[test]
fn lineage_reads_back_from_its_checkpoint() {
    let mut store = Store::default();
    store.begin(1, None);
    (1..5).for_each(|n| store.branch(1, n, n + 1));
    store.shorten(5, 2);
    store.remove(4);
    store.remove(3);
    let mut decision = BytesMut::new();
    store.tree.encode_decision(&mut decision);
    let dissolved = store.lineage.dissolved_bytes();
    assert_eq!(Lineage::decode(&decision, &dissolved), Ok(store.lineage));
    let mut other = BytesMut::new();
    Tree::default().encode_decision(&mut other);
    assert!(matches!(Lineage::decode(&other, &dissolved), Err(LineageError::Dissolved(_))), "heirs are in the tree");
    assert!(matches!(Lineage::decode(b"junk", &[]), Err(LineageError::Tree(_))));
}

#[test]
fn reach_is_where_chunks_begin_to_show_nothing_older() {
    let mut store = Store::default();
    store.begin(1, None);
    store.branch(1, 1, 2);
    store.shorten(2, 6);
    store.branch(1, 2, 3);
    store.shorten(3, 4);
    store.begin(9, Some(2));
    let check = |store: &Store, want: &[(u64, u32)]| {
        for (generation, reach) in want {
            assert_eq!(store.lineage.reach(id(*generation)), *reach, "g{generation}");
            let shows = |index: u32| store.full(*generation, index).len() > 1;
            assert!((0..9).all(|index| shows(index) == (index < *reach)), "g{generation}");
        }
    };
    check(&store, &[(1, 0), (2, 6), (3, 4), (9, u32::MAX), (77, 0)]);
    store.remove(9);
    store.remove(2);
    check(&store, &[(1, 0), (2, 4), (3, 4)]);
    store.remove(1);
    check(&store, &[(1, 0), (2, 4), (3, 4)]);
    store.lineage.forget(|generation| generation == id(2));
    check(&store, &[(1, 0), (3, 4)]);
    assert_eq!(store.full(3, 0), [3, 1]);
    let len = store.lineage.dissolved_len();
    assert_eq!(len, store.lineage.dissolved_bytes().len());
    store.lineage.forget(|_| true);
    assert!(store.lineage.is_flat() && !store.lineage.has_dissolved() && store.lineage.dissolved_len() == 0);
}

#[test]
fn list_with_a_generation_of_the_tree_is_refused() {
    let mut store = Store::default();
    store.begin(1, None);
    store.branch(1, 1, 2);
    let mut decision = BytesMut::new();
    store.tree.encode_decision(&mut decision);
    let lists = DissolvedLists::from([(id(2), vec![Dissolved { generation: id(1), through: 9 }])]);
    let read = Lineage::decode(&decision, &dissolved::encode(&lists));
    assert_eq!(read, Err(LineageError::Dissolved(DissolvedError)));
}

#[test]
fn lists_out_of_order_are_refused() {
    let mut store = Store::default();
    store.begin(1, None);
    store.branch(1, 1, 3);
    store.branch(1, 3, 9);
    let mut decision = BytesMut::new();
    store.tree.encode_decision(&mut decision);
    let read = |ids: &[u64]| {
        let list = ids.iter().map(|n| Dissolved { generation: id(*n), through: 9 }).collect();
        Lineage::decode(&decision, &dissolved::encode(&DissolvedLists::from([(id(9), list)])))
    };
    assert!(read(&[8, 5, 4]).is_ok());
    for wrong in [&[4, 5][..], &[5, 5], &[10], &[4, 2]] {
        assert_eq!(read(wrong), Err(LineageError::Dissolved(DissolvedError)), "{wrong:?} below 9, above 3");
    }
}

#[test]
fn path_shows_the_steps_of_a_lookup_after_any_changes() {
    let (mut lengths, mut dissolved) = (0, 0);
    for seed in 0..40 {
        let mut rng = types::rng::Rng::new(seed);
        let mut store = Store::default();
        store.begin(1, None);
        let (mut heads, mut snapshots, mut next) = (vec![(1, 1)], Vec::new(), 2);
        for _ in 0..60 {
            let (volume, head) = heads[rng.below(heads.len() as u64) as usize];
            match rng.below(8) {
                0..4 => {
                    store.branch(volume, head, next);
                    snapshots.push(head);
                    heads.retain(|(of, _)| *of != volume);
                    heads.push((volume, next));
                }
                4 if !snapshots.is_empty() => {
                    store.begin(next, Some(snapshots[rng.below(snapshots.len() as u64) as usize]));
                    heads.push((next, next));
                }
                5 => store.shorten(head, rng.below(9) as u32),
                _ if !snapshots.is_empty() => {
                    _ = store.remove(snapshots.swap_remove(rng.below(snapshots.len() as u64) as usize));
                }
                _ => {}
            }
            next += 1;
            let live = store.tree.iter().map(|(id, _)| id);
            for from in live.chain(store.lineage.heirs().into_keys()) {
                let path = store.lineage.path(from);
                lengths += path.len();
                for index in 0..10 {
                    let steps: Vec<u64> = store.full(from.0, index);
                    let shown: Vec<u64> = (1..next).rev().filter(|at| path.shows(id(*at), index)).collect();
                    assert_eq!(shown, steps, "seed {seed}: {from:?}, chunk {index}");
                }
            }
            dissolved += store.lineage.heirs().len();
        }
    }
    assert!(lengths > 100_000 && dissolved > 1000, "{lengths} steps, {dissolved} dissolved generations");
}
