//! The SNIA KV storage API for C, over a key-value SSD in software.
//!
//! `include/hedgerow_kvssd.h` is the interface, written by hand: what each function does, who owns each pointer, and which code is given when. `docs/kvssd.md` has a section on its use, and
//! decision 53 says why it is as it is.
//!
//! | module | owns |
//! |---|---|
//! | `layout` | types and constants as C has them |
//! | `boundary` | what is read from and written to the caller's memory; panics end there |
//! | `device` | an open device, its queue pairs and its key spaces |
//! | `completions` | commands that are under way without anybody who waits, and the thread that calls back |
//! | `handles` | which handles are open |
//! | `exports`, `exports_pairs` | the functions |
//!
//! Arrows run one way: `layout <- boundary <- completions <- device <- handles <- exports`. `unsafe` is in `boundary`, in `completions` where buffers are filled and callbacks called, and in the functions themselves.
#![allow(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod boundary;
mod completions;
mod device;
mod exports;
mod exports_pairs;
mod handles;
mod layout;

pub use exports::*;
pub use exports_pairs::*;
pub use layout::*;
