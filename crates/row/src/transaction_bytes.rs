//! `TransactionBytes`: how much one transaction may be about to write.
//!
//! Owns the count and the rule, which is the same for every kind of store. Promises that what would go over the limit is refused before it is held, with
//! an error that says the limit, and that the transaction stays refused from then on, whatever its caller makes of the error. Must not know what is written, nor where
//! it is held.

use crate::limits::TRANSACTION_BYTES_MAX;
use crate::{Error, Result};

/// Bytes that a write takes in memory besides those of its key and its values, about.
const WRITE_BYTES: usize = 64;

/// Bytes in memory of what one transaction is about to write: at most [`TRANSACTION_BYTES_MAX`].
#[derive(Debug, Default)]
pub struct TransactionBytes {
    held: usize,
    is_refused: bool,
}

impl TransactionBytes {
    /// Those of one write.
    pub fn of_write(key_bytes: usize, value_bytes: usize) -> usize {
        key_bytes.saturating_add(value_bytes).saturating_add(WRITE_BYTES)
    }

    /// So much more is about to be held.
    ///
    /// # Errors
    /// `Invalid` if that is too much, or something was before: whoever counts forgets all that it holds.
    pub fn hold(&mut self, bytes: usize) -> Result<()> {
        let held = self.held.saturating_add(bytes);
        self.is_refused |= held > TRANSACTION_BYTES_MAX;
        self.held = if self.is_refused { 0 } else { held };
        self.check()
    }

    /// So much is not held any more.
    pub fn let_go(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// So much is held, counted anew. A transaction that was refused stays refused.
    pub fn set(&mut self, bytes: usize) {
        self.held = bytes;
    }

    /// The bytes that are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether all that was to be written is there to be written.
    ///
    /// # Errors
    /// As [`TransactionBytes::hold`].
    pub fn check(&self) -> Result<()> {
        match self.is_refused {
            false => Ok(()),
            true => Err(Error::invalid(format!(
                "what is written at once takes more than {TRANSACTION_BYTES_MAX} bytes"
            ))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_is_let_go_of_makes_room_and_what_was_refused_stays_refused() {
        let mut bytes = TransactionBytes::default();
        for _ in 0..1_000 {
            bytes.hold(TRANSACTION_BYTES_MAX).unwrap();
            bytes.let_go(TRANSACTION_BYTES_MAX);
        }
        bytes.hold(TRANSACTION_BYTES_MAX).unwrap();
        let refused = bytes.hold(1).unwrap_err();
        assert_eq!((refused.kind(), bytes.held()), (ErrorKind::Invalid, 0));
        assert!(refused.message().contains(&TRANSACTION_BYTES_MAX.to_string()), "{refused}");
        // However little, and whatever was let go of.
        bytes.let_go(TRANSACTION_BYTES_MAX);
        assert!(bytes.hold(0).is_err() && bytes.check().is_err());
        assert!(TransactionBytes::default().hold(usize::MAX).is_err());
    }
}
