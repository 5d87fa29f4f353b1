//! How long the parts of a drive take: all numbers of the timeline, and where each is from.
//!
//! Owns [`DriveModel`] and [`FrontCost`]. Promises that no figure of time is anywhere else in this crate. Must not know what is done with them.
//!
//! Marks: **fitted**, by two points of a table; **remembered**, of data sheets and papers about drives of that time, and not looked up; **assumed**, because nothing says.
//!
//! | number | value | source |
//! |---|---|---|
//! | front, retrieve | 6.7 us + 0.31 ns a byte of the value | fitted |
//! | front, insert | 7.2 us + 0.51 ns a byte | fitted |
//! | front, update | 11.2 us + 0.52 ns a byte | fitted |
//! | a key of more than 16 bytes | 1 us more | assumed: such a key is a second transfer from the host's memory |
//! | channels, dies a channel | 8, 8 | remembered |
//! | program | 32 KiB in 1.05 ms | remembered |
//! | read of a page | 65 us | remembered |
//! | erase | 4 ms | remembered |
//! | channel | 800 MB/s | remembered |
//! | request buffer | 4 MiB: two programs a die | assumed |
//! | dies that erase at once | 8 of 64 | assumed |
//! | an erase makes way for reads | in 50 us | assumed |
//!
//! The table is what the emulator that was shipped with the API says under its own performance model (OpenMPDK/KVSSD 1.6.0, `kvemul.conf`), evaluated at values of 64 and of 4,096 bytes: 148 and 125
//! thousand retrieves a second, 139 and 108 inserts, 89 and 75 updates. It is one server's rate, and has no latencies, no queues and no gc. Its mixed rows are left out: half retrieves and half updates of 64 bytes come to
//! 122 thousand there, more than the mean of both.

use crate::code::{KvError, Result};
use crate::command::VALUE_BYTES_MAX;

/// Keys of up to so many bytes travel inside of a command; a longer one is a transfer of its own (the drives' vendor commands).
const KEY_BYTES_INLINE: usize = 16;

/// What a command costs in the stage that all commands pass one by one: transfers and firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontCost {
    /// Of each command.
    pub ns: u64,
    /// Of each byte of the value, in ps.
    pub ps_per_byte: u64,
}

impl FrontCost {
    /// Of a value of so many bytes, in ns.
    fn of(&self, bytes: u64) -> u64 {
        self.ns + self.ps_per_byte * bytes / 1000
    }
}

/// What the front stage tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontKind {
    /// Reads a pair, or looks for one.
    Retrieve,
    /// Stores a pair under a key that there was no record of.
    Insert,
    /// Stores or deletes a pair under a key that there was one of.
    Update,
}

/// How long the parts of a drive take. The default is a drive of 2018 for data centers, as far as public texts say; see the table of this module's source for where each number is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveModel {
    /// Front stage of a retrieve.
    pub retrieve: FrontCost,
    /// Front stage of a store of a new key.
    pub insert: FrontCost,
    /// Front stage of a store over a pair, and of a deletion.
    pub update: FrontCost,
    /// What a key of more than 16 bytes costs beside, in the front stage.
    pub long_key_ns: u64,
    /// Channels, which transfer one page at a time each.
    pub channels: u32,
    /// Dies behind a channel, which do one thing at a time each.
    pub dies_a_channel: u32,
    /// Bytes of a program. The device's pages must have as many.
    pub program_bytes: u32,
    /// A program.
    pub program_ns: u64,
    /// A read of a page.
    pub read_ns: u64,
    /// An erase of a block's part on a die.
    pub erase_ns: u64,
    /// Of each byte that a channel transfers, in ps.
    pub channel_ps_per_byte: u64,
    /// Bytes that may be buffered and not programmed yet.
    pub buffer_bytes: u64,
    /// Dies that erase at once, but for those that must at once.
    pub erases_at_once: u32,
    /// How long it takes an erase to make way for a read; none: it does not.
    pub erase_suspend_ns: Option<u64>,
}

impl Default for DriveModel {
    fn default() -> DriveModel {
        DriveModel {
            retrieve: FrontCost { ns: 6_700, ps_per_byte: 310 },
            insert: FrontCost { ns: 7_200, ps_per_byte: 510 },
            update: FrontCost { ns: 11_200, ps_per_byte: 520 },
            long_key_ns: 1_000,
            channels: 8,
            dies_a_channel: 8,
            program_bytes: 32 << 10,
            program_ns: 1_050_000,
            read_ns: 65_000,
            erase_ns: 4_000_000,
            channel_ps_per_byte: 1_250,
            buffer_bytes: 4 << 20,
            erases_at_once: 8,
            erase_suspend_ns: Some(50_000),
        }
    }
}

impl DriveModel {
    /// # Errors
    /// [`KvError::Param`]: which number no drive has.
    pub fn check(&self) -> Result<()> {
        let most = 1u64 << 40;
        let times =
            [self.long_key_ns, self.program_ns, self.read_ns, self.erase_ns, self.channel_ps_per_byte];
        let fronts = [self.retrieve, self.insert, self.update];
        let mut fronts = fronts.into_iter().flat_map(|front| [front.ns, front.ps_per_byte]);
        let what = if !(1..=256).contains(&self.channels) || !(1..=256).contains(&self.dies_a_channel) {
            "a drive has 1 to 256 channels, and 1 to 256 dies a channel"
        } else if times.into_iter().chain(self.erase_suspend_ns).any(|time| time > most)
            || fronts.any(|time| time > most >> 16)
        {
            "a time of the model is longer than any drive takes"
        } else if self.erases_at_once == 0 {
            "one die may erase at least"
        } else if self.buffer_bytes < (VALUE_BYTES_MAX as u64) + 4 * u64::from(self.program_bytes) {
            "a request buffer holds the longest value and four programs"
        } else {
            return Ok(());
        };
        Err(KvError::Param { what })
    }

    /// Dies in all.
    pub fn dies(&self) -> u32 {
        self.channels * self.dies_a_channel
    }

    /// The front stage of a command: on a key and a value of so many bytes, in ns.
    pub fn front_ns(&self, kind: FrontKind, key_bytes: usize, value_bytes: u64) -> u64 {
        let cost = match kind {
            FrontKind::Retrieve => self.retrieve,
            FrontKind::Insert => self.insert,
            FrontKind::Update => self.update,
        };
        cost.of(value_bytes) + if key_bytes > KEY_BYTES_INLINE { self.long_key_ns } else { 0 }
    }

    /// A transfer over a channel, in ns.
    pub(crate) fn transfer_ns(&self, bytes: u64) -> u64 {
        bytes * self.channel_ps_per_byte / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_no_drive_are_refused() {
        let good = DriveModel::default();
        good.check().unwrap();
        for bad in [
            DriveModel { channels: 0, ..good },
            DriveModel { dies_a_channel: 257, ..good },
            DriveModel { program_ns: u64::MAX, ..good },
            DriveModel { insert: FrontCost { ns: 1, ps_per_byte: 1 << 60 }, ..good },
            DriveModel { erase_suspend_ns: Some(u64::MAX), ..good },
            DriveModel { erases_at_once: 0, ..good },
            DriveModel { buffer_bytes: 2 << 20, ..good },
        ] {
            assert!(matches!(bad.check(), Err(KvError::Param { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_key_of_more_than_16_bytes_is_a_second_transfer() {
        let model = DriveModel::default();
        let cost = |key_bytes| model.front_ns(FrontKind::Insert, key_bytes, 1000);
        assert_eq!((cost(16), cost(17)), (7_200 + 510, 7_200 + 510 + 1_000));
    }
}
