//! The 8 bytes of an index slot, and the addresses in it.
//!
//! Owns the layout of [`SlotWord`] and [`LogicalAddress`]. Promises that a word that does not decode is refused, and that decoding and encoding are
//! inverse. Must not know where slots lie or what is at an address.
//!
//! ```text
//!              63      56 55      48  47  46                              6 5       0
//!             +----------+----------+---+---------------------------------+---------+
//!  live       | finger-  |  units   | 1 |   address, in units of 64 bytes | version |
//!             | print    |          |   |                                 |         |
//!             +----------+----------+---+---------------------------------+---------+
//!  tombstone  |    0     | version  | 0 |   milliseconds since the pool was made    |
//!             +----------+----------+---+-------------------------------------------+
//!  never used |                                  0                                  |
//!             +---------------------------------------------------------------------+
//! ```
//!
//! * `units` is the size of the object, in units of 64 bytes, 1 to 255. `version` grows by one with each change of the slot (modulo 64 in live words, 256 in
//!   tombstones): together with the quarantine of freed memory it makes a word that comes back practically impossible.
//! * A slot never goes back to *never used*: a tombstone with its own time and version takes the place of 0, because a compare-and-swap that is late must
//!   not find the word that it expects again.
//! * An address is a region (16 bits) and an offset in it (31 bits), a multiple of 64. The bit layout is that of FlexKV (arXiv 2512.16148, section 4); the version in
//!   its six free bits is ours.

use std::fmt;

use crate::error::{PoolError, Result};

/// Objects lie at multiples of this, and have a multiple of it as their size.
pub const UNIT_BYTES: usize = 64;
/// Units of the largest object.
pub const OBJECT_UNITS_MAX: usize = 255;
/// Bytes of a region at most: an offset has 31 bits.
pub const REGION_BYTES_MAX: u64 = 1 << 31;

const VALID: u64 = 1 << 47;
const OFFSET_BITS: u32 = 31;
const TIME_MASK: u64 = VALID - 1;
const LIVE_VERSION_MASK: u64 = 63;

/// Where an object is, on each of the replicas of its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogicalAddress {
    /// The region.
    pub region: u16,
    /// Bytes from its beginning, a multiple of 64 below 2 GiB.
    pub offset: u32,
}

impl LogicalAddress {
    fn bits(self) -> u64 {
        u64::from(self.region) << OFFSET_BITS | u64::from(self.offset)
    }
}

/// What a slot says of a live object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LiveWord {
    /// Eight bits of the key's hash.
    pub fingerprint: u8,
    /// Size of the object in units of 64 bytes, 1 to 255.
    pub units: u8,
    /// Where the object is.
    pub address: LogicalAddress,
    /// Counts the changes of the slot, 0 to 63.
    pub version: u8,
}

impl LiveWord {
    /// Bytes of the object.
    pub fn object_bytes(self) -> usize {
        usize::from(self.units) * UNIT_BYTES
    }
}

/// A decoded word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing was ever there.
    NeverUsed,
    /// An object is there.
    Live(LiveWord),
    /// An object was there.
    Tombstone {
        /// Counts the changes of the slot.
        version: u8,
        /// When, in milliseconds since the pool was made; not 0.
        at_ms: u64,
    },
}

/// The 8 bytes of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlotWord(pub u64);

impl fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl SlotWord {
    /// The word of a slot that was never used.
    pub const NEVER_USED: SlotWord = SlotWord(0);

    /// The word of a live object.
    pub fn live(word: LiveWord) -> SlotWord {
        let address = VALID | word.address.bits();
        let head = u64::from(word.fingerprint) << 56 | u64::from(word.units) << 48;
        SlotWord(head | address | u64::from(word.version) & LIVE_VERSION_MASK)
    }

    /// The tombstone that takes the place of `before`. A time of 0 is stored as 1.
    pub fn tombstone_after(before: SlotWord, at_ms: u64) -> SlotWord {
        let version = before.version().wrapping_add(1);
        SlotWord(u64::from(version) << 48 | (at_ms & TIME_MASK).max(1))
    }

    /// The live word that takes the place of `before`.
    pub fn live_after(before: SlotWord, fingerprint: u8, units: u8, address: LogicalAddress) -> SlotWord {
        let version = before.version().wrapping_add(1) & LIVE_VERSION_MASK as u8;
        SlotWord::live(LiveWord { fingerprint, units, address, version })
    }

    fn version(self) -> u8 {
        match self.0 & VALID {
            0 => (self.0 >> 48) as u8,
            _ => (self.0 & LIVE_VERSION_MASK) as u8,
        }
    }

    /// What the word says.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for a word that nothing writes: a live one of size 0, a tombstone without a time or with bits where a fingerprint would be.
    pub fn decode(self) -> Result<SlotState> {
        if self == SlotWord::NEVER_USED {
            return Ok(SlotState::NeverUsed);
        }
        let (head, middle) = ((self.0 >> 56) as u8, (self.0 >> 48) as u8);
        if self.0 & VALID == 0 {
            let at_ms = self.0 & TIME_MASK;
            return match (head, at_ms) {
                (0, 1..) => Ok(SlotState::Tombstone { version: middle, at_ms }),
                _ => Err(PoolError::Unknown("slot word", self.0)),
            };
        }
        let address = self.0 & TIME_MASK & !LIVE_VERSION_MASK;
        let address = LogicalAddress {
            region: (address >> OFFSET_BITS) as u16,
            offset: (address & ((1 << OFFSET_BITS) - 1)) as u32,
        };
        match middle {
            0 => Err(PoolError::Unknown("slot word", self.0)),
            units => Ok(SlotState::Live(LiveWord {
                fingerprint: head,
                units,
                address,
                version: (self.0 & LIVE_VERSION_MASK) as u8,
            })),
        }
    }

    /// The live word, if it is one.
    pub fn as_live(self) -> Option<LiveWord> {
        match self.decode() {
            Ok(SlotState::Live(word)) => Some(word),
            _ => None,
        }
    }

    /// Whether a new key may take the slot.
    pub fn is_free(self) -> bool {
        matches!(self.decode(), Ok(SlotState::NeverUsed | SlotState::Tombstone { .. }))
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    #[test]
    fn golden() {
        let address = LogicalAddress { region: 0x0102, offset: 0x4030_2040 };
        let live = SlotWord::live(LiveWord { fingerprint: 0xAB, units: 3, address, version: 5 });
        assert_eq!(live.0, 0xAB03_8081_4030_2045);
        assert_eq!(SlotWord::tombstone_after(live, 0x1234).0, 0x0006_0000_0000_1234);
        assert_eq!(SlotWord::tombstone_after(SlotWord::NEVER_USED, 0).0, 0x0001_0000_0000_0001);
    }

    #[test]
    fn decoding_is_the_inverse() {
        let mut random = Random::from_seed(1);
        let (mut live, mut refused) = (0, 0);
        for _ in 0..20_000 {
            // Half of the words have the bits that live words have.
            let word = SlotWord(random.next_u64() & if random.below(2) == 0 { u64::MAX } else { !VALID });
            match word.decode() {
                Ok(SlotState::Live(decoded)) => {
                    live += 1;
                    assert_eq!(SlotWord::live(decoded), word);
                    assert_eq!(decoded.address.offset as usize % UNIT_BYTES, 0);
                }
                Ok(SlotState::Tombstone { version, at_ms }) => {
                    assert_eq!(word.0, u64::from(version) << 48 | at_ms);
                }
                Ok(SlotState::NeverUsed) => assert_eq!(word.0, 0),
                Err(PoolError::Unknown(_, value)) => {
                    refused += 1;
                    assert_eq!(value, word.0);
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(live > 1000 && refused > 1000, "{live} live, {refused} refused");
    }

    #[test]
    fn a_word_never_follows_itself() {
        let address = LogicalAddress { region: 1, offset: 64 };
        let mut word = SlotWord::NEVER_USED;
        for _ in 0..300 {
            let next = SlotWord::live_after(word, 7, 1, address);
            assert_ne!(next, word);
            let dead = SlotWord::tombstone_after(next, 9);
            assert!(dead != next && dead.is_free() && next.as_live().is_some());
            word = dead;
        }
    }
}
