//! `Copied`: what is under a key, to be put under another.
//!
//! Owns how a value is read to be copied, and how much it may be. Promises that a hash which is too long is refused before it is all in memory. Must not know how keys are kept.

use hedgerow::Value;

use super::FieldWrite;
use super::text::write_text;
use crate::serve::failure::{Failure, Outcome};
use crate::serve::limits;

/// A key's value, copied.
pub(super) enum Copied {
    /// A string.
    String(Vec<u8>),
    /// A hash.
    Hash(Vec<CopiedField>),
}

impl Copied {
    /// A hash whose fields `read` pushes; what it gives says whether there is one.
    pub(super) fn of_hash(read: impl FnOnce(&mut CopiedFields) -> Outcome<Option<()>>) -> Outcome<Copied> {
        let mut fields = CopiedFields::default();
        read(&mut fields)?.ok_or(Failure::NO_SUCH_KEY)?;
        fields.finish()
    }
}

/// A copied field.
pub(super) struct CopiedField {
    name: Vec<u8>,
    text: Vec<u8>,
    expires_at_ms: Option<u64>,
}

impl CopiedField {
    /// The same field, to be written.
    pub(super) fn write(&self) -> FieldWrite<'_> {
        FieldWrite { name: &self.name, text: &self.text, expires_at_ms: self.expires_at_ms }
    }
}

/// The fields of a hash as they are read to be copied.
#[derive(Default)]
pub(super) struct CopiedFields {
    bytes: usize,
    fields: Vec<CopiedField>,
}

impl CopiedFields {
    /// Adds a field; false once they are too much.
    pub(super) fn push(&mut self, name: &[u8], value: Value<'_>) -> bool {
        let mut text = Vec::new();
        write_text(&mut text, value);
        self.bytes += name.len() + text.len() + size_of::<CopiedField>();
        self.fields.push(CopiedField { name: name.to_vec(), text, expires_at_ms: None });
        self.bytes <= limits::COPIED_BYTES_MAX
    }

    /// Asks when each of them expires.
    pub(super) fn set_expiries(
        &mut self,
        expiry: impl Fn(&[u8]) -> hedgerow::Result<Option<Option<u64>>>,
    ) -> hedgerow::Result<()> {
        for field in &mut self.fields {
            field.expires_at_ms = expiry(&field.name)?.flatten();
        }
        Ok(())
    }

    /// The hash, unless it was too much.
    fn finish(self) -> Outcome<Copied> {
        match self.bytes <= limits::COPIED_BYTES_MAX {
            true => Ok(Copied::Hash(self.fields)),
            false => Err(Failure::new(format!(
                "ERR a hash of more than {} bytes can not be copied or renamed",
                limits::COPIED_BYTES_MAX
            ))),
        }
    }
}
