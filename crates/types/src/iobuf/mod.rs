//! Buffers for I/O: aligned to 4 KiB, written by one owner, then shared by counted references.
//!
//! [`IoBufMut`] is unique and writable; [`IoBufMut::freeze`] turns it into an [`IoBuf`], which is
//! immutable, cheap to clone and to slice, and keeps its whole region alive. Regions come from a small pool per thread,
//! behind which stands the `arena` of the process: fresh pages cost more than the copy of a block.
//!
//! Invariant: memory handed out is always initialised (it may hold old bytes of this process, never
//! uninitialised ones); a frozen region is never written again until its last reference is gone.
#![allow(unsafe_code)]

mod arena;

use arena::{Arena, CLASSES, Slot, class_of, slot_len};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Alignment of every region, and the granularity of its capacity.
pub const ALIGN: usize = arena::SLOT_MIN;
/// Bytes that one thread's pool keeps for one size class, unless [`keep_spare`] was told otherwise.
const POOL_CLASS_MAX: usize = 1 << 20;

/// Memory of all regions up to a chunk's length that no pool keeps.
static ARENA: LazyLock<Mutex<Arena>> = LazyLock::new(Mutex::default);

/// Owned memory, aligned to [`ALIGN`].
struct Region {
    ptr: NonNull<u8>,
    cap: usize,
    /// Chunk of the arena; unused beyond the length of a chunk.
    chunk: u32,
}

// SAFETY: a region is plain memory without thread affinity; exclusive access is governed by its owner
// (`IoBufMut` by `&mut`, `IoBuf` only reads).
unsafe impl Send for Region {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for Region {}

/// Regions without an owner, by size class.
struct Pool {
    classes: [Vec<Region>; CLASSES],
    class_max: usize,
}

thread_local! {
    static POOL: RefCell<Pool> =
        RefCell::new(Pool { classes: std::array::from_fn(|_| Vec::new()), class_max: POOL_CLASS_MAX });
}

/// Sets the number of bytes that this thread's pool keeps for one size class. A thread that simulates many nodes has many
/// buffers.
pub fn keep_spare(class_bytes: usize) {
    POOL.with_borrow_mut(|pool| pool.class_max = class_bytes);
}

/// Runs `f` on the arena. A panic inside leaves no slot half given.
fn with_arena<T>(f: impl FnOnce(&mut Arena) -> T) -> T {
    f(&mut ARENA.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the bytes that the process has mapped for buffers.
#[cfg(test)]
fn mapped_bytes() -> usize {
    with_arena(|arena| arena.mapped_bytes())
}

impl Region {
    fn take(len: usize) -> Region {
        let Some(class) = class_of(len) else { return Region::alone(len.next_multiple_of(ALIGN)) };
        if let Some(region) = POOL.with_borrow_mut(|pool| pool.classes[class].pop()) {
            return region;
        }
        let cap = slot_len(class);
        match with_arena(|arena| arena.take(class)) {
            Some(Slot { ptr, chunk }) => Region { ptr, cap, chunk },
            None => handle_alloc_error(Region::layout(cap)),
        }
    }

    fn layout(cap: usize) -> Layout {
        Layout::from_size_align(cap, ALIGN).expect("a region's size fits in memory")
    }

    /// Returns memory that no slot is long enough for.
    fn alone(cap: usize) -> Region {
        let layout = Region::layout(cap);
        // SAFETY: the layout has a size of at least ALIGN, so it is not zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Region { ptr, cap, chunk: 0 }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(class) = class_of(self.cap) else {
            // SAFETY: `ptr` came from `alone`, with this very layout.
            return unsafe { dealloc(self.ptr.as_ptr(), Region::layout(self.cap)) };
        };
        // An error means that the thread is ending and its pool is gone.
        let pooled = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            let class_max = pool.class_max;
            let spares = &mut pool.classes[class];
            let room = (spares.len() + 1) * self.cap <= class_max;
            if room {
                spares.push(Region { ptr: self.ptr, cap: self.cap, chunk: self.chunk });
            }
            room
        });
        if pooled != Ok(true) {
            with_arena(|arena| arena.give(Slot { ptr: self.ptr, chunk: self.chunk }));
        }
    }
}

/// A unique, writable, aligned buffer.
pub struct IoBufMut {
    region: Region,
    /// Bytes in front that [`IoBufMut::hide`] put out of sight.
    hidden: usize,
    len: usize,
}

impl IoBufMut {
    /// Makes a buffer of `len` bytes whose contents are unspecified (but initialised): the caller is about to fill it.
    pub fn new(len: usize) -> IoBufMut {
        IoBufMut { region: Region::take(len), hidden: 0, len }
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> IoBufMut {
        let mut buf = IoBufMut::new(len);
        buf.fill(0);
        buf
    }

    /// Makes the buffer shorter.
    ///
    /// # Panics
    /// When `len` is larger than the current length.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "truncate {} to {len}", self.len);
        self.len = len;
    }

    /// Puts the first `n` visible bytes out of sight, so that the next receive fills what follows them.
    ///
    /// # Panics
    /// When fewer than `n` bytes are visible.
    pub fn hide(&mut self, n: usize) {
        assert!(n <= self.len, "hide {n} of {} B", self.len);
        self.hidden += n;
        self.len -= n;
    }

    /// Shows all that was hidden again.
    pub fn unhide(&mut self) {
        self.len += self.hidden;
        self.hidden = 0;
    }

    /// Turns the buffer into a shared, read-only one. Hidden bytes stay hidden.
    pub fn freeze(self) -> IoBuf {
        IoBuf { off: self.hidden, len: self.len, region: Some(Arc::new(self.region)) }
    }
}

impl Deref for IoBufMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the region is initialised, at least `hidden + len` long, and we own it.
        unsafe { std::slice::from_raw_parts(self.region.ptr.as_ptr().add(self.hidden), self.len) }
    }
}

impl DerefMut for IoBufMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.region.ptr.as_ptr().add(self.hidden), self.len) }
    }
}

impl std::fmt::Debug for IoBufMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoBufMut({} B)", self.len)
    }
}

static ZEROS: std::sync::OnceLock<IoBuf> = std::sync::OnceLock::new();

/// An immutable, counted reference to a part of a region.
#[derive(Clone, Default)]
pub struct IoBuf {
    region: Option<Arc<Region>>,
    off: usize,
    len: usize,
}

impl IoBuf {
    /// No bytes.
    pub const EMPTY: IoBuf = IoBuf { region: None, off: 0, len: 0 };

    /// A copy of `bytes` in a region of its own.
    pub fn copy_of(bytes: &[u8]) -> IoBuf {
        let mut buf = IoBufMut::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf.freeze()
    }

    /// `len` zero bytes, shared process-wide up to 1 MiB.
    pub fn zeros(len: usize) -> IoBuf {
        let zeros = ZEROS.get_or_init(|| IoBufMut::zeroed(1 << 20).freeze());
        if len <= zeros.len() { zeros.slice(0..len) } else { IoBufMut::zeroed(len).freeze() }
    }

    /// Whether this is a part of the process-wide zeros of [`IoBuf::zeros`], so that no byte needs to be compared.
    pub fn is_shared_zeros(&self) -> bool {
        let zeros = ZEROS.get().and_then(|zeros| zeros.region.as_ref());
        matches!((&self.region, zeros), (Some(own), Some(zeros)) if Arc::ptr_eq(own, zeros))
    }

    /// The bytes in `range`, sharing this region.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    pub fn slice(&self, range: Range<usize>) -> IoBuf {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {} B", self.len);
        IoBuf { region: self.region.clone(), off: self.off + range.start, len: range.end - range.start }
    }

    /// Extends this buffer by `next`, if that follows it in the same region.
    pub fn join(&mut self, next: &IoBuf) -> bool {
        let joins = match (&self.region, &next.region) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other) && self.off + self.len == next.off,
            _ => false,
        };
        self.len += if joins { next.len } else { 0 };
        joins
    }

    /// Bytes of memory that this reference keeps alive (the whole region, shared or not).
    pub fn region_bytes(&self) -> usize {
        self.region.as_ref().map_or(0, |r| r.cap)
    }

    /// Whether the first byte lies on a border of `align` bytes in memory.
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.as_ptr() as usize).is_multiple_of(align)
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.region {
            None => &[],
            // SAFETY: `off + len <= cap` is kept by every constructor; the region is initialised and, once
            // frozen, not written while any reference lives.
            Some(region) => unsafe { std::slice::from_raw_parts(region.ptr.as_ptr().add(self.off), self.len) },
        }
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoBuf({} B)", self.len)
    }
}

impl PartialEq for IoBuf {
    fn eq(&self, other: &IoBuf) -> bool {
        **self == **other
    }
}

impl Eq for IoBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_one_region_and_keep_it() {
        let mut buf = IoBufMut::zeroed(8192);
        buf[4096] = 7;
        let whole = buf.freeze();
        let tail = whole.slice(4096..8192);
        drop(whole);
        assert_eq!(tail[0], 7);
        assert!(tail.is_aligned(4096));
        assert_eq!(tail.region_bytes(), 8192);
    }

    #[test]
    fn only_parts_of_one_region_that_touch_are_joined() {
        let mut buf = IoBufMut::zeroed(8192);
        (buf[100], buf[8191]) = (1, 2);
        let whole = buf.freeze();
        let mut joined = whole.slice(0..100);
        assert!(joined.join(&whole.slice(100..200)) && joined.join(&whole.slice(200..8192)));
        assert_eq!((joined.len(), joined[100], joined[8191]), (8192, 1, 2));
        assert!(
            !joined.join(&whole.slice(0..100)) && !joined.join(&IoBuf::copy_of(&[1])) && !joined.join(&IoBuf::EMPTY)
        );
        let mut empty = IoBuf::EMPTY;
        assert!(!empty.join(&whole) && !whole.slice(0..100).join(&whole.slice(101..200)));
        assert_eq!(joined.len(), 8192);
    }

    #[test]
    fn pooled_memory_comes_back_with_the_asked_length() {
        let first = IoBufMut::new(5000);
        let at = first.as_ptr() as usize;
        drop(first);
        let again = IoBufMut::new(8000);
        assert_eq!(again.as_ptr() as usize, at, "the region was not reused");
        assert_eq!(again.len(), 8000);
        assert!(IoBufMut::zeroed(8000).iter().all(|b| *b == 0));
    }

    #[test]
    fn regions_have_the_tightest_length_and_large_ones_stand_alone() {
        let cap = |len: usize| IoBufMut::new(len).freeze().region_bytes();
        assert_eq!(
            [cap(1), cap(4096), cap(36 << 10), cap(40 << 10), cap(2 << 20)],
            [4096, 4096, 40 << 10, 40 << 10, 2 << 20]
        );
        let large = IoBufMut::zeroed((2 << 20) + 1);
        assert!(large.iter().all(|byte| *byte == 0) && mapped_bytes() > 0);
        assert_eq!(large.freeze().region_bytes(), (2 << 20) + 4096);
    }

    #[test]
    fn regions_freed_by_another_thread_are_used_again() {
        const COUNT: usize = 2400;
        let held: Vec<IoBufMut> = (0..COUNT).map(|_| IoBufMut::new(24 << 10)).collect();
        std::thread::spawn(move || drop(held)).join().unwrap();
        let before = mapped_bytes();
        let again: Vec<IoBufMut> = (0..COUNT).map(|_| IoBufMut::new(24 << 10)).collect();
        let grown = mapped_bytes().saturating_sub(before);
        assert!(grown < COUNT * (24 << 10) / 2, "{grown} B more; other tests map some chunks at the same time");
        drop(again);
    }

    #[test]
    fn hidden_bytes_come_back_untouched() {
        let mut buf = IoBufMut::zeroed(100);
        buf[..10].fill(1);
        buf.hide(10);
        buf.fill(2);
        assert_eq!(buf.len(), 90);
        buf.unhide();
        assert_eq!((buf.len(), buf[9], buf[10]), (100, 1, 2));
        buf.hide(99);
        assert_eq!(*buf.freeze(), [2]);
    }

    #[test]
    fn shared_zeros_are_known_by_their_region() {
        assert!(IoBuf::zeros(512).slice(1..2).is_shared_zeros());
        assert!(!IoBufMut::zeroed(512).freeze().is_shared_zeros());
        assert!(!IoBuf::EMPTY.is_shared_zeros());
    }

    #[test]
    fn an_empty_buffer_has_no_region() {
        assert_eq!(&*IoBuf::EMPTY, b"");
        assert_eq!(IoBuf::EMPTY.slice(0..0).region_bytes(), 0);
    }
}
