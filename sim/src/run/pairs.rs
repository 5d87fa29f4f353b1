//! Rows over a backend that keeps pairs, and their model, side by side.
//!
//! Owns what of the operations such a store may refuse. Promises that it does each of them as the model does, or refuses one that it may, having changed nothing.
//! Must not know which backend it is.

use std::sync::Arc;

use hedgerow::backend::{Backend, GROUP_BYTES};
use hedgerow::limits::KEY_BYTES_MAX;
use hedgerow::pairs::PairDb;
use hedgerow::{ErrorKind, Result, Store, StoreTable};
use hedgerow_device::Clock;

use super::answers::{Got, Versions, compare_schemas, same_table, unexpected};
use super::caller::Caller;
use super::{Divergence, START_MS, open_tables, table_name};
use crate::model::{Answer, Model, ReadRow, first_schema};
use crate::op::{self, Op, Part};

/// Runs operations on rows over pairs and on their model, and compares.
pub struct PairRunner {
    backend: Arc<dyn Backend>,
    clock: Clock,
    store: Store,
    tables: Vec<StoreTable>,
    /// What the store must be like.
    pub model: Model,
    versions: Versions,
    /// Operations that were refused because such a store does not do them.
    pub refused: u64,
}

impl PairRunner {
    /// The rows in this backend, in which there must be none yet.
    ///
    /// # Errors
    /// The tables could not be made.
    pub fn new(backend: Arc<dyn Backend>) -> std::result::Result<PairRunner, Divergence> {
        let clock = Clock::manual(START_MS);
        let store = Store::Pairs(PairDb::open_at(Arc::clone(&backend), clock.clone()));
        let tables = open_tables(&store).map_err(|error| unexpected("opening", &error))?;
        let (model, versions) = (Model::new(START_MS), Versions::default());
        Ok(PairRunner { backend, clock, store, tables, model, versions, refused: 0 })
    }

    /// Does one operation on both sides and compares the answers.
    ///
    /// # Errors
    /// The sides differ.
    pub fn step(&mut self, op: &Op) -> std::result::Result<(), Divergence> {
        self.try_step(op).map_err(|divergence| Divergence(format!("{op:?}: {divergence}")))
    }

    fn try_step(&mut self, op: &Op) -> std::result::Result<(), Divergence> {
        if let Op::Reopen(_) = op {
            return self.reopen();
        }
        if let Op::Advance { ms } = op {
            self.clock.advance_ms(u64::from(*ms));
        }
        let done = self.run(op);
        let is_refused = match &done {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                may_be_refused(op, self.backend.capabilities().batch_bytes_max > 0)
            }
            Err(error) => self.is_over_its_limit(error),
            Ok(_) => false,
        };
        if is_refused {
            self.refused += 1;
            return compare_schemas(&mut self.model, &self.tables, false);
        }
        let wanted = self.model.apply(op);
        self.versions.compare(op, &wanted, done)?;
        compare_schemas(&mut self.model, &self.tables, matches!(wanted, Answer::Fails(_)))
    }

    /// Whether it says that a key is too long, of a backend that takes shorter ones than a store may have. The model knows none.
    fn is_over_its_limit(&self, error: &hedgerow::Error) -> bool {
        let max = self.backend.capabilities().key_bytes_max - GROUP_BYTES;
        let says = format!("a key has 1 to {max} bytes");
        max < KEY_BYTES_MAX && error.kind() == ErrorKind::Invalid && error.message().contains(&says)
    }

    fn run(&mut self, op: &Op) -> Result<Got> {
        let now_ms = self.clock.now_ms();
        let call = Caller { model: &self.model, store: &self.store, tables: &self.tables, now_ms };
        match op {
            Op::Recreate { table } => {
                let table = usize::from(*table);
                self.store.drop_table(table_name(table))?;
                self.tables[table] = self.store.create_table(table_name(table), first_schema(table))?;
                Ok(Got::Done)
            }
            Op::Persist => self.store.persist().map(|()| Got::Done),
            // There are none here: nobody can ask for one.
            Op::SnapshotTake { .. }
            | Op::SnapshotDrop { .. }
            | Op::SnapshotGet { .. }
            | Op::SnapshotScan { .. } => Err(hedgerow::Error::new(ErrorKind::Unsupported, "no snapshots")),
            Op::Load { .. } => Err(hedgerow::Error::new(ErrorKind::Unsupported, "no sorted tables")),
            Op::Collect | Op::Advance { .. } | Op::Reopen(_) => Ok(Got::Done),
            op => call.call(op),
        }
    }

    /// Goes on as another process would that has the same backend.
    fn reopen(&mut self) -> std::result::Result<(), Divergence> {
        self.store = Store::Pairs(PairDb::open_at(Arc::clone(&self.backend), self.clock.clone()));
        self.tables = open_tables(&self.store).map_err(|error| unexpected("opening again", &error))?;
        self.verify()
    }

    /// Compares everything there is.
    ///
    /// # Errors
    /// The sides differ.
    pub fn verify(&mut self) -> std::result::Result<(), Divergence> {
        compare_schemas(&mut self.model, &self.tables, false)?;
        for (table, handle) in self.tables.iter().enumerate() {
            let named = |d: Divergence| Divergence(format!("table {}: {d}", table_name(table)));
            let wanted: Vec<ReadRow> = self.model.dump(table, self.model.now_ms).collect();
            same_table(&wanted, handle).map_err(named)?;
            // The walk has come by all rows, so those that have expired are gone.
            let rows = handle.len().map_err(|error| unexpected("counting", &error))?;
            if rows != wanted.len() as u64 {
                return Err(named(Divergence(format!("it counts {rows} rows of {}", wanted.len()))));
            }
        }
        Ok(())
    }
}

/// Whether a store of pairs may refuse it.
fn may_be_refused(op: &Op, has_batches: bool) -> bool {
    match op {
        Op::Batch { parts, .. } if !has_batches => {
            let row = |part: &Part| (part.table, op::key(part.key));
            parts.iter().any(|part| row(part) != row(&parts[0]))
        }
        Op::Scan { .. } | Op::Prefix { .. } | Op::Persist => true,
        Op::SnapshotTake { .. } | Op::SnapshotDrop { .. } | Op::Load { .. } => true,
        Op::SnapshotGet { .. } | Op::SnapshotScan { .. } => true,
        _ => false,
    }
}
