//! What must not compile, compiled.
//!
//! Owns the look at the compiler's errors. Promises that every line marked `//~ CODE` is refused with that error, and that nothing else is:
//! a rule that a signature no longer keeps fails the step, and so does a function that is refused for another reason.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::Outcome;

const FILE: &str = "crates/engine/src/db/refused.rs";
/// The compiler looks at the later ones only where there is no error of the earlier.
const KINDS: [&str; 4] = ["names", "types", "borrows", "privacy"];

/// A line of the file and the code of an error.
type Refusals = BTreeSet<(usize, String)>;

pub(crate) fn run(root: &Path) -> Outcome {
    let Ok(source) = std::fs::read_to_string(root.join(FILE)) else {
        return Outcome::Failed(format!("{FILE} cannot be read"));
    };
    let marked = marked(&source);
    let mut told = Refusals::new();
    for kind in KINDS {
        match compiled(root, kind) {
            Ok(output) => told.extend(errors(&output)),
            Err(why) => return Outcome::Failed(why),
        }
    }
    let lines = |refusals: Vec<&(usize, String)>| {
        refusals.iter().map(|(line, code)| format!(" {line} ({code})")).collect::<String>()
    };
    let (compiles, else_wrong) = (marked.difference(&told).collect(), told.difference(&marked).collect());
    match (lines(compiles), lines(else_wrong)) {
        (none, also) if none.is_empty() && also.is_empty() && !marked.is_empty() => Outcome::Passed,
        (compiles, else_wrong) => Outcome::Failed(format!(
            "{FILE}: lines that compile, but must not:{compiles}; lines refused that are not marked:{else_wrong}"
        )),
    }
}

fn compiled(root: &Path, kind: &str) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["rustc", "-p", "hedgerow", "--lib", "--profile", "check", "--message-format", "short"]);
    cargo.args(["--", "--cfg", &format!("refused=\"{kind}\"")]).current_dir(root);
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    match output.status.success() {
        true => Err(format!("{FILE}: all of {kind:?} compiles")),
        false => Ok(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The lines that say by which error they are refused.
fn marked(source: &str) -> Refusals {
    let lines = source.lines().enumerate();
    lines.filter_map(|(at, line)| Some((at + 1, line.split_once("//~ ")?.1.trim().to_owned()))).collect()
}

/// The errors of the compiler, as `FILE:line:column: error[CODE]: text`, some without a code; of other files, as of line 0.
fn errors(output: &str) -> Refusals {
    let place = |line: &str| {
        let (at, error) = line.split_once(": error")?;
        let code = error.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let code = code.map_or("no code", |(code, _)| code).to_owned();
        let of_file = at.strip_prefix(FILE).and_then(|at| at.split(':').nth(1)?.parse().ok());
        Some((of_file.unwrap_or(0), code))
    };
    output.lines().filter_map(place).collect()
}
