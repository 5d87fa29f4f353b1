//! The engine through its public surface. One binary: each file is a room.
#![allow(clippy::unwrap_used)]

mod api;
mod corruption;
mod crash;
mod model;
mod reopen;
