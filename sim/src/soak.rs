//! How long the loops of the tests go on: briefly in `cargo test`, thoroughly under `cargo xtask soak`.
//!
//! Owns the one switch, the environment variable `HEDGEROW_SOAK`. Must not know what is counted.

/// Set by `cargo xtask soak`.
const SOAK: &str = "HEDGEROW_SOAK";

/// Whether the thorough loops are asked for.
pub fn is_soaking() -> bool {
    std::env::var_os(SOAK).is_some_and(|value| !value.is_empty() && value != "0")
}

/// How often a loop goes round: `brief` in `cargo test`, `thorough` under `cargo xtask soak`.
pub fn rounds(brief: u64, thorough: u64) -> u64 {
    if is_soaking() { thorough } else { brief }
}
