//! The bytes of a simulated disk: sparse, in counted pages, cheap to copy as a whole.
//!
//! Invariant: a page of zeros is not stored, so zero-writing a log ahead of use costs nothing.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use types::IoBuf;

pub(crate) const PAGE: u64 = 4096;
const EXTENT_PAGES: u64 = 256;

/// Most pages without an image that a thread keeps for reuse.
const SPARE_MAX: usize = 16 << 10;

type Bytes = [u8; PAGE as usize];

thread_local! {
    static SPARE: RefCell<Vec<Rc<Bytes>>> = const { RefCell::new(Vec::new()) };
}

/// Counted bytes whose memory is reused: a run writes its logs over and over, and fresh memory from the kernel costs
/// more than everything else in a write.
#[derive(Clone)]
struct Page(Option<Rc<Bytes>>);

impl Page {
    fn new(bytes: &Bytes) -> Page {
        Page::filled(|page| page.copy_from_slice(bytes))
    }

    /// Creates a page of its own; `fill` must write it from its first byte to its last.
    fn filled(fill: impl FnOnce(&mut Bytes)) -> Page {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let mut page = spare.unwrap_or_else(|| Rc::new([0; PAGE as usize]));
        fill(Rc::get_mut(&mut page).expect("a spare page has no owner"));
        Page(Some(page))
    }

    /// Returns the page's bytes for a change, after copying a shared page.
    fn make_mut(&mut self) -> &mut Bytes {
        if Rc::strong_count(self.0.as_ref().expect("a page has bytes until its end")) > 1 {
            *self = Page::new(self);
        }
        self.0.as_mut().and_then(Rc::get_mut).expect("it is the only owner now")
    }
}

impl Deref for Page {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        self.0.as_ref().expect("a page has bytes until its end")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Some(page) = self.0.take() else { return };
        if Rc::strong_count(&page) == 1 {
            // A thread that ends has no spare pages any more.
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_MAX {
                    spare.push(page);
                }
            });
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Image {
    /// Extents of 1 MiB each, by number; an extent without data has no pages.
    extents: Vec<Vec<Option<Page>>>,
}

impl Image {
    fn page(&self, number: u64) -> Option<&Page> {
        self.extents.get((number / EXTENT_PAGES) as usize)?.get((number % EXTENT_PAGES) as usize)?.as_ref()
    }

    fn set_page(&mut self, number: u64, page: Option<Page>) {
        if page.is_some() {
            *self.slot(number) = page;
        } else if self.page(number).is_some() {
            *self.slot(number) = None;
        }
    }

    /// Returns the place of a page.
    fn slot(&mut self, number: u64) -> &mut Option<Page> {
        let extent = (number / EXTENT_PAGES) as usize;
        if extent >= self.extents.len() {
            self.extents.resize_with(extent + 1, Vec::new);
        }
        let pages = &mut self.extents[extent];
        if pages.is_empty() {
            pages.resize(EXTENT_PAGES as usize, None);
        }
        &mut pages[(number % EXTENT_PAGES) as usize]
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (number, start, range) in pages(offset, into.len()) {
            let piece = &mut into[range];
            match self.page(number) {
                Some(page) => piece.copy_from_slice(&page[start..start + piece.len()]),
                None => piece.fill(0),
            }
        }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (number, start, range) in pages(offset, bytes.len()) {
            let piece = &bytes[range];
            if let Ok(whole) = <&[u8; PAGE as usize]>::try_from(piece) {
                let page = (*whole != [0; PAGE as usize]).then(|| Page::new(whole));
                self.set_page(number, page);
            } else {
                let page = self.slot(number).get_or_insert_with(|| Page::new(&[0; PAGE as usize]));
                page.make_mut()[start..start + piece.len()].copy_from_slice(piece);
            }
        }
    }

    /// Writes buffers one behind the other, as [`Image::write`] would each. A page that several of them fill together
    /// is created once, without reading its old bytes.
    pub fn write_all(&mut self, offset: u64, bufs: &[IoBuf]) {
        let mut rest = Rest { bufs, at: 0 };
        let len = bufs.iter().map(|b| b.len()).sum();
        for (number, start, range) in pages(offset, len) {
            let piece = rest.front();
            if piece.len() >= range.len() {
                self.write(number * PAGE + start as u64, &piece[..range.len()]);
                rest.skip(range.len());
            } else if range.len() == PAGE as usize {
                *self.slot(number) = Some(Page::filled(|page| rest.copy_to(page)));
            } else {
                let page = self.slot(number).get_or_insert_with(|| Page::new(&[0; PAGE as usize]));
                rest.copy_to(&mut page.make_mut()[start..start + range.len()]);
            }
        }
    }

    /// Returns the offsets of the stored pages between two offsets.
    pub fn stored(&self, from: u64, to: u64) -> Vec<u64> {
        let extents = (0..).step_by(EXTENT_PAGES as usize).zip(&self.extents);
        let pages = extents.flat_map(|(first, pages)| (first..).zip(pages));
        let stored = pages.filter(|(_, page)| page.is_some()).map(|(number, _): (u64, _)| number * PAGE);
        stored.filter(|at| (from..to).contains(at)).collect()
    }

    /// Makes one page the same as in `other`, sharing it.
    pub fn share(&mut self, other: &Image, number: u64) {
        self.set_page(number, other.page(number).cloned());
    }
}

/// Rest of some buffers that is still to be written.
struct Rest<'a> {
    bufs: &'a [IoBuf],
    /// Bytes of the first buffer that are written.
    at: usize,
}

impl<'a> Rest<'a> {
    /// Returns the contiguous bytes at the front; none when no bytes are left.
    fn front(&mut self) -> &'a [u8] {
        while let Some((first, rest)) = self.bufs.split_first() {
            if self.at < first.len() {
                return &first[self.at..];
            }
            (self.bufs, self.at) = (rest, 0);
        }
        &[]
    }

    fn skip(&mut self, n: usize) {
        self.at += n;
    }

    /// Copies as much as fits.
    fn copy_to(&mut self, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let front = self.front();
            let n = front.len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&front[..n]);
            self.skip(n);
            done += n;
        }
    }
}

/// Returns the pages under a range of bytes: (page, first byte in it, range of the bytes).
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut at = 0usize;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let position = offset + at as u64;
        let start = (position % PAGE) as usize;
        let end = len.min(at + (PAGE as usize - start));
        let range = at..end;
        at = end;
        Some((position / PAGE, start, range))
    })
}

/// Returns the numbers of the pages that a range touches.
pub(crate) fn page_numbers(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / PAGE..(offset + len).div_ceil(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_cross_pages_read_back_and_absent_bytes_are_zero() {
        let mut image = Image::default();
        let bytes: Vec<u8> = (0..10_000u32).map(|i| i as u8 | 1).collect();
        image.write(4096 * 255 + 100, &bytes);
        let mut back = vec![9; 10_200];
        image.read(4096 * 255, &mut back);
        assert!(back[..100].iter().all(|b| *b == 0) && back[10_100..].iter().all(|b| *b == 0));
        assert_eq!(back[100..10_100], bytes);
    }

    #[test]
    fn buffers_of_all_sizes_are_stored_as_if_each_was_written_alone() {
        for sizes in [&[512, 0, 4096, 3584][..], &[8192, 512], &[1024, 1024, 1024, 1024, 12_288, 512], &[4096], &[]] {
            for offset in [0, 512, 3584, 4096 * 255 + 1024] {
                let (mut whole, mut apart) = (Image::default(), Image::default());
                whole.write(0, &[7; 9000]);
                apart.write(0, &[7; 9000]);
                let fill = |(i, len): (usize, &usize)| IoBuf::copy_of(&vec![i as u8; *len]);
                let bufs: Vec<IoBuf> = sizes.iter().enumerate().map(fill).collect();
                whole.write_all(offset, &bufs);
                let mut at = offset;
                for buf in &bufs {
                    apart.write(at, buf);
                    at += buf.len() as u64;
                }
                let (mut a, mut b) = (vec![0; 2 << 20], vec![0; 2 << 20]);
                whole.read(0, &mut a);
                apart.read(0, &mut b);
                assert!(a == b, "{sizes:?} at {offset}");
                assert_eq!(whole.stored(0, 2 << 20), apart.stored(0, 2 << 20), "{sizes:?} at {offset}");
            }
        }
    }

    #[test]
    fn zero_pages_cost_nothing_and_copies_do_not_share_later_writes() {
        let mut image = Image::default();
        image.write(0, &vec![0; 4 << 20]);
        assert!(image.extents.is_empty() && image.stored(0, 4 << 20).is_empty());
        image.write(512, &[1; 512]);
        let copy = image.clone();
        image.write(512, &[2; 512]);
        let mut back = [0; 1];
        copy.read(512, &mut back);
        assert_eq!(back, [1]);
    }
}
