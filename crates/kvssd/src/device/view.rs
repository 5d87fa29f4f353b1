//! A look at a device that nobody has open.
//!
//! Owns [`DeviceView`]: a device that was opened on a copy, and what stood on the flash before. Promises that what it says is what the next opening will find, because it is one; and, over a
//! [copy of a file](FastTier::open_file_copy), that the file stays as it is. Must not know who looks.

use hedgerow_device::FastTier;

use super::check::DeviceCheck;
use super::damage::OpenReport;
use super::{Device, DeviceOptions};
use crate::code::Result;
use crate::command::{DeviceInfo, SpaceInfo};
use crate::flash::geometry::Geometry;
use crate::flash::superblock::{Superblock, VERSION};
use crate::flash::{Flash, SpoiledCopies};

/// How the last process that had a device left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceShutdown {
    /// It was closed in order.
    Closed,
    /// The process ended without closing it, and the machine is up since.
    Killed,
    /// The machine has been down since.
    PowerCut,
}

/// Blocks by what they are used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Erased, or never used.
    pub free: u32,
    /// Open: for commands, or for gc. Two at most.
    pub open: u32,
    /// Full: with a footer that lists their records.
    pub full: u32,
    /// Neither open nor with a footer that verifies: opening makes it anew.
    pub damaged: u32,
}

/// What a device is and has.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceOverview {
    /// Its number, which no other device has.
    pub device_id: u128,
    /// Of what is on the flash.
    pub format_version: u32,
    /// How it was left.
    pub shutdown: DeviceShutdown,
    /// Whether a repair was begun and not ended: the next opening tells again what it finds.
    pub repair_begun: bool,
    /// How often its superblock was written.
    pub generation: u64,
    /// Changes are counted from 1 on; all up to this one are durable.
    pub durable_sequence: u64,
    /// The last number that a key space was given.
    pub last_space: u32,
    /// Pages, blocks and limits.
    pub geometry: Geometry,
    /// Capacity, and how much of it is taken.
    pub info: DeviceInfo,
    /// Key spaces, by their numbers.
    pub spaces: Vec<SpaceInfo>,
    /// Blocks by what they are used for.
    pub blocks: BlockCounts,
    /// Blocks in use by how much of what they hold counts: up to a quarter of a block, up to half, up to three quarters, more.
    pub live_quarters: [u32; 4],
    /// How often the most worn block was erased, and all of them together.
    pub erases: (u64, u64),
    /// What opening finds damaged.
    pub report: OpenReport,
}

/// What stood on the flash before it was opened.
#[derive(Debug)]
struct FoundFlash {
    superblock: Superblock,
    is_same_boot: bool,
    copies: SpoiledCopies,
    blocks: BlockCounts,
    /// Blocks whose footer does not verify.
    without_footer: Vec<u32>,
}

impl FoundFlash {
    fn of(flash: &Flash) -> Result<FoundFlash> {
        let superblock = *flash.superblock();
        let (mut blocks, mut without_footer) = (BlockCounts::default(), Vec::new());
        for block in 0..flash.geometry().blocks {
            let generation = flash.generation(block);
            let mut marks = superblock.open.iter().flatten();
            let is_open = marks.any(|mark| mark.block == block && mark.generation == generation);
            if !flash.is_in_use(block) {
                blocks.free += 1;
            } else if flash.read_footer(block)?.is_some() {
                blocks.full += 1;
            } else if is_open {
                blocks.open += 1;
            } else {
                blocks.damaged += 1;
                without_footer.push(block);
            }
        }
        let (is_same_boot, copies) = (flash.is_same_boot(), flash.spoiled_copies());
        Ok(FoundFlash { superblock, is_same_boot, copies, blocks, without_footer })
    }
}

/// A device that is looked at: opened, and so repaired where it is damaged, on a medium that nobody keeps.
#[derive(Debug)]
pub struct DeviceView {
    device: Device,
    found: FoundFlash,
}

impl DeviceView {
    /// Opens the device on a medium that is a copy: opening writes to it.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open(copy: FastTier) -> Result<DeviceView> {
        let flash = Flash::open(copy)?;
        let found = FoundFlash::of(&flash)?;
        Ok(DeviceView { device: Device::recover(flash, DeviceOptions::default())?, found })
    }

    /// What there is.
    pub fn overview(&self) -> DeviceOverview {
        let (device, superblock) = (&self.device, &self.found.superblock);
        let shutdown = match (superblock.clean, self.found.is_same_boot) {
            (true, _) => DeviceShutdown::Closed,
            (false, true) => DeviceShutdown::Killed,
            (false, false) => DeviceShutdown::PowerCut,
        };
        let geometry = device.geometry();
        let mut live_quarters = [0; 4];
        for (_, live) in device.blocks_in_use() {
            let quarter = live.saturating_sub(1) * 4 / u64::from(geometry.block_bytes);
            live_quarters[quarter.min(3) as usize] += 1;
        }
        let erases = (0..geometry.blocks).map(|block| device.flash.generation(block) / 2);
        DeviceOverview {
            device_id: superblock.device_id,
            format_version: VERSION,
            shutdown,
            repair_begun: superblock.repair != 0,
            generation: superblock.generation,
            durable_sequence: superblock.watermark,
            last_space: superblock.last_space.number(),
            geometry,
            info: device.info(),
            spaces: device.spaces.all(),
            blocks: self.found.blocks,
            live_quarters,
            erases: (device.erases_max(), erases.sum()),
            report: device.open_report().clone(),
        }
    }

    /// Verifies every checksum, and that footers, records and what opening made of them agree. `progress` is told how many blocks of how many were gone through.
    ///
    /// # Errors
    /// Only what keeps it from going on; what is wrong with the device is in the [`DeviceCheck`].
    pub fn check(&self, progress: impl FnMut(u64, u64)) -> Result<DeviceCheck> {
        let mut check = DeviceCheck::of_found(&self.found.copies, &self.found.without_footer, &self.device);
        self.device.check(&mut check, progress)?;
        Ok(check)
    }

    /// The device, on its copy.
    pub fn device(&mut self) -> &mut Device {
        &mut self.device
    }
}
