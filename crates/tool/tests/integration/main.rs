//! The server from outside: over sockets, in this process and as the program itself.

mod client;
mod commands;
mod kill;
mod limits;
mod lifecycle;
mod transactions;
