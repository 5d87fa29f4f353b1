//! A key-value SSD in software: pairs by key on simulated flash, persistent and crash-safe.
//!
//! For people who write for key-value drives (the SNIA KV storage API, NVMe-KV) and have none, and for those who compare designs of such devices. On a file this is a hash store that
//! loses nothing it promised to keep; it is not quicker than a drive, and says nothing of how quick one would be.
//!
//! # What is promised
//!
//! What is acknowledged is in the request buffer, which is the open page in its final place on the medium. A killed process loses none of it: the medium is a mapped
//! file. A simulated power cut with a capacitor loses none of it. A power cut of the machine loses what the mode says ([`AckMode::Immediate`]: nothing): a file has no
//! capacitor, and nobody says that it has. What is left is a prefix of the device's commands; each key has its old or its new whole value. Deleted keys stay deleted.
//!
//! # The parts
//!
//! | module | owns |
//! |---|---|
//! | `command`, `code` | what is asked, answered and refused, and the limits |
//! | `flash` | bytes on the medium: superblocks, block words, records, footers; and how long a drive's flash would take, in virtual time |
//! | `device` | commands carried out, a step at a time: index, buckets, blocks, gc, recovery |
//! | `wire` | commands, completions and lists of keys as the NVMe key value command set has them, and namespaces that carry such commands out |
//! | `host` | queue pairs, and the memory they take; a host, and a machine with several devices, in virtual time |
//!
//! The core has no `unsafe`, no thread, lock or clock (`host` may have them), and no I/O but through `hedgerow-device`, whose crash simulation its tests rest on. Arrows run one way: `flash <- device <- host <- wire`.
//! `docs/kvssd.md` has the table of commands and codes, and where this device differs from the standard.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests use the machine as it is"))]

mod backend;
mod code;
mod command;
mod device;
mod flash;
mod host;
mod sync;
mod wire;

pub use backend::{
    ArrayError, ArrayMedium, ArrayMember, ArrayPlace, ArrayWork, CopiesState, KvssdBackend, KvssdOptions,
    MoveProgress, Mover, check_places, next_opening,
};
pub use code::{KvError, Result, ResultCode};
pub use command::{
    BatchEntry, DeviceInfo, EXIST_KEYS_MAX, GROUP_KEY_BYTES, ITERATORS_MAX, IteratorContent, KEY_BYTES_MAX,
    KeyPattern, KeyPlace, KvAnswer, KvCommand, LIST_KEYS_MAX, PairKey, SPACES_MAX, SpaceId, SpaceInfo,
    SpacePlace, StoreMode, VALUE_BYTES_MAX, batch_entries, group_of,
};
pub use device::{
    AckMode, BlockCounts, Completion, Device, DeviceCheck, DeviceOptions, DeviceOverview, DeviceProblem,
    DeviceShutdown, DeviceView, Event, GcCounters, GcPolicy, IndexCounters, LostRange, OpenReport, Out,
    Refused, Stage,
};
pub use flash::FlashCounters;
pub use flash::drive_model::{DriveModel, FrontCost, FrontKind};
pub use flash::geometry::Geometry;
pub use flash::timeline::TimelineCounters;
pub use host::{
    CachedQueue, DeviceThread, Host, HostRequest, HostTicket, NodeFigures, NodeLoad, NodeModel,
    QUEUE_DEPTH_MAX, QueueDriver, QueueId, QueueOpener, QueuePair, QueueReady, SimCompletion, SimHost,
};
pub use wire::{
    COMMAND_BYTES, COMPLETION_BYTES, DataPointer, NVME_KEY_BYTES_MAX, NvmeAction, NvmeCommand,
    NvmeCompletion, NvmeKey, NvmeNamespaces, NvmeStatus, StoreOptions, WireError, decode_key_list,
    encode_key_list,
};
