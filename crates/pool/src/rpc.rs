//! What clients and proxies say to each other about the index.
//!
//! Owns the layout of these messages' bodies; `wire.rs` has what is around them. Promises that what decodes has lists as long as it says. Must not know what is done about it.
//!
//! | type | message | body |
//! |---|---|---|
//! | 16 | `Read` | epoch u32, session u16, flags u16 (1: has a cache), sequence u32, hash u64 |
//! | 17 | `Words` | epoch u32, session u16, flags u16 (1: these are all live words, 2: there is a free slot, 4: granted to the cache), sequence u32, count u32, words of 12 bytes: slot u32, word u64 |
//! | 18 | `Write` | epoch u32, session u16, flags u16 (1: combines, 2: the key was absent, 4: has a cache), sequence u32, acknowledged u32, hash u64, slot u32 (all ones: any), expected u64, word u64 (0: a tombstone), count u32, seen words of 12 bytes |
//! | 19 | `Written` | epoch u32, session u16, status u16, sequence u32, slot u32, old u64, new u64, granted by u32 (the change's number; 0: not granted to the cache) |
//! | 22 | `Range` | epoch u32, session u16, partition u16, sequence u32, slot u32 |
//! | 26 | `Invalidate` | epoch u32, session u16, 0 u16, sequence u32, hash u64 |
//! | 27 | `Invalidated` | epoch u32, session u16, 0 u16, sequence u32, hits u32 |
//!
//! `Range` is answered by `Words`, too: the live words of the buckets from that of the slot on, `bucket.rs` says how many, but of none before it. Where there are 28 there may be more behind the last.
//!
//! A request has the epoch in which its sender works, and a proxy that works in another one passes it over. Requests of a session are numbered; a write says below which number all writes to this proxy are answered. The form of
//! requests is that of FlexKV (arXiv 2512.16148): a writer says which slot it means, since proxies know fingerprints and no keys; that of a write to a key that was absent is ours.

use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};

use crate::bucket::KeyHash;
use crate::error::{PoolError, Result};
use crate::region::SlotId;
use crate::word::SlotWord;

/// Words of one list at most: the slots of two combined buckets.
pub const WORDS_MAX: usize = 28;
/// The number of no slot: whichever is free.
pub const ANY_SLOT: u32 = u32::MAX;

const WORD_BYTES: usize = 12;

/// A slot and what it has.
pub type SlotAndWord = (u32, SlotWord);

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteStatus {
    /// The slot has the new word.
    Done,
    /// It counts as done just before another one without a condition, of the same key, which is done.
    Absorbed,
    /// The slot has another word than was expected, or the key may be there by now. Nothing happened.
    Conflict,
    /// No slot is free. Nothing happened.
    Full,
    /// Too many wait, or the proxy ends. Nothing happened.
    Busy,
}

/// A change of one slot that a proxy is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IndexChange {
    /// Which slot, or [`ANY_SLOT`].
    pub slot: u32,
    /// What it must have.
    pub expected: SlotWord,
    /// What it is to have, of any version; [`SlotWord::NEVER_USED`]: a tombstone.
    pub word: SlotWord,
    /// Has no condition, so that others may take its place.
    pub combines: bool,
    /// The key was absent, and these were the live words of its fingerprint.
    pub seen: Option<Vec<SlotAndWord>>,
}

/// A request to a proxy, or its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IndexRpc {
    /// Which slots may have a key?
    Read {
        /// In which the sender works.
        epoch: u32,
        /// Who asks.
        session: u16,
        /// Comes back.
        sequence: u32,
        /// Of the key.
        hash: KeyHash,
        /// The sender would keep the pair in its cache.
        caches: bool,
    },
    /// These.
    Words {
        /// As asked.
        epoch: u32,
        /// As asked.
        session: u16,
        /// As asked.
        sequence: u32,
        /// None has the fingerprint and none is free: these are all.
        all: bool,
        /// There is a free slot.
        free: bool,
        /// The pair may be kept in a cache of this epoch: its proxy says when it changes.
        grant: bool,
        /// By slot.
        words: Vec<SlotAndWord>,
    },
    /// Which slots of a table have live words, from one on?
    Range {
        /// In which the sender works.
        epoch: u32,
        /// Who asks.
        session: u16,
        /// Comes back.
        sequence: u32,
        /// The first slot.
        from: SlotId,
    },
    /// Change a slot.
    Write {
        /// In which the sender works.
        epoch: u32,
        /// Who asks.
        session: u16,
        /// Comes back.
        sequence: u32,
        /// All writes to this proxy with lower numbers are answered.
        acknowledged: u32,
        /// Of the key.
        hash: KeyHash,
        /// As of `Read`.
        caches: bool,
        /// What.
        change: IndexChange,
    },
    /// What became of it.
    Written {
        /// As asked.
        epoch: u32,
        /// As asked.
        session: u16,
        /// As asked.
        sequence: u32,
        /// What became of it.
        status: WriteStatus,
        /// Which slot was changed, if one was, from what to what.
        slot: u32,
        /// See `slot`.
        old: SlotWord,
        /// See `slot`.
        new: SlotWord,
        /// The number of the change, if the pair that was written may be kept in a cache, as of `Words`; else 0.
        granted_by: u32,
    },
    /// A key is about to change: drop it from the cache, and say so.
    Invalidate {
        /// In which it was granted.
        epoch: u32,
        /// To whom.
        session: u16,
        /// The change's: comes back.
        sequence: u32,
        /// Of the key.
        hash: KeyHash,
    },
    /// It is in no cache of the session, nor will what was granted before come into it.
    Invalidated {
        /// As asked.
        epoch: u32,
        /// As asked.
        session: u16,
        /// As asked.
        sequence: u32,
        /// How often the pair was read from the cache.
        hits: u32,
    },
}

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(mut self, number: u16) -> Bytes {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Bytes {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Bytes {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn words(self, words: &[SlotAndWord]) -> Bytes {
        let count = self.u32(words.len() as u32);
        words.iter().fold(count, |bytes, (slot, word)| bytes.u32(*slot).u64(word.0))
    }
}

impl IndexRpc {
    /// The type, and the body.
    pub(crate) fn body(&self) -> (u8, Vec<u8>) {
        let bytes = Bytes::default();
        let (number, bytes) = match self {
            IndexRpc::Read { epoch, session, sequence, hash, caches } => {
                (16, bytes.u32(*epoch).u16(*session).u16(u16::from(*caches)).u32(*sequence).u64(hash.0))
            }
            IndexRpc::Words { epoch, session, sequence, all, free, grant, words } => {
                let flags = u16::from(*all) | u16::from(*free) << 1 | u16::from(*grant) << 2;
                (17, bytes.u32(*epoch).u16(*session).u16(flags).u32(*sequence).words(words))
            }
            IndexRpc::Write { epoch, session, sequence, acknowledged, hash, caches, change } => {
                let seen = u16::from(change.seen.is_some()) << 1;
                let flags = u16::from(change.combines) | seen | u16::from(*caches) << 2;
                let head = bytes.u32(*epoch).u16(*session).u16(flags).u32(*sequence).u32(*acknowledged);
                let body = head.u64(hash.0).u32(change.slot).u64(change.expected.0).u64(change.word.0);
                (18, body.words(change.seen.as_deref().unwrap_or_default()))
            }
            IndexRpc::Written { epoch, session, sequence, status, slot, old, new, granted_by } => {
                let head = bytes.u32(*epoch).u16(*session).u16(*status as u16).u32(*sequence);
                (19, head.u32(*slot).u64(old.0).u64(new.0).u32(*granted_by))
            }
            IndexRpc::Range { epoch, session, sequence, from } => {
                (22, bytes.u32(*epoch).u16(*session).u16(from.partition).u32(*sequence).u32(from.slot))
            }
            IndexRpc::Invalidate { epoch, session, sequence, hash } => {
                (26, bytes.u32(*epoch).u16(*session).u16(0).u32(*sequence).u64(hash.0))
            }
            IndexRpc::Invalidated { epoch, session, sequence, hits } => {
                (27, bytes.u32(*epoch).u16(*session).u16(0).u32(*sequence).u32(*hits))
            }
        };
        (number, bytes.0)
    }

    /// What a body of this type says.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn of_body(number: u8, body: &[u8]) -> Result<IndexRpc> {
        let least = checked_body(number, body)?;
        let words = || {
            let list = body[least..].chunks_exact(WORD_BYTES);
            list.map(|one| (u32_at(one, 0), SlotWord(u64_at(one, 4)))).collect()
        };
        let (epoch, session, flags) = (u32_at(body, 0), u16_at(body, 4), u16_at(body, 6));
        let (sequence, flag) = (u32_at(body, 8), |bit: u16| flags & bit != 0);
        Ok(match number {
            16 => {
                IndexRpc::Read { epoch, session, sequence, hash: KeyHash(u64_at(body, 12)), caches: flag(1) }
            }
            17 => IndexRpc::Words {
                epoch,
                session,
                sequence,
                all: flag(1),
                free: flag(2),
                grant: flag(4),
                words: words(),
            },
            18 => IndexRpc::Write {
                epoch,
                session,
                sequence,
                acknowledged: u32_at(body, 12),
                hash: KeyHash(u64_at(body, 16)),
                caches: flag(4),
                change: IndexChange {
                    slot: u32_at(body, 24),
                    expected: SlotWord(u64_at(body, 28)),
                    word: SlotWord(u64_at(body, 36)),
                    combines: flag(1),
                    seen: flag(2).then(words),
                },
            },
            22 => {
                let from = SlotId { partition: flags, slot: u32_at(body, 12) };
                IndexRpc::Range { epoch, session, sequence, from }
            }
            26 => IndexRpc::Invalidate { epoch, session, sequence, hash: KeyHash(u64_at(body, 12)) },
            27 => IndexRpc::Invalidated { epoch, session, sequence, hits: u32_at(body, 12) },
            _ => IndexRpc::Written {
                epoch,
                session,
                sequence,
                status: status_of(flags)?,
                granted_by: u32_at(body, 32),
                slot: u32_at(body, 12),
                old: SlotWord(u64_at(body, 16)),
                new: SlotWord(u64_at(body, 24)),
            },
        })
    }

    /// Whether the pair may be kept in the cache of who is answered.
    pub(crate) fn grants(&self) -> bool {
        matches!(self, IndexRpc::Words { grant: true, .. } | IndexRpc::Written { granted_by: 1.., .. })
    }

    /// Where its answer goes, and which request it is or answers: epoch, session, sequence.
    pub(crate) fn identity(&self) -> (u32, u16, u32) {
        match *self {
            IndexRpc::Read { epoch, session, sequence, .. }
            | IndexRpc::Words { epoch, session, sequence, .. }
            | IndexRpc::Write { epoch, session, sequence, .. }
            | IndexRpc::Written { epoch, session, sequence, .. }
            | IndexRpc::Range { epoch, session, sequence, .. }
            | IndexRpc::Invalidate { epoch, session, sequence, .. }
            | IndexRpc::Invalidated { epoch, session, sequence, .. } => (epoch, session, sequence),
        }
    }
}

/// Bytes of a body of this type before its list of words, if it is as long as it must be.
fn checked_body(number: u8, body: &[u8]) -> Result<usize> {
    let least = match number {
        16 => 20,
        17 => 16,
        18 => 48,
        19 => 36,
        22 | 27 => 16,
        26 => 20,
        _ => return Err(PoolError::Unknown("datagram's type", number.into())),
    };
    if body.len() < least {
        return Err(PoolError::TooShort("datagram's body", body.len(), least));
    }
    let count = if matches!(number, 17 | 18) { u32_at(body, least - 4) as usize } else { 0 };
    if count > WORDS_MAX {
        return Err(PoolError::TooLong("list of words", count, WORDS_MAX));
    }
    let must = least + count * WORD_BYTES;
    if body.len() != must {
        return Err(PoolError::Contradicts("datagram's body", body.len() as u64, must as u64));
    }
    Ok(least)
}

fn status_of(number: u16) -> Result<WriteStatus> {
    Ok(match number {
        0 => WriteStatus::Done,
        1 => WriteStatus::Absorbed,
        2 => WriteStatus::Conflict,
        3 => WriteStatus::Full,
        4 => WriteStatus::Busy,
        other => return Err(PoolError::Unknown("status of a write", other.into())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let change = IndexChange {
            slot: 0x0102,
            expected: SlotWord(0x1122_3344_5566_7788),
            word: SlotWord(3),
            combines: true,
            seen: Some(vec![(9, SlotWord(0xAB))]),
        };
        let hash = KeyHash(0x0807_0605_0403_0201);
        let write = IndexRpc::Write {
            epoch: 5,
            session: 2,
            sequence: 8,
            acknowledged: 6,
            hash,
            caches: true,
            change,
        };
        let mut expected = vec![5, 0, 0, 0, 2, 0, 7, 0, 8, 0, 0, 0, 6, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        expected.extend_from_slice(&[2, 1, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        expected.extend_from_slice(&[9, 0, 0, 0, 0xAB, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(write.body(), (18, expected.clone()));
        assert_eq!(IndexRpc::of_body(18, &expected), Ok(write));
        let from = SlotId { partition: 0x0304, slot: 0x0506_0708 };
        let range = IndexRpc::Range { epoch: 5, session: 2, sequence: 8, from };
        let bytes = vec![5, 0, 0, 0, 2, 0, 4, 3, 8, 0, 0, 0, 8, 7, 6, 5];
        assert_eq!(range.body(), (22, bytes.clone()));
        assert_eq!(IndexRpc::of_body(22, &bytes), Ok(range));
        // A list that is longer than the slots of a key, or than the body.
        expected[44] = 29;
        assert_eq!(IndexRpc::of_body(18, &expected), Err(PoolError::TooLong("list of words", 29, 28)));
        expected[44] = 2;
        assert_eq!(IndexRpc::of_body(18, &expected), Err(PoolError::Contradicts("datagram's body", 60, 72)));
    }
}
