//! What a command lacks that has changed nothing, and how often it was given already.
//!
//! Must not know commands or clients.

use hedgerow::Missing;

use super::pairs::attempt::{Attempt, Step};

/// What a command that has changed nothing needs before it is given again.
pub enum Wants {
    /// Room, which gc may make.
    Space,
    /// Rows that are not in memory.
    Rows(Missing),
    /// That the attempt at a store of pairs goes this step on. With [`Step::Commit`] and [`Step::Check`] the command is done if that ends well.
    Step(Box<Attempt>, Step),
}

/// How often a command was given already, for want of something.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tries {
    /// It waited for room, and nothing happened meanwhile.
    pub idle_waits: u32,
    /// Rows were brought for it.
    pub fetches: u32,
    /// It is upkeep, for which no client waits, nor is to wait.
    pub(super) is_upkeep: bool,
}

impl Tries {
    /// Whether it has lacked rows, and may be put off once more for others.
    pub fn lacks_rows(&self) -> bool {
        (1..FETCHES_MAX).contains(&self.fetches)
    }

    /// Upkeep, which goes on where it was: it waits for the disk, a short time in all, and for room not at all.
    pub(super) const UPKEEP: Tries = Tries { idle_waits: 0, fetches: FETCHES_MAX, is_upkeep: true };
}

/// Fetches after which a command waits for the disk like anybody: what was brought is gone again before it runs.
pub(super) const FETCHES_MAX: u32 = 16;
