//! The bytes of what clients tell of their accesses, and the counters behind that.
//!
//! Owns the body of datagram 23. Promises that a report that is lost, repeated or late takes nothing away from what is counted: counters grow for as long as the session lasts, and are told as
//! they are. Must not know what they are for.
//!
//! The manager asks with a report of no counters, and a client answers with those that have changed since it last told them, in as many datagrams as that takes. Every eighth time it tells all
//! that are not zero, so that what was lost comes in the end.
//!
//! | offset | field |
//! |---|---|
//! | 0 | session u16 |
//! | 2 | left u16: datagrams of this answer that follow |
//! | 4 | round u32: comes back |
//! | 8 | count u16, 0 u16 |
//! | 12 | counters of 12 bytes: partition u16, 0 u16, reads u32, writes u32 |

use std::hash::{Hash, Hasher};

use hedgerow_row::le_bytes::{u16_at, u32_at};

use crate::error::{PoolError, Result};

/// The datagram's type.
pub(crate) const ACCESS_REPORT: u8 = 23;
/// Counters of a datagram at most: what fits.
pub const COUNTS_MAX: usize = 339;
/// One answer in so many has all counters.
const ALL_EVERY: u32 = 8;

const HEAD_BYTES: usize = 12;
const COUNT_BYTES: usize = 12;

/// How often a session accessed a partition, so far; counters wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessCount {
    /// Which partition.
    pub partition: u16,
    /// Calls that read.
    pub reads: u32,
    /// Calls that put or deleted.
    pub writes: u32,
}

/// Counters of a session. From the manager, without any: it asks for them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessReport {
    /// Whose accesses. A session is one life of a node, and its number is never given twice: counters begin at zero with it.
    pub session: u16,
    /// Datagrams that follow with the rest of this answer.
    pub left: u16,
    /// As asked.
    pub round: u32,
    /// At most [`COUNTS_MAX`].
    pub counts: Vec<AccessCount>,
}

impl AccessReport {
    /// What asks for the counters of a session.
    pub(crate) fn question(session: u16, round: u32) -> AccessReport {
        AccessReport { session, left: 0, round, counts: Vec::new() }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.counts.len() * COUNT_BYTES);
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&self.left.to_le_bytes());
        bytes.extend_from_slice(&self.round.to_le_bytes());
        bytes.extend_from_slice(&(self.counts.len() as u32).to_le_bytes());
        for count in &self.counts {
            bytes.extend_from_slice(&u32::from(count.partition).to_le_bytes());
            bytes.extend_from_slice(&count.reads.to_le_bytes());
            bytes.extend_from_slice(&count.writes.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn of_body(body: &[u8]) -> Result<AccessReport> {
        if body.len() < HEAD_BYTES {
            return Err(PoolError::TooShort("report of accesses", body.len(), HEAD_BYTES));
        }
        let counts = usize::from(u16_at(body, 8));
        if counts > COUNTS_MAX {
            return Err(PoolError::TooLong("report of accesses", counts, COUNTS_MAX));
        }
        let must = HEAD_BYTES + counts * COUNT_BYTES;
        if body.len() != must {
            return Err(PoolError::Contradicts("report of accesses", body.len() as u64, must as u64));
        }
        let count = |one: &[u8]| AccessCount {
            partition: u16_at(one, 0),
            reads: u32_at(one, 4),
            writes: u32_at(one, 8),
        };
        Ok(AccessReport {
            session: u16_at(body, 0),
            left: u16_at(body, 2),
            round: u32_at(body, 4),
            counts: body[HEAD_BYTES..].chunks_exact(COUNT_BYTES).map(count).collect(),
        })
    }
}

/// A session's own counters: of each partition reads and writes, and what of them was told last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessCounts {
    counted: Vec<[u32; 2]>,
    told: Vec<[u32; 2]>,
}

impl AccessCounts {
    pub(crate) fn new(partitions: u16) -> AccessCounts {
        let zero = vec![[0; 2]; usize::from(partitions)];
        AccessCounts { counted: zero.clone(), told: zero }
    }

    pub(crate) fn count(&mut self, partition: u16, is_write: bool) {
        if let Some(counters) = self.counted.get_mut(usize::from(partition)) {
            let counter = &mut counters[usize::from(is_write)];
            *counter = counter.wrapping_add(1);
        }
    }

    /// Reads that were counted somewhere else.
    pub(crate) fn count_reads(&mut self, partition: u16, reads: u32) {
        if let Some([counter, _]) = self.counted.get_mut(usize::from(partition)) {
            *counter = counter.wrapping_add(reads);
        }
    }

    /// The datagrams that answer a question.
    pub(crate) fn answer(&mut self, session: u16, round: u32) -> Vec<AccessReport> {
        let is_all = round.is_multiple_of(ALL_EVERY);
        let is_told = |(now, told): (&[u32; 2], &[u32; 2])| now != told || is_all && *now != [0; 2];
        let both = self.counted.iter().zip(&self.told).enumerate();
        let counts: Vec<AccessCount> = both
            .filter(|(_, both)| is_told(*both))
            .map(|(at, (&[reads, writes], _))| AccessCount { partition: at as u16, reads, writes })
            .collect();
        self.told.copy_from_slice(&self.counted);
        let datagrams = counts.len().div_ceil(COUNTS_MAX).max(1);
        let part = |at: usize| {
            let rest = &counts[at * COUNTS_MAX..];
            let counts = rest[..rest.len().min(COUNTS_MAX)].to_vec();
            AccessReport { session, left: (datagrams - 1 - at) as u16, round, counts }
        };
        (0..datagrams).map(part).collect()
    }
}

// They tell no states apart: an exploration would never come to an end.
impl Hash for AccessCounts {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{Random, crc32c};

    use super::*;
    use crate::fabric::DATAGRAM_BYTES_MAX;
    use crate::wire::Message;

    fn report(counts: usize) -> AccessReport {
        let count = |at: usize| AccessCount { partition: at as u16, reads: 7, writes: u32::MAX };
        AccessReport { session: 2, left: 1, round: 9, counts: (0..counts).map(count).collect() }
    }

    #[test]
    fn golden() {
        let bytes = Message::Accesses(report(1)).encode(0x0304);
        let mut expected = vec![b'H', b'P', 1, 23, 0, 0, 0, 0, 4, 3, 0, 0, 24, 0, 0, 0];
        expected.extend_from_slice(&[2, 0, 1, 0, 9, 0, 0, 0, 1, 0, 0, 0]);
        expected.extend_from_slice(&[0, 0, 0, 0, 7, 0, 0, 0, 255, 255, 255, 255]);
        let crc = crc32c(crc32c(0, &expected[..4]), &expected[8..]);
        expected[4..8].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(bytes, expected);
        assert_eq!(Message::decode(&bytes), Ok((0x0304, Message::Accesses(report(1)))));
        let longest = Message::Accesses(report(COUNTS_MAX));
        assert!(longest.encode(1).len() <= DATAGRAM_BYTES_MAX);
        assert!(longest.encode(1).len() + COUNT_BYTES > DATAGRAM_BYTES_MAX);
        assert_eq!(Message::decode(&longest.encode(1)), Ok((1, longest)));
    }

    #[test]
    fn hostile_bodies_are_refused_or_read_as_they_are() {
        let mut random = Random::from_seed(11);
        let (mut refused, mut read) = (0, 0);
        for round in 0..20_000 {
            let mut body = report(round % 5).body();
            let at = random.below(body.len() as u64) as usize;
            body[at] ^= 1 << random.below(8);
            if random.below(2) == 0 {
                body.truncate(random.below(body.len() as u64 + 1) as usize);
            }
            match AccessReport::of_body(&body) {
                Ok(report) => {
                    read += 1;
                    assert_eq!(report.body().len(), body.len());
                    assert!(report.counts.len() <= COUNTS_MAX);
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 5_000 && read > 5_000, "{refused} refused, {read} read");
        let too_many = report(COUNTS_MAX + 1).body();
        assert!(matches!(AccessReport::of_body(&too_many), Err(PoolError::TooLong(..))));
    }

    #[test]
    fn what_has_changed_is_told_and_sometimes_all() {
        let mut counts = AccessCounts::new(1024);
        counts.count(5, false);
        counts.count(5, true);
        counts.count(1024, true);
        let told = counts.answer(2, 1);
        assert_eq!(
            told,
            [AccessReport {
                session: 2,
                left: 0,
                round: 1,
                counts: vec![AccessCount { partition: 5, reads: 1, writes: 1 }]
            }]
        );
        assert!(counts.answer(2, 2)[0].counts.is_empty());
        assert_eq!(counts.answer(2, 8)[0].counts.len(), 1);
        (0..1024).for_each(|partition| counts.count(partition, false));
        let told = counts.answer(2, 9);
        assert_eq!(told.iter().map(|one| one.left).collect::<Vec<_>>(), [3, 2, 1, 0]);
        assert_eq!(told.iter().map(|one| one.counts.len()).sum::<usize>(), 1024);
    }
}
