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
    /// The same, with an index that has room for a quarter of the keys there.
    ShortIndex(u64),
}

/// The fast tier needs the root and seven segments; with no more it does nothing but collect.
const FAST_TIER_BYTES_MIN: u64 = 4 << 20;
/// DRAM that the index takes for a key.
const KEY_INDEX_BYTES: u64 = 55;
const INDEX_BYTES_MIN: u64 = 512 << 10;

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
            if let Bound::ShortIndex(_) = self {
                let keys = most / row_bytes(shape);
                options.index_bytes_max = (keys * KEY_INDEX_BYTES / 4).max(INDEX_BYTES_MIN);
            }
        }
        Ok(options)
    }

    /// The most that the fast tier may take.
    fn fast_tier_bytes(self, shape: RowShape, records: u64) -> Option<u64> {
        match self {
            Bound::All => None,
            Bound::Percent(percent) | Bound::ShortIndex(percent) => {
                Some((records * row_bytes(shape) * percent / 100).max(FAST_TIER_BYTES_MIN))
            }
        }
    }

    /// It in words, with bytes.
    pub(super) fn describe(self, shape: RowShape, records: u64) -> String {
        let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
        match self.fast_tier_bytes(shape, records) {
            None => "fast tier for all".into(),
            Some(most) => {
                let data = show(records * row_bytes(shape));
                let is_least = if most == FAST_TIER_BYTES_MIN { ", or the least there is" } else { "" };
                format!("fast tier {} ({}{is_least}) for {data} of keys and values", show(most), self.name())
            }
        }
    }
}

/// Bytes of a key and its value, as a user counts them.
pub(super) fn row_bytes(shape: RowShape) -> u64 {
    (KEY_BYTES + shape.row_bytes()) as u64
}
