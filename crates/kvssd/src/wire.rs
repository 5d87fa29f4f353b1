//! Commands and completions as the NVMe key value command set encodes them.
//!
//! Owns the bytes of submission queue entries ([`NvmeCommand`]) and of lists of keys ([`encode_key_list`]); `status` those of completions, `namespace` what carries such commands out. Promises that
//! any 64 bytes are a command or a [`WireError`], and that a key that does not fit is refused, never cut. Must not know how a command gets to a drive.
//!
//! Layouts and numbers are those of the NVM Express Key Value Command Set specification, revision 1.0, sections 3.1 and 3.2, and of the NVMe base specification for what all commands have; they
//! were compared with the public headers of SPDK (`nvme_kv.h`, `nvme_spec.h`) and xNVMe (`libxnvme_spec.h`). All numbers are little-endian.
//!
//! | bytes | dword | what |
//! |---|---|---|
//! | 0 | 0 | opcode |
//! | 1 | 0 | bits 1:0 fused, 0; bits 7:6 what the data pointer is: 0 PRPs, 1 and 2 an SGL |
//! | 2..4 | 0 | command identifier |
//! | 4..8 | 1 | namespace |
//! | 8..16 | 2, 3 | bytes 0 to 7 of the key, then zeros |
//! | 16..24 | 4, 5 | metadata pointer, 0: there is no metadata |
//! | 24..40 | 6 to 9 | data pointer; 0 where no data goes |
//! | 40..44 | 10 | Store: bytes of the value; Retrieve, List: bytes of the buffer; else 0 |
//! | 44 | 11 | bytes of the key |
//! | 45 | 11 | Store: 1 only where there is a pair, 2 only where there is none, 4 without compression; Retrieve: 1 as it is stored; else 0 |
//! | 46..56 | 11 to 13 | 0 |
//! | 56..64 | 14, 15 | bytes 8 to 15 of the key, then zeros |

mod namespace;
mod status;

use std::fmt;

use hedgerow_row::le_bytes::{u16_at, u32_at};

use crate::command::PairKey;
pub use namespace::NvmeNamespaces;
pub use status::{COMPLETION_BYTES, NvmeCompletion, NvmeStatus};

/// Bytes of a submission queue entry.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a key in a command: 1 to this.
pub const NVME_KEY_BYTES_MAX: usize = 16;

const FLUSH: u8 = 0x00;
const STORE: u8 = 0x01;
const RETRIEVE: u8 = 0x02;
const LIST: u8 = 0x06;
const DELETE: u8 = 0x10;
const EXIST: u8 = 0x14;

const ONLY_IF_PRESENT: u8 = 1;
const ONLY_IF_ABSENT: u8 = 2;
const NO_COMPRESSION: u8 = 4;
const RAW: u8 = 1;

/// Bytes before the first key of a list.
const LIST_HEAD_BYTES: usize = 4;

/// A key that fits in a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NvmeKey {
    len: u8,
    bytes: [u8; NVME_KEY_BYTES_MAX],
}

impl NvmeKey {
    /// A copy of `key`.
    ///
    /// # Errors
    /// [`WireError::KeyLength`]: it has no byte, or more than 16.
    pub fn new(key: &[u8]) -> Result<NvmeKey, WireError> {
        if key.is_empty() || key.len() > NVME_KEY_BYTES_MAX {
            return Err(WireError::KeyLength { bytes: key.len(), max: NVME_KEY_BYTES_MAX, opcode: STORE });
        }
        let mut bytes = [0; NVME_KEY_BYTES_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Ok(NvmeKey { len: key.len() as u8, bytes })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for NvmeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvmeKey({})", self.bytes().escape_ascii())
    }
}

/// Where a command's data is in the memory of whoever gives it. Carried as it is, and followed by nobody here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPointer {
    /// Two physical region page entries.
    Prp(u64, u64),
    /// A scatter gather list descriptor.
    Sgl([u8; 16]),
}

/// On what a store depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreOptions {
    /// Stored only where there is a pair.
    pub only_if_present: bool,
    /// Stored only where there is none. With the other one, too, nothing is ever stored.
    pub only_if_absent: bool,
    /// The value is not to be compressed. This device compresses none.
    pub no_compression: bool,
}

/// What a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvmeAction {
    /// Makes durable what was completed before. Of the base specification.
    Flush,
    /// Stores a pair.
    Store {
        /// Under which key.
        key: NvmeKey,
        /// Bytes of the value.
        value_bytes: u32,
        /// On what it depends.
        options: StoreOptions,
    },
    /// Reads a value from its start.
    Retrieve {
        /// Under which key.
        key: NvmeKey,
        /// So many bytes at most.
        buffer_bytes: u32,
        /// As it is stored, compressed or not. This device compresses none.
        raw: bool,
    },
    /// Lists keys.
    List {
        /// From this key on, or from where it would be; none is the start.
        from: Option<NvmeKey>,
        /// So many bytes at most.
        buffer_bytes: u32,
    },
    /// Deletes a pair.
    Delete {
        /// Under which key.
        key: NvmeKey,
    },
    /// Whether there is a pair.
    Exist {
        /// Under which key.
        key: NvmeKey,
    },
}

/// A command of the key value command set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvmeCommand {
    /// Comes back with the completion.
    pub command_id: u16,
    /// Number of the namespace.
    pub namespace: u32,
    /// Where its data is; of commands without data it is not encoded.
    pub data: DataPointer,
    /// What is asked.
    pub action: NvmeAction,
}

impl NvmeCommand {
    /// Its submission queue entry.
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        let (opcode, dword_10, options, key) = match self.action {
            NvmeAction::Flush => (FLUSH, 0, 0, None),
            NvmeAction::Store { key, value_bytes, options } => {
                let bit = |is_set, bit| if is_set { bit } else { 0 };
                let options = bit(options.only_if_present, ONLY_IF_PRESENT)
                    | bit(options.only_if_absent, ONLY_IF_ABSENT)
                    | bit(options.no_compression, NO_COMPRESSION);
                (STORE, value_bytes, options, Some(key))
            }
            NvmeAction::Retrieve { key, buffer_bytes, raw } => {
                (RETRIEVE, buffer_bytes, u8::from(raw), Some(key))
            }
            NvmeAction::List { from, buffer_bytes } => (LIST, buffer_bytes, 0, from),
            NvmeAction::Delete { key } => (DELETE, 0, 0, Some(key)),
            NvmeAction::Exist { key } => (EXIST, 0, 0, Some(key)),
        };
        bytes[0] = opcode;
        bytes[2..4].copy_from_slice(&self.command_id.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.namespace.to_le_bytes());
        // The low bits of an opcode say whether data goes one way or the other.
        if opcode & 3 != 0 {
            match self.data {
                DataPointer::Prp(first, second) => {
                    bytes[24..32].copy_from_slice(&first.to_le_bytes());
                    bytes[32..40].copy_from_slice(&second.to_le_bytes());
                }
                DataPointer::Sgl(descriptor) => {
                    bytes[1] = 1 << 6;
                    bytes[24..40].copy_from_slice(&descriptor);
                }
            }
        }
        bytes[40..44].copy_from_slice(&dword_10.to_le_bytes());
        if let Some(key) = key {
            bytes[8..16].copy_from_slice(&key.bytes[..8]);
            bytes[56..64].copy_from_slice(&key.bytes[8..]);
            bytes[44] = key.len;
        }
        bytes[45] = options;
        bytes
    }

    /// The command of a submission queue entry. Reserved fields and what follows the key in its fields are not looked at.
    ///
    /// # Errors
    /// [`WireError`]: another opcode, a fused command, a data pointer of a reserved kind, a key that is too long or missing, options that are reserved.
    pub fn decode(bytes: &[u8; COMMAND_BYTES]) -> Result<NvmeCommand, WireError> {
        let [opcode, flags] = [bytes[0], bytes[1]];
        if !matches!(opcode, FLUSH | STORE | RETRIEVE | LIST | DELETE | EXIST) {
            return Err(WireError::Opcode { opcode });
        }
        if flags & 3 != 0 {
            return Err(WireError::Fused { how: flags & 3 });
        }
        let descriptor: [u8; 16] = std::array::from_fn(|at| bytes[24 + at]);
        let data = match flags >> 6 {
            _ if opcode & 3 == 0 => DataPointer::Prp(0, 0),
            0 => {
                let pair = u128::from_le_bytes(descriptor);
                DataPointer::Prp(pair as u64, (pair >> 64) as u64)
            }
            1 | 2 => DataPointer::Sgl(descriptor),
            kind => return Err(WireError::DataPointer { kind }),
        };
        let (dword_10, options) = (u32_at(bytes, 40), bytes[45]);
        let known = match opcode {
            STORE => ONLY_IF_PRESENT | ONLY_IF_ABSENT | NO_COMPRESSION,
            RETRIEVE => RAW,
            _ => u8::MAX,
        };
        if options & !known != 0 {
            return Err(WireError::Options { options, known });
        }
        let action = match opcode {
            FLUSH => NvmeAction::Flush,
            LIST if bytes[44] == 0 => NvmeAction::List { from: None, buffer_bytes: dword_10 },
            _ => {
                let key = decode_key(bytes, opcode)?;
                match opcode {
                    STORE => NvmeAction::Store {
                        key,
                        value_bytes: dword_10,
                        options: StoreOptions {
                            only_if_present: options & ONLY_IF_PRESENT != 0,
                            only_if_absent: options & ONLY_IF_ABSENT != 0,
                            no_compression: options & NO_COMPRESSION != 0,
                        },
                    },
                    RETRIEVE => NvmeAction::Retrieve { key, buffer_bytes: dword_10, raw: options & RAW != 0 },
                    LIST => NvmeAction::List { from: Some(key), buffer_bytes: dword_10 },
                    DELETE => NvmeAction::Delete { key },
                    _ => NvmeAction::Exist { key },
                }
            }
        };
        let (command_id, namespace) = (u16_at(bytes, 2), u32_at(bytes, 4));
        Ok(NvmeCommand { command_id, namespace, data, action })
    }
}

fn decode_key(bytes: &[u8; COMMAND_BYTES], opcode: u8) -> Result<NvmeKey, WireError> {
    let mut key = [0; NVME_KEY_BYTES_MAX];
    key[..8].copy_from_slice(&bytes[8..16]);
    key[8..].copy_from_slice(&bytes[56..]);
    let len = usize::from(bytes[44]);
    let wrong = WireError::KeyLength { bytes: len, max: NVME_KEY_BYTES_MAX, opcode };
    NvmeKey::new(key.get(..len).ok_or(wrong)?).map_err(|_| wrong)
}

/// Appends to `list`, which begins with its count, one more key, if it fits in `most` bytes with it. Whether it did.
fn push_key(list: &mut Vec<u8>, key: &[u8], most: usize) -> bool {
    let after = (list.len() + 2 + key.len()).next_multiple_of(4);
    if after > most {
        return false;
    }
    list.extend_from_slice(&(key.len() as u16).to_le_bytes());
    list.extend_from_slice(key);
    list.resize(after, 0);
    let count = u32_at(list, 0) + 1;
    list[..LIST_HEAD_BYTES].copy_from_slice(&count.to_le_bytes());
    true
}

/// The bytes of a list of keys, of at most `most` bytes, and how many of the keys are in it: u32 their number, then for each u16 its bytes, the key, and zeros up to the next multiple of four.
///
/// # Errors
/// [`WireError::ListShort`]: `most` is less than 4.
pub fn encode_key_list(keys: &[NvmeKey], most: usize) -> Result<(Vec<u8>, usize), WireError> {
    if most < LIST_HEAD_BYTES {
        return Err(WireError::ListShort { bytes: most, needed: LIST_HEAD_BYTES });
    }
    let mut list = vec![0; LIST_HEAD_BYTES];
    let listed = keys.iter().take_while(|key| push_key(&mut list, key.bytes(), most)).count();
    Ok((list, listed))
}

/// The keys of a list. What follows the last one is not looked at: a buffer may be longer than the list in it. Padding may be cut off after the last key.
///
/// # Errors
/// [`WireError::ListShort`]: it is cut off. [`WireError::KeyLength`]: a key of 0 or more than 255 bytes. Other devices may list keys of more than 16 bytes.
pub fn decode_key_list(list: &[u8]) -> Result<Vec<PairKey>, WireError> {
    let part = |at: usize, len: usize| {
        let needed = at.saturating_add(len);
        list.get(at..needed).ok_or(WireError::ListShort { bytes: list.len(), needed })
    };
    let count = u32_at(part(0, LIST_HEAD_BYTES)?, 0);
    let (mut keys, mut at) = (Vec::new(), LIST_HEAD_BYTES);
    for _ in 0..count {
        let len = usize::from(u16_at(part(at, 2)?, 0));
        let max = crate::command::KEY_BYTES_MAX;
        let wrong = WireError::KeyLength { bytes: len, max, opcode: LIST };
        keys.push(PairKey::new(part(at + 2, len)?).map_err(|_| wrong)?);
        at = (at + 2 + len).next_multiple_of(4);
    }
    Ok(keys)
}

/// Why bytes are no command or no list of keys, or a key fits in none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// No command that is known here.
    Opcode {
        /// Its number.
        opcode: u8,
    },
    /// A part of a fused command.
    Fused {
        /// Which.
        how: u8,
    },
    /// A data pointer of a reserved kind.
    DataPointer {
        /// Its number.
        kind: u8,
    },
    /// A key that is missing or too long.
    KeyLength {
        /// Bytes of it.
        bytes: usize,
        /// At most; at least 1.
        max: usize,
        /// Of which command.
        opcode: u8,
    },
    /// Options that are reserved.
    Options {
        /// All options of the command.
        options: u8,
        /// Those that there are.
        known: u8,
    },
    /// A list of keys that is cut off, or a buffer that holds none.
    ListShort {
        /// Bytes that there are.
        bytes: usize,
        /// Bytes that there must be.
        needed: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Opcode { opcode } => write!(f, "no key-value command has the opcode {opcode:#04x}"),
            WireError::Fused { how } => write!(f, "a fused command ({how}) is not carried out"),
            WireError::DataPointer { kind } => write!(f, "data pointers of kind {kind} are reserved"),
            WireError::KeyLength { bytes, max, .. } => {
                write!(f, "a key has 1 to {max} bytes, and this one {bytes}")
            }
            WireError::Options { options, known } => {
                write!(f, "of the options {options:#04x} only {known:#04x} are known")
            }
            WireError::ListShort { bytes, needed } => {
                write!(f, "a list of keys takes {needed} bytes, and there are {bytes}")
            }
        }
    }
}

impl std::error::Error for WireError {}

#[cfg(test)]
mod tests;
