//! A change of one slot on all of its copies: SNAPSHOT (FUSEE, FAST 2023, section 4.3), with repairs.
//!
//! Owns who of several writers of a slot wins. Promises that the primary copy changes only after all backups have the new word, and that of the writers that found the same old word at
//! most one changes the primary. Must not know what words mean, or how operations travel.
//!
//! 1. Compare-and-swap all backups from the old word to the new one. What each had says who was there first.
//! 2. All of them first: won. A strict majority: won, once the others are brought along. Another has it, or none is ours: lost. Else read the primary: if it
//!    still has the old word, the smallest word among the backups wins, and brings the others along; if it has not, somebody has finished, and we lost.
//! 3. The winner swaps the primary: this is when the change happens. Losers wait until the primary has changed.
//!
//! A writer whose own swap of the primary finds something else lost, too, whatever the backups said: two deletes may write the same word.

use crate::region::{MemoryNode, SlotId};
use crate::word::SlotWord;

/// What a change is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// A free slot becomes a key's.
    Claim,
    /// A slot of the key gets a value.
    Store,
    /// The key is deleted.
    Delete,
    /// A claim that is not needed is taken away.
    Release,
}

/// Where a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The backups are swapped.
    Backups,
    /// The primary is read, because the backups have several words.
    Arbitrate,
    /// The winner swaps backups that have another word.
    Align,
    /// The winner swaps the primary.
    Commit,
    /// A loser waits for the primary to change; the time before the next look grows.
    Await,
    /// A loser reads the object of the word that took the old one's place.
    Winner(SlotWord),
}

/// A change under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SlotChange {
    pub(crate) id: SlotId,
    pub(crate) old: SlotWord,
    pub(crate) new: SlotWord,
    pub(crate) purpose: Purpose,
    pub(crate) phase: Phase,
    pub(crate) primary: MemoryNode,
    pub(crate) backups: Vec<MemoryNode>,
    /// What the backups have, as far as it is known: ours where we were first.
    pub(crate) seen: Vec<SlotWord>,
    /// Looks at the primary, of a loser.
    pub(crate) looks: u32,
}

/// What follows from what the backups have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Won,
    WonOnceAligned,
    Lost,
    AskPrimary,
}

impl SlotChange {
    /// Takes in what each backup had.
    pub(crate) fn backups_had(&mut self, before: &[SlotWord]) {
        self.seen = before.iter().map(|&word| if word == self.old { self.new } else { word }).collect();
    }

    pub(crate) fn decide(&self) -> Decision {
        let ours = self.seen.iter().filter(|&&word| word == self.new).count();
        let all = self.seen.len();
        if ours == all {
            return Decision::Won;
        }
        if 2 * ours > all {
            return Decision::WonOnceAligned;
        }
        let others = self.seen.iter().filter(|&&word| word != self.new);
        let is_others =
            others.clone().any(|&word| 2 * self.seen.iter().filter(|&&w| w == word).count() > all);
        if ours == 0 || is_others { Decision::Lost } else { Decision::AskPrimary }
    }

    /// What follows once the primary was read.
    pub(crate) fn arbitrate(&self, primary: SlotWord) -> Decision {
        let smallest = self.seen.iter().min().copied();
        match primary == self.old && smallest == Some(self.new) {
            true => Decision::WonOnceAligned,
            false => Decision::Lost,
        }
    }

    /// The backups that the winner must bring along, and the words they have.
    pub(crate) fn to_align(&self) -> Vec<(MemoryNode, SlotWord)> {
        let pairs = self.backups.iter().copied().zip(self.seen.iter().copied());
        pairs.filter(|(_, word)| *word != self.new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(new: u64, seen: &[u64]) -> SlotChange {
        SlotChange {
            id: SlotId { partition: 0, slot: 0 },
            old: SlotWord(1),
            new: SlotWord(new),
            purpose: Purpose::Store,
            phase: Phase::Backups,
            primary: MemoryNode(0),
            backups: (1..=seen.len() as u8).map(MemoryNode).collect(),
            seen: seen.iter().map(|&word| SlotWord(word)).collect(),
            looks: 0,
        }
    }

    #[test]
    fn the_rules() {
        for (new, seen, decision) in [
            (5, &[5, 5][..], Decision::Won),
            (5, &[], Decision::Won),
            (5, &[6, 6], Decision::Lost),
            (5, &[6, 7], Decision::Lost),
            (5, &[5, 6], Decision::AskPrimary),
            (5, &[5, 5, 6], Decision::WonOnceAligned),
            (5, &[5, 6, 6], Decision::Lost),
            (5, &[5, 6, 7], Decision::AskPrimary),
            (5, &[6], Decision::Lost),
        ] {
            assert_eq!(change(new, seen).decide(), decision, "{new} among {seen:?}");
        }
        assert_eq!(change(5, &[5, 6]).arbitrate(SlotWord(1)), Decision::WonOnceAligned);
        assert_eq!(change(6, &[5, 6]).arbitrate(SlotWord(1)), Decision::Lost);
        assert_eq!(change(5, &[5, 6]).arbitrate(SlotWord(6)), Decision::Lost);
        assert_eq!(change(5, &[5, 6]).to_align(), [(MemoryNode(2), SlotWord(6))]);
    }

    #[test]
    fn of_two_writers_exactly_one_wins_in_every_order() {
        // Each backup is swapped by both, in either order: who was first there is what both see.
        for backups in 1..=4u32 {
            for first in 0..1u64 << backups {
                let seen: Vec<u64> =
                    (0..backups).map(|at| if first >> at & 1 == 1 { 8 } else { 9 }).collect();
                let wins = [8, 9].map(|new| {
                    let change = change(new, &seen);
                    match change.decide() {
                        Decision::AskPrimary => change.arbitrate(SlotWord(1)) != Decision::Lost,
                        decision => decision != Decision::Lost,
                    }
                });
                assert_eq!(wins.iter().filter(|&&won| won).count(), 1, "{seen:?}");
            }
        }
    }
}
