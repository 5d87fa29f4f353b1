//! What the benchmark does: operations, mixes, workloads and their names.
//!
//! Owns the definitions of YCSB core's workloads A to F (`workloads/workload[a-f]` of YCSB 0.17, unchanged) and of the six
//! operations of FOCUS (section VI). Promises that a mix is drawn in the proportions declared. Knows no store and no clock.

use hedgerow_device::Random;

use super::distribution::Distribution;

/// One operation on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Writes a whole new row.
    Insert,
    /// Writes a whole row over one that may exist: the random fill.
    Put,
    /// Reads all fields of a row.
    ReadFull,
    /// Reads one random field of a row.
    ReadPartial,
    /// Looks whether a row is there, without touching it: the index's part of a read.
    LookUp,
    /// Writes one random field of a row.
    Update,
    /// Writes this many fields of a row at once: those from a random one on, around the end.
    UpdateFields(usize),
    /// Reads all fields of a row, then writes one.
    ReadModifyWrite,
    /// Reads all fields of rows in key order.
    ScanFull,
    /// Reads one random field of rows in key order.
    ScanPartial,
    /// Reads the keys of rows in key order, and no field.
    ScanKeys,
    /// Writes a whole row over the next record, in the order of their numbers, which is random in that of their keys.
    PutNext,
}

/// How many rows a scan asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanLength {
    /// Always this many.
    Exactly(usize),
    /// Uniform from 1 to this.
    UpTo(usize),
}

impl ScanLength {
    /// Draws a length.
    #[inline]
    pub fn next(self, random: &mut Random) -> usize {
        match self {
            ScanLength::Exactly(rows) => rows,
            ScanLength::UpTo(rows) => 1 + random.below(rows as u64) as usize,
        }
    }
}

/// When a phase ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// After as many operations as there are records, however long that takes: the phases that build a data set.
    Records,
    /// After as many operations as there are rows, however long that takes: once over all of them.
    Pass,
    /// After the operations or the seconds asked for, whichever ends first.
    Asked,
}

/// A named mix of operations.
#[derive(Debug, PartialEq)]
pub struct Workload {
    /// What it is called on the command line and in results.
    pub name: &'static str,
    /// The operations and their shares, which add up to 1.
    pub mix: &'static [(Operation, f64)],
    /// How records are chosen unless the command line says otherwise.
    pub distribution: Distribution,
    /// Rows per scan.
    pub scan: ScanLength,
    /// When it ends.
    pub extent: Extent,
}

use Operation::{
    Insert, LookUp, Put, PutNext, ReadFull, ReadModifyWrite, ReadPartial, ScanFull, ScanKeys, ScanPartial,
    Update, UpdateFields,
};

const fn ycsb(name: &'static str, mix: &'static [(Operation, f64)], distribution: Distribution) -> Workload {
    Workload { name, mix, distribution, scan: ScanLength::UpTo(100), extent: Extent::Asked }
}

const fn fields(name: &'static str, mix: &'static [(Operation, f64)]) -> Workload {
    Workload {
        name,
        mix,
        distribution: Distribution::Uniform,
        scan: ScanLength::Exactly(100),
        extent: Extent::Asked,
    }
}

/// Writes the data set.
pub const LOAD: Workload = Workload {
    name: "load",
    mix: &[(Insert, 1.0)],
    distribution: Distribution::Uniform,
    scan: ScanLength::Exactly(100),
    extent: Extent::Records,
};

/// Writes rows at random, over each other: RocksDB's `fillrandom`.
pub const FILL: Workload = Workload {
    name: "fill",
    mix: &[(Put, 1.0)],
    distribution: Distribution::Uniform,
    scan: ScanLength::Exactly(100),
    extent: Extent::Records,
};

/// YCSB core's workloads, by letter.
pub const YCSB: &[Workload] = &[
    ycsb("a", &[(ReadFull, 0.5), (Update, 0.5)], Distribution::Zipfian),
    ycsb("b", &[(ReadFull, 0.95), (Update, 0.05)], Distribution::Zipfian),
    ycsb("c", &[(ReadFull, 1.0)], Distribution::Zipfian),
    ycsb("d", &[(ReadFull, 0.95), (Insert, 0.05)], Distribution::Latest),
    ycsb("e", &[(ScanFull, 0.95), (Insert, 0.05)], Distribution::Zipfian),
    ycsb("f", &[(ReadFull, 0.5), (ReadModifyWrite, 0.5)], Distribution::Zipfian),
];

/// FOCUS's six operations (section VI). Reads come first, so that they meet the data as loaded.
pub const FIELDS: &[Workload] = &[
    fields("read-full", &[(ReadFull, 1.0)]),
    fields("read-partial", &[(ReadPartial, 1.0)]),
    fields("scan-full", &[(ScanFull, 1.0)]),
    fields("scan-partial", &[(ScanPartial, 1.0)]),
    fields("update", &[(Update, 1.0)]),
    fields("insert", &[(Insert, 1.0)]),
];

/// FOCUS's updates by ratio (section VI-C): of a row of eight fields, one to seven are written at once.
pub const RATIOS: &[Workload] = &[
    fields("update-1", &[(UpdateFields(1), 1.0)]),
    fields("update-2", &[(UpdateFields(2), 1.0)]),
    fields("update-3", &[(UpdateFields(3), 1.0)]),
    fields("update-4", &[(UpdateFields(4), 1.0)]),
    fields("update-5", &[(UpdateFields(5), 1.0)]),
    fields("update-6", &[(UpdateFields(6), 1.0)]),
    fields("update-7", &[(UpdateFields(7), 1.0)]),
];

/// Writes whole rows over those that are there.
pub const OVERWRITE: Workload = fields("overwrite", &[(Put, 1.0)]);

/// Writes each row that is there once more, whole.
pub const OVERWRITE_ALL: Workload =
    Workload { extent: Extent::Pass, ..fields("overwrite-all", &[(PutNext, 1.0)]) };

/// What of a scan is not the fields'.
pub const SCAN_KEYS: Workload = fields("scan-keys", &[(ScanKeys, 1.0)]);

/// The mix of a production store of virtual machines that DecouKV and others before it run (57 % writes, 41 % reads, 2 %
/// scans), and the same with reads for writes.
pub const MIXES: &[Workload] = &[
    ycsb("mix-writes", &[(Put, 0.57), (ReadFull, 0.41), (ScanFull, 0.02)], Distribution::Uniform),
    ycsb("mix-reads", &[(ReadFull, 0.57), (Put, 0.41), (ScanFull, 0.02)], Distribution::Uniform),
];

/// What of a read is the index's.
pub const LOOK_UP: Workload = fields("look-up", &[(LookUp, 1.0)]);

/// All workloads there are.
fn all() -> impl Iterator<Item = &'static Workload> {
    let single = [&LOAD, &FILL, &OVERWRITE, &OVERWRITE_ALL, &SCAN_KEYS, &LOOK_UP];
    single.into_iter().chain(YCSB).chain(FIELDS).chain(RATIOS).chain(MIXES)
}

impl Workload {
    /// The workload of that name, in any case.
    pub fn find(name: &str) -> Result<&'static Workload, String> {
        let name = name.trim().to_ascii_lowercase();
        all().find(|workload| workload.name == name).ok_or_else(|| {
            let names: Vec<_> = all().map(|workload| workload.name).collect();
            format!("no workload is called {name}; there are {}", names.join(", "))
        })
    }

    /// Whether it asks for rows in key order.
    pub fn scans(&self) -> bool {
        self.mix.iter().any(|(operation, _)| matches!(operation, ScanFull | ScanPartial | ScanKeys))
    }

    /// Draws the next operation.
    #[inline]
    pub fn next(&self, random: &mut Random) -> Operation {
        let [(first, share), rest @ ..] = self.mix else { return Operation::ReadFull };
        if rest.is_empty() {
            return *first;
        }
        let mut at = random.unit() - share;
        if at < 0.0 {
            return *first;
        }
        for (operation, share) in rest {
            at -= share;
            if at < 0.0 {
                return *operation;
            }
        }
        rest[rest.len() - 1].0
    }

    /// The share of operations that add rows.
    pub fn insert_share(&self) -> f64 {
        self.mix.iter().filter(|(operation, _)| *operation == Insert).map(|(_, share)| share).sum()
    }

    /// Whether it builds the data set that the others need.
    pub fn builds(&self) -> bool {
        self.extent == Extent::Records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_drawn_as_declared() {
        let mut random = Random::from_seed(11);
        for workload in all() {
            assert!((workload.mix.iter().map(|m| m.1).sum::<f64>() - 1.0).abs() < 1e-12, "{}", workload.name);
            let draws = 400_000;
            let drawn: Vec<_> = (0..draws).map(|_| workload.next(&mut random)).collect();
            let mut counted = 0;
            for (operation, share) in workload.mix {
                let count = drawn.iter().filter(|&o| o == operation).count();
                counted += count;
                let sigma = (share * (1.0 - share) / f64::from(draws)).sqrt();
                let measured = count as f64 / f64::from(draws);
                assert!(
                    (measured - share).abs() <= 4.5 * sigma,
                    "{}: {operation:?} {measured}",
                    workload.name
                );
            }
            assert_eq!(counted, draws as usize, "{} draws nothing else", workload.name);
        }
    }

    #[test]
    fn ycsb_core_is_named_exactly() {
        let share = |name: &str, operation| {
            let mix = Workload::find(name).unwrap().mix;
            mix.iter().find(|m| m.0 == operation).map_or(0.0, |m| m.1)
        };
        assert_eq!((share("a", ReadFull), share("A", Update)), (0.5, 0.5));
        assert_eq!((share("b", ReadFull), share("b", Update)), (0.95, 0.05));
        assert_eq!(share("c", ReadFull), 1.0);
        assert_eq!((share("d", ReadFull), share("d", Insert)), (0.95, 0.05));
        assert_eq!((share("e", ScanFull), share("e", Insert)), (0.95, 0.05));
        assert_eq!((share("f", ReadFull), share("f", ReadModifyWrite)), (0.5, 0.5));
        assert_eq!(Workload::find("d").unwrap().distribution, Distribution::Latest);
        assert_eq!(Workload::find("e").unwrap().scan, ScanLength::UpTo(100));
        assert!(Workload::find("g").unwrap_err().contains("read-partial"));
    }

    #[test]
    fn scan_lengths_cover_their_range() {
        let mut random = Random::from_seed(12);
        let lengths: Vec<_> = (0..100_000).map(|_| ScanLength::UpTo(100).next(&mut random)).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&1), Some(&100)));
        let mean = lengths.iter().sum::<usize>() as f64 / 100_000.0;
        assert!((mean - 50.5).abs() < 0.5, "{mean}");
    }
}
