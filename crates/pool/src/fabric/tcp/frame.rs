//! Frames: what goes over a connection between two nodes, byte for byte.
//!
//! Owns the layout. Promises that what decodes is whole, that no length is believed before it was compared with the limit of its kind, and that no bytes make it panic. Must not know
//! what is done about a frame, or how it travels.
//!
//! ```text
//!  0       2    3    4        8        12         16
//!  +-------+----+----+--------+--------+----------+------+
//!  | 'HT'  |kind| 0  | crc32c | number | body len | body |
//!  +-------+----+----+--------+--------+----------+------+
//! ```
//!
//! * All integers are little-endian. The checksum is that of all other bytes of the frame. The number is that of a batch on its connection, in what is answered to it, too; elsewhere 0.
//! * Who dials says `Hello`, and is answered `Welcome` or `Refused`; then it sends `Datagram` and `Batch`, and to each batch it is answered `Results` or `Failed`, in their order.
//! * In all versions a frame begins as above and `Hello` with its version, so that each can refuse every other.
//!
//! | kind | frame | body |
//! |---|---|---|
//! | 1 | `Hello` | version u16 (1), from u16, to u16, 0 u16, life of whom it is for u64 (0: any) |
//! | 2 | `Welcome` | life u64 |
//! | 3 | `Refused` | reason u32, 0 u32, detail u64 |
//! | 4 | `Datagram` | at most 4,096 bytes |
//! | 5 | `Batch` | session u16, 0 u16, count u32, operations of 24 bytes: kind u8 (1 read, 2 write, 3 compare-and-swap, 4 fetch-and-add), 0 u8, region u16, offset u32, and two u64: length and 0 (read, write), old and new, or what is added and 0; after a write its bytes |
//! | 6 | `Results` | count u32, 0 u32, results of 8 bytes: kind u8 (1 bytes, 2 written, 3 before), 0 u8, 0 u16, length u32 (of what follows); after bytes they, after before the word u64 |
//! | 7 | `Failed` | code u32 (1 lost, 2 fenced, 3 out of bounds) |

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};

use crate::error::{PoolError, Result};
use crate::fabric::{
    BATCH_BYTES_MAX, Batch, DATAGRAM_BYTES_MAX, NodeId, OPERATION_BYTES, OpResult, PostError, PostResult,
    RESULT_BYTES_MAX, RESULT_HEAD_BYTES, RemoteOp, SessionId,
};
use crate::region::RemoteAddress;

/// The version of the layout.
pub(super) const VERSION: u16 = 1;
/// Bytes before the body.
pub(super) const HEAD_BYTES: usize = 16;
const HELLO_BYTES: usize = 16;
/// Of any version.
const HELLO_BYTES_MAX: usize = 64;
const LIST_HEAD_BYTES: usize = 8;

/// Why whoever was dialed will have nothing to do with the dialer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FabricRefusal {
    /// It speaks this version only.
    Version(u16),
    /// It is this node, not the one that is wanted.
    OtherNode(NodeId),
    /// It is the node that is wanted, in another life: what the last one had is gone.
    OtherLife(u64),
    /// It has as many connections as it may have: this many.
    Busy(u64),
    /// What it was sent is no frame, or not one that may be sent now.
    Malformed,
}

impl FabricRefusal {
    fn encode(self) -> (u32, u64) {
        match self {
            FabricRefusal::Version(version) => (1, version.into()),
            FabricRefusal::OtherNode(node) => (2, node.0.into()),
            FabricRefusal::OtherLife(life) => (3, life),
            FabricRefusal::Busy(connections) => (4, connections),
            FabricRefusal::Malformed => (5, 0),
        }
    }

    fn decode(reason: u32, detail: u64) -> Result<FabricRefusal> {
        match reason {
            1 => Ok(FabricRefusal::Version(detail as u16)),
            2 => Ok(FabricRefusal::OtherNode(NodeId(detail as u16))),
            3 => Ok(FabricRefusal::OtherLife(detail)),
            4 => Ok(FabricRefusal::Busy(detail)),
            5 => Ok(FabricRefusal::Malformed),
            _ => Err(PoolError::Unknown("refusal", reason.into())),
        }
    }
}

/// What is said over a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Hello {
        from: NodeId,
        to: NodeId,
        life: u64,
    },
    /// A `Hello` of another version.
    ForeignHello(u16),
    Welcome(u64),
    Refused(FabricRefusal),
    Datagram(Vec<u8>),
    Batch(u32, SessionId, Batch),
    Answer(u32, PostResult),
}

/// What the first bytes of a stream are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A frame, and how many bytes it has.
    Whole(Frame, usize),
    /// The beginning of one that has so many.
    Part(usize),
}

/// The least and the most bytes of a body.
fn body_limits(kind: u8) -> Option<(usize, usize)> {
    Some(match kind {
        1 => (2, HELLO_BYTES_MAX),
        2 => (8, 8),
        3 => (16, 16),
        4 => (0, DATAGRAM_BYTES_MAX),
        5 => (LIST_HEAD_BYTES, LIST_HEAD_BYTES + BATCH_BYTES_MAX),
        6 => (LIST_HEAD_BYTES, LIST_HEAD_BYTES + RESULT_BYTES_MAX),
        7 => (4, 4),
        _ => return None,
    })
}

impl Parsed {
    /// Looks at the first bytes of a stream.
    ///
    /// # Errors
    /// What is wrong with them. Nothing after them can be understood.
    pub(super) fn of(bytes: &[u8]) -> Result<Parsed> {
        if bytes.len() < HEAD_BYTES {
            return Ok(Parsed::Part(HEAD_BYTES));
        }
        if bytes[..2] != *b"HT" || bytes[3] != 0 {
            return Err(PoolError::Unknown("frame's magic", u32_at(bytes, 0).into()));
        }
        let (kind, len) = (bytes[2], u32_at(bytes, 12) as usize);
        let Some((least, most)) = body_limits(kind) else {
            return Err(PoolError::Unknown("frame's kind", kind.into()));
        };
        if len > most {
            return Err(PoolError::TooLong("frame's body", len, most));
        }
        if len < least {
            return Err(PoolError::TooShort("frame's body", len, least));
        }
        let Some(frame) = bytes.get(..HEAD_BYTES + len) else { return Ok(Parsed::Part(HEAD_BYTES + len)) };
        let (stored, crc) = (u32_at(frame, 4), checksum(frame));
        if stored != crc {
            return Err(PoolError::Checksum("frame", stored, crc));
        }
        let number = u32_at(frame, 8);
        Ok(Parsed::Whole(Frame::of_body(kind, number, &frame[HEAD_BYTES..])?, frame.len()))
    }
}

fn checksum(frame: &[u8]) -> u32 {
    crc32c(crc32c(0, &frame[..4]), &frame[8..])
}

/// Begins a frame, has its body appended, and ends it.
fn append(kind: u8, number: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[b'H', b'T', kind, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() - start - HEAD_BYTES) as u32;
    out[start + 12..start + 16].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(&out[start..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Appends a batch: as [`Frame::append_to`], of what is not moved.
pub(super) fn append_batch(number: u32, session: SessionId, batch: &Batch, out: &mut Vec<u8>) {
    append(5, number, out, |out| {
        out.extend_from_slice(&session.0.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(batch.len() as u32).to_le_bytes());
        for op in batch {
            let (at, len) = op.extent();
            let (kind, first, second) = match op {
                RemoteOp::Read(..) => (1, len as u64, 0),
                RemoteOp::Write(..) => (2, len as u64, 0),
                RemoteOp::CompareAndSwap(_, old, new) => (3, *old, *new),
                RemoteOp::FetchAndAdd(_, add) => (4, *add, 0),
            };
            out.extend_from_slice(&[kind, 0]);
            out.extend_from_slice(&at.region.to_le_bytes());
            out.extend_from_slice(&at.offset.to_le_bytes());
            out.extend_from_slice(&first.to_le_bytes());
            out.extend_from_slice(&second.to_le_bytes());
            if let RemoteOp::Write(_, bytes) = op {
                out.extend_from_slice(bytes);
            }
        }
    });
}

impl Frame {
    /// Appends its bytes.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Hello { from, to, life } => append(1, 0, out, |out| {
                for number in [VERSION, from.0, to.0, 0] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.extend_from_slice(&life.to_le_bytes());
            }),
            Frame::ForeignHello(version) => {
                append(1, 0, out, |out| out.extend_from_slice(&version.to_le_bytes()));
            }
            Frame::Welcome(life) => append(2, 0, out, |out| out.extend_from_slice(&life.to_le_bytes())),
            Frame::Refused(refusal) => append(3, 0, out, |out| {
                let (reason, detail) = refusal.encode();
                out.extend_from_slice(&reason.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&detail.to_le_bytes());
            }),
            Frame::Datagram(bytes) => append(4, 0, out, |out| out.extend_from_slice(bytes)),
            Frame::Batch(number, session, batch) => append_batch(*number, *session, batch, out),
            Frame::Answer(number, Ok(results)) => append(6, *number, out, |out| append_results(results, out)),
            Frame::Answer(number, Err(error)) => append(7, *number, out, |out| {
                let code: u32 = match error {
                    PostError::Lost => 1,
                    PostError::Fenced => 2,
                    PostError::OutOfBounds => 3,
                };
                out.extend_from_slice(&code.to_le_bytes());
            }),
        }
    }

    /// A body whose length is within the limits of its kind.
    fn of_body(kind: u8, number: u32, body: &[u8]) -> Result<Frame> {
        Ok(match kind {
            1 if u16_at(body, 0) != VERSION => Frame::ForeignHello(u16_at(body, 0)),
            1 if body.len() != HELLO_BYTES => {
                return Err(PoolError::Contradicts("hello", body.len() as u64, HELLO_BYTES as u64));
            }
            1 => Frame::Hello {
                from: NodeId(u16_at(body, 2)),
                to: NodeId(u16_at(body, 4)),
                life: u64_at(body, 8),
            },
            2 => Frame::Welcome(u64_at(body, 0)),
            3 => Frame::Refused(FabricRefusal::decode(u32_at(body, 0), u64_at(body, 8))?),
            4 => Frame::Datagram(body.to_vec()),
            5 => Frame::Batch(number, SessionId(u16_at(body, 0)), batch_of(body)?),
            6 => Frame::Answer(number, Ok(results_of(body)?)),
            _ => {
                let error = match u32_at(body, 0) {
                    1 => PostError::Lost,
                    2 => PostError::Fenced,
                    3 => PostError::OutOfBounds,
                    other => return Err(PoolError::Unknown("failure", other.into())),
                };
                Frame::Answer(number, Err(error))
            }
        })
    }
}

fn append_results(results: &[OpResult], out: &mut Vec<u8>) {
    out.extend_from_slice(&(results.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for result in results {
        let word;
        let (kind, bytes): (u8, &[u8]) = match result {
            OpResult::Bytes(bytes) => (1, bytes),
            OpResult::Written => (2, &[]),
            OpResult::Before(before) => {
                word = before.to_le_bytes();
                (3, &word)
            }
        };
        out.extend_from_slice(&[kind, 0, 0, 0]);
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    }
}

/// Takes `len` bytes off the front.
fn take<'b>(rest: &mut &'b [u8], what: &'static str, len: usize) -> Result<&'b [u8]> {
    let (taken, left) = rest.split_at_checked(len).ok_or(PoolError::TooShort(what, rest.len(), len))?;
    *rest = left;
    Ok(taken)
}

/// The count of a list, at `at`, once as many heads as that fit into what is left.
fn count_of(body: &[u8], at: usize, head_bytes: usize) -> Result<usize> {
    let (count, most) = (u32_at(body, at) as usize, (body.len() - LIST_HEAD_BYTES) / head_bytes);
    if count > most {
        return Err(PoolError::TooLong("frame's list", count, most));
    }
    Ok(count)
}

fn is_at_end(rest: &[u8]) -> Result<()> {
    match rest.len() {
        0 => Ok(()),
        more => Err(PoolError::Contradicts("bytes after a frame's list", more as u64, 0)),
    }
}

fn batch_of(body: &[u8]) -> Result<Batch> {
    let count = count_of(body, 4, OPERATION_BYTES)?;
    let mut rest = &body[LIST_HEAD_BYTES..];
    let mut batch = Vec::with_capacity(count);
    for _ in 0..count {
        let head = take(&mut rest, "operation", OPERATION_BYTES)?;
        let at = RemoteAddress { region: u16_at(head, 2), offset: u32_at(head, 4) };
        let (first, second) = (u64_at(head, 8), u64_at(head, 16));
        let len = || {
            u32::try_from(first)
                .map_err(|_| PoolError::OutOfBounds("operation's length", first, 0, u32::MAX.into()))
        };
        batch.push(match head[0] {
            1 => RemoteOp::Read(at, len()?),
            2 => RemoteOp::Write(at, take(&mut rest, "write", len()? as usize)?.to_vec()),
            3 => RemoteOp::CompareAndSwap(at, first, second),
            4 => RemoteOp::FetchAndAdd(at, first),
            other => return Err(PoolError::Unknown("operation", other.into())),
        });
    }
    is_at_end(rest)?;
    Ok(batch)
}

fn results_of(body: &[u8]) -> Result<Vec<OpResult>> {
    let count = count_of(body, 0, RESULT_HEAD_BYTES)?;
    let mut rest = &body[LIST_HEAD_BYTES..];
    let mut results = Vec::with_capacity(count);
    for _ in 0..count {
        let head = take(&mut rest, "result", RESULT_HEAD_BYTES)?;
        let bytes = take(&mut rest, "result", u32_at(head, 4) as usize)?;
        results.push(match (head[0], bytes.len()) {
            (1, _) => OpResult::Bytes(bytes.to_vec()),
            (2, 0) => OpResult::Written,
            (3, 8) => OpResult::Before(u64_at(bytes, 0)),
            (other, _) => return Err(PoolError::Unknown("result", other.into())),
        });
    }
    is_at_end(rest)?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    fn at(offset: u32) -> RemoteAddress {
        RemoteAddress { region: 2, offset }
    }

    fn one_of_each() -> Vec<Frame> {
        let batch = vec![
            RemoteOp::Read(at(64), 8),
            RemoteOp::Write(at(8), vec![7, 8, 9]),
            RemoteOp::CompareAndSwap(at(16), 0x0102, 0x0304),
            RemoteOp::FetchAndAdd(at(24), u64::MAX),
        ];
        let results = vec![
            OpResult::Bytes(vec![5; 8]),
            OpResult::Written,
            OpResult::Before(0x0102),
            OpResult::Before(3),
        ];
        let mut frames = vec![
            Frame::Hello { from: NodeId(1), to: NodeId::agent(crate::region::MemoryNode(2)), life: 0x0A0B },
            Frame::ForeignHello(9),
            Frame::Welcome(0x0A0B),
            Frame::Datagram(vec![1, 2, 3]),
            Frame::Datagram(Vec::new()),
            Frame::Batch(0x0506, SessionId(3), batch),
            Frame::Batch(1, SessionId(3), Vec::new()),
            Frame::Answer(0x0506, Ok(results)),
        ];
        let errors = [PostError::Lost, PostError::Fenced, PostError::OutOfBounds];
        frames.extend(errors.map(|error| Frame::Answer(7, Err(error))));
        let refusals = [
            FabricRefusal::Version(1),
            FabricRefusal::OtherNode(NodeId(4)),
            FabricRefusal::OtherLife(77),
            FabricRefusal::Busy(1024),
            FabricRefusal::Malformed,
        ];
        frames.extend(refusals.map(Frame::Refused));
        frames
    }

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        bytes
    }

    /// The bytes with their checksum made right, so that what is behind it is looked at.
    fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
        if bytes.len() >= HEAD_BYTES {
            let crc = checksum(&bytes);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn golden() {
        let hex =
            |frame: &Frame| bytes_of(frame).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let frames = one_of_each();
        assert_eq!(
            hex(&frames[0]),
            concat!("48540100e69b44410000000010000000", "01000100024000000b0a000000000000")
        );
        assert_eq!(
            hex(&frames[5]),
            concat!(
                "485405002f8ab339060500006b000000",
                "0300000004000000010002004000000008000000000000000000000000000000",
                "0200020008000000030000000000000000000000000000000708090300020010",
                "000000020100000000000004030000000000000400020018000000ffffffffff",
                "ffffff0000000000000000"
            )
        );
        assert_eq!(
            hex(&frames[7]),
            concat!(
                "4854060033f5cd070605000040000000",
                "0400000000000000010000000800000005050505050505050200000000000000",
                "0300000008000000020100000000000003000000080000000300000000000000"
            )
        );
        assert_eq!(hex(&frames[9]), concat!("4854070084cc7c5a0700000004000000", "02000000"));
        assert_eq!(
            hex(&frames[13]),
            concat!("485403005497e9890000000010000000", "03000000000000004d00000000000000")
        );
    }

    #[test]
    fn what_was_encoded_decodes() {
        let mut stream = Vec::new();
        one_of_each().iter().for_each(|frame| frame.append_to(&mut stream));
        let mut rest = &stream[..];
        for frame in one_of_each() {
            match Parsed::of(rest) {
                Ok(Parsed::Whole(other, len)) => {
                    assert_eq!(other, frame);
                    rest = &rest[len..];
                }
                other => panic!("{other:?} instead of {frame:?}"),
            }
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn the_beginning_of_a_frame_says_how_long_it_is() {
        for frame in one_of_each() {
            let bytes = bytes_of(&frame);
            for len in 0..bytes.len() {
                let needed = if len < HEAD_BYTES { HEAD_BYTES } else { bytes.len() };
                assert_eq!(Parsed::of(&bytes[..len]), Ok(Parsed::Part(needed)), "{len} of {frame:?}");
            }
        }
    }

    #[test]
    fn every_flip_is_found() {
        for frame in one_of_each() {
            let good = bytes_of(&frame);
            for bit in 0..good.len() * 8 {
                let mut bytes = good.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                // A length that has grown within its limit waits for more, which a checksum ends.
                let is_length = (96..128).contains(&bit);
                match Parsed::of(&bytes) {
                    Err(_) => {}
                    Ok(Parsed::Part(more)) if is_length && more > bytes.len() => {
                        bytes.resize(more, 0);
                        assert!(Parsed::of(&bytes).is_err(), "bit {bit} of {frame:?}");
                    }
                    other => panic!("bit {bit} of {frame:?}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn what_passes_the_checksum_is_still_looked_at() {
        let mut random = Random::from_seed(11);
        let (mut refused, mut accepted) = (0, 0);
        for round in 0..60_000 {
            let frames = one_of_each();
            let mut bytes = bytes_of(&frames[random.below(frames.len() as u64) as usize]);
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            if round % 3 == 0 && bytes.len() > HEAD_BYTES {
                let len = HEAD_BYTES + random.below((bytes.len() - HEAD_BYTES) as u64) as usize;
                bytes.truncate(len);
                let body = (len - HEAD_BYTES) as u32;
                bytes[12..16].copy_from_slice(&body.to_le_bytes());
            }
            let bytes = with_checksum(bytes);
            match Parsed::of(&bytes) {
                Ok(Parsed::Whole(frame, len)) => {
                    accepted += 1;
                    assert!(len <= bytes.len());
                    // What is taken for a frame is one: it is itself once more.
                    match Parsed::of(&bytes_of(&frame)) {
                        Ok(Parsed::Whole(again, _)) => assert_eq!(again, frame),
                        other => panic!("{other:?}"),
                    }
                }
                Ok(Parsed::Part(needed)) => assert!(needed > bytes.len()),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 10_000 && accepted > 1_000, "{refused} refused, {accepted} accepted");
    }

    #[test]
    fn random_bytes_are_refused() {
        let mut random = Random::from_seed(12);
        for _ in 0..20_000 {
            let len = random.below(200) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            if random.below(2) == 0 && len >= 4 {
                bytes[..4].copy_from_slice(&[b'H', b'T', random.below(9) as u8, 0]);
            }
            assert!(!matches!(Parsed::of(&bytes), Ok(Parsed::Whole(..))), "{bytes:?}");
        }
    }

    #[test]
    fn lengths_are_looked_at_before_anything_is_waited_for() {
        for (kind, (least, most)) in (1..8).filter_map(|kind| Some((kind, body_limits(kind)?))) {
            let mut bytes = vec![b'H', b'T', kind, 0];
            bytes.resize(HEAD_BYTES, 0);
            bytes[12..16].copy_from_slice(&(most as u32 + 1).to_le_bytes());
            assert_eq!(Parsed::of(&bytes), Err(PoolError::TooLong("frame's body", most + 1, most)));
            if let Some(less) = least.checked_sub(1) {
                bytes[12..16].copy_from_slice(&(less as u32).to_le_bytes());
                assert_eq!(Parsed::of(&bytes), Err(PoolError::TooShort("frame's body", less, least)));
            }
        }
        // A list of four thousand million operations, in a body of one.
        let mut bytes = bytes_of(&Frame::Batch(1, SessionId(1), vec![RemoteOp::Read(at(0), 8)]));
        bytes[HEAD_BYTES + 4..HEAD_BYTES + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        let most = u32::MAX as usize;
        assert_eq!(Parsed::of(&with_checksum(bytes)), Err(PoolError::TooLong("frame's list", most, 1)));
    }

    #[test]
    fn the_longest_batch_and_its_results_fit() {
        let writes = (BATCH_BYTES_MAX / 4 - OPERATION_BYTES) & !7;
        let batch = vec![RemoteOp::Write(at(0), vec![3; writes]); 4];
        assert!(crate::fabric::is_within_limits(&batch));
        assert!(matches!(
            Parsed::of(&bytes_of(&Frame::Batch(1, SessionId(1), batch))),
            Ok(Parsed::Whole(..))
        ));
        let results = vec![OpResult::Bytes(vec![3; RESULT_BYTES_MAX / 4 - RESULT_HEAD_BYTES]); 4];
        assert!(matches!(Parsed::of(&bytes_of(&Frame::Answer(1, Ok(results)))), Ok(Parsed::Whole(..))));
    }
}
