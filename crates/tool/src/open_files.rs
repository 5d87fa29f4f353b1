//! How many clients, or nodes of a pool, the limit of open files leaves room for.
//!
//! Owns: raising that limit as far as the operating system lets it. Promises: a client that is let in has a descriptor, so that one too
//! many is told so and does not wait for ever.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything that is no client: listeners, the store, a backup, what the program began with; and some clients that
/// are told that they are too many.
const RESERVED: u64 = 64;

/// Descriptors that a compute node takes in another node of its pool: the control connection, one that it dialed and one to it.
const FILES_A_NODE: usize = 3;
/// More of them for all that is no compute node of the pool: memory nodes, and who has not said who he is.
const OTHER_NODES: usize = 64;

/// Makes room for so many compute nodes of a pool, and says for how many there is.
pub fn make_room_for_nodes(nodes: usize) -> usize {
    let wanted = nodes.saturating_mul(FILES_A_NODE).saturating_add(OTHER_NODES);
    make_room_for(wanted).saturating_sub(OTHER_NODES) / FILES_A_NODE
}

/// Makes room for `clients`, and says for how many there is.
pub fn make_room_for(clients: usize) -> usize {
    let wanted = (clients as u64).saturating_add(RESERVED);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return clients;
    }
    let raised = maximum.map_or(wanted, |maximum| wanted.min(maximum));
    let has_room = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok();
    let files = if has_room { raised } else { current.unwrap_or(wanted) };
    let room = files.saturating_sub(RESERVED).max(1);
    usize::try_from(room).unwrap_or(usize::MAX).min(clients)
}
