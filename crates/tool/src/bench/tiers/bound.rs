//! How large the fast tier is beside the data, and what rows the papers have.
//!
//! Owns the shares, and the least that a share may come to. Must not know what is measured.

use hedgerow::Options;

use crate::bench::chart::Unit;
use crate::bench::paper::rig::Rig;
use crate::bench::row::{KEY_BYTES, RowShape};

/// The papers' pairs: a value is one field.
pub(super) const PAIRS: RowShape = RowShape { fields: 1, field_bytes: 1000 };

/// The fast tier of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// Holds all rows.
    All,
    /// So many percent of the bytes of keys and values.
    Percent(u64),
    /// The same, with an index that has room for a quarter of the keys there, so that the others are sealed.
    ShortIndex(u64),
}

/// The fast tier needs the root and seven segments; with no more it does nothing but collect.
const FAST_TIER_BYTES_MIN: u64 = 4 << 20;
/// DRAM that the index takes for a key.
const KEY_INDEX_BYTES: u64 = 55;
/// With less there is no room for what inserts take while keys are sealed.
const INDEX_BYTES_MIN: u64 = 64 << 10;

impl Bound {
    /// What it is called in figures.
    pub(super) fn name(self) -> String {
        match self {
            Bound::All => "all".into(),
            Bound::Percent(percent) => format!("{percent} %"),
            Bound::ShortIndex(percent) => format!("{percent} %, short index"),
        }
    }

    /// The options of the command line with the bound in them, for so many rows of a shape.
    pub(super) fn options(self, rig: &Rig<'_>, shape: RowShape, records: u64) -> Result<Options, String> {
        let mut options = rig.options()?;
        if let Some(most) = self.fast_tier_bytes(shape, records) {
            options.fast_tier_bytes_max = most;
        }
        if let Some(most) = self.index_bytes(shape, records) {
            options.index_bytes_max = most;
        }
        Ok(options)
    }

    /// The share as it would be without a least one.
    fn share_bytes(self, shape: RowShape, records: u64) -> Option<u64> {
        match self {
            Bound::All => None,
            Bound::Percent(percent) | Bound::ShortIndex(percent) => {
                Some(data_bytes(shape, records).saturating_mul(percent) / 100)
            }
        }
    }

    /// The most that the fast tier may take.
    fn fast_tier_bytes(self, shape: RowShape, records: u64) -> Option<u64> {
        self.share_bytes(shape, records).map(|share| share.max(FAST_TIER_BYTES_MIN))
    }

    /// A quarter of what the keys take that are on the fast tier.
    fn quarter_of_index(self, shape: RowShape, records: u64) -> Option<u64> {
        let Bound::ShortIndex(_) = self else { return None };
        let keys = (self.fast_tier_bytes(shape, records)? / row_bytes(shape)).min(records);
        Some(keys.saturating_mul(KEY_INDEX_BYTES) / 4)
    }

    /// The most that the index may take.
    fn index_bytes(self, shape: RowShape, records: u64) -> Option<u64> {
        self.quarter_of_index(shape, records).map(|quarter| quarter.max(INDEX_BYTES_MIN))
    }

    /// It in words, with bytes.
    pub(super) fn describe(self, shape: RowShape, records: u64) -> String {
        let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
        let least = |is_least| if is_least { ": the least there is, and more than that" } else { "" };
        let Some(most) = self.fast_tier_bytes(shape, records) else { return "fast tier for all".into() };
        let is_least = self.share_bytes(shape, records) < Some(most);
        let data = show(data_bytes(shape, records));
        let tier = format!(
            "fast tier {} ({}{}) for {data} of keys and values",
            show(most),
            self.name(),
            least(is_least)
        );
        match self.index_bytes(shape, records) {
            None => tier,
            Some(index) => {
                let is_least = self.quarter_of_index(shape, records) < Some(index);
                format!("{tier}, index {} (a quarter of its keys{})", show(index), least(is_least))
            }
        }
    }
}

/// Bytes of so many keys and values, as a user counts them.
fn data_bytes(shape: RowShape, records: u64) -> u64 {
    records.saturating_mul(row_bytes(shape))
}

/// Bytes of a key and its value, as a user counts them.
pub(super) fn row_bytes(shape: RowShape) -> u64 {
    (KEY_BYTES + shape.row_bytes()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_when_a_least_applies() {
        let told = |bound: Bound, records| bound.describe(PAIRS, records);
        let large = told(Bound::ShortIndex(20), 1_000_000);
        assert!(
            large.contains("20 %") && large.contains("a quarter of its keys)") && !large.contains("least"),
            "{large}"
        );
        let small = told(Bound::ShortIndex(20), 4500);
        assert_eq!(small.matches("the least there is").count(), 2, "{small}");
        assert_eq!(told(Bound::Percent(10), 30_000).matches("the least there is").count(), 1);
        assert_eq!(told(Bound::All, 4500), "fast tier for all");
        // More than there is room for anywhere is no other number.
        assert!(Bound::ShortIndex(20).index_bytes(PAIRS, u64::MAX) > Some(1 << 40));
    }
}
