//! A key-value SSD in software.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod code;
mod command;
mod device;
mod flash;

pub use code::{KvError, Result, ResultCode};
pub use command::*;
pub use device::{
    AckMode, Completion, Device, DeviceOptions, Event, GcCounters, GcPolicy, IndexCounters, Out, Refused,
    Stage,
};
pub use flash::FlashCounters;
pub use flash::geometry::Geometry;
