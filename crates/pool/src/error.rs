//! What is refused, and why.
//!
//! Owns [`PoolError`]: every reason for which bytes from elsewhere, or a set-up, are not accepted. Promises that each says what was wrong and what
//! the limit is. Must not know how a refusal is dealt with.

use std::fmt;

/// Why bytes were refused, or a set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolError {
    /// Fewer bytes than the layout has: what it is, how many there are, how many there must be.
    TooShort(&'static str, usize, usize),
    /// More than the limit: what it is, how many, the limit.
    TooLong(&'static str, usize, usize),
    /// A field has a value that the layout does not know: which, and the value.
    Unknown(&'static str, u64),
    /// A field contradicts another: which, what it says, what it must say.
    Contradicts(&'static str, u64, u64),
    /// The checksum does not match: of what, what is stored, what it comes to.
    Checksum(&'static str, u32, u32),
    /// A setting outside of its bounds: which, its value, the least and the most.
    OutOfBounds(&'static str, u64, u64, u64),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PoolError::TooShort(what, is, least) => write!(f, "{what}: {is} bytes, and {least} are needed"),
            PoolError::TooLong(what, is, most) => write!(f, "{what}: {is} bytes; the limit is {most}"),
            PoolError::Unknown(what, value) => write!(f, "{what}: {value:#x} is not known"),
            PoolError::Contradicts(what, is, must) => write!(f, "{what}: {is:#x}, and must be {must:#x}"),
            PoolError::Checksum(what, stored, is) => {
                write!(f, "{what}: the checksum is {stored:#010x}, and the bytes come to {is:#010x}")
            }
            PoolError::OutOfBounds(what, is, least, most) => {
                write!(f, "{what}: {is}; it may be {least} to {most}")
            }
        }
    }
}

impl std::error::Error for PoolError {}

/// What decoders and set-ups answer.
pub type Result<T> = std::result::Result<T, PoolError>;
