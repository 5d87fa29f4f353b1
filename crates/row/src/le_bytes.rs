//! Little-endian numbers in bytes at rest.
//!
//! Each is one load and one check of bounds, and a word that is stored at once is never read as halves of two.

/// The number in the two bytes at `at`.
///
/// # Panics
/// They all exist; so for the others.
#[inline(always)]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

/// The number in the four bytes at `at`.
#[inline(always)]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// The number in the eight bytes at `at`.
#[inline(always)]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// The number in the sixteen bytes at `at`.
pub fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(array_at(bytes, at))
}

#[inline(always)]
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    // Not by `copy_from_slice`: that is a call where it is not inlined, for which there is no promise.
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(array) => *array,
        None => no_such_bytes(bytes.len(), at),
    }
}

#[cold]
#[inline(never)]
fn no_such_bytes(len: usize, at: usize) -> ! {
    panic!("a number at {at} of {len} bytes")
}
