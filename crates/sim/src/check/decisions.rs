//! Decisions follow from the log alone (R1): replicas that have applied the same entries of a PG decide alike. This
//! holds for two replicas, and for two lives of one replica, whether it mounted a checkpoint or received a stream.
//!
//! The check looks after each turn of an OSD in which a replica has applied more entries, or runs in another life.

use group::decision::{Decision, Writing};
use std::collections::BTreeMap;
use types::tree::Role;
use types::{Index, PgId, ReplicaId};

/// Decision states seen so far.
#[derive(Default)]
pub struct Decisions {
    /// For each applied index of a PG: a sum over the decision state, and the replica that reached the index first.
    seen: BTreeMap<(PgId, Index), (u64, ReplicaId)>,
    /// Applied index of each replica at the last look, and the life of its process.
    stood: BTreeMap<ReplicaId, (u32, Index)>,
}

fn sum(decides: &Decision) -> u64 {
    let mut sum = 0x0064_6563_6964_6573u64;
    let mut add = |word: u64| sum = (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    add(decides.order);
    for (volume, attached) in &decides.volumes {
        [volume.0, attached.epoch.0, u64::from(attached.chunk_count), attached.len_epoch.into()]
            .into_iter()
            .for_each(&mut add);
        [attached.head, attached.first, attached.last].iter().for_each(|id| add(id.0));
        add(attached.writers.len() as u64);
        for Writing { writer, window } in &attached.writers {
            [writer.session.0, writer.epoch.0, window.watermark].into_iter().for_each(&mut add);
            window.bits.into_iter().for_each(&mut add);
        }
    }
    add(decides.tree.len() as u64);
    for (id, node) in decides.tree.iter() {
        let (role, name) = match node.role {
            Role::Head(_) => (0, 0),
            Role::Snapshot(_, name) => (1, name.0),
            Role::Hidden(_) => (2, 0),
        };
        let place = [id.0, node.parent.map_or(0, |parent| parent.0), node.family.0, u64::from(node.through)];
        let rest = [role, name, node.role.volume().0, u64::from(node.chunk_count), node.created_ms];
        place.into_iter().chain(rest).for_each(&mut add);
    }
    for (cut, open) in &decides.cuts {
        add(cut.0);
        open.iter().flat_map(|of| [of.item.volume.0, of.item.to.0, u64::from(of.written)]).for_each(&mut add);
    }
    let members = &decides.members;
    add(members.epoch.0);
    for set in [&members.voters, &members.outgoing, &members.learners] {
        add(set.len() as u64);
        set.iter().flat_map(|m| [m.replica.0, u64::from(m.osd.0)]).for_each(&mut add);
    }
    sum
}

impl Decisions {
    /// Looks at a replica in the `life`-th life of its process.
    ///
    /// # Errors
    /// Another replica, or another life, decided otherwise at this index.
    pub fn look(
        &mut self,
        (pg, replica, life): (PgId, ReplicaId, u32),
        applied: Index,
        decides: &Decision,
    ) -> Result<(), String> {
        if self.stood.insert(replica, (life, applied)) == Some((life, applied)) {
            return Ok(());
        }
        let sum = sum(decides);
        let (known, by) = *self.seen.entry((pg, applied)).or_insert((sum, replica));
        match known == sum {
            true => Ok(()),
            false => Err(format!("pg {pg}: as of entry {applied} {replica} decides otherwise than {by} did")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use group::decision::Attached;
    use group::window::Window;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use types::tree::Tree;
    use types::writers::Writer;
    use types::{Epoch, GenerationId, PoolId, SessionId, VolumeId};

    fn decides(bits: u64) -> Decision {
        let window = Window { watermark: 7, bits: [bits, 0, 0, 0] };
        let [head, first, last] = [GenerationId(1); 3];
        let (epoch, session) = (Epoch(1), SessionId(1));
        let writers = vec![Writing { writer: Writer { epoch, session }, window }];
        let attached = Attached { writers, epoch, chunk_count: 4, len_epoch: 0, head, first, last };
        Decision { volumes: BTreeMap::from([(VolumeId(1), attached)]), ..Decision::default() }
    }

    #[test]
    fn replica_that_forgets_one_number_of_a_window_is_found() {
        let pg = PgId { pool: PoolId(1), n: 0 };
        let mut all = Decisions::default();
        all.look((pg, ReplicaId(1), 1), Index(5), &decides(6)).expect("the first");
        all.look((pg, ReplicaId(2), 1), Index(5), &decides(6)).expect("alike");
        all.look((pg, ReplicaId(2), 1), Index(6), &decides(7)).expect("later");
        let lost = all.look((pg, ReplicaId(1), 2), Index(5), &decides(4));
        assert!(lost.expect_err("its next life has lost one").contains("otherwise than r1"));
    }

    #[test]
    fn replica_that_forgets_a_generation_is_found() {
        let (whole, mut lost, mut behind) = (decides(6), decides(6), decides(6));
        let (mut tree, mut other) = (Tree::default(), Tree::default());
        tree.begin(VolumeId(1), GenerationId(1), None).expect("a new one");
        other.begin(VolumeId(1), GenerationId(2), None).expect("a new one");
        let with = |tree: &Tree| Decision { tree: Arc::new(tree.clone()), ..whole.clone() };
        let all = [sum(&whole), sum(&with(&tree)), sum(&with(&other))];
        lost.volumes.values_mut().for_each(|attached| attached.last = GenerationId(2));
        behind.volumes.values_mut().for_each(|attached| attached.head = GenerationId(2));
        let all: BTreeSet<u64> = all.into_iter().chain([sum(&lost), sum(&behind)]).collect();
        assert_eq!(all.len(), 5, "each of them decides otherwise");
    }
}
