//! The bytes of a simulated disk: sparse, in counted pages, cheap to copy as a whole.
//!
//! Invariant: a page of zeros is not stored, so zero-writing a log ahead of use costs nothing. A page that lies in one
//! buffer of a write is a part of that buffer, so most writes copy no byte.

use types::{IoBuf, IoBufMut};

pub(crate) const PAGE: u64 = 4096;
const PAGE_LEN: usize = PAGE as usize;
const EXTENT_PAGES: u64 = 256;

static ZEROS: [u8; PAGE_LEN] = [0; PAGE_LEN];

#[derive(Clone, Default)]
pub(crate) struct Image {
    /// Extents of 1 MiB each, by number, with [`PAGE`] bytes for each stored page; an extent without data has no pages.
    extents: Vec<Vec<IoBuf>>,
}

impl Image {
    fn page(&self, number: u64) -> Option<&IoBuf> {
        let page = self.extents.get((number / EXTENT_PAGES) as usize)?.get((number % EXTENT_PAGES) as usize)?;
        Some(page).filter(|page| !page.is_empty())
    }

    /// Replaces a page; no bytes stand for zeros that are not stored.
    fn set_page(&mut self, number: u64, page: IoBuf) {
        if !page.is_empty() || self.page(number).is_some() {
            *self.slot(number) = page;
        }
    }

    /// Returns the place of a page.
    fn slot(&mut self, number: u64) -> &mut IoBuf {
        let extent = (number / EXTENT_PAGES) as usize;
        if extent >= self.extents.len() {
            self.extents.resize_with(extent + 1, Vec::new);
        }
        let pages = &mut self.extents[extent];
        if pages.is_empty() {
            pages.resize(EXTENT_PAGES as usize, IoBuf::EMPTY);
        }
        &mut pages[(number % EXTENT_PAGES) as usize]
    }

    /// Changes a part of a page.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut [u8])) {
        let mut page = IoBufMut::new(PAGE_LEN);
        page.copy_from_slice(self.page(number).map_or(&ZEROS, |page| page));
        change(&mut page);
        *self.slot(number) = page.freeze();
    }

    /// Returns the page at `offset`.
    ///
    /// # Panics
    /// When no page begins there.
    pub fn page_at(&self, offset: u64) -> IoBuf {
        assert!(offset.is_multiple_of(PAGE), "no page begins at {offset}");
        self.page(offset / PAGE).cloned().unwrap_or_else(|| IoBuf::zeros(PAGE_LEN))
    }

    /// Returns the bytes of a range that lies in one page.
    ///
    /// # Panics
    /// When the range leaves its page.
    pub fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset % PAGE) as usize;
        &self.page(offset / PAGE).map_or(&ZEROS[..], |page| page)[start..start + len]
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

    /// Whether the image holds these bytes at `offset`.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        pages(offset, bytes.len()).all(|(number, start, range)| {
            let (here, bytes) = (self.bytes(number * PAGE + start as u64, range.len()), &bytes[range]);
            std::ptr::eq(here, bytes) || here == bytes
        })
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (number, start, range) in pages(offset, bytes.len()) {
            let piece = &bytes[range];
            if piece.len() < PAGE_LEN {
                self.change(number, |page| page[start..start + piece.len()].copy_from_slice(piece));
            } else {
                self.set_page(number, if *piece == ZEROS { IoBuf::EMPTY } else { IoBuf::copy_of(piece) });
            }
        }
    }

    /// Writes buffers one behind the other, as [`Image::write`] would each. A page that lies in one buffer shares its
    /// memory.
    pub fn write_all(&mut self, offset: u64, bufs: &[IoBuf]) {
        let mut rest = Rest { bufs, at: 0 };
        let len = bufs.iter().map(|b| b.len()).sum();
        for (number, start, range) in pages(offset, len) {
            if range.len() < PAGE_LEN {
                self.change(number, |page| rest.copy_to(&mut page[start..start + range.len()]));
            } else if let Some(page) = rest.take(PAGE_LEN) {
                self.set_page(number, if *page == ZEROS { IoBuf::EMPTY } else { page });
            } else {
                let mut page = IoBufMut::new(PAGE_LEN);
                rest.copy_to(&mut page);
                *self.slot(number) = page.freeze();
            }
        }
    }

    /// Returns the offsets of the stored pages between two offsets.
    pub fn stored(&self, from: u64, to: u64) -> Vec<u64> {
        let extents = (0..).step_by(EXTENT_PAGES as usize).zip(&self.extents);
        let pages = extents.flat_map(|(first, pages)| (first..).zip(pages));
        let stored = pages.filter(|(_, page)| !page.is_empty()).map(|(number, _): (u64, _)| number * PAGE);
        stored.filter(|at| (from..to).contains(at)).collect()
    }

    /// Makes one page the same as in `other`, sharing it.
    pub fn share(&mut self, other: &Image, number: u64) {
        self.set_page(number, other.page(number).cloned().unwrap_or_default());
    }
}

/// Rest of some buffers that is still to be written.
struct Rest<'a> {
    bufs: &'a [IoBuf],
    /// Bytes of the first buffer that are written.
    at: usize,
}

impl Rest<'_> {
    /// Returns the contiguous bytes at the front; none when no bytes are left.
    fn front(&mut self) -> &[u8] {
        while let Some((first, rest)) = self.bufs.split_first() {
            if self.at < first.len() {
                return &first[self.at..];
            }
            (self.bufs, self.at) = (rest, 0);
        }
        &[]
    }

    /// Takes the next `n` bytes if they lie in one buffer.
    fn take(&mut self, n: usize) -> Option<IoBuf> {
        let fits = self.front().len() >= n;
        fits.then(|| {
            let at = self.at;
            self.at += n;
            self.bufs[0].slice(at..at + n)
        })
    }

    /// Copies as much as fits.
    fn copy_to(&mut self, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let front = self.front();
            let n = front.len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&front[..n]);
            self.at += n;
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
