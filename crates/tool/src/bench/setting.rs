//! How the engine under measurement is opened: `--durability`, and `--set NAME=VALUE` for one with a technique switched off
//! or set otherwise, for ablations.
//!
//! Owns the names. Promises that a wrong one is answered with all that there are. Must not know what is measured.

use std::time::Duration;

use hedgerow::{CacheMode, CachePolicy, Capacity, Compression, Durability, Options, PersistGranule};
use hedgerow_kvssd::AckMode;

use crate::units::{parse_bytes, parse_duration};

/// The longest that is taken.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// How the engine is opened.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineArgs {
    /// process, immediate, or interval:TIME as in interval:1s.
    #[arg(long, default_value = "process", value_parser = parse_durability)]
    pub durability: Durability,
    /// Switches a technique of the engine off, or sets it otherwise: NAME=VALUE, more than once. A wrong name lists all.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<Setting>,
}

impl EngineArgs {
    /// The engine's options.
    ///
    /// # Errors
    /// As [`Setting::apply`].
    pub fn options(&self) -> Result<Options, String> {
        let mut options = Options::new().durability(self.durability);
        self.set.iter().try_for_each(|setting| setting.apply(&mut options))?;
        Ok(options)
    }

    /// When key-value devices acknowledge.
    ///
    /// # Errors
    /// An interval, or something of the engine that is set otherwise: devices have neither.
    pub fn ack(&self) -> Result<AckMode, String> {
        match self.durability {
            _ if !self.set.is_empty() => Err("--set is for a tiered store".into()),
            Durability::Immediate => Ok(AckMode::Immediate),
            Durability::Process => Ok(AckMode::Buffered),
            _ => Err("key-value devices are measured with --durability process or immediate".into()),
        }
    }

    /// The durability mode, for reports.
    pub fn durability_name(&self) -> String {
        format!("{:?}", self.durability).to_lowercase()
    }

    /// What is set otherwise, for reports.
    pub fn set_names(&self) -> Vec<String> {
        self.set.iter().map(Setting::to_string).collect()
    }
}

/// Reads a durability mode as the command line writes it.
pub fn parse_durability(text: &str) -> Result<Durability, String> {
    match text.split_once(':') {
        None if text == "process" => Ok(Durability::Process),
        None if text == "immediate" => Ok(Durability::Immediate),
        // Milliseconds have no unit where there was none before.
        Some(("interval", time)) => {
            let interval = time.parse().map(Duration::from_millis).ok().or_else(|| parse_duration(time));
            let known = interval.filter(|time| (Duration::from_millis(1)..=INTERVAL_MAX).contains(time));
            known
                .map(Durability::Interval)
                .ok_or_else(|| format!("the interval must be 1ms to 60m, not {time}"))
        }
        _ => Err(format!(
            "{text} is no durability: give process, immediate, or interval:TIME such as interval:1s"
        )),
    }
}

/// One thing that can be set: its name, what its value may be, what it does, and how.
struct SettingKind {
    name: &'static str,
    values: &'static str,
    what: &'static str,
    set: fn(&mut Options, &str) -> Option<()>,
}

const KNOWN: [SettingKind; 25] = [
    SettingKind {
        name: "merge",
        values: "on|off",
        what: "a thread that merges delta chains into rows",
        set: |options, value| switch(&mut options.merge, value),
    },
    SettingKind {
        name: "swim",
        values: "on|off",
        what: "fixed fields merged in place where the medium's lines are cheap to flush, not by copying the row",
        set: |options, value| switch(&mut options.swim, value),
    },
    SettingKind {
        name: "line_flush",
        values: "on|off",
        what: "each line flushed once for all that merging in place changed in it, not once for each field",
        set: |options, value| switch(&mut options.line_flush, value),
    },
    SettingKind {
        name: "reorder",
        values: "on|off",
        what: "rows that are scanned together and lie apart copied into the order of their keys",
        set: |options, value| switch(&mut options.reorder, value),
    },
    SettingKind {
        name: "seal",
        values: "on|off",
        what: "keys that leave memory for the fast tier where the index is short of room",
        set: |options, value| switch(&mut options.seal, value),
    },
    SettingKind {
        name: "persist_granule",
        values: "sync|segment|a power of two from 4096",
        what: "in what pieces writers write the log back ahead of the syncs: in none, by the segment, or so many bytes",
        set: |options, value| {
            options.persist_granule = parse_granule(value)?;
            Some(())
        },
    },
    SettingKind {
        name: "groups_max",
        values: "auto|1..64",
        what: "groups of sealed keys that wait for a merge (DecouKV's IMTN), fixed, not found at run time",
        set: |options, value| knob(&mut options.groups_max, value),
    },
    SettingKind {
        name: "run_eighths",
        values: "auto|1..4",
        what: "eighths of the fast tier that one move takes out (DecouKV's DFTS), fixed, not found at run time",
        set: |options, value| knob(&mut options.run_eighths, value),
    },
    SettingKind {
        name: "coupled",
        values: "on|off",
        what: "one thread for merging the index and for moving rows, in turn, not one for each",
        set: |options, value| switch(&mut options.coupled, value),
    },
    SettingKind {
        name: "early_stop",
        values: "on|off",
        what: "reads of single fields go down a chain of deltas no farther than to the newest that names them",
        set: |options, value| switch(&mut options.early_stop, value),
    },
    SettingKind {
        name: "layout",
        values: "on|off",
        what: "fixed fields read at their schema's constant offsets, not by walking the fields before them",
        set: |options, value| switch(&mut options.schema_layout, value),
    },
    SettingKind {
        name: "delta_chain_max",
        values: "1..7",
        what: "deltas on a row before it is rewritten whole",
        set: |options, value| number(&mut options.delta_chain_max, value),
    },
    SettingKind {
        name: "verify_reads",
        values: "on|off",
        what: "checksums verified by every read",
        set: |options, value| switch(&mut options.verify_reads, value),
    },
    SettingKind {
        name: "segment_bytes",
        values: "a power of two from 262144, or 0: as the store chooses",
        what: "bytes of a log segment, in a new store",
        set: |options, value| bytes(&mut options.segment_bytes, value),
    },
    SettingKind {
        name: "format_version",
        values: "2|3",
        what: "checksums of a new store that know their place, or (2) do not",
        set: |options, value| number(&mut options.format_version, value),
    },
    SettingKind {
        name: "fast_tier_bytes_max",
        values: "bytes, as in 512mb",
        what: "the most the fast tier may take",
        set: |options, value| bytes(&mut options.fast_tier_bytes_max, value),
    },
    SettingKind {
        name: "index_bytes_max",
        values: "bytes, as in 512mb",
        what: "the most DRAM the index may take: keys that do not fit are sealed, on the fast tier",
        set: |options, value| bytes(&mut options.index_bytes_max, value),
    },
    SettingKind {
        name: "capacity",
        values: "beside|none|a path",
        what: "where rows move when little is left of fast_tier_bytes_max: beside the log, nowhere, or a directory",
        set: |options, value| {
            options.capacity = match value {
                "" => return None,
                "beside" => Capacity::Beside,
                "none" => Capacity::None,
                path => Capacity::from(path),
            };
            Some(())
        },
    },
    SettingKind {
        name: "io_bytes_per_s",
        values: "none|bytes from 65536",
        what: "how many bytes a second moves and merges may take of sorted tables' disk where no writer waits for it",
        set: |options, value| {
            options.io_bytes_per_s = if value == "none" { None } else { Some(value.parse().ok()?) };
            Some(())
        },
    },
    SettingKind {
        name: "compression",
        values: "none|lz4",
        what: "how sorted tables are compressed",
        set: |options, value| {
            let known = [("none", Compression::None), ("lz4", Compression::Lz4)];
            one_of(&mut options.compression, &known, value)
        },
    },
    SettingKind {
        name: "cache",
        values: "bytes, as in 512mb",
        what: "the most DRAM the row cache may take; 0 is none",
        set: |options, value| bytes(&mut options.cache_bytes, value),
    },
    SettingKind {
        name: "cache-mode",
        values: "off|auto|on",
        what: "whether rows are cached: never, where it pays, always",
        set: |options, value| {
            let modes = [("off", CacheMode::Off), ("auto", CacheMode::Auto), ("on", CacheMode::On)];
            one_of(&mut options.cache_mode, &modes, value)
        },
    },
    SettingKind {
        name: "cache-policy",
        values: "focus|lru",
        what: "which rows the cache takes in and lets go",
        set: |options, value| {
            let policies = [("focus", CachePolicy::Focus), ("lru", CachePolicy::Lru)];
            one_of(&mut options.cache_policy, &policies, value)
        },
    },
    SettingKind {
        name: "hit-threshold",
        values: "0..1",
        what: "hit ratio of a table from which on every row read is cached",
        set: |options, value| {
            number(&mut options.cache_hit_threshold, value)?;
            (0.0..=1.0).contains(&options.cache_hit_threshold).then_some(())
        },
    },
    SettingKind {
        name: "cache-rw",
        values: "seconds up to 3600, or auto",
        what: "the lifetime of cached rows at a hit ratio of 1 in an empty cache",
        set: |options, value| {
            let seconds = if value == "auto" { None } else { Some(value.parse().ok()?) };
            options.cache_rw = seconds.filter(|rw| *rw > 0.0 && *rw <= 3600.0);
            (options.cache_rw.is_some() || value == "auto").then_some(())
        },
    },
];

/// Reads a persist granule as the command line writes it.
pub fn parse_granule(text: &str) -> Option<PersistGranule> {
    match text {
        "sync" => Some(PersistGranule::Sync),
        "segment" => Some(PersistGranule::Segment),
        bytes => bytes.parse().ok().map(PersistGranule::Block),
    }
}

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

fn bytes(option: &mut u64, value: &str) -> Option<()> {
    *option = parse_bytes(value)?;
    Some(())
}

fn knob(option: &mut Option<u32>, value: &str) -> Option<()> {
    *option = if value == "auto" { None } else { Some(value.parse().ok()?) };
    Some(())
}

fn one_of<T: Copy>(option: &mut T, known: &[(&str, T)], value: &str) -> Option<()> {
    *option = known.iter().find(|(name, _)| *name == value)?.1;
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
            let line = |known: &SettingKind| format!("\n  {}={}: {}", known.name, known.values, known.what);
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
    fn every_technique_can_be_switched_off() {
        let on = Options::new();
        type Technique = (&'static str, fn(&Options) -> bool);
        let techniques: [Technique; 8] = [
            ("merge", |o| o.merge),
            ("swim", |o| o.swim),
            ("line_flush", |o| o.line_flush),
            ("reorder", |o| o.reorder),
            ("seal", |o| o.seal),
            ("early_stop", |o| o.early_stop),
            ("layout", |o| o.schema_layout),
            ("verify_reads", |o| o.verify_reads),
        ];
        for (name, value) in techniques {
            let mut options = Options::new();
            format!("{name}=off").parse::<Setting>().unwrap().apply(&mut options).unwrap();
            let off =
                techniques.iter().filter(|(_, value)| value(&options) != value(&on)).map(|(name, _)| *name);
            assert_eq!(off.collect::<Vec<_>>(), [name]);
            assert!(!value(&options));
        }
    }

    #[test]
    fn the_queues_can_be_set() {
        let mut options = Options::new();
        for text in ["groups_max=32", "run_eighths=4", "coupled=on"] {
            text.parse::<Setting>().unwrap().apply(&mut options).unwrap();
        }
        assert_eq!((options.groups_max, options.run_eighths, options.coupled), (Some(32), Some(4), true));
        "groups_max=auto".parse::<Setting>().unwrap().apply(&mut options).unwrap();
        assert_eq!(options.groups_max, None);
        assert!("groups_max=many".parse::<Setting>().is_err());
    }

    #[test]
    fn the_persist_granule_can_be_set() {
        for (text, granule) in [
            ("persist_granule=16384", PersistGranule::Block(16 << 10)),
            ("persist_granule=segment", PersistGranule::Segment),
            ("persist_granule=sync", PersistGranule::Sync),
        ] {
            let mut options = Options::new().persist_granule(PersistGranule::Block(4 << 10));
            text.parse::<Setting>().unwrap().apply(&mut options).unwrap();
            assert_eq!(options.persist_granule, granule);
        }
        assert!("persist_granule=some".parse::<Setting>().unwrap_err().contains("sync|segment"));
    }

    #[test]
    fn the_budget_of_background_io_can_be_set() {
        let mut options = Options::new();
        for (text, rate) in [("io_bytes_per_s=1048576", Some(1 << 20)), ("io_bytes_per_s=none", None)] {
            text.parse::<Setting>().unwrap().apply(&mut options).unwrap();
            assert_eq!(options.io_bytes_per_s, rate);
        }
        assert!("io_bytes_per_s=little".parse::<Setting>().unwrap_err().contains("none|bytes"));
    }

    #[test]
    fn the_cache_can_be_set() {
        let mut options = Options::new();
        for text in ["cache=1mb", "cache-mode=on", "cache-policy=lru", "hit-threshold=0.25", "cache-rw=2.5"] {
            text.parse::<Setting>().unwrap().apply(&mut options).unwrap();
        }
        assert_eq!((options.cache_bytes, options.cache_mode), (1 << 20, CacheMode::On));
        assert_eq!((options.cache_policy, options.cache_hit_threshold), (CachePolicy::Lru, 0.25));
        assert_eq!(options.cache_rw, Some(2.5));
        "cache-rw=auto".parse::<Setting>().unwrap().apply(&mut options).unwrap();
        assert_eq!(options.cache_rw, None);
        for wrong in ["cache-mode=maybe", "hit-threshold=2", "hit-threshold=NaN", "cache-rw=0", "cache-rw=x"]
        {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_place_for_sorted_tables_can_be_set() {
        let mut options = Options::new();
        for (text, place) in [
            ("capacity=none", Capacity::None),
            ("capacity=beside", Capacity::Beside),
            ("capacity=/mnt/large", Capacity::At("/mnt/large".into())),
        ] {
            text.parse::<Setting>().unwrap().apply(&mut options).unwrap();
            assert_eq!(options.capacity, place, "{text}");
        }
        assert!("capacity=".parse::<Setting>().is_err());
    }

    #[test]
    fn wrong_settings_are_told_what_there_is() {
        assert!("swum=on".parse::<Setting>().unwrap_err().contains("delta_chain_max=1..7"));
        assert!("merge=maybe".parse::<Setting>().unwrap_err().contains("on|off"));
        assert!("merge".parse::<Setting>().unwrap_err().contains("NAME=VALUE"));
    }

    #[test]
    fn durability_is_read_from_the_command_line() {
        assert_eq!(parse_durability("process"), Ok(Durability::Process));
        assert_eq!(parse_durability("immediate"), Ok(Durability::Immediate));
        assert_eq!(parse_durability("interval:250"), Ok(Durability::Interval(Duration::from_millis(250))));
        assert_eq!(parse_durability("interval:2s"), Ok(Durability::Interval(Duration::from_secs(2))));
        for wrong in ["", "interval", "interval:0", "interval:x", "interval:61m", "sync"] {
            assert!(parse_durability(wrong).is_err(), "{wrong}");
        }
    }
}
