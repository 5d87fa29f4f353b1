//! Whole pools under test.

mod run;
mod runs;
