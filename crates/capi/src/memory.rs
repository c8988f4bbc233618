//! Memory of the caller: strings, structs with a size, vectors of buffers.
//!
//! These functions run inside a call of the program, on its thread. They trust the pointers that they get as far as the header says
//! that the program must vouch for them, and check the rest: null, counts, lengths, text. Bytes are copied without a reference
//! into foreign memory, so a program that changes a buffer meanwhile gets torn bytes, and nothing worse.
#![allow(unsafe_code)]

use crate::abi::IOV_MAX;
use clientthread::Failure;
use device::REQUEST_LEN_MAX;
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use types::{IoBuf, IoBufMut};

/// Returns a string of the program; `None` for a null pointer.
///
/// # Errors
/// EINVAL when it is not UTF-8.
///
/// # Safety
/// A pointer that is not null points to bytes that end with NUL, and nothing changes them during `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}

/// Checks a pointer for a result.
///
/// # Errors
/// EINVAL for a null pointer.
pub fn not_null<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{name} is a null pointer")));
    }
    Ok(())
}

/// Largest size of a struct that a program may name: what is above is no size, but memory that was not set.
const SIZE_MAX: usize = 4096;

fn checked_size(size: usize, size_min: usize, name: &str) -> Result<usize, Failure> {
    match (size_min..=SIZE_MAX).contains(&size) {
        true => Ok(size),
        false => Err(Failure::invalid(format!("{name}.size is {size}: set it to sizeof"))),
    }
}

/// A struct of the header that begins with its size as the program was compiled with. All its fields may be zero.
///
/// # Safety
/// The type is `repr(C)`, has no padding, begins with a `usize`, and every bit pattern is a value.
pub unsafe trait Versioned: Copy {}

// SAFETY: `size` comes first, the fields leave no gap, and they are integers and a raw pointer.
unsafe impl Versioned for crate::abi::Options {}
// SAFETY: as above.
unsafe impl Versioned for crate::abi::VolumeInfo {}

/// Reads a struct that a program of another version may have filled. Fields that the program does not know are zero.
///
/// # Errors
/// EINVAL for a null pointer or a size that is none; E2BIG when the program sets a field that this library does not know.
///
/// # Safety
/// A pointer that is not null points to as many bytes as its first field says.
pub unsafe fn read_sized<T: Versioned>(pointer: *const T, size_min: usize, name: &str) -> Result<T, Failure> {
    not_null(pointer, name)?;
    // SAFETY: the caller's promise; the size comes first.
    let size = checked_size(unsafe { pointer.cast::<usize>().read() }, size_min, name)?;
    let own = size_of::<T>();
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides have at least the smaller of the two sizes.
    unsafe { pointer.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr().cast(), size.min(own)) };
    // SAFETY: the caller's promise for the bytes up to `size`.
    let is_set = |at: usize| unsafe { pointer.cast::<u8>().add(at).read() } != 0;
    if (own..size).any(is_set) {
        return Err(Failure::misuse(libc::E2BIG, format!("{name} has a field that this library does not know")));
    }
    // SAFETY: zeros and the program's bytes are a value of the type.
    Ok(unsafe { value.assume_init() })
}

/// Writes a struct for a program of another version: as much of it as the program knows. Fields of a newer program become zero.
///
/// # Errors
/// EINVAL for a null pointer or a size that is none.
///
/// # Safety
/// A pointer that is not null points to as many writable bytes as its first field says.
pub unsafe fn write_sized<T: Versioned>(
    pointer: *mut T,
    value: &T,
    size_min: usize,
    name: &str,
) -> Result<(), Failure> {
    not_null(pointer, name)?;
    // SAFETY: the caller's promise; the size comes first.
    let size = checked_size(unsafe { pointer.cast::<usize>().read() }, size_min, name)?;
    // The program's own size stays.
    let (head, end) = (size_of::<usize>(), size.min(size_of::<T>()));
    let source = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: `head..end` lies in both structs, and `end..size` in the program's.
    unsafe {
        let target = pointer.cast::<u8>();
        source.add(head).copy_to_nonoverlapping(target.add(head), end - head);
        target.add(end).write_bytes(0, size - end);
    }
    Ok(())
}

/// Buffers of the program, in order: the source of a write or the target of a read. It is kept as numbers, so it crosses threads;
/// only [`Buffers::gather`] and [`Buffers::scatter`] make pointers of them again.
#[derive(Debug)]
pub struct Buffers {
    parts: Box<[(usize, usize)]>,
    len: usize,
}

impl Buffers {
    /// # Errors
    /// EINVAL for a null pointer, a wrong count, or a sum of lengths above the largest request.
    ///
    /// # Safety
    /// A vector that is not null has `count` elements.
    pub unsafe fn new(vector: *const libc::iovec, count: c_int) -> Result<Buffers, Failure> {
        not_null(vector, "iov")?;
        let count = usize::try_from(count).ok().filter(|count| (1..=IOV_MAX as usize).contains(count));
        let Some(count) = count else {
            return Err(Failure::invalid(format!("iovcnt is not in 1..={IOV_MAX}")));
        };
        // SAFETY: the caller's promise.
        let element = |at: usize| unsafe { vector.add(at).read() };
        let parts: Box<[libc::iovec]> = (0..count).map(element).collect();
        let mut len = 0_usize;
        for part in &parts {
            if part.iov_base.is_null() && part.iov_len > 0 {
                return Err(Failure::invalid("an iov_base is a null pointer"));
            }
            len = len.saturating_add(part.iov_len);
        }
        if len as u64 > REQUEST_LEN_MAX {
            return Err(Failure::invalid(format!("the buffers have {len} bytes, more than {REQUEST_LEN_MAX}")));
        }
        let part = |part: &libc::iovec| (part.iov_base.expose_provenance(), part.iov_len);
        Ok(Buffers { parts: parts.iter().map(part).collect(), len })
    }

    /// Returns the sum of the lengths.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Copies the bytes out of the program's buffers.
    ///
    /// # Safety
    /// The buffers are readable.
    pub unsafe fn gather(&self) -> IoBuf {
        let mut buf = IoBufMut::new(self.len);
        let mut rest = &mut buf[..];
        for (address, len) in self.parts.iter().copied().filter(|(_, len)| *len > 0) {
            let (here, after) = rest.split_at_mut(len);
            // SAFETY: the caller's promise; `here` is new memory of this length.
            unsafe {
                std::ptr::with_exposed_provenance::<u8>(address).copy_to_nonoverlapping(here.as_mut_ptr(), len);
            }
            rest = after;
        }
        buf.freeze()
    }

    /// Copies pieces of data into the program's buffers, from the start, as far as either reaches.
    ///
    /// # Safety
    /// The buffers are writable, and no other thread uses them.
    pub unsafe fn scatter(&self, pieces: &[IoBuf]) {
        let mut parts = self.parts.iter().copied().filter(|(_, len)| *len > 0);
        let (mut address, mut room) = parts.next().unwrap_or_default();
        for piece in pieces {
            let mut piece = &piece[..];
            while !piece.is_empty() && room > 0 {
                let (here, after) = piece.split_at(room.min(piece.len()));
                // SAFETY: the caller's promise; `here` fits into the rest of this buffer.
                unsafe {
                    let target = std::ptr::with_exposed_provenance_mut::<u8>(address);
                    here.as_ptr().copy_to_nonoverlapping(target, here.len());
                }
                (piece, address, room) = (after, address + here.len(), room - here.len());
                if room == 0 {
                    (address, room) = parts.next().unwrap_or_default();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffers, read_sized, write_sized};
    use crate::abi::{Options, VolumeInfo};
    use types::IoBuf;

    fn iovec(bytes: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn bytes_pass_through_buffers_and_pieces_of_any_borders() {
        let (mut a, mut b, mut c) = ([1_u8; 3], [2_u8; 1], [3_u8; 4]);
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let vector = [iovec(&mut a), empty, iovec(&mut b), iovec(&mut c)];
        // SAFETY: the vector and its buffers live through the test.
        let buffers = unsafe { Buffers::new(vector.as_ptr(), 4) }.expect("good");
        // SAFETY: as above.
        assert_eq!(*unsafe { buffers.gather() }, [1, 1, 1, 2, 3, 3, 3, 3]);
        let pieces = [&[9, 8][..], &[7, 6, 5, 4, 3], &[], &[2, 1]].map(IoBuf::copy_of);
        // SAFETY: as above.
        unsafe { buffers.scatter(&pieces) };
        assert_eq!((a, b, c), ([9, 8, 7], [6], [5, 4, 3, 2]), "the ninth byte has no room");
    }

    #[test]
    fn wrong_vectors_are_refused() {
        let null = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        let mut byte = [0_u8];
        let huge = libc::iovec { iov_len: usize::MAX, ..iovec(&mut byte) };
        let good = iovec(&mut byte);
        for (vector, count) in
            [(vec![null], 1), (vec![huge, huge], 2), (vec![good], 0), (vec![good], -1), (vec![good], 1025)]
        {
            // SAFETY: a count beyond the vector is refused before any access.
            let refused = unsafe { Buffers::new(vector.as_ptr(), count) };
            assert_eq!(refused.expect_err("wrong").errno, libc::EINVAL);
        }
        // SAFETY: a null pointer is checked.
        assert!(unsafe { Buffers::new(std::ptr::null(), 1) }.is_err());
    }

    const SMALL: usize = crate::abi::OPTIONS_SIZE_MIN;

    /// Options of a newer program, which has one more field.
    #[repr(C)]
    struct Newer {
        known: Options,
        more: u64,
    }

    fn newer(more: u64) -> Newer {
        let known = Options {
            size: size_of::<Newer>(),
            meta: std::ptr::null(),
            connect_timeout_ms: 5,
            io_timeout_ms: 0,
            full_wait_ms: 0,
            reserved: 0,
            on_unavailable: 0,
            unavailable_wait_ms: 0,
        };
        Newer { known, more }
    }

    #[test]
    fn a_struct_of_another_version_is_read_when_nothing_is_lost() {
        for (more, errno) in [(0, None), (1 << 60, Some(libc::E2BIG))] {
            let newer = newer(more);
            // SAFETY: `size` is that of the whole struct.
            let read = unsafe { read_sized(std::ptr::from_ref(&newer).cast::<Options>(), SMALL, "options") };
            assert_eq!(read.as_ref().err().map(|failure| failure.errno), errno);
            assert!(read.is_err() || read.is_ok_and(|options| options.connect_timeout_ms == 5));
        }
        let mut old = newer(0).known;
        old.size = SMALL - 1;
        // SAFETY: `size` is not above that of the struct.
        assert!(unsafe { read_sized(&old, SMALL, "options") }.is_err());
        old.size = 4097;
        // SAFETY: a size that is refused leads to no access.
        assert!(unsafe { read_sized(&old, SMALL, "options") }.is_err());
    }

    #[test]
    fn a_result_fills_what_the_program_knows_and_zeroes_the_rest() {
        let value = VolumeInfo {
            size: 0,
            length_bytes: 7,
            block_bytes: 512,
            block_preferred_bytes: 4096,
            request_preferred_bytes: 1,
            request_bytes_max: 2,
            requests_served: 3,
            read_only: 1,
        };
        let mut words = [u64::MAX; 8];
        words[0] = 56;
        // SAFETY: the array has 64 bytes, more than its first word says.
        unsafe { write_sized(words.as_mut_ptr().cast(), &value, 16, "info") }.expect("good");
        assert_eq!((words[0], words[1], words[5], words[6], words[7]), (56, 7, 0, 0, u64::MAX));
        words[0] = 16;
        words[2] = u64::MAX;
        // SAFETY: as above.
        unsafe { write_sized(words.as_mut_ptr().cast(), &value, 16, "info") }.expect("good");
        assert_eq!((words[1], words[2]), (7, u64::MAX));
    }
}
