//! What a process prints for whoever runs it.
//!
//! Promises that a process goes on whether or not that can be printed: `println!` and `eprintln!` panic where standard output or error is a pipe that nobody
//! reads any more, a terminal that has gone, or a file on a disk that is full, has failed or is read only by now. Must not know what is printed.

use std::fmt;
use std::io::{self, Write};

/// Prints a line to standard error, after the name of the program, if it takes that.
pub fn report(line: fmt::Arguments<'_>) {
    // In one piece, for others may write there, too. If it fails nobody is left to be told.
    drop(io::stderr().write_all(format!("hedgerow: {line}\n").as_bytes()));
}

/// Prints whole lines to standard output, if it takes them.
pub fn print(lines: &str) {
    drop(io::stdout().write_all(lines.as_bytes()));
}
