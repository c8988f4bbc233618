//! The bytes of a simulated disk: sparse, in counted pages, cheap to copy as a whole.
//!
//! Invariant: a page of zeros is not stored, so zero-writing a log ahead of use costs nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

pub(super) const PAGE: u64 = 4096;
const EXTENT_PAGES: u64 = 256;

/// Pages that no image holds any more are kept for the next ones, up to this many a thread.
const SPARE_MAX: usize = 16 << 10;

type Bytes = [u8; PAGE as usize];

thread_local! {
    static SPARE: RefCell<Vec<Rc<Bytes>>> = const { RefCell::new(Vec::new()) };
}

/// Counted bytes whose memory is used again: a run writes its logs over and over, and fresh memory from the
/// kernel costs more than all else that a write does.
#[derive(Clone)]
struct Page(Option<Rc<Bytes>>);

impl Page {
    fn new(bytes: &Bytes) -> Page {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let Some(mut page) = spare else { return Page(Some(Rc::new(*bytes))) };
        Rc::get_mut(&mut page).expect("a spare page has no owner").copy_from_slice(bytes);
        Page(Some(page))
    }

    /// Its bytes alone, to be changed.
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
pub(super) struct Image {
    /// 1 MiB each, by number.
    extents: BTreeMap<u64, Vec<Option<Page>>>,
}

impl Image {
    fn page(&self, number: u64) -> Option<&Page> {
        self.extents.get(&(number / EXTENT_PAGES))?[(number % EXTENT_PAGES) as usize].as_ref()
    }

    fn set_page(&mut self, number: u64, page: Option<Page>) {
        if page.is_none() && !self.extents.contains_key(&(number / EXTENT_PAGES)) {
            return;
        }
        let extent = self.extents.entry(number / EXTENT_PAGES).or_insert_with(|| vec![None; EXTENT_PAGES as usize]);
        extent[(number % EXTENT_PAGES) as usize] = page;
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
                let mut page = self.page(number).cloned().unwrap_or_else(|| Page::new(&[0; PAGE as usize]));
                page.make_mut()[start..start + piece.len()].copy_from_slice(piece);
                self.set_page(number, Some(page));
            }
        }
    }

    /// Offsets of the stored pages between two offsets.
    pub fn stored(&self, from: u64, to: u64) -> Vec<u64> {
        let extents = self.extents.range(from / PAGE / EXTENT_PAGES..=to / PAGE / EXTENT_PAGES);
        let pages = extents.flat_map(|(extent, pages)| {
            pages
                .iter()
                .zip(extent * EXTENT_PAGES..)
                .filter(|(page, _)| page.is_some())
                .map(|(_, number)| number * PAGE)
        });
        pages.filter(|at| (from..to).contains(at)).collect()
    }

    /// Makes one page the same as in `other`, sharing it.
    pub fn share(&mut self, other: &Image, number: u64) {
        self.set_page(number, other.page(number).cloned());
    }
}

/// The pages under a range of bytes: (page, first byte in it, range of the bytes).
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

/// Numbers of the pages that a range touches.
pub(super) fn page_numbers(offset: u64, len: u64) -> std::ops::Range<u64> {
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
    fn zero_pages_cost_nothing_and_copies_do_not_share_later_writes() {
        let mut image = Image::default();
        image.write(0, &vec![0; 4 << 20]);
        assert!(image.extents.is_empty());
        image.write(512, &[1; 512]);
        let copy = image.clone();
        image.write(512, &[2; 512]);
        let mut back = [0; 1];
        copy.read(512, &mut back);
        assert_eq!(back, [1]);
    }
}
