//! The bytes of messages between nodes.
//!
//! Owns the layout of datagrams. Promises that what decodes is whole, and that nothing is taken for as long as it says it is before that was checked. Must not
//! know what is done about a message, or how it travels.
//!
//! ```text
//!  0       2    3    4        8      10     12         16
//!  +-------+----+----+--------+------+------+----------+------+
//!  | 'HP'  | 1  |type| crc32c | from |  0   | body len | body |
//!  +-------+----+----+--------+------+------+----------+------+
//! ```
//!
//! * All integers are little-endian. The checksum is that of all other bytes. A datagram has at most 4,096 bytes, as those of RDMA have.
//!
//! | type | message | body |
//! |---|---|---|
//! | 1 | `Join` | boot u64 |
//! | 2 | `View` | epoch u32, living nodes u32, session u16, count of owners u16, boot u64, count u32, verdicts of 16 bytes: partition u16, 0 u16, slot u32, word u64; owners of 8 bytes: partition u16, session u16, node u16, 0 u16 |
//! | 3 | `Prepare` | epoch u32 |
//! | 4 | `Prepared` | epoch u32, installed epoch u32, session u16, 0 u16, count u32, doubts of 24 bytes: partition u16, 0 u16, slot u32, old u64, new u64 |
//! | 5 | `Fence` | epoch u32, session u16 |
//! | 6 | `Fenced` | epoch u32, session u16 |
//! | 7 | `Allocate` | session u16, region u16, sequence u32 |
//! | 8 | `Allocated` | session u16, region u16, sequence u32, block u32 (all ones: none is free) |
//! | 9 | `RecordBlock` | epoch u32, region u16, 0 u16, block u32, entry u64 |
//! | 10 | `BlockRecorded` | the same |
//! | 11 | `AgentView` | epoch u32, living nodes u32 |
//! | 12 | `AgentReady` | epoch u32 |
//! | 13 | `FreeBlock` | as of `RecordBlock` |
//! | 14 | `BlockFreed` | the same |
//! | 15 | `GivenUp` | session u16 |
//! | 16 to 19, 22, 26, 27 | `Index` | see `rpc.rs` |
//! | 23 | `Accesses` | see `accesses.rs` |
//! | 20 | `Renew` | session u16, 0 u16, sequence u32 |
//! | 21 | `Renewed` | the same |
//! | 28 | `Silent` | epoch u32, by session u16, session u16 |

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};

use crate::accesses::{ACCESS_REPORT, AccessReport};
use crate::error::{PoolError, Result};
use crate::fabric::{DATAGRAM_BYTES_MAX, NodeId};
use crate::region::{BlockId, NodeSet, SlotId};
use crate::rpc::IndexRpc;
use crate::word::SlotWord;

/// Doubts of one session at most: what fits into a datagram.
pub const DOUBTS_MAX: usize = 128;
/// Partitions that have a proxy at most: what fits into a datagram beside as many verdicts as there may be doubts.
pub const OWNERS_MAX: usize = 240;

const HEADER_BYTES: usize = 16;
const OWNER_BYTES: usize = 8;
const NO_BLOCK: u32 = u32::MAX;

/// A change of a slot of which its writer does not know the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Doubt {
    /// Which slot.
    pub slot: SlotId,
    /// The word that was there.
    pub old: SlotWord,
    /// The word that was to be there.
    pub new: SlotWord,
}

/// What a slot was found, or made, to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Which slot.
    pub slot: SlotId,
    /// The word on all of its copies.
    pub word: SlotWord,
}

/// Who is the proxy of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Which partition.
    pub partition: u16,
    /// The session that has it.
    pub session: u16,
    /// Where that session is.
    pub node: NodeId,
}

/// What nodes say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// A compute node began, and wants a session. Its answer is a `View` with the same number.
    Join {
        /// Tells the node's lives apart.
        boot: u64,
    },
    /// The configuration that holds from now on, and what became of the session's doubts.
    View {
        /// Grows with each configuration.
        epoch: u32,
        /// Which memory nodes are part of the pool.
        living: NodeSet,
        /// Who is told.
        session: u16,
        /// As in `Join`.
        boot: u64,
        /// One for each doubt.
        verdicts: Vec<Verdict>,
        /// Partitions that have a proxy; all others are in direct mode.
        owners: Vec<Owner>,
    },
    /// Begin nothing more, and say when nothing is under way.
    Prepare {
        /// The epoch that is prepared.
        epoch: u32,
    },
    /// Nothing is under way.
    Prepared {
        /// The epoch that is prepared.
        epoch: u32,
        /// The one that the session works in.
        installed: u32,
        /// Who says so.
        session: u16,
        /// What the session does not know the outcome of.
        doubts: Vec<Doubt>,
    },
    /// Execute nothing more of a session.
    Fence {
        /// For the answer.
        epoch: u32,
        /// Whose operations.
        session: u16,
    },
    /// Nothing more is executed.
    Fenced {
        /// As asked.
        epoch: u32,
        /// As asked.
        session: u16,
    },
    /// A session wants a block.
    Allocate {
        /// Who.
        session: u16,
        /// Of which region.
        region: u16,
        /// Tells the session's requests apart.
        sequence: u32,
    },
    /// It has one, or there is none.
    Allocated {
        /// As asked.
        session: u16,
        /// As asked.
        region: u16,
        /// As asked.
        sequence: u32,
        /// The block's number.
        block: Option<u32>,
    },
    /// An entry of a block table, for the other replicas.
    RecordBlock {
        /// The epoch of the sender.
        epoch: u32,
        /// Which block.
        block: BlockId,
        /// Its entry, encoded.
        entry: u64,
    },
    /// It was recorded.
    BlockRecorded {
        /// As asked.
        epoch: u32,
        /// As asked.
        block: BlockId,
        /// As asked.
        entry: u64,
    },
    /// The configuration, for agents.
    AgentView {
        /// As in `View`.
        epoch: u32,
        /// As in `View`.
        living: NodeSet,
    },
    /// The agent knows it.
    AgentReady {
        /// As told.
        epoch: u32,
    },
    /// Nobody needs a block of a session that is gone any more.
    FreeBlock {
        /// The epoch that is prepared.
        epoch: u32,
        /// Which block.
        block: BlockId,
        /// The entry that it has, of the session that is gone.
        entry: u64,
    },
    /// It has that entry no more.
    BlockFreed {
        /// As told.
        epoch: u32,
        /// As told.
        block: BlockId,
        /// As told.
        entry: u64,
    },
    /// About the index of a partition that has a proxy.
    Index(IndexRpc),
    /// A proxy asks for its lease to go on, counted from when this was sent.
    Renew {
        /// Who asks.
        session: u16,
        /// Comes back.
        sequence: u32,
    },
    /// It goes on.
    Renewed {
        /// As asked.
        session: u16,
        /// As asked.
        sequence: u32,
    },
    /// A session does not say that it has dropped a pair from its cache, and a change waits for it.
    Silent {
        /// In which it was granted.
        epoch: u32,
        /// The proxy that waits.
        by: u16,
        /// Which.
        session: u16,
    },
    /// How often a session accessed which partitions; from the manager, the question.
    Accesses(AccessReport),
    /// A session is no member any more, and fenced everywhere.
    GivenUp {
        /// Which.
        session: u16,
    },
}

#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u16(mut self, number: u16) -> Body {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Body {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Body {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn slot(self, id: SlotId) -> Body {
        self.u16(id.partition).u16(0).u32(id.slot)
    }
}

impl Message {
    fn body(&self) -> (u8, Body) {
        let body = Body::default();
        match self {
            Message::Join { boot } => (1, body.u64(*boot)),
            Message::View { epoch, living, session, boot, verdicts, owners } => {
                let head = body.u32(*epoch).u32(living.0).u16(*session).u16(owners.len() as u16);
                let body = head.u64(*boot).u32(verdicts.len() as u32);
                let body = verdicts.iter().fold(body, |body, one| body.slot(one.slot).u64(one.word.0));
                let owner =
                    |body: Body, one: &Owner| body.u16(one.partition).u16(one.session).u16(one.node.0).u16(0);
                (2, owners.iter().fold(body, owner))
            }
            Message::Prepare { epoch } => (3, body.u32(*epoch)),
            Message::Prepared { epoch, installed, session, doubts } => {
                let body = body.u32(*epoch).u32(*installed).u16(*session).u16(0).u32(doubts.len() as u32);
                (4, doubts.iter().fold(body, |body, one| body.slot(one.slot).u64(one.old.0).u64(one.new.0)))
            }
            Message::Fence { epoch, session } => (5, body.u32(*epoch).u16(*session)),
            Message::Fenced { epoch, session } => (6, body.u32(*epoch).u16(*session)),
            Message::Allocate { session, region, sequence } => {
                (7, body.u16(*session).u16(*region).u32(*sequence))
            }
            Message::Allocated { session, region, sequence, block } => {
                (8, body.u16(*session).u16(*region).u32(*sequence).u32(block.unwrap_or(NO_BLOCK)))
            }
            Message::RecordBlock { epoch, block, entry } => {
                (9, body.u32(*epoch).u16(block.region).u16(0).u32(block.number).u64(*entry))
            }
            Message::BlockRecorded { epoch, block, entry } => {
                (10, body.u32(*epoch).u16(block.region).u16(0).u32(block.number).u64(*entry))
            }
            Message::AgentView { epoch, living } => (11, body.u32(*epoch).u32(living.0)),
            Message::AgentReady { epoch } => (12, body.u32(*epoch)),
            Message::FreeBlock { epoch, block, entry } => {
                (13, body.u32(*epoch).u16(block.region).u16(0).u32(block.number).u64(*entry))
            }
            Message::BlockFreed { epoch, block, entry } => {
                (14, body.u32(*epoch).u16(block.region).u16(0).u32(block.number).u64(*entry))
            }
            Message::GivenUp { session } => (15, body.u16(*session)),
            Message::Silent { epoch, by, session } => (28, body.u32(*epoch).u16(*by).u16(*session)),
            Message::Index(rpc) => {
                let (number, bytes) = rpc.body();
                (number, Body(bytes))
            }
            Message::Accesses(report) => (ACCESS_REPORT, Body(report.body())),
            Message::Renew { session, sequence } => (20, body.u16(*session).u16(0).u32(*sequence)),
            Message::Renewed { session, sequence } => (21, body.u16(*session).u16(0).u32(*sequence)),
        }
    }

    /// The datagram, sent by node `from`.
    pub fn encode(&self, from: u16) -> Vec<u8> {
        let (number, body) = self.body();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.0.len());
        bytes.extend_from_slice(&[b'H', b'P', 1, number, 0, 0, 0, 0]);
        bytes.extend_from_slice(&from.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&(body.0.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body.0);
        let crc = checksum(&bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The node that sent `bytes`, and what it says.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Message)> {
        if bytes.len() < HEADER_BYTES {
            return Err(PoolError::TooShort("datagram", bytes.len(), HEADER_BYTES));
        }
        if bytes.len() > DATAGRAM_BYTES_MAX {
            return Err(PoolError::TooLong("datagram", bytes.len(), DATAGRAM_BYTES_MAX));
        }
        if bytes[..3] != *b"HP\x01" {
            return Err(PoolError::Unknown("datagram's magic", u32_at(bytes, 0).into()));
        }
        let (stored, crc) = (u32_at(bytes, 4), checksum(bytes));
        if stored != crc {
            return Err(PoolError::Checksum("datagram", stored, crc));
        }
        let body = &bytes[HEADER_BYTES..];
        if u32_at(bytes, 12) as usize != body.len() {
            let (is, must) = (u64::from(u32_at(bytes, 12)), body.len() as u64);
            return Err(PoolError::Contradicts("datagram's length", is, must));
        }
        Ok((u16_at(bytes, 8), Message::of_body(bytes[3], body)?))
    }

    fn of_body(number: u8, body: &[u8]) -> Result<Message> {
        if matches!(number, 16..20 | 22 | 26 | 27) {
            return IndexRpc::of_body(number, body).map(Message::Index);
        }
        if number == ACCESS_REPORT {
            return AccessReport::of_body(body).map(Message::Accesses);
        }
        let fixed = [8, 24, 4, 16, 6, 6, 8, 12, 20, 20, 8, 4, 20, 20, 2, 0, 0, 0, 0, 8, 8];
        let of_type = usize::from(number).checked_sub(1).and_then(|at| fixed.get(at));
        let Some(&least) = of_type.or((number == 28).then_some(&8)) else {
            return Err(PoolError::Unknown("datagram's type", number.into()));
        };
        if body.len() < least {
            return Err(PoolError::TooShort("datagram's body", body.len(), least));
        }
        // Two types have lists, whose lengths the body's must be that of.
        let (count, each) = match number {
            2 => (u32_at(body, 20), 16),
            4 => (u32_at(body, 12), 24),
            _ => (0, 0),
        };
        let owners = if number == 2 { u16_at(body, 10) } else { 0 };
        let must = least as u64 + u64::from(count) * each as u64 + u64::from(owners) * OWNER_BYTES as u64;
        if body.len() as u64 != must {
            return Err(PoolError::Contradicts("datagram's body", body.len() as u64, must));
        }
        let (list, owners) = body[least..].split_at(count as usize * each);
        let list = list.chunks_exact(each.max(1));
        let slot = |one: &[u8]| SlotId { partition: u16_at(one, 0), slot: u32_at(one, 4) };
        Ok(match number {
            2 => Message::View {
                epoch: u32_at(body, 0),
                living: NodeSet(u32_at(body, 4)),
                session: u16_at(body, 8),
                boot: u64_at(body, 12),
                verdicts: list
                    .map(|one| Verdict { slot: slot(one), word: SlotWord(u64_at(one, 8)) })
                    .collect(),
                owners: owners.chunks_exact(OWNER_BYTES).map(owner_of).collect(),
            },
            4 => Message::Prepared {
                epoch: u32_at(body, 0),
                installed: u32_at(body, 4),
                session: u16_at(body, 8),
                doubts: list
                    .map(|one| Doubt {
                        slot: slot(one),
                        old: SlotWord(u64_at(one, 8)),
                        new: SlotWord(u64_at(one, 16)),
                    })
                    .collect(),
            },
            _ => Message::of_fixed(number, body),
        })
    }

    /// A body whose length was checked.
    fn of_fixed(number: u8, body: &[u8]) -> Message {
        let block = || BlockId { region: u16_at(body, 4), number: u32_at(body, 8) };
        match number {
            1 => Message::Join { boot: u64_at(body, 0) },
            3 => Message::Prepare { epoch: u32_at(body, 0) },
            5 => Message::Fence { epoch: u32_at(body, 0), session: u16_at(body, 4) },
            6 => Message::Fenced { epoch: u32_at(body, 0), session: u16_at(body, 4) },
            7 => Message::Allocate {
                session: u16_at(body, 0),
                region: u16_at(body, 2),
                sequence: u32_at(body, 4),
            },
            8 => Message::Allocated {
                session: u16_at(body, 0),
                region: u16_at(body, 2),
                sequence: u32_at(body, 4),
                block: Some(u32_at(body, 8)).filter(|&block| block != NO_BLOCK),
            },
            9 => Message::RecordBlock { epoch: u32_at(body, 0), block: block(), entry: u64_at(body, 12) },
            10 => Message::BlockRecorded { epoch: u32_at(body, 0), block: block(), entry: u64_at(body, 12) },
            11 => Message::AgentView { epoch: u32_at(body, 0), living: NodeSet(u32_at(body, 4)) },
            12 => Message::AgentReady { epoch: u32_at(body, 0) },
            13 => Message::FreeBlock { epoch: u32_at(body, 0), block: block(), entry: u64_at(body, 12) },
            14 => Message::BlockFreed { epoch: u32_at(body, 0), block: block(), entry: u64_at(body, 12) },
            15 => Message::GivenUp { session: u16_at(body, 0) },
            28 => {
                let (epoch, by) = (u32_at(body, 0), u16_at(body, 4));
                Message::Silent { epoch, by, session: u16_at(body, 6) }
            }
            20 => Message::Renew { session: u16_at(body, 0), sequence: u32_at(body, 4) },
            _ => Message::Renewed { session: u16_at(body, 0), sequence: u32_at(body, 4) },
        }
    }
}

fn owner_of(one: &[u8]) -> Owner {
    Owner { partition: u16_at(one, 0), session: u16_at(one, 2), node: NodeId(u16_at(one, 4)) }
}

/// That of all bytes but itself; there are at least eight.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c(crc32c(0, &bytes[..4]), &bytes[8..])
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;
    use crate::bucket::KeyHash;
    use crate::rpc::{ANY_SLOT, IndexChange, WriteStatus};

    fn of_pool() -> Vec<Message> {
        let slot = SlotId { partition: 3, slot: 77 };
        let block = BlockId { region: 2, number: 5 };
        let (old, new) = (SlotWord(1), SlotWord(u64::MAX));
        vec![
            Message::Join { boot: 9 },
            Message::View {
                epoch: 4,
                living: NodeSet(7),
                session: 2,
                boot: 9,
                verdicts: vec![Verdict { slot, word: new }; 2],
                owners: vec![Owner { partition: 3, session: 2, node: NodeId(1) }; 2],
            },
            Message::Prepare { epoch: 5 },
            Message::Prepared {
                epoch: 5,
                installed: 4,
                session: 2,
                doubts: vec![Doubt { slot, old, new }; 3],
            },
            Message::Fence { epoch: 5, session: 2 },
            Message::Fenced { epoch: 5, session: 2 },
            Message::Allocate { session: 2, region: 1, sequence: 8 },
            Message::Allocated { session: 2, region: 1, sequence: 8, block: Some(6) },
            Message::Allocated { session: 2, region: 1, sequence: 8, block: None },
            Message::RecordBlock { epoch: 5, block, entry: 0x1_0002 },
            Message::BlockRecorded { epoch: 5, block, entry: 0x1_0002 },
            Message::AgentView { epoch: 5, living: NodeSet(3) },
            Message::AgentReady { epoch: 5 },
            Message::FreeBlock { epoch: 5, block, entry: 0x1_0002 },
            Message::BlockFreed { epoch: 5, block, entry: 0x1_0002 },
            Message::GivenUp { session: 2 },
            Message::Silent { epoch: 5, by: 3, session: 2 },
            Message::Renew { session: 2, sequence: 8 },
            Message::Renewed { session: 2, sequence: 8 },
        ]
    }

    /// All of them.
    fn all() -> Vec<Message> {
        let mut all = of_pool();
        all.extend(of_index());
        all
    }

    fn of_index() -> Vec<Message> {
        let (old, new) = (SlotWord(1), SlotWord(u64::MAX));
        vec![
            Message::Index(IndexRpc::Read {
                epoch: 5,
                session: 2,
                sequence: 8,
                hash: KeyHash(9),
                caches: true,
            }),
            Message::Index(IndexRpc::Words {
                epoch: 5,
                session: 2,
                sequence: 8,
                all: true,
                free: false,
                grant: true,
                words: vec![(7, old), (8, new)],
            }),
            Message::Index(IndexRpc::Write {
                epoch: 5,
                session: 2,
                sequence: 8,
                acknowledged: 6,
                hash: KeyHash(9),
                caches: false,
                change: IndexChange { slot: 7, expected: old, word: new, combines: true, seen: None },
            }),
            Message::Index(IndexRpc::Write {
                epoch: 5,
                session: 2,
                sequence: 8,
                acknowledged: 6,
                hash: KeyHash(9),
                caches: false,
                change: IndexChange {
                    slot: ANY_SLOT,
                    expected: old,
                    word: new,
                    combines: false,
                    seen: Some(vec![(7, old); 3]),
                },
            }),
            Message::Index(IndexRpc::Written {
                epoch: 5,
                session: 2,
                sequence: 8,
                status: WriteStatus::Absorbed,
                slot: 7,
                old,
                new,
                granted_by: 4,
            }),
            Message::Index(IndexRpc::Invalidate { epoch: 5, session: 2, sequence: 8, hash: KeyHash(9) }),
            Message::Index(IndexRpc::Invalidated { epoch: 5, session: 2, sequence: 8, hits: 3 }),
            Message::Index(IndexRpc::Range {
                epoch: 5,
                session: 2,
                sequence: 8,
                from: SlotId { partition: 1, slot: 9 },
            }),
        ]
    }

    #[test]
    fn golden() {
        let bytes = Message::Allocate { session: 2, region: 1, sequence: 8 }.encode(0x0304);
        let mut expected = vec![b'H', b'P', 1, 7, 0, 0, 0, 0, 4, 3, 0, 0, 8, 0, 0, 0];
        expected.extend_from_slice(&[2, 0, 1, 0, 8, 0, 0, 0]);
        expected[4..8].copy_from_slice(&0x6283_0310_u32.to_le_bytes());
        assert_eq!(bytes, expected);
        // Of all of them together, so that none changes unnoticed.
        let crc = all().iter().fold(0, |crc, message| crc32c(crc, &message.encode(1)));
        assert_eq!(crc, 951_793_618);
    }

    #[test]
    fn decoding_is_the_inverse() {
        for message in all() {
            assert_eq!(Message::decode(&message.encode(8)), Ok((8, message)));
        }
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let mut random = Random::from_seed(7);
        let mut refused = 0;
        for round in 0..20_000 {
            let message = &all()[round % all().len()];
            let mut bytes = message.encode(8);
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
            assert!(Message::decode(&bytes).is_err());
            // With a checksum that matches only the contents can be wrong.
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            if bytes.len() > 8 {
                let crc = checksum(&bytes);
                bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            }
            refused += u32::from(Message::decode(&bytes).is_err());
        }
        assert!(refused > 10_000);
    }

    #[test]
    fn the_longest_messages_fit() {
        let slot = SlotId { partition: 3, slot: 77 };
        let doubts = vec![Doubt { slot, old: SlotWord(1), new: SlotWord(2) }; DOUBTS_MAX];
        let bytes = Message::Prepared { epoch: 1, installed: 1, session: 1, doubts }.encode(1);
        assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
        let view = Message::View {
            epoch: 1,
            living: NodeSet(1),
            session: 1,
            boot: 1,
            verdicts: vec![Verdict { slot, word: SlotWord(1) }; DOUBTS_MAX],
            owners: vec![Owner { partition: 1, session: 1, node: NodeId(1) }; OWNERS_MAX],
        };
        assert!(view.encode(1).len() <= DATAGRAM_BYTES_MAX);
    }
}
