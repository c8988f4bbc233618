//! Memory for regions: chunks of 2 MiB from the kernel, each cut into slots of one size.
//!
//! The kernel gives zeroed pages, and large ones where it can, so a slot is neither filled here nor faulted in page by
//! page. A chunk whose slots are all free serves any size again; some such chunks are kept, and the others go back.
//!
//! Invariant: a slot belongs to one owner from [`Arena::take`] until [`Arena::give`]; the memory of a chunk stays mapped
//! while any of its slots has an owner.

use std::ptr::NonNull;

/// Length and alignment of a chunk: a large page.
pub const CHUNK: usize = 2 << 20;
/// Length and alignment of the smallest slot, of which all others are multiples.
pub const SLOT_MIN: usize = 4096;
/// Lengths of slots, in smallest slots: steps of a quarter of a power of two, as far as they waste little of a chunk.
const LENGTHS: [usize; CLASSES] =
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 170, 256, 512];
pub const CLASSES: usize = 26;
/// Words of a bitmap over the smallest slots of a chunk.
const WORDS: usize = CHUNK / SLOT_MIN / 64;
/// Free chunks that are kept for the next need.
const SPARE_CHUNKS: usize = 32;

/// One chunk.
struct Chunk {
    base: usize,
    class: usize,
    /// A bit for each free slot.
    free: [u64; WORDS],
    free_count: usize,
    /// Position in the list of its class, while a slot is free.
    listed: Option<usize>,
}

/// All chunks of the process. A chunk is named by its place in `chunks`.
#[derive(Default)]
pub struct Arena {
    /// Chunks that are cut; others have no slot.
    chunks: Vec<Option<Chunk>>,
    /// Places in `chunks` without a chunk.
    vacant: Vec<u32>,
    /// Chunks with a free slot, by class.
    open: [Vec<u32>; CLASSES],
    /// Mapped memory that is not cut.
    spare: Vec<usize>,
}

/// A slot: its memory and its chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    pub ptr: NonNull<u8>,
    pub chunk: u32,
}

/// Returns the length of a class's slots.
pub fn slot_len(class: usize) -> usize {
    LENGTHS[class] * SLOT_MIN
}

/// Returns the class of the shortest slot that holds `len` bytes, if one does.
pub fn class_of(len: usize) -> Option<usize> {
    let class = LENGTHS.partition_point(|length| length * SLOT_MIN < len);
    (class < CLASSES).then_some(class)
}

impl Arena {
    /// Returns a slot of this class; its memory is initialised. `None`: the kernel has none.
    pub fn take(&mut self, class: usize) -> Option<Slot> {
        let name = match self.open[class].last() {
            Some(name) => *name,
            None => self.cut(class)?,
        };
        let chunk = self.chunk(name);
        let word = chunk.free.iter().position(|word| *word != 0).expect("a listed chunk has a free slot");
        let at = word * 64 + chunk.free[word].trailing_zeros() as usize;
        chunk.free[word] &= chunk.free[word] - 1;
        chunk.free_count -= 1;
        let (base, full) = (chunk.base, chunk.free_count == 0);
        if full {
            self.unlist(name);
        }
        let ptr = NonNull::new((base + at * slot_len(class)) as *mut u8).expect("no chunk lies at 0");
        Some(Slot { ptr, chunk: name })
    }

    /// Takes back a slot of [`Arena::take`].
    ///
    /// # Panics
    /// When the slot is free already, or not one of this chunk.
    pub fn give(&mut self, slot: Slot) {
        let name = slot.chunk;
        let chunk = self.chunk(name);
        let at = (slot.ptr.as_ptr() as usize - chunk.base) / slot_len(chunk.class);
        let (word, bit) = (at / 64, 1 << (at % 64));
        assert!(chunk.free[word] & bit == 0, "a slot is given back twice");
        chunk.free[word] |= bit;
        chunk.free_count += 1;
        let (base, class) = (chunk.base, chunk.class);
        if chunk.free_count == CHUNK / slot_len(class) {
            self.unlist(name);
            self.chunks[name as usize] = None;
            self.vacant.push(name);
            if self.spare.len() < SPARE_CHUNKS { self.spare.push(base) } else { unmap(base) }
        } else if chunk.listed.is_none() {
            self.list(name);
        }
    }

    fn chunk(&mut self, name: u32) -> &mut Chunk {
        self.chunks[name as usize].as_mut().expect("a slot lies in a chunk")
    }

    /// Cuts memory into slots of a class, and lists the chunk.
    fn cut(&mut self, class: usize) -> Option<u32> {
        let base = self.spare.pop().or_else(map)?;
        let count = CHUNK / slot_len(class);
        let free = std::array::from_fn(|word| match count.saturating_sub(word * 64) {
            left if left < 64 => (1 << left) - 1,
            _ => u64::MAX,
        });
        let name = self.vacant.pop().unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() as u32 - 1
        });
        self.chunks[name as usize] = Some(Chunk { base, class, free, free_count: count, listed: None });
        self.list(name);
        Some(name)
    }

    fn list(&mut self, name: u32) {
        let class = self.chunk(name).class;
        self.chunk(name).listed = Some(self.open[class].len());
        self.open[class].push(name);
    }

    /// Takes a chunk from the list of its class, if it is there.
    fn unlist(&mut self, name: u32) {
        let chunk = self.chunk(name);
        let (class, Some(at)) = (chunk.class, chunk.listed.take()) else { return };
        self.open[class].swap_remove(at);
        if let Some(moved) = self.open[class].get(at).copied() {
            self.chunk(moved).listed = Some(at);
        }
    }

    /// Returns the bytes of all mapped memory.
    #[cfg(test)]
    pub fn mapped_bytes(&self) -> usize {
        (self.chunks.len() - self.vacant.len() + self.spare.len()) * CHUNK
    }
}

/// Maps a chunk on a border of its own length.
fn map() -> Option<usize> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * CHUNK, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let (from, base) = (at as usize, (at as usize).next_multiple_of(CHUNK));
    let tail = base + CHUNK;
    // SAFETY: both ranges lie in the mapping above, outside the chunk, and nothing refers to them.
    unsafe {
        if base > from {
            libc::munmap(from as *mut _, base - from);
        }
        libc::munmap(tail as *mut _, from + 2 * CHUNK - tail);
        // Without large pages the chunk has small ones.
        libc::madvise(base as *mut _, CHUNK, libc::MADV_HUGEPAGE);
    }
    Some(base)
}

fn unmap(base: usize) {
    // SAFETY: the chunk was mapped by `map`, and all its slots were given back.
    unsafe { libc::munmap(base as *mut _, CHUNK) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_chunk_are_disjoint_and_zero_and_come_back() {
        let mut arena = Arena::default();
        let mut slots: Vec<_> = (0..512).map(|_| arena.take(0).unwrap()).collect();
        assert_eq!(arena.mapped_bytes(), CHUNK);
        slots.sort_unstable();
        assert!(slots.windows(2).all(|two| two[1].ptr.as_ptr() as usize - two[0].ptr.as_ptr() as usize == SLOT_MIN));
        // SAFETY: the slots are this test's, and mapped.
        assert!(slots.iter().all(|slot| unsafe { slot.ptr.read() } == 0));
        let other = arena.take(0).unwrap();
        assert_eq!(arena.mapped_bytes(), 2 * CHUNK);
        arena.give(slots[7]);
        arena.give(other);
        assert_eq!(arena.take(0), Some(slots[7]), "the full chunk is open again");
        slots.into_iter().for_each(|slot| arena.give(slot));
        assert_eq!((arena.chunks.len() - arena.vacant.len(), arena.spare.len()), (0, 2));
        assert!(arena.take(CLASSES - 1).is_some_and(|whole| (whole.ptr.as_ptr() as usize).is_multiple_of(CHUNK)));
        assert_eq!((arena.chunks.len() - arena.vacant.len(), arena.spare.len()), (1, 1));
    }

    #[test]
    fn the_class_of_a_length_is_the_tightest_and_wastes_little_of_a_chunk() {
        assert!(LENGTHS.windows(2).all(|two| two[0] < two[1]));
        for len in (1..=CHUNK).step_by(509).chain([SLOT_MIN, SLOT_MIN + 1, CHUNK]) {
            let class = class_of(len).expect("a chunk holds it");
            assert!(slot_len(class) >= len && (class == 0 || slot_len(class - 1) < len));
        }
        assert_eq!((class_of(0), class_of(CHUNK + 1)), (Some(0), None));
        let waste = |class: usize| CHUNK % slot_len(class);
        assert!((0..CLASSES).all(|class| waste(class) * 16 <= CHUNK), "a sixteenth of a chunk at most");
    }

    #[test]
    fn chunks_beyond_the_spare_ones_go_back() {
        let mut arena = Arena::default();
        let all: Vec<_> = (0..SPARE_CHUNKS + 3).map(|_| arena.take(CLASSES - 1).unwrap()).collect();
        assert_eq!(arena.mapped_bytes(), (SPARE_CHUNKS + 3) * CHUNK);
        all.into_iter().for_each(|whole| arena.give(whole));
        assert_eq!(arena.mapped_bytes(), SPARE_CHUNKS * CHUNK);
        arena.spare.drain(..).for_each(unmap);
    }

    #[test]
    fn any_order_of_takes_and_gives_keeps_the_books() {
        let mut arena = Arena::default();
        let mut rng = crate::rng::Rng::new(5);
        let mut held: Vec<(usize, Slot)> = Vec::new();
        for _ in 0..20_000 {
            if held.is_empty() || rng.below(100) < 52 {
                let class = rng.below(CLASSES as u64) as usize;
                held.push((class, arena.take(class).unwrap()));
            } else {
                let at = rng.below(held.len() as u64) as usize;
                arena.give(held.swap_remove(at).1);
            }
        }
        let mut spans: Vec<(usize, usize)> =
            held.iter().map(|(c, slot)| (slot.ptr.as_ptr() as usize, slot_len(*c))).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "two slots overlap");
        held.into_iter().for_each(|(_, slot)| arena.give(slot));
        assert!(arena.chunks.iter().all(Option::is_none) && arena.open.iter().all(Vec::is_empty));
        arena.spare.drain(..).for_each(unmap);
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_slot_that_is_given_back_twice_is_a_bug() {
        let mut arena = Arena::default();
        let (slot, _other) = (arena.take(3).unwrap(), arena.take(3).unwrap());
        arena.give(slot);
        arena.give(slot);
    }
}
