//! `--set NAME=VALUE`: the engine with one of its techniques switched off or set otherwise, for ablations.
//!
//! Owns the names. Promises that a wrong one is answered with all that there are. Must not know what is measured.

use hedgerow::Options;

/// One thing that can be set: its name, what its value may be, what it does, and how.
struct Known {
    name: &'static str,
    values: &'static str,
    what: &'static str,
    set: fn(&mut Options, &str) -> Option<()>,
}

const KNOWN: [Known; 5] = [
    Known {
        name: "merge",
        values: "on|off",
        what: "a thread that makes whole the rows found with deltas",
        set: |options, value| switch(&mut options.merge, value),
    },
    Known {
        name: "delta_chain_max",
        values: "1..7",
        what: "deltas on a row before it is rewritten whole",
        set: |options, value| number(&mut options.delta_chain_max, value),
    },
    Known {
        name: "verify_reads",
        values: "on|off",
        what: "checksums verified by every read",
        set: |options, value| switch(&mut options.verify_reads, value),
    },
    Known {
        name: "segment_bytes",
        values: "a power of two from 1048576",
        what: "bytes of a log segment, in a new store",
        set: |options, value| number(&mut options.segment_bytes, value),
    },
    Known {
        name: "fast_tier_bytes_max",
        values: "bytes",
        what: "the most the fast tier may take",
        set: |options, value| number(&mut options.fast_tier_bytes_max, value),
    },
];

fn switch(option: &mut bool, value: &str) -> Option<()> {
    *option = match value {
        "on" => true,
        "off" => false,
        _ => return None,
    };
    Some(())
}

fn number<N: std::str::FromStr>(option: &mut N, value: &str) -> Option<()> {
    *option = value.parse().ok()?;
    Some(())
}

/// One `NAME=VALUE`, checked.
#[derive(Debug, Clone)]
pub struct Setting {
    name: String,
    value: String,
}

impl std::str::FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
        let setting = Setting { name: name.to_owned(), value: value.to_owned() };
        setting.apply(&mut Options::new())?;
        Ok(setting)
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl Setting {
    /// Changes `options`.
    ///
    /// # Errors
    /// An unknown name, or a value it cannot have.
    pub fn apply(&self, options: &mut Options) -> Result<(), String> {
        let Some(known) = KNOWN.iter().find(|known| known.name == self.name) else {
            let line = |known: &Known| format!("\n  {}={}: {}", known.name, known.values, known.what);
            return Err(format!(
                "there is no {}; there are{}",
                self.name,
                KNOWN.iter().map(line).collect::<String>()
            ));
        };
        let refused = || format!("{} is {}, not {}", known.name, known.values, self.value);
        (known.set)(options, &self.value).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_applied() {
        let mut options = Options::new();
        for text in ["merge=off", "delta_chain_max=2", "verify_reads=off"] {
            text.parse::<Setting>().unwrap().apply(&mut options).unwrap();
        }
        assert!(!options.merge && !options.verify_reads);
        assert_eq!(options.delta_chain_max, 2);
    }

    #[test]
    fn wrong_settings_are_told_what_there_is() {
        assert!("swum=on".parse::<Setting>().unwrap_err().contains("delta_chain_max=1..7"));
        assert!("merge=maybe".parse::<Setting>().unwrap_err().contains("on|off"));
        assert!("merge".parse::<Setting>().unwrap_err().contains("NAME=VALUE"));
    }
}
