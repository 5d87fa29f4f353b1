//! Size classes: about how long a record is, in 7 bits.
//!
//! Owns: what a class stands for. Promises: a class is never less than what it was made of, but for the largest, and at most an eighth
//! more. Must not know: which words have one. Slots in memory do (`index/slot.rs`), and references in the log
//! (`log/format/record_ref.rs`): what a class stands for is persisted.
//!
//! 4 bits of exponent and 3 of mantissa: `(8 + m) * 4 << e`, from 32 bytes to 1,966,080.

/// The class that stands for everything above as well.
pub(crate) const LARGEST: u8 = 127;

/// The bytes a class stands for.
#[inline]
pub(crate) fn class_bytes(class: u8) -> u64 {
    ((8 + u64::from(class & 7)) * 4) << (class >> 3)
}

/// The smallest class that holds `bytes`; the largest if none does.
#[inline]
pub(crate) fn class_of(bytes: u64) -> u8 {
    if bytes <= 32 {
        return 0;
    }
    // Exponent such that 32 << e < bytes <= 64 << e; mantissa rounded up, where 8 carries into the next exponent.
    let e = (bytes - 1).ilog2() - 5;
    let m = (bytes - (32 << e)).div_ceil(4 << e);
    (u64::from(e) * 8 + m).min(LARGEST.into()) as u8
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_the_smallest_that_hold() {
        for bytes in (0..70_000).chain([1 << 20, 1_966_079, 1_966_080]) {
            let class = class_of(bytes);
            assert!(class_bytes(class) >= bytes, "{bytes}");
            assert!(class == 0 || class_bytes(class - 1) < bytes, "{bytes}: {class} is too large");
        }
        assert_eq!(class_of(1_966_081), LARGEST);
        assert_eq!(class_of(u64::MAX), LARGEST);
    }
}
