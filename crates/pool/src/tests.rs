//! Whole pools under test.

mod asked;
mod explore;
mod explored;
mod memory_check;
mod run;
mod runs;
mod world;
