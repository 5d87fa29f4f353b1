//! Crash sweeps: one script, every place it can be cut off at, and what must be left.
//!
//! The script runs once, on a medium that remembers every store, beside its model. Then, for many places in the medium's
//! log and several survivor images at each, the store is opened and compared. There must be one `k` such that the store is
//! what the model is after the first `k` operations: no row mixes fields of two versions, batches are whole, nothing that
//! was durable is missing. A killed process loses nothing, so `k` must be all of them. Changes of the catalog are writes like
//! the others. An operation that makes several (the names that a row teaches an open table come before the row; a table that is
//! made anew is dropped before) may be cut off between them. Afterwards the store must take writes, close, open and compare
//! again; and some of those openings are cut off, too.

use std::sync::Arc;

pub use faults::FaultCounts;

use hedgerow::{Db, Durability};
use hedgerow_device::{Clock, CrashSim, CrashWalk, Image, Survivors};

use crate::model::{Model, OPEN_TABLE, ReadRow};
use crate::op::{Op, TABLES, Taste, generate};
use crate::run::{Divergence, Merged, Runner, Setup, fields_of, same_row, table_name, tiers_of};
use crate::source::Source;

mod faults;

/// A script that has run, ready to be cut off.
pub struct Sweep {
    setup: Setup,
    seed: u64,
    sim: CrashSim,
    steps: Vec<Step>,
    /// The model now and then along the script.
    marks: Vec<(usize, Model)>,
    /// What the sweep has seen.
    pub counts: SweepCounts,
    /// Fingerprints of the images that were opened, in their order, if they are wanted.
    images: Option<Vec<u64>>,
}

struct Step {
    op: Op,
    /// False: the store was full and refused it.
    done: bool,
    /// The medium's position once it had returned.
    end: u64,
    now_ms: u64,
    /// Names that it taught the open table, before it wrote a row.
    learned: Vec<String>,
    /// Operations that were durable once it had returned.
    durable: usize,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default)]
pub struct SweepCounts {
    /// Places in the log.
    pub places: u64,
    /// Openings after a crash, compared.
    pub recoveries: u64,
    /// Of the recoveries, those after a crash during or after a recovery.
    pub second_crashes: u64,
    /// Operations lost, of those that were not durable.
    pub lost: u64,
    /// Segments that the script's own collections freed.
    pub segments_freed: u64,
    /// What the script's collections merged.
    pub merged: Merged,
    /// Loads of the script's own.
    pub loads: u64,
    /// Records that it moved to sorted tables.
    pub moved: u64,
    /// Keys that left memory.
    pub sealed: u64,
}

impl std::ops::AddAssign for SweepCounts {
    fn add_assign(&mut self, more: SweepCounts) {
        self.places += more.places;
        self.recoveries += more.recoveries;
        self.second_crashes += more.second_crashes;
        self.lost += more.lost;
        self.segments_freed += more.segments_freed;
        self.merged += more.merged;
        self.loads += more.loads;
        self.moved += more.moved;
        self.sealed += more.sealed;
    }
}

/// A script that is running.
struct Recorder {
    steps: Vec<Step>,
    marks: Vec<(usize, Model)>,
}

impl Recorder {
    fn new(runner: &Runner) -> Recorder {
        Recorder { steps: Vec::new(), marks: vec![(0, runner.model.clone())] }
    }

    /// An operation has returned. `before`: the open table's fields before it.
    fn push(&mut self, op: Op, done: bool, before: &[String], runner: &Runner, setup: Setup) {
        let learned = names(&runner.model).into_iter().filter(|name| !before.contains(name)).collect();
        let durable = match (setup.durability, &op) {
            (Durability::Immediate, _) | (_, Op::Persist) => self.steps.len() + 1,
            _ => self.durable(),
        };
        let (end, now_ms) = (runner.sim().ops(), runner.model.now_ms);
        self.steps.push(Step { op, done, end, now_ms, learned, durable });
        if self.steps.len().is_multiple_of(MARK_EVERY) {
            self.marks.push((self.steps.len(), runner.model.clone()));
        }
    }

    /// The last operation was refused, because of a failed sync: it may have been done all the same.
    fn push_refused(&mut self, op: Op, runner: &Runner) {
        let mut after = runner.model.clone();
        after.apply(&op);
        let before = names(&runner.model);
        let learned = names(&after).into_iter().filter(|name| !before.contains(name)).collect();
        let (end, now_ms, durable) = (REFUSED, runner.model.now_ms, self.durable());
        self.steps.push(Step { op, done: true, end, now_ms, learned, durable });
    }

    /// Operations that are durable.
    fn durable(&self) -> usize {
        self.steps.last().map_or(0, |step| step.durable)
    }

    fn into_sweep(self, setup: Setup, seed: u64, sim: CrashSim) -> Sweep {
        let Recorder { steps, marks } = self;
        Sweep { setup, seed, sim, steps, marks, counts: SweepCounts::default(), images: None }
    }
}

/// Persists that succeed without effect.
#[derive(Debug, Clone, Copy)]
pub struct Lie {
    /// During which operations.
    pub during: fn(&Op) -> bool,
    /// Of which ranges: offset and length, 0 and `u64::MAX` for everything.
    pub ranges: fn(u64, u64) -> bool,
}

/// A crash's image and the operations around it.
struct Crash<'s> {
    image: &'s Image,
    /// The states the store may be in, as numbers of operations.
    lowest: usize,
    highest: usize,
    /// Operations that had returned.
    returned: usize,
    now_ms: u64,
}

const MARK_EVERY: usize = 32;

/// The end of an operation that a failed sync has refused.
const REFUSED: u64 = u64::MAX;

impl Sweep {
    /// Runs a script of `count` operations that belongs to `seed`.
    ///
    /// # Errors
    /// The store and its model differ even without a crash.
    pub fn run(seed: u64, count: usize, setup: Setup, taste: &Taste) -> Result<Sweep, Divergence> {
        Sweep::run_lying(seed, count, setup, taste, None)
    }

    /// [`Sweep::run`] on a medium that lies about some persists: the sweep must then find a violation.
    ///
    /// # Errors
    /// As [`Sweep::run`].
    pub fn run_lying(
        seed: u64,
        count: usize,
        setup: Setup,
        taste: &Taste,
        lie: Option<Lie>,
    ) -> Result<Sweep, Divergence> {
        let setup = Setup { log_bytes: usize::MAX, ..setup };
        let mut runner = Runner::new(setup)?;
        let mut source = Source::from_seed(seed);
        let mut recorder = Recorder::new(&runner);
        for stamp in 0..count {
            let op = generate(&mut source, taste, stamp as u32);
            let lies = lie.filter(|lie| (lie.during)(&op)).map(|lie| lie.ranges);
            runner.sim().lie_about_persists(lies);
            let before = names(&runner.model);
            let done = runner.step(&op)?;
            recorder.push(op, done, &before, &runner, setup);
        }
        if runner.refused_full > 0 {
            return Err(Divergence(
                "the script fills the store, and what it then does is not in the script".into(),
            ));
        }
        let counts = SweepCounts {
            segments_freed: runner.segments_freed,
            merged: runner.merged(),
            loads: runner.loads,
            moved: runner.moved(),
            sealed: runner.sealed(),
            ..SweepCounts::default()
        };
        Ok(Sweep { counts, ..recorder.into_sweep(setup, seed, runner.sim().clone()) })
    }

    /// Keeps from now on the [fingerprint](Image::fingerprint) of each image that is opened: it reads each of them once more.
    pub fn keep_fingerprints(&mut self) {
        self.images = Some(Vec::new());
    }

    /// Those that were kept, in the order in which the images were opened.
    pub fn fingerprints(&self) -> &[u64] {
        self.images.as_deref().unwrap_or_default()
    }

    /// Crashes at every persist point, with `images` images each, and at one in `between` places in between.
    ///
    /// # Errors
    /// What was left is not what must be left. The text says how to repeat it.
    pub fn crash_everywhere(&mut self, images: usize, between: u64) -> Result<(), Divergence> {
        let mut source = Source::from_seed(self.seed ^ 0xC4A5);
        let mut walk = self.sim.walk();
        // The store is made before the script begins; a store that is only half made is another test's.
        walk.seek(self.steps.first().map_or(0, |step| step.end));
        while walk.next_point() {
            self.crash_at(&walk, images, &mut source)?;
            if between == 0 {
                continue;
            }
            let mut ahead = walk.clone();
            let end = {
                let mut to = walk.clone();
                if to.next_point() { to.op_index() } else { break }
            };
            while ahead.next_op() && ahead.op_index() < end {
                if source.one_in(between) {
                    self.crash_at(&ahead, 3, &mut source)?;
                }
            }
        }
        Ok(())
    }

    fn crash_at(
        &mut self,
        walk: &CrashWalk,
        images: usize,
        source: &mut Source<'_>,
    ) -> Result<(), Divergence> {
        self.counts.places += 1;
        let place = walk.op_index();
        let returned = self.steps.partition_point(|step| step.end <= place);
        let last = returned.checked_sub(1).map(|last| &self.steps[last]);
        let durable = last.map_or(0, |step| step.durable);
        // The clock moves before the operation in flight touches the store.
        let now_ms = last.map_or(crate::run::START_MS, |step| step.now_ms);
        for n in 0..images {
            let seed = source.below(u64::MAX);
            // Each place gets a killed process and a random image; the other kinds take turns.
            let kind = match n {
                0 => Survivors::Random,
                1 => Survivors::EACH[(self.counts.places as usize + 3) % Survivors::EACH.len()],
                2 => Survivors::ProcessKill,
                3 => Survivors::None,
                _ => Survivors::Random,
            };
            let image = walk.image(kind, seed);
            let lowest = if image.same_boot { returned } else { durable };
            let highest = (returned + 1).min(self.steps.len());
            let crash = Crash { image: &image, lowest, highest, returned, now_ms };
            self.recover(&crash, durable, source).map_err(|divergence| {
                Divergence(format!(
                    "seed {}, {:?}: crash {kind:?} (image seed {seed}) at place {place}, after {returned} operations, {durable} of them durable, during {:?}: {divergence}",
                    self.seed,
                    self.setup,
                    self.steps.get(returned).map(|step| &step.op)
                ))
            })?;
        }
        Ok(())
    }

    /// Counts an image that is about to be opened.
    fn count(&mut self, image: &Image) {
        self.counts.recoveries += 1;
        if let Some(images) = &mut self.images {
            images.push(image.fingerprint());
        }
    }

    /// Opens one image and checks all that must hold.
    fn recover(
        &mut self,
        crash: &Crash<'_>,
        durable: usize,
        source: &mut Source<'_>,
    ) -> Result<(), Divergence> {
        self.count(crash.image);
        let sim = CrashSim::from_image(crash.image);
        let (k, model) = self.open_and_match(&sim, crash)?;
        let first_ops = sim.ops();
        if source.one_in(4) {
            self.go_on(sim.clone(), model, source)?;
        }
        if source.one_in(8) {
            self.crash_again(&sim, (first_ops, k, durable), crash, source)?;
        }
        Ok(())
    }

    /// A crash while the store was being opened, or just after: the same must be left as before.
    fn crash_again(
        &mut self,
        sim: &CrashSim,
        (first_ops, k, durable): (u64, usize, usize),
        crash: &Crash<'_>,
        source: &mut Source<'_>,
    ) -> Result<(), Divergence> {
        let mut walk = sim.walk();
        walk.seek(source.below(first_ops + 1));
        let kind = [Survivors::Random, Survivors::None, Survivors::ProcessKill][source.below(3) as usize];
        let image = walk.image(kind, source.below(u64::MAX));
        self.counts.second_crashes += 1;
        self.count(&image);
        // What a recovery has shown, a further crash must show again; but after a killed process alone, the power cut may
        // still take what was never durable.
        let unsure = crash.image.same_boot && !image.same_boot;
        let lowest = if unsure { durable } else { k };
        let again = Crash { image: &image, lowest, highest: k, ..*crash };
        let same = self.open_and_match(&CrashSim::from_image(&image), &again);
        same.map(drop)
            .map_err(|d| Divergence(format!("after a second crash {kind:?} at {}: {d}", walk.op_index())))
    }

    /// The store takes writes again, closes, opens, and has them.
    fn go_on(&mut self, sim: CrashSim, model: Model, source: &mut Source<'_>) -> Result<(), Divergence> {
        let mut done = Vec::new();
        self.go_on_with(sim, model, source, &mut done).map_err(|d| {
            Divergence(format!("going on after the crash: {d}\nthe operations since: {done:#?}"))
        })
    }

    fn go_on_with(
        &mut self,
        sim: CrashSim,
        model: Model,
        source: &mut Source<'_>,
        done: &mut Vec<Op>,
    ) -> Result<(), Divergence> {
        let mut runner = Runner::open(self.setup, sim, model)?;
        let taste = Taste {
            wrong_calls: false,
            reopens: false,
            value_bytes_max: 2_000,
            loads: true,
            collect_one_in: if self.setup.moving { 4 } else { 0 },
            ..Taste::default()
        };
        for n in 0..12 {
            let op = generate(source, &taste, 1_000_000 + n);
            done.push(op.clone());
            runner.step(&op)?;
        }
        runner.reopen_and_verify()
    }

    /// Opens the store and finds the state of the model that it is in.
    fn open_and_match(&mut self, sim: &CrashSim, crash: &Crash<'_>) -> Result<(usize, Model), Divergence> {
        let clock = Clock::manual(crash.now_ms);
        let db = Db::open_at(tiers_of(sim), self.setup.options(), clock);
        let db = db.map_err(|error| Divergence(format!("opening: {:?}: {error}", error.kind())))?;
        let found = Contents::read(&db)?;
        let (lowest, highest) = (crash.lowest, crash.highest);
        let mut nearest = Divergence(String::new());
        let mut model = self.model_after(lowest);
        let mut matched = None;
        for k in lowest..=highest {
            if k > lowest {
                self.apply(&mut model, k - 1);
            }
            for (mut cut, dropped) in self.cut_after(k, &model, crash, &found) {
                cut.now_ms = crash.now_ms;
                match found.matches(&cut, dropped) {
                    Ok(()) => matched = Some((k, cut)),
                    Err(divergence) => nearest = divergence,
                }
            }
        }
        drop(db);
        let Some((k, mut model)) = matched else {
            return Err(Divergence(format!(
                "the store is in no state from {lowest} to {highest}; against the last: {nearest}"
            )));
        };
        self.counts.lost += crash.returned.saturating_sub(k) as u64;
        model.drop_snapshots();
        Ok((k, model))
    }

    /// What may be left after `k` operations, which leave `model`: that; or the first of what the next one changes, if it had
    /// begun, and the table that is dropped then.
    fn cut_after(
        &self,
        k: usize,
        model: &Model,
        crash: &Crash<'_>,
        found: &Contents,
    ) -> Vec<(Model, Option<usize>)> {
        let mut cuts = vec![(model.clone(), None)];
        let Some(next) = self.steps.get(k).filter(|_| k <= crash.returned) else { return cuts };
        for learned in 1..=next.learned.len() {
            let mut ahead = model.clone();
            ahead.learn(&next.learned[..learned]);
            cuts.push((ahead, None));
        }
        // Of an operation that was refused it is not known what it had taught by then.
        if let (REFUSED, Some(schema)) = (next.end, &found.tables[OPEN_TABLE].schema) {
            let mut ahead = model.clone();
            if ahead.adopt(OPEN_TABLE, schema) {
                cuts.push((ahead, None));
            }
        }
        if let Op::Recreate { table } = &next.op
            && usize::from(*table) != OPEN_TABLE
        {
            let mut ahead = model.clone();
            ahead.apply(&next.op);
            cuts.push((ahead, Some(usize::from(*table))));
        }
        cuts
    }

    fn model_after(&self, k: usize) -> Model {
        // An operation that was refused leaves no mark.
        let (from, model) = &self.marks[(k / MARK_EVERY).min(self.marks.len() - 1)];
        let mut model = model.clone();
        (*from..k).for_each(|step| self.apply(&mut model, step));
        model
    }

    fn apply(&self, model: &mut Model, step: usize) {
        if self.steps[step].done {
            model.apply(&self.steps[step].op);
            model.learn(&self.steps[step].learned);
        }
    }
}

/// The open table's fields.
fn names(model: &Model) -> Vec<String> {
    model.schema(OPEN_TABLE).into_iter().map(|(name, ..)| name).collect()
}

/// All that an opened store holds.
struct Contents {
    tables: Vec<TableContents>,
}

#[derive(Default)]
struct TableContents {
    /// `None`: the table is not there (dropped, and not yet made anew).
    schema: Option<Arc<hedgerow::Schema>>,
    rows: Vec<hedgerow::Row>,
    /// Of each row, when each field that is there expires.
    field_expiries: Vec<Vec<Option<u64>>>,
    count: u64,
}

impl Contents {
    fn read(db: &Db) -> Result<Contents, Divergence> {
        let read = |table: usize| {
            let name = table_name(table);
            let Ok(handle) = db.table(name) else {
                return Ok(TableContents::default());
            };
            let rows: hedgerow::Result<Vec<_>> = handle.scan().collect();
            let rows = rows.map_err(|e| Divergence(format!("scanning {name}: {:?}: {e}", e.kind())))?;
            let mut field_expiries = Vec::with_capacity(rows.len());
            for row in &rows {
                let expiries = handle.read(row.key(), |found| {
                    row.fields().map(|(name, _)| found.field_expires_at_ms(name)).collect()
                });
                let expiries = expiries.map_err(|e| Divergence(format!("reading {name}: {e}")))?;
                field_expiries.push(expiries.unwrap_or_default());
                let got = handle.get(row.key()).map_err(|e| Divergence(format!("reading {name}: {e}")))?;
                if !got.is_some_and(|got| got.fields().eq(row.fields())) {
                    return Err(Divergence(format!(
                        "a scan and a read of {} differ",
                        row.key().escape_ascii()
                    )));
                }
            }
            Ok(TableContents { schema: Some(handle.schema()), rows, field_expiries, count: handle.len() })
        };
        Ok(Contents { tables: (0..TABLES).map(read).collect::<Result<_, _>>()? })
    }

    /// Whether this is the model's state, with the table `dropped` not there.
    fn matches(&self, model: &Model, dropped: Option<usize>) -> Result<(), Divergence> {
        for (table, found) in self.tables.iter().enumerate() {
            let name = table_name(table);
            match &found.schema {
                None if dropped == Some(table) => continue,
                None => return Err(Divergence(format!("the table {name} is missing"))),
                Some(_) if dropped == Some(table) => {
                    return Err(Divergence(format!("the table {name} is there")));
                }
                Some(schema) if fields_of(schema) != model.schema(table) => {
                    return Err(Divergence(format!("the fields of {name} differ")));
                }
                Some(_) => {}
            }
            if !model.may_count(table, found.count) {
                return Err(Divergence(format!(
                    "{name} counts {} rows, not {}",
                    found.count,
                    model.rows(table)
                )));
            }
            let mut wanted = model.dump(table, model.now_ms);
            let mut rows = found.rows.iter().zip(&found.field_expiries);
            loop {
                let (want, row): (Option<ReadRow>, _) = (wanted.next(), rows.next());
                same_row(want.as_ref(), row.map(|(row, _)| row))
                    .map_err(|d| Divergence(format!("table {name}: {d}")))?;
                let (Some(want), Some((_, expiries))) = (want, row) else { break };
                if *expiries != want.field_expiries {
                    let key = want.key.escape_ascii();
                    return Err(Divergence(format!(
                        "table {name}: the fields of the row {key} expire at {expiries:?} in the store, {:?} in the model",
                        want.field_expiries
                    )));
                }
            }
        }
        Ok(())
    }
}
