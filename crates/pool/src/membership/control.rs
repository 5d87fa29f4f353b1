//! Control frames: what a process of a pool and its manager say to each other, byte for byte.
//!
//! Owns the layout. Promises that what decodes is whole and within its limits, that no length is believed before it was compared with the limit of its kind, and that no bytes make it
//! panic. Must not know what is done about a frame, or how it travels.
//!
//! ```text
//!  0       2    3    4        8          12
//!  +-------+----+----+--------+----------+------+
//!  | 'HC'  |kind| 0  | crc32c | body len | body |
//!  +-------+----+----+--------+----------+------+
//! ```
//!
//! * All integers are little-endian. The checksum is that of all other bytes of the frame.
//! * Who connects says `Join` or `Ask`. `Join` is answered `Joined` or `Refused`; who joined says `Ready` once others may reach it, and `Heartbeat` from then on, each of which is answered
//!   `Answered`, and is told the `Book` whenever that changes. `Ask` is answered `Status`.
//! * In all versions a frame begins as above, `Join` and `Ask` with their version, so that each can refuse every other.
//! * An address is 20 bytes: 4 or 6 u8, 0 u8, port u16, 16 bytes of which those of version 4 have the first four.
//!
//! | kind | frame | body |
//! |---|---|---|
//! | 1 | `Join` | version u16 (2), role u8 (1 memory, 2 compute), 0 u8, 0 u32, life u64 (not 0 of memory) |
//! | 2 | `Joined` | node u16, 0 u16, depth u32, first boot u64, layout of 24 bytes: memory nodes u16, copies u16, partition bits u32, groups u32, block bytes u32, blocks u32, 0 u32; times in ns, u64 each: heartbeat, lease, retry, quarantine, timeout, poll, housekeeping, retry of requests, lease of proxies; cached keys u64 |
//! | 3 | `Refused` | reason u32 (1 version, 2 too many nodes, 3 all memory nodes there, 4 not yet, 5 lost, 6 malformed, 7 no number left), 0 u32, detail u64 |
//! | 4 | `Ready` | address |
//! | 5 | `Heartbeat` | number u64 |
//! | 6 | `Answered` | number u64 |
//! | 7 | `Book` | count u32, 0 u32, entries of 32 bytes: node u16, 0 u16, address, life u64 |
//! | 8 | `Ask` | version u16 (2) |
//! | 9 | `Status` | epoch u32, changing u8, state u8 (0 waiting, 1 working, 2 lost), share of partitions with a proxy in hundredths u8 (255: nothing is chosen), 0 u8, sessions u32, count u32, layout, reassignments u32, 0 u32, entries of 32 bytes: node u16, state u8 (1 joining, 2 living, 3 lost), partitions that it is the proxy of u8, address (0 while it joins), life u64 |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};

use crate::client::{CACHED_BYTES, ClientOptions};
use crate::error::{PoolError, Result};
use crate::fabric::{Nanos, NodeId};
use crate::region::PoolLayout;

/// The version of the layout.
pub(super) const CONTROL_VERSION: u16 = 2;
/// Compute nodes that can have joined a pool in all its life: their numbers are never given twice.
pub const COMPUTE_NODES_EVER: u16 = 0x4000;
const HEAD_BYTES: usize = 12;
const ADDRESS_BYTES: usize = 20;
const ENTRY_BYTES: usize = 32;
const LAYOUT_BYTES: usize = 24;
const JOIN_BYTES: usize = 16;
const JOINED_BYTES: usize = 16 + LAYOUT_BYTES + 80;
const BOOK_HEAD_BYTES: usize = 8;
const STATUS_HEAD_BYTES: usize = 16 + LAYOUT_BYTES + 8;
/// The share where proxies are not chosen.
const NO_SHARE: u8 = u8::MAX;
/// Entries of a book, or of a status, at most.
pub(super) const ENTRIES_MAX: usize = 2048;
/// Bytes of a greeting of any version at most.
const GREETING_BYTES_MAX: usize = 64;

/// What a process is to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolRole {
    /// It has memory for others.
    Memory,
    /// It works on the memory of others.
    Compute,
}

/// Why a process is not let into the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JoinRefusal {
    /// The manager speaks this version only.
    Version(u16),
    /// The pool has as many compute nodes as it may have at a time.
    TooManyNodes(u64),
    /// The pool has all of its memory nodes, this many: none joins beside them, and once it has begun none after them.
    HasAllMemory(u64),
    /// The pool has not begun: this many memory nodes are missing.
    NotYet(u64),
    /// All memory nodes that had copies of something are gone: what was in it is lost.
    IsLost,
    /// What it was sent is no frame, or not one that may be sent now.
    Malformed,
    /// The pool has had as many compute nodes as it can have in all its life: each has a number that no other gets.
    NoNumberLeft(u64),
}

impl JoinRefusal {
    fn encode(self) -> (u32, u64) {
        match self {
            JoinRefusal::Version(version) => (1, version.into()),
            JoinRefusal::TooManyNodes(most) => (2, most),
            JoinRefusal::HasAllMemory(nodes) => (3, nodes),
            JoinRefusal::NotYet(missing) => (4, missing),
            JoinRefusal::IsLost => (5, 0),
            JoinRefusal::Malformed => (6, 0),
            JoinRefusal::NoNumberLeft(most) => (7, most),
        }
    }

    fn decode(reason: u32, detail: u64) -> Result<JoinRefusal> {
        Ok(match reason {
            1 => JoinRefusal::Version(detail as u16),
            2 => JoinRefusal::TooManyNodes(detail),
            3 => JoinRefusal::HasAllMemory(detail),
            4 => JoinRefusal::NotYet(detail),
            5 => JoinRefusal::IsLost,
            6 => JoinRefusal::Malformed,
            7 => JoinRefusal::NoNumberLeft(detail),
            _ => return Err(PoolError::Unknown("refusal", reason.into())),
        })
    }
}

impl fmt::Display for JoinRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            JoinRefusal::Version(version) => {
                write!(
                    f,
                    "the pool's manager speaks version {version}, and this is version {CONTROL_VERSION}"
                )
            }
            JoinRefusal::TooManyNodes(most) => {
                write!(f, "the pool has as many compute nodes as it may have: {most}")
            }
            JoinRefusal::HasAllMemory(nodes) => {
                write!(
                    f,
                    "the pool has all of its {nodes} memory nodes, and once it has begun none joins later"
                )
            }
            JoinRefusal::NotYet(missing) => {
                write!(f, "the pool has not begun: it waits for {missing} more memory nodes")
            }
            JoinRefusal::IsLost => {
                f.write_str("the pool is lost: all memory nodes that had copies of something are gone")
            }
            JoinRefusal::Malformed => f.write_str("the pool's manager did not understand what it was sent"),
            JoinRefusal::NoNumberLeft(most) => {
                write!(
                    f,
                    "the pool has had {most} compute nodes, which is as many as one can have in all its life"
                )
            }
        }
    }
}

/// What a node is told when it has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) node: NodeId,
    pub(super) first_boot: u64,
    pub(super) layout: PoolLayout,
    pub(super) client: ClientOptions,
    pub(super) heartbeat_ns: Nanos,
    pub(super) lease_ns: Nanos,
    pub(super) retry_ns: Nanos,
}

/// Where a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BookEntry {
    /// Which node.
    pub node: NodeId,
    /// Where its fabric listens.
    pub address: SocketAddr,
    /// Its life: 0 for who has no memory.
    pub life: u64,
}

/// How a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolNodeState {
    /// It has joined, and is not ready.
    Joining,
    /// It is part of the pool.
    Living,
    /// It is not any more.
    Lost,
}

/// A node of a pool, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeStatus {
    /// Which node.
    pub node: NodeId,
    /// How it is.
    pub state: PoolNodeState,
    /// Where its fabric listens, once it is ready.
    pub address: Option<SocketAddr>,
    /// Its life: 0 for who has no memory.
    pub life: u64,
    /// Partitions that it is the proxy of, at most 240.
    pub proxied: u8,
}

/// How a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// It waits for memory nodes.
    Waiting,
    /// It works.
    Working,
    /// More memory nodes are gone than there are copies.
    Lost,
}

/// A pool, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    /// How it is.
    pub state: PoolState,
    /// The configuration that holds.
    pub epoch: u32,
    /// Whether another one is on its way.
    pub is_changing: bool,
    /// Sessions that work on it.
    pub sessions: u32,
    /// How its memory is laid out.
    pub layout: PoolLayout,
    /// Hundredths of the partitions that are to have a proxy; none where proxies are not chosen.
    pub share: Option<u8>,
    /// How often partitions were dealt out anew.
    pub reassignments: u32,
    /// Its nodes, the manager first.
    pub nodes: Vec<NodeStatus>,
}

/// What is said over a control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ControlFrame {
    Join(PoolRole, u64),
    /// A `Join` or `Ask` of another version.
    Foreign(u16),
    Joined(Box<Welcome>),
    Refused(JoinRefusal),
    Ready(SocketAddr),
    Heartbeat(u64),
    Answered(u64),
    Book(Vec<BookEntry>),
    Ask,
    Status(Box<PoolStatus>),
}

/// The least and the most bytes of a body.
fn body_limits(kind: u8) -> Option<(usize, usize)> {
    Some(match kind {
        1 | 8 => (2, GREETING_BYTES_MAX),
        2 => (JOINED_BYTES, JOINED_BYTES),
        3 => (16, 16),
        4 => (ADDRESS_BYTES, ADDRESS_BYTES),
        5 | 6 => (8, 8),
        7 => (BOOK_HEAD_BYTES, BOOK_HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES),
        9 => (STATUS_HEAD_BYTES, STATUS_HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES),
        _ => return None,
    })
}

fn checksum(frame: &[u8]) -> u32 {
    crc32c(crc32c(0, &frame[..4]), &frame[8..])
}

/// Takes a frame off the front of what came, if it is whole.
///
/// # Errors
/// What is wrong with the bytes. Nothing after them can be understood.
pub(super) fn take_frame(came: &mut Vec<u8>) -> Result<Option<ControlFrame>> {
    if came.len() < HEAD_BYTES {
        return Ok(None);
    }
    if came[..2] != *b"HC" || came[3] != 0 {
        return Err(PoolError::Unknown("control frame's magic", u32_at(came, 0).into()));
    }
    let (kind, len) = (came[2], u32_at(came, 8) as usize);
    let (least, most) = body_limits(kind).ok_or(PoolError::Unknown("control frame's kind", kind.into()))?;
    if len > most {
        return Err(PoolError::TooLong("control frame's body", len, most));
    }
    if len < least {
        return Err(PoolError::TooShort("control frame's body", len, least));
    }
    let Some(frame) = came.get(..HEAD_BYTES + len) else { return Ok(None) };
    let (stored, crc) = (u32_at(frame, 4), checksum(frame));
    if stored != crc {
        return Err(PoolError::Checksum("control frame", stored, crc));
    }
    let decoded = ControlFrame::of_body(kind, &frame[HEAD_BYTES..])?;
    came.drain(..HEAD_BYTES + len);
    Ok(Some(decoded))
}

fn append(kind: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[b'H', b'C', kind, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body(out);
    let len = (out.len() - start - HEAD_BYTES) as u32;
    out[start + 8..start + 12].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(&out[start..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

fn append_address(address: SocketAddr, out: &mut Vec<u8>) {
    let (family, mut bytes) = (if address.is_ipv4() { 4 } else { 6 }, [0; 16]);
    match address.ip() {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.copy_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&[family, 0]);
    out.extend_from_slice(&address.port().to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// An address that somebody can be reached at.
fn address_of(bytes: &[u8]) -> Result<SocketAddr> {
    let four: [u8; 4] = bytes[4..].first_chunk().copied().unwrap_or_default();
    let sixteen: [u8; 16] = bytes[4..].first_chunk().copied().unwrap_or_default();
    let ip = match bytes[0] {
        4 => IpAddr::V4(Ipv4Addr::from(four)),
        6 => IpAddr::V6(Ipv6Addr::from(sixteen)),
        other => return Err(PoolError::Unknown("address", other.into())),
    };
    let port = u16_at(bytes, 2);
    if port == 0 || ip.is_unspecified() || ip.is_multicast() {
        return Err(PoolError::Unknown("address that nobody can be reached at, port", port.into()));
    }
    Ok(SocketAddr::new(ip, port))
}

fn append_layout(layout: &PoolLayout, out: &mut Vec<u8>) {
    out.extend_from_slice(&u16::from(layout.memory_nodes).to_le_bytes());
    out.extend_from_slice(&u16::from(layout.copies).to_le_bytes());
    for number in [layout.partition_bits, layout.groups, layout.block_bytes, layout.blocks, 0] {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn layout_of(bytes: &[u8]) -> Result<PoolLayout> {
    let byte = |name, at| {
        let number = u16_at(bytes, at);
        u8::try_from(number).map_err(|_| PoolError::OutOfBounds(name, number.into(), 1, 32))
    };
    let layout = PoolLayout {
        memory_nodes: byte("memory nodes", 0)?,
        copies: byte("copies", 2)?,
        // More than there can be, and no more than can be shifted by.
        partition_bits: u32_at(bytes, 4).min(15),
        groups: u32_at(bytes, 8),
        block_bytes: u32_at(bytes, 12),
        blocks: u32_at(bytes, 16),
    };
    layout.check()?;
    Ok(layout)
}

fn append_welcome(welcome: &Welcome, out: &mut Vec<u8>) {
    let client = &welcome.client;
    out.extend_from_slice(&welcome.node.0.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&(client.depth as u32).to_le_bytes());
    out.extend_from_slice(&welcome.first_boot.to_le_bytes());
    append_layout(&welcome.layout, out);
    for number in [
        welcome.heartbeat_ns,
        welcome.lease_ns,
        welcome.retry_ns,
        client.quarantine_ns,
        client.timeout_ns,
        client.poll_ns,
        client.housekeeping_ns,
        client.rpc_retry_ns,
        client.lease_ns,
        client.cached_keys as u64,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn welcome_of(body: &[u8]) -> Result<Welcome> {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let layout = layout_of(&body[16..])?;
    let node = NodeId(u16_at(body, 0));
    let is_memory = node.as_memory_node().is_some_and(|memory| memory.0 < layout.memory_nodes);
    if !is_memory && node.0 >= COMPUTE_NODES_EVER {
        return Err(PoolError::Unknown("node", node.0.into()));
    }
    let bounded = |name, at: usize, least: u64, most: u64| {
        let number = u64_at(body, 16 + LAYOUT_BYTES + 8 * at);
        let is_fine = (least..=most).contains(&number);
        is_fine.then_some(number).ok_or(PoolError::OutOfBounds(name, number, least, most))
    };
    let time = |name, at| bounded(name, at, 1, HOUR_NS);
    let client = ClientOptions {
        quarantine_ns: time("quarantine", 3)?,
        timeout_ns: time("timeout", 4)?,
        poll_ns: time("poll", 5)?,
        housekeeping_ns: time("housekeeping", 6)?,
        depth: u32_at(body, 4).clamp(1, 128) as usize,
        cached_keys: bounded("cached keys", 9, 0, 1 << 24)? as usize,
        // Each node says for itself what memory it has.
        cached_bytes: CACHED_BYTES,
        part_units: u8::MAX,
        rpc_retry_ns: time("retry of requests", 7)?,
        lease_ns: time("lease of proxies", 8)?,
    };
    Ok(Welcome {
        node,
        first_boot: u64_at(body, 8),
        layout,
        client,
        heartbeat_ns: time("heartbeat", 0)?,
        lease_ns: time("lease", 1)?,
        retry_ns: time("retry", 2)?,
    })
}

fn append_status(status: &PoolStatus, out: &mut Vec<u8>) {
    let state = match status.state {
        PoolState::Waiting => 0,
        PoolState::Working => 1,
        PoolState::Lost => 2,
    };
    let nodes = &status.nodes[..status.nodes.len().min(ENTRIES_MAX)];
    out.extend_from_slice(&status.epoch.to_le_bytes());
    let share = status.share.map_or(NO_SHARE, |share| share.min(100));
    out.extend_from_slice(&[status.is_changing.into(), state, share, 0]);
    out.extend_from_slice(&status.sessions.to_le_bytes());
    out.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
    append_layout(&status.layout, out);
    out.extend_from_slice(&u64::from(status.reassignments).to_le_bytes());
    for node in nodes {
        let state = match node.state {
            PoolNodeState::Joining => 1,
            PoolNodeState::Living => 2,
            PoolNodeState::Lost => 3,
        };
        out.extend_from_slice(&node.node.0.to_le_bytes());
        out.extend_from_slice(&[state, node.proxied]);
        match node.address {
            Some(address) => append_address(address, out),
            None => out.extend_from_slice(&[0; ADDRESS_BYTES]),
        }
        out.extend_from_slice(&node.life.to_le_bytes());
    }
}

fn status_of(body: &[u8]) -> Result<PoolStatus> {
    let state = match body[5] {
        0 => PoolState::Waiting,
        1 => PoolState::Working,
        2 => PoolState::Lost,
        other => return Err(PoolError::Unknown("state of a pool", other.into())),
    };
    let nodes = entries_of(body, 12, STATUS_HEAD_BYTES)?.map(|entry| {
        let state = match entry[2] {
            1 => PoolNodeState::Joining,
            2 => PoolNodeState::Living,
            3 => PoolNodeState::Lost,
            other => return Err(PoolError::Unknown("state of a node", other.into())),
        };
        let address = match entry[4] {
            0 => None,
            _ => Some(address_of(&entry[4..])?),
        };
        let (node, life, proxied) = (NodeId(u16_at(entry, 0)), u64_at(entry, 24), entry[3]);
        Ok(NodeStatus { node, state, address, life, proxied })
    });
    Ok(PoolStatus {
        state,
        epoch: u32_at(body, 0),
        is_changing: body[4] != 0,
        sessions: u32_at(body, 8),
        layout: layout_of(&body[16..])?,
        share: (body[6] <= 100).then_some(body[6]),
        reassignments: u32_at(body, 16 + LAYOUT_BYTES),
        nodes: nodes.collect::<Result<_>>()?,
    })
}

/// The entries of a body that has `head` bytes before them, and their count at `at`.
fn entries_of(body: &[u8], at: usize, head: usize) -> Result<impl Iterator<Item = &[u8]>> {
    let (count, bytes) = (u32_at(body, at) as usize, body.len() - head);
    // The body is within its limit, so this cannot be large.
    if bytes % ENTRY_BYTES != 0 || count != bytes / ENTRY_BYTES {
        return Err(PoolError::Contradicts("entries", count as u64, (bytes / ENTRY_BYTES) as u64));
    }
    Ok(body[head..].chunks_exact(ENTRY_BYTES))
}

impl ControlFrame {
    /// Appends its bytes.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        let number = |kind, number: u64, out: &mut Vec<u8>| {
            append(kind, out, |out| out.extend_from_slice(&number.to_le_bytes()));
        };
        match self {
            ControlFrame::Join(role, life) => append(1, out, |out| {
                out.extend_from_slice(&CONTROL_VERSION.to_le_bytes());
                let role = if *role == PoolRole::Memory { 1 } else { 2 };
                out.extend_from_slice(&[role, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&life.to_le_bytes());
            }),
            ControlFrame::Foreign(version) => {
                append(1, out, |out| out.extend_from_slice(&version.to_le_bytes()));
            }
            ControlFrame::Joined(welcome) => append(2, out, |out| append_welcome(welcome, out)),
            ControlFrame::Refused(refusal) => append(3, out, |out| {
                let (reason, detail) = refusal.encode();
                out.extend_from_slice(&reason.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&detail.to_le_bytes());
            }),
            ControlFrame::Ready(address) => append(4, out, |out| append_address(*address, out)),
            ControlFrame::Heartbeat(beat) => number(5, *beat, out),
            ControlFrame::Answered(beat) => number(6, *beat, out),
            ControlFrame::Book(entries) => append(7, out, |out| {
                let entries = &entries[..entries.len().min(ENTRIES_MAX)];
                out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                for entry in entries {
                    out.extend_from_slice(&entry.node.0.to_le_bytes());
                    out.extend_from_slice(&[0; 2]);
                    append_address(entry.address, out);
                    out.extend_from_slice(&entry.life.to_le_bytes());
                }
            }),
            ControlFrame::Ask => {
                append(8, out, |out| out.extend_from_slice(&CONTROL_VERSION.to_le_bytes()));
            }
            ControlFrame::Status(status) => append(9, out, |out| append_status(status, out)),
        }
    }

    /// A body whose length is within the limits of its kind.
    fn of_body(kind: u8, body: &[u8]) -> Result<ControlFrame> {
        Ok(match kind {
            1 | 8 if u16_at(body, 0) != CONTROL_VERSION => ControlFrame::Foreign(u16_at(body, 0)),
            1 if body.len() != JOIN_BYTES => {
                return Err(PoolError::Contradicts("join", body.len() as u64, JOIN_BYTES as u64));
            }
            1 => match (body[2], u64_at(body, 8)) {
                (1, life) if life != 0 => ControlFrame::Join(PoolRole::Memory, life),
                (2, life) => ControlFrame::Join(PoolRole::Compute, life),
                (role, _) => return Err(PoolError::Unknown("role, or a life", role.into())),
            },
            2 => ControlFrame::Joined(Box::new(welcome_of(body)?)),
            3 => ControlFrame::Refused(JoinRefusal::decode(u32_at(body, 0), u64_at(body, 8))?),
            4 => ControlFrame::Ready(address_of(body)?),
            5 => ControlFrame::Heartbeat(u64_at(body, 0)),
            6 => ControlFrame::Answered(u64_at(body, 0)),
            7 => {
                let entry = |entry: &[u8]| {
                    let (node, address) = (NodeId(u16_at(entry, 0)), address_of(&entry[4..])?);
                    Ok(BookEntry { node, address, life: u64_at(entry, 24) })
                };
                let entries = entries_of(body, 0, BOOK_HEAD_BYTES)?.map(entry);
                ControlFrame::Book(entries.collect::<Result<_>>()?)
            }
            8 => ControlFrame::Ask,
            _ => ControlFrame::Status(Box::new(status_of(body)?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    const LAYOUT: PoolLayout =
        PoolLayout { memory_nodes: 3, copies: 2, partition_bits: 4, groups: 5, block_bytes: 8192, blocks: 9 };

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn frames() -> Vec<ControlFrame> {
        let (four, six) = (address("127.0.0.1:7400"), address("[::1]:9"));
        let status = PoolStatus {
            state: PoolState::Working,
            epoch: 7,
            is_changing: true,
            sessions: 2,
            layout: LAYOUT,
            share: Some(40),
            reassignments: 3,
            nodes: vec![
                NodeStatus {
                    node: NodeId::MANAGER,
                    state: PoolNodeState::Living,
                    address: Some(four),
                    life: 0,
                    proxied: 0,
                },
                NodeStatus {
                    node: NodeId(0x4001),
                    state: PoolNodeState::Lost,
                    address: Some(six),
                    life: 8,
                    proxied: 0,
                },
                NodeStatus {
                    node: NodeId(3),
                    state: PoolNodeState::Joining,
                    address: None,
                    life: 0,
                    proxied: 240,
                },
            ],
        };
        let welcome = Welcome {
            node: NodeId(0x4002),
            first_boot: 1,
            layout: LAYOUT,
            client: ClientOptions::default(),
            heartbeat_ns: 2,
            lease_ns: 3,
            retry_ns: 4,
        };
        vec![
            ControlFrame::Join(PoolRole::Memory, 8),
            ControlFrame::Join(PoolRole::Compute, 0),
            ControlFrame::Foreign(3),
            ControlFrame::Joined(Box::new(welcome)),
            ControlFrame::Refused(JoinRefusal::Version(1)),
            ControlFrame::Refused(JoinRefusal::TooManyNodes(5)),
            ControlFrame::Refused(JoinRefusal::HasAllMemory(3)),
            ControlFrame::Refused(JoinRefusal::NotYet(2)),
            ControlFrame::Refused(JoinRefusal::IsLost),
            ControlFrame::Refused(JoinRefusal::Malformed),
            ControlFrame::Refused(JoinRefusal::NoNumberLeft(9)),
            ControlFrame::Ready(four),
            ControlFrame::Heartbeat(u64::MAX),
            ControlFrame::Answered(3),
            ControlFrame::Book(Vec::new()),
            ControlFrame::Book(vec![
                BookEntry { node: NodeId::MANAGER, address: six, life: 0 },
                BookEntry { node: NodeId(0x4000), address: four, life: 77 },
            ]),
            ControlFrame::Ask,
            ControlFrame::Status(Box::new(status)),
        ]
    }

    #[test]
    fn golden() {
        let mut bytes = Vec::new();
        ControlFrame::Join(PoolRole::Memory, 0x0807).append_to(&mut bytes);
        let crc = &bytes[4..8].to_vec();
        let mut expected = b"HC\x01\x00".to_vec();
        expected.extend_from_slice(crc);
        expected.extend_from_slice(&[16, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 7, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes, expected);
        assert_eq!(u32_at(&bytes, 4), GOLDEN_CRC);
        bytes.clear();
        let entry = BookEntry { node: NodeId(0x4000), address: address("127.0.0.1:7400"), life: 9 };
        ControlFrame::Book(vec![entry]).append_to(&mut bytes);
        let mut expected = vec![40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 4, 0, 0xE8, 0x1C];
        expected.extend_from_slice(&[127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..], expected);
    }

    const GOLDEN_CRC: u32 = 0xf744_0c2b;

    #[test]
    fn frames_come_back_whole_and_in_order() {
        let mut bytes = Vec::new();
        frames().iter().for_each(|frame| frame.append_to(&mut bytes));
        let (mut came, mut taken) = (Vec::new(), Vec::new());
        // A byte at a time: a part of a frame is none.
        for byte in bytes {
            came.push(byte);
            taken.extend(take_frame(&mut came).unwrap());
        }
        assert_eq!((taken, came.len()), (frames(), 0));
    }

    #[test]
    fn no_bytes_are_believed() {
        let mut random = Random::from_seed(9);
        let mut decoded = 0;
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.append_to(&mut bytes);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(!matches!(take_frame(&mut flipped), Ok(Some(_))), "{frame:?}, bit {bit}");
            }
            // With a checksum that is right again: it may mean something else, within the limits.
            for _ in 0..2000 {
                let mut changed = bytes.clone();
                for _ in 0..1 + random.below(3) {
                    let at = HEAD_BYTES + random.below((bytes.len() - HEAD_BYTES) as u64) as usize;
                    changed[at] = random.next_u64() as u8;
                }
                let crc = checksum(&changed);
                changed[4..8].copy_from_slice(&crc.to_le_bytes());
                match take_frame(&mut changed) {
                    Ok(Some(ControlFrame::Joined(welcome))) => {
                        assert_eq!(welcome.layout.check(), Ok(()));
                        decoded += 1;
                    }
                    Ok(Some(_)) => decoded += 1,
                    Ok(None) => panic!("a part of {frame:?}"),
                    Err(_) => {}
                }
            }
        }
        assert!(decoded > 1000, "{decoded}");
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..random.below(80)).map(|_| random.next_u64() as u8).collect();
            if let Some(start) = bytes.get_mut(..4) {
                start.copy_from_slice(&[b'H', b'C', random.below(11) as u8, 0]);
            }
            let _ = take_frame(&mut bytes);
        }
    }

    #[test]
    fn lengths_have_limits() {
        for (kind, len) in [(1, 65u32), (7, u32::MAX), (9, 1 << 20), (5, 9), (4, 19), (12, 0), (0, 0)] {
            let mut bytes = vec![b'H', b'C', kind, 0, 0, 0, 0, 0];
            bytes.extend_from_slice(&len.to_le_bytes());
            assert!(take_frame(&mut bytes).is_err(), "kind {kind}, {len} bytes");
        }
        for text in ["0.0.0.0:5", "127.0.0.1:0", "[::]:5", "224.0.0.1:5"] {
            let mut bytes = Vec::new();
            ControlFrame::Ready(address(text)).append_to(&mut bytes);
            assert!(take_frame(&mut bytes).is_err(), "{text}");
        }
    }
}
