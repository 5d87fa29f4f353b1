//! What Hedgerow's tests and fuzz targets have in common.
//!
//! Owns one language of operations ([`Op`]), where they come from ([`Source`]: a seed, or a fuzzer's bytes), what each must
//! answer ([`Model`]), the comparison of a store with its model step by step ([`Runner`]), crash sweeps over a script
//! ([`Sweep`]), rows over pairs with their model
//! ([`PairRunner`]) and backends that fail ([`FailingBackend`]), a checker of concurrent histories ([`History`]), how long the tests' loops go on ([`rounds`]), and what tests ask of the machine ([`eventually`],
//! [`skip`], [`Scratch`]). Promises that a seed repeats a run: nothing in here but `eventually` reads the machine's clock, and nothing starts a thread.
//! Must not know how the engine does what it does.

mod crash;
mod failing;
mod history;
mod machine;
mod model;
mod op;
mod run;
mod soak;
mod source;

pub use crash::{FaultCounts, Lie, Sweep, SweepCounts};
pub use failing::{BackendFault, FailingBackend};
pub use history::{Call, Effect, History, NotLinearizable, Precondition};
pub use machine::{Scratch, eventually, skip};
pub use model::{Answer, Model, ModelRow};
pub use op::{
    Content, Expected, Given, How, NAMES, Op, Part, PartKind, Require, SNAPSHOTS, TABLES, Taste, generate,
    key,
};
pub use run::{Divergence, FORMATS, Format, Merged, PairRunner, Runner, Setup};
pub use soak::{is_soaking, rounds};
pub use source::Source;
