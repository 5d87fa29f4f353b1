//! Statuses of the key value command set, and the completion queue entries that carry them.
//!
//! Owns [`NvmeStatus`], to and from result codes, and the bytes of [`NvmeCompletion`]. Promises that every error has one status and every status a result code. Must not know what was asked, but where the status
//! depends on the opcode.

use hedgerow_row::le_bytes::{u16_at, u32_at};

use super::{RETRIEVE, STORE, WireError};
use crate::code::{KvError, ResultCode};

/// Bytes of a completion queue entry.
pub const COMPLETION_BYTES: usize = 16;

const GENERIC: u8 = 0;
const COMMAND_SPECIFIC: u8 = 1;

/// How a command ended: type (3 bits) and code. Those of pairs are of the generic type, as the base specification has them and SPDK sends them; the key value specification calls them command-specific, and some
/// send them so: both are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NvmeStatus {
    /// Status code type, 0 to 7.
    pub kind: u8,
    /// Status code.
    pub code: u8,
}

#[expect(missing_docs, reason = "the names are the standard's; docs/kvssd.md has the table")]
impl NvmeStatus {
    pub const SUCCESS: NvmeStatus = NvmeStatus::generic(0x00);
    pub const INVALID_OPCODE: NvmeStatus = NvmeStatus::generic(0x01);
    pub const INVALID_FIELD: NvmeStatus = NvmeStatus::generic(0x02);
    pub const INTERNAL_ERROR: NvmeStatus = NvmeStatus::generic(0x06);
    pub const INVALID_NAMESPACE: NvmeStatus = NvmeStatus::generic(0x0B);
    pub const DATA_LENGTH_INVALID: NvmeStatus = NvmeStatus::generic(0x0F);
    pub const COMMAND_INTERRUPTED: NvmeStatus = NvmeStatus::generic(0x21);
    pub const CAPACITY_EXCEEDED: NvmeStatus = NvmeStatus::generic(0x81);
    pub const NAMESPACE_NOT_READY: NvmeStatus = NvmeStatus::generic(0x82);
    pub const INVALID_VALUE_SIZE: NvmeStatus = NvmeStatus::generic(0x85);
    pub const INVALID_KEY_SIZE: NvmeStatus = NvmeStatus::generic(0x86);
    pub const KEY_NOT_EXIST: NvmeStatus = NvmeStatus::generic(0x87);
    pub const UNRECOVERED_ERROR: NvmeStatus = NvmeStatus::generic(0x88);
    pub const KEY_EXISTS: NvmeStatus = NvmeStatus::generic(0x89);

    const fn generic(code: u8) -> NvmeStatus {
        NvmeStatus { kind: GENERIC, code }
    }
}

impl NvmeStatus {
    /// The status of a result code. A short buffer is a success here, with the size of the value.
    pub fn of_code(code: ResultCode) -> NvmeStatus {
        match code {
            ResultCode::Success | ResultCode::BufferSmall => NvmeStatus::SUCCESS,
            ResultCode::DeviceCapacity | ResultCode::KeySpaceCapacity => NvmeStatus::CAPACITY_EXCEEDED,
            ResultCode::DeviceNotExist
            | ResultCode::KeySpaceExist
            | ResultCode::KeySpaceIndex
            | ResultCode::KeySpaceName
            | ResultCode::KeySpaceNotExist
            | ResultCode::KeySpaceNotOpen
            | ResultCode::KeySpaceOpen => NvmeStatus::INVALID_NAMESPACE,
            ResultCode::KeyLengthInvalid => NvmeStatus::INVALID_KEY_SIZE,
            ResultCode::KeyNotExist => NvmeStatus::KEY_NOT_EXIST,
            ResultCode::ValueLengthInvalid => NvmeStatus::INVALID_VALUE_SIZE,
            ResultCode::ValueUpdateNotAllowed => NvmeStatus::KEY_EXISTS,
            ResultCode::DeviceNotOpened => NvmeStatus::NAMESPACE_NOT_READY,
            ResultCode::SystemIo => NvmeStatus::INTERNAL_ERROR,
            ResultCode::IteratorFilterInvalid
            | ResultCode::IteratorMax
            | ResultCode::IteratorNotExist
            | ResultCode::IteratorOpen
            | ResultCode::OptionInvalid
            | ResultCode::ParamInvalid
            | ResultCode::ValueOffsetInvalid
            | ResultCode::ValueOffsetMisaligned => NvmeStatus::INVALID_FIELD,
        }
    }

    /// The status of an error of a command with this opcode. What cannot be read is an unrecovered error of a Retrieve, for which alone the standard has it.
    pub(super) fn of_error(error: &KvError, opcode: u8) -> NvmeStatus {
        match error {
            KvError::Damaged { .. } | KvError::ReadFault { .. } if opcode == RETRIEVE => {
                NvmeStatus::UNRECOVERED_ERROR
            }
            KvError::QueueFull { .. } => NvmeStatus::COMMAND_INTERRUPTED,
            error => NvmeStatus::of_code(error.code()),
        }
    }

    /// The result code of a status; of one that says nothing of pairs, [`ResultCode::SystemIo`].
    pub fn code(self) -> ResultCode {
        // Command-specific codes below 81h are of commands that manage queues and such.
        match (self.kind, self.code) {
            (GENERIC, 0x00) => ResultCode::Success,
            (GENERIC, 0x01 | 0x02 | 0x0F) => ResultCode::ParamInvalid,
            (GENERIC, 0x0B) => ResultCode::KeySpaceNotExist,
            (GENERIC | COMMAND_SPECIFIC, 0x81) => ResultCode::DeviceCapacity,
            (GENERIC | COMMAND_SPECIFIC, 0x82) => ResultCode::DeviceNotOpened,
            (GENERIC | COMMAND_SPECIFIC, 0x85) => ResultCode::ValueLengthInvalid,
            (GENERIC | COMMAND_SPECIFIC, 0x86) => ResultCode::KeyLengthInvalid,
            (GENERIC | COMMAND_SPECIFIC, 0x87) => ResultCode::KeyNotExist,
            (GENERIC | COMMAND_SPECIFIC, 0x89) => ResultCode::ValueUpdateNotAllowed,
            _ => ResultCode::SystemIo,
        }
    }

    /// Whether the same command would end so again: the bit that says "do not retry".
    fn is_final(self) -> bool {
        let may_pass = [
            NvmeStatus::SUCCESS,
            NvmeStatus::INTERNAL_ERROR,
            NvmeStatus::COMMAND_INTERRUPTED,
            NvmeStatus::CAPACITY_EXCEEDED,
            NvmeStatus::UNRECOVERED_ERROR,
        ];
        !may_pass.contains(&self)
    }
}

impl From<WireError> for NvmeStatus {
    fn from(error: WireError) -> NvmeStatus {
        match error {
            WireError::Opcode { .. } => NvmeStatus::INVALID_OPCODE,
            // Longer keys than a command has room for are an invalid field, of all commands but Store; of a key of no bytes the standard says it of those that have no status for it.
            WireError::KeyLength { opcode: STORE, .. }
            | WireError::KeyLength { opcode: RETRIEVE, bytes: 0, .. } => NvmeStatus::INVALID_KEY_SIZE,
            _ => NvmeStatus::INVALID_FIELD,
        }
    }
}

/// A completion. Its bytes, little-endian:
///
/// | bytes | dword | what |
/// |---|---|---|
/// | 0..4 | 0 | result |
/// | 4..8 | 1 | 0 |
/// | 8..10 | 2 | head of the submission queue |
/// | 10..12 | 2 | which submission queue |
/// | 12..14 | 3 | command identifier |
/// | 14..16 | 3 | bit 0 phase, 8:1 status code, 11:9 its type, 13:12 delay before a retry, 14 more is in the error log, 15 do not retry |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvmeCompletion {
    /// Of a Retrieve: bytes of the whole value. Else 0.
    pub result: u32,
    /// How far the submission queue was read. For whoever keeps the queues: 0 here.
    pub queue_head: u16,
    /// Which submission queue; 0 here.
    pub queue: u16,
    /// The command's.
    pub command_id: u16,
    /// Changes each time that the completion queue wraps; false here.
    pub phase: bool,
    /// How the command ended.
    pub status: NvmeStatus,
    /// Which of three delays to wait before a retry, 0 to 3; 0 here.
    pub retry_delay: u8,
    /// Whether the error log has more; false here.
    pub more: bool,
    /// The same command would end so again.
    pub do_not_retry: bool,
}

impl NvmeCompletion {
    /// The completion of a command.
    pub(super) fn new(command_id: u16, status: NvmeStatus, result: u32) -> NvmeCompletion {
        NvmeCompletion {
            result,
            queue_head: 0,
            queue: 0,
            command_id,
            phase: false,
            status,
            retry_delay: 0,
            more: false,
            do_not_retry: status.is_final(),
        }
    }

    /// Its completion queue entry. Of a type beyond 7 or a delay beyond 3 the low bits count.
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        let word = u16::from(self.phase)
            | u16::from(self.status.code) << 1
            | u16::from(self.status.kind & 7) << 9
            | u16::from(self.retry_delay & 3) << 12
            | u16::from(self.more) << 14
            | u16::from(self.do_not_retry) << 15;
        bytes[..4].copy_from_slice(&self.result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.queue_head.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.queue.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.command_id.to_le_bytes());
        bytes[14..].copy_from_slice(&word.to_le_bytes());
        bytes
    }

    /// The completion of a completion queue entry: any 16 bytes are one.
    pub fn decode(bytes: &[u8; COMPLETION_BYTES]) -> NvmeCompletion {
        let word = u16_at(bytes, 14);
        NvmeCompletion {
            result: u32_at(bytes, 0),
            queue_head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            command_id: u16_at(bytes, 12),
            phase: word & 1 != 0,
            status: NvmeStatus { kind: (word >> 9) as u8 & 7, code: (word >> 1) as u8 },
            retry_delay: (word >> 12) as u8 & 3,
            more: word >> 14 & 1 != 0,
            do_not_retry: word >> 15 != 0,
        }
    }
}
