//! The `hedgerow` command. Everything lives in the library of this crate, so that tests and the peer comparison reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    hedgerow_tool::cli::run()
}
