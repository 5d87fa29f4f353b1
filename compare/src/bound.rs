//! Memory that every engine has alike, the page cache included: a control group where one can be had, else a ballast.
//!
//! Owns the choice between the two and what can be wrong with it. Promises that an engine under a bound has no more than that
//! for its own memory and the pages of its files together, and that nothing is left behind. Must not know engines.

pub(crate) mod ballast;
pub(crate) mod group;

use std::fmt;
use std::io;
use std::path::PathBuf;

use ballast::Ballast;
use group::{Group, Hierarchy};

/// The least that can be asked for: an engine needs its memory tables and its index.
const LEAST: u64 = 128 << 20;

/// Why there is no bound.
#[derive(Debug)]
pub(crate) enum BoundError {
    /// Less than any engine can work in.
    TooSmall { asked: u64 },
    /// More than the machine has left: a bound that binds nobody.
    TooLarge { asked: u64, available: u64 },
    /// Neither a control group nor a ballast.
    Neither { groups: Vec<Refusal>, ballast: io::Error },
    /// A process could not be put into its group.
    Joining(Refusal),
    /// The memory that is left cannot be told.
    Unknown(io::Error),
}

/// A file of a control group that could not be made or written.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.path.display(), self.error)
    }
}

impl fmt::Display for BoundError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoundError::TooSmall { asked } => {
                write!(out, "--memory-max must be at least {LEAST} bytes, not {asked}")
            }
            BoundError::TooLarge { asked, available } => {
                write!(out, "--memory-max {asked} bounds nobody: {available} bytes are left on this machine")
            }
            BoundError::Neither { groups, ballast } => {
                write!(out, "--memory-max needs a control group or locked memory. No group: ")?;
                if groups.is_empty() {
                    write!(out, "none with a memory controller is mounted")?;
                }
                for (number, refusal) in groups.iter().enumerate() {
                    write!(out, "{}{refusal}", if number > 0 { "; " } else { "" })?;
                }
                write!(out, ". No ballast: {ballast} (`ulimit -l` says what may be locked)")
            }
            BoundError::Joining(refusal) => write!(out, "putting a worker into its group: {refusal}"),
            BoundError::Unknown(error) => write!(out, "telling what memory is left: {error}"),
        }
    }
}

impl From<BoundError> for String {
    fn from(error: BoundError) -> String {
        error.to_string()
    }
}

/// What bounds the engines of a run.
#[derive(Debug)]
pub(crate) enum Bound {
    /// As much as there is.
    None,
    /// Each engine has a control group to itself.
    Groups { hierarchy: Hierarchy, bytes: u64 },
    /// All engines have what the ballast leaves: one after the other, for they would share it.
    Ballast { ballast: Ballast, bytes: u64 },
}

impl Bound {
    /// The bound asked for.
    pub(crate) fn new(bytes: Option<u64>) -> Result<Bound, BoundError> {
        let Some(bytes) = bytes else { return Ok(Bound::None) };
        if bytes < LEAST {
            return Err(BoundError::TooSmall { asked: bytes });
        }
        let available = ballast::available().map_err(BoundError::Unknown)?;
        if bytes >= available {
            return Err(BoundError::TooLarge { asked: bytes, available });
        }
        let groups = match Hierarchy::find(bytes) {
            Ok(hierarchy) => return Ok(Bound::Groups { hierarchy, bytes }),
            Err(refusals) => refusals,
        };
        match Ballast::lock(available - bytes) {
            Ok(ballast) => Ok(Bound::Ballast { ballast, bytes }),
            Err(ballast) => Err(BoundError::Neither { groups, ballast }),
        }
    }

    /// Puts a process under the bound, for as long as what is returned lives. The process must not have touched files yet.
    pub(crate) fn admit(&self, process: u32) -> Result<Option<Group>, BoundError> {
        match self {
            Bound::Groups { hierarchy, bytes } => {
                let group = hierarchy.make(*bytes).map_err(BoundError::Joining)?;
                group.admit(process).map_err(BoundError::Joining)?;
                Ok(Some(group))
            }
            Bound::None | Bound::Ballast { .. } => Ok(None),
        }
    }

    /// Whether engines may be at work in turns: each has memory of its own.
    pub(crate) fn allows_turns(&self) -> bool {
        !matches!(self, Bound::Ballast { .. })
    }

    /// What is said above the figures.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Bound::None => "Memory is not bounded.".into(),
            Bound::Groups { hierarchy, bytes } => format!(
                "Each engine has {bytes} bytes of memory, page cache included: a control group ({hierarchy})."
            ),
            Bound::Ballast { ballast, bytes } => format!(
                "Each engine in turn has {bytes} bytes of memory, page cache included: a ballast of {} bytes is locked, for no \
                 control group could be had.",
                ballast.bytes()
            ),
        }
    }

    /// How it is done, in one word.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Bound::None => "none",
            Bound::Groups { .. } => "group",
            Bound::Ballast { .. } => "ballast",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_bounded_is_said() {
        let text = |bytes| String::from(Bound::new(Some(bytes)).unwrap_err());
        assert!(text(1000).contains("at least 134217728 bytes, not 1000"), "{}", text(1000));
        assert!(text(u64::MAX).contains("bounds nobody"), "{}", text(u64::MAX));
        assert!(Bound::new(None).unwrap().admit(1).unwrap().is_none());
        let refused =
            |path: &str| Refusal { path: path.into(), error: io::ErrorKind::PermissionDenied.into() };
        let neither = |groups| BoundError::Neither { groups, ballast: io::ErrorKind::OutOfMemory.into() };
        let text = neither(vec![refused("/a"), refused("/b")]).to_string();
        assert!(text.contains("/a: permission denied; /b: permission denied. No ballast: out of"), "{text}");
        assert!(neither(Vec::new()).to_string().contains("none with a memory controller is mounted"));
    }

    #[test]
    fn a_process_is_held_to_its_bound_by_the_kernel() {
        let bytes = 200 << 20;
        let bound = match Hierarchy::find(bytes) {
            Ok(hierarchy) => Bound::Groups { hierarchy, bytes },
            // A place without groups: then it must be said why.
            Err(refusals) => return refusals.iter().for_each(|refusal| assert!(refusal.path.is_absolute())),
        };
        // More than the bound, all touched: without a group it comes to its end.
        let script = "read go; head -c 300000000 /dev/zero | tail -c 300000000 >/dev/null; echo $?";
        let run = |bound: &Bound| {
            let mut child = std::process::Command::new("sh")
                .args(["-c", script])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let group = bound.admit(child.id()).unwrap();
            drop(child.stdin.take());
            let output = child.wait_with_output().unwrap();
            let path = group.as_ref().map(|group| group.path().to_path_buf());
            drop(group);
            (String::from_utf8(output.stdout).unwrap(), path)
        };
        assert_eq!(run(&Bound::None), ("0\n".into(), None));
        let (said, path) = run(&bound);
        assert_ne!(said, "0\n", "the kernel kills what needs more, or refuses it");
        assert!(!path.unwrap().exists(), "the group is gone");
    }
}
