//! Hedgerow: an embedded store for rows.
//!
//! A row has a key and named, typed fields. Reads and writes touch just the fields they name. Open a [`Db`], create a
//! [`Table`] with a [`Schema`], then [`put`](Table::put), [`update`](Table::update), [`get`](Table::get),
//! [`scan`](Table::scan), [`delete`](Table::delete). Several writes at once: [`Batch`]. A fixed view: [`Snapshot`].
//! When a write is safe, and from what: [`Durability`]. Everything is synchronous, `Send + Sync` and cheap to clone.
//!
//! ```
//! use hedgerow::{Batch, Db, Row, TypedRow, row};
//!
//! #[derive(Row)] // or a `Schema`, field by field
//! struct User {
//!     name: String,
//!     age: u32,
//!     mail: Option<String>,
//! }
//!
//! # fn main() -> hedgerow::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("hedgerow-front-{}", std::process::id()));
//! let db = Db::open(&dir)?;
//! let users = db.ensure_table("users", User::schema())?;
//! users.put_row("ada", &User { name: "Ada".into(), age: 36, mail: None })?;
//! users.update("ada", &row! { age: 37 })?; // writes one field: the row is not read and not rewritten
//! let age: u32 = users.get_fields("ada", &["age"])?.expect("it was just written").get_as("age")?;
//! assert_eq!(age, 37);
//!
//! let mut batch = Batch::new(); // all of it or nothing
//! batch.put(&users, "grace", &row! { name: "Grace", age: 45 })?;
//! batch.increment(&users, "ada", "age", 1)?;
//! db.write(batch)?;
//!
//! for row in users.scan().range("a".."b") {
//!     assert_eq!(User::from_row(&row?)?.age, 38);
//! }
//! db.close()?;
//! # std::fs::remove_dir_all(dir).ok();
//! # Ok(())
//! # }
//! ```
//!
//! `examples/users.rs` is a whole program; `docs/library.md` says what is where.
//!
//! # The tour
//!
//! Of the source, for its readers: all modules but two are private, and what callers need of them is re-exported here.
//!
//! | module | owns |
//! |---|---|
//! | `db` | the open store; `db/write.rs` and `db/read.rs` are the two paths, top to bottom |
//! | `log` | where every row's bytes are written once: records, segments, appenders |
//! | `manifest` | bytes of the root, of its list of segments, and of the catalog |
//! | `gc` | freeing segments; rows that are scanned together brought together |
//! | `consolidate` | delta chains merged into rows |
//! | `scheduler` | background threads, their sleep; how fast writers may go |
//! | `index` | from a key to its newest record: a concurrent B+-tree in memory |
//! | `group` | parts of an index on the fast tier, for one beyond memory |
//! | `sst` | sorted tables: rows that left the log, in files of a capacity tier |
//! | `epoch` | when what readers may still see is freed: index nodes, cache entries, segments of the log |
//! | `cache` | whole rows in DRAM, found through the index's own slots |
//! | [`backup`] | copies of an open store, and back |
//! | [`inspect`] | looking into a store without changing it |
//! | `store` | the tiered store or rows over pairs, chosen when the program runs |
//! | `options` | each option declared once |
//! | `sync` | atomics and locks, replaceable by a scheduler in tests |
//!
//! Arrows run one way: `db`, `gc` and `consolidate` know all the others; `log` knows of tables their numbers only, and nothing of
//! fields or the index, `index` nothing of records. What a row means, its bytes and the errors are the crate `hedgerow-row`'s; files, clocks and threads
//! are `hedgerow-device`'s.
//! `ARCHITECTURE.md` has the map with the lock order and the files on disk.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests use the machine as it is"))]

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

mod cache;
mod consolidate;
mod db;
mod epoch;
mod gc;
mod group;
mod index;
mod invariants;
mod levels;
mod log;
mod manifest;
mod options;
mod runs;
mod scheduler;
mod size_class;
mod space;
mod sst;
mod store;
mod stripes;
mod sync;
mod tier;

pub use db::repair::{RepairEvent, RepairReport, repair, repair_with};
pub use db::{
    AtHandOnly, Batch, Db, Expiring, FAST_TIER_FILE, FailedMove, Loader, Metrics, Missing, QueueMetrics,
    ReadGuard, RowHandle, RowRef, Scan, SealedMetrics, Snapshot, SortedTablesMetrics, Table, TableChanges,
    Tiers,
};
pub use db::{backup, inspect};
pub use hedgerow_device::SyncFailure;
#[doc(inline)]
pub use hedgerow_row::key;
#[doc(inline)]
pub use hedgerow_row::{
    Change, Error, ErrorKind, Expiry, FailedWrite, Field, FieldId, FieldName, FieldValue, FromKey, FromValue,
    Key, OwnedValue, ReadFields, Result, Row, Schema, Type, TypedRow, Value, limits, row,
};
#[doc(inline)]
pub use hedgerow_row::{backend, pairs};
/// ```
/// use hedgerow::{Db, Row};
///
/// #[derive(Row)]
/// struct User {
///     name: String,
///     mail: Option<String>, // nullable
///     #[row(rename = "years", default = 18)]
///     age: u32,
/// }
///
/// # fn main() -> hedgerow::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("hedgerow-derive-{}", std::process::id()));
/// let db = Db::open(&dir)?;
/// let users = db.ensure_table("users", <User as hedgerow::TypedRow>::schema())?;
/// users.put_row("ada", &User { name: "Ada".into(), mail: None, age: 36 })?;
/// users.update("ada", &hedgerow::row! { years: 37 })?; // one field, as in any table
/// let ada: User = users.get_row("ada")?.expect("it was just written");
/// assert_eq!((ada.name.as_str(), ada.mail, ada.age), ("Ada", None, 37));
/// # db.close()?;
/// # std::fs::remove_dir_all(dir).ok();
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "derive")]
pub use hedgerow_row_derive::Row;
pub use log::WriteFailure;
pub use options::{
    CAPACITY_DIRECTORY, CacheMode, CachePolicy, Capacity, Compression, Durability, Options, PersistGranule,
};

pub use store::{RowView, Store, StoreBatch, StoreCursor, StoreTable};

/// Parts for measuring from outside. Unstable: no promise is made about anything in here.
#[doc(hidden)]
pub mod parts {
    /// The codecs of schemas and rows.
    pub mod schema {
        pub use hedgerow_row::schema::probe::Probe;
    }
    /// A tree of the index.
    pub mod index {
        pub use crate::index::{IndexFull, IndexProbe, LogSlot, ScanBatch, Slot, Tag};
    }
    /// Groups of leaves.
    pub mod group {
        pub use crate::group::*;
    }
    /// Sorted tables.
    pub mod sst {
        pub use crate::sst::*;
    }
}
