//! Fault sweeps: one script, and each of its syncs, or of its calls on files, refused in turn.
//!
//! Owns what must hold from the first refusal on. Of a sync: the error is typed and names the cause; in the same process no write is
//! acknowledged and nothing is stored any more, while reads go on; and whatever comes next (a power cut, or a killed
//! process and a power cut later) nothing that was durable is missing, and what is left is one state of the model. Of a call on a file of the
//! capacity tier: the operation has done nothing, and is done when it is asked for again; or the store takes no more writes, as after a sync.

use hedgerow::{Error, ErrorKind};
use hedgerow_device::{CrashSim, Fault, FileCall, Refusal, Survivors};

use super::{Crash, Recorder, Sweep, names};
use crate::op::{Op, Taste, generate};
use crate::run::{Divergence, Runner, Setup, Stepped};
use crate::source::Source;

/// What a fault sweep did.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultCounts {
    /// Syncs that were refused, each in a run of its own.
    pub refused: u64,
    /// Calls that were refused afterwards in the same process.
    pub refused_after: u64,
    /// Openings compared.
    pub recoveries: u64,
}

/// The last operation of a script: a change of the catalog, for closing to store.
const LAST: Op = Op::Clear { table: 2 };

/// Calls tried in the process whose sync failed.
const CALLS_AFTER: u32 = 12;

impl Sweep {
    /// How many syncs a script asks for, once the store is made, and closing it.
    ///
    /// # Errors
    /// The store and its model differ even without a fault.
    pub fn syncs_of(seed: u64, count: usize, setup: Setup, taste: &Taste) -> Result<u64, Divergence> {
        let mut runner = Runner::new(setup)?;
        let before = runner.sim().persist_points();
        let mut source = Source::from_seed(seed);
        for stamp in 0..count {
            runner.step(&generate(&mut source, taste, stamp as u32))?;
        }
        runner.step(&LAST)?;
        runner.close().map_err(|error| Divergence(format!("closing: {error}")))?;
        Ok(runner.sim().persist_points() - before)
    }

    /// Runs the script until `fault` refuses a sync, and checks what must hold from then on.
    ///
    /// # Errors
    /// It does not hold. The text says how to repeat it.
    pub fn refuse(
        seed: u64,
        count: usize,
        setup: Setup,
        taste: &Taste,
        fault: Fault,
        counts: &mut FaultCounts,
    ) -> Result<(), Divergence> {
        Sweep::refuse_one(seed, count, setup, taste, fault, counts)
            .map_err(|d| Divergence(format!("seed {seed}, {setup:?}, {fault:?}: {d}")))
    }

    fn refuse_one(
        seed: u64,
        count: usize,
        setup: Setup,
        taste: &Taste,
        fault: Fault,
        counts: &mut FaultCounts,
    ) -> Result<(), Divergence> {
        let setup = Setup { log_bytes: usize::MAX, ..setup };
        let mut runner = Runner::new(setup)?;
        let mut recorder = Recorder::new(&runner);
        let mut source = Source::from_seed(seed);
        runner.sim().fail_persists(fault);
        for stamp in 0..=count {
            let op = if stamp == count { LAST } else { generate(&mut source, taste, stamp as u32) };
            let before = names(&runner.model);
            match runner.try_step(&op)? {
                Stepped::Done(done) => recorder.push(op, done, &before, &runner, setup),
                Stepped::Refused(error) => {
                    check_error(&error, &op, fault.refusal)?;
                    recorder.push_refused(op, &runner);
                    counts.refused += 1;
                    counts.refused_after += calls_after(&mut runner, fault.refusal, &mut source, taste)?;
                    let sim = runner.sim().clone();
                    let written = sim.ops();
                    drop(runner);
                    if sim.ops() != written {
                        return Err(Divergence("closing wrote something after a failed sync".into()));
                    }
                    let mut sweep = recorder.into_sweep(setup, seed, sim);
                    return sweep.crash_after_refusal(&mut source, counts);
                }
            }
        }
        let Err(error) = runner.close() else { return Err(Divergence("no sync was refused".into())) };
        check_error(&error, &Op::Persist, fault.refusal)?;
        recorder.push_refused(Op::Persist, &runner);
        counts.refused += 1;
        let mut sweep = recorder.into_sweep(setup, seed, runner.sim().clone());
        sweep.crash_after_refusal(&mut source, counts)
    }

    /// Runs the script with calls on files of a kind refused by `fault`; true if some operation was told so, or the store took no more writes.
    ///
    /// # Errors
    /// The store and its model differ, now or after a crash. The text says how to repeat it.
    pub fn refuse_on_files(
        seed: u64,
        count: usize,
        setup: Setup,
        taste: &Taste,
        (call, fault): (FileCall, Fault),
        counts: &mut FaultCounts,
    ) -> Result<bool, Divergence> {
        Sweep::refuse_calls(seed, count, setup, taste, (call, fault), counts)
            .map_err(|d| Divergence(format!("seed {seed}, {setup:?}, {call:?}, {fault:?}: {d}")))
    }

    fn refuse_calls(
        seed: u64,
        count: usize,
        setup: Setup,
        taste: &Taste,
        (call, fault): (FileCall, Fault),
        counts: &mut FaultCounts,
    ) -> Result<bool, Divergence> {
        let setup = Setup { log_bytes: usize::MAX, ..setup };
        let mut runner = Runner::new(setup)?;
        let mut recorder = Recorder::new(&runner);
        let mut source = Source::from_seed(seed);
        runner.sim().fail_file_calls(call, fault);
        let refused_before = counts.refused;
        for stamp in 0..count {
            let op = generate(&mut source, taste, stamp as u32);
            let before = names(&runner.model);
            let mut stepped = runner.try_step(&op)?;
            if let Stepped::Refused(error) = &stepped {
                counts.refused += 1;
                check_file_error(error, &op, fault.refusal)?;
                if runner.is_closed() {
                    recorder.push_refused(op, &runner);
                    let sim = runner.sim().clone();
                    drop(runner);
                    sim.clear_faults();
                    let mut sweep = recorder.into_sweep(setup, seed, sim);
                    return sweep.crash_after_refusal(&mut source, counts).map(|()| true);
                }
                // What was refused for once is done now; what is refused always, when it is not any more.
                if fault.sticky {
                    runner.sim().clear_faults();
                }
                stepped = runner.try_step(&op)?;
            }
            match stepped {
                Stepped::Done(done) => recorder.push(op, done, &before, &runner, setup),
                Stepped::Refused(error) => {
                    return Err(Divergence(format!("{op:?} is refused once more: {error}")));
                }
            }
        }
        runner.sim().clear_faults();
        runner.reopen_and_verify()?;
        counts.recoveries += 1;
        Ok(counts.refused > refused_before)
    }

    /// A power cut at once, and a killed process whose successor is cut off later.
    fn crash_after_refusal(
        &mut self,
        source: &mut Source<'_>,
        counts: &mut FaultCounts,
    ) -> Result<(), Divergence> {
        use Survivors::{All, AllButLastStore, None, ProcessKill, Random};
        let mut walk = self.sim.walk();
        walk.seek(u64::MAX);
        let returned = self.steps.len() - 1;
        let (durable, now_ms) = (self.steps[returned].durable, self.steps[returned].now_ms);
        for kind in [None, All, Random, Random, AllButLastStore, ProcessKill] {
            let image = walk.image(kind, source.below(u64::MAX));
            let lowest = if image.same_boot { returned } else { durable };
            let crash = Crash { image: &image, lowest, highest: returned + 1, returned, now_ms };
            let context = |d| {
                Divergence(format!("{kind:?} after {returned} operations, {durable} of them durable: {d}"))
            };
            let sim = CrashSim::from_image(&image);
            counts.recoveries += 1;
            // Closed in order afterwards: all that was found is durable then.
            let (k, _) = self.open_and_match(&sim, &crash).map_err(context)?;
            let mut later = sim.walk();
            later.seek(u64::MAX);
            for cut in [None, Random] {
                let image = later.image(cut, source.below(u64::MAX));
                let again = Crash { image: &image, lowest: k, highest: k, returned, now_ms };
                counts.recoveries += 1;
                self.open_and_match(&CrashSim::from_image(&image), &again)
                    .map_err(|d| context(Divergence(format!("opened, closed, and then {cut:?}: {d}"))))?;
            }
        }
        Ok(())
    }
}

fn cause(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Io => "Input/output error",
        Refusal::NoSpace => "No space left on device",
    }
}

fn check_error(error: &Error, op: &Op, refusal: Refusal) -> Result<(), Divergence> {
    let text = error.message();
    let names_call = ["could not msync", "could not fdatasync"].iter().any(|call| text.contains(call));
    if names_call && text.contains(cause(refusal)) {
        return Ok(());
    }
    Err(Divergence(format!(
        "{op:?} got {:?}, which does not name the call and its cause: {text}",
        error.kind()
    )))
}

fn check_file_error(error: &Error, op: &Op, refusal: Refusal) -> Result<(), Divergence> {
    if error.message().contains(cause(refusal)) {
        return Ok(());
    }
    let (kind, text) = (error.kind(), error.message());
    Err(Divergence(format!("{op:?} got {kind:?}, which does not name the cause: {text}")))
}

fn is_read(op: &Op) -> bool {
    matches!(
        op,
        Op::Get { .. }
            | Op::GetFields { .. }
            | Op::MultiGet { .. }
            | Op::Exists { .. }
            | Op::Scan { .. }
            | Op::Prefix { .. }
    )
}

/// Calls in the process whose sync failed; how many of them were refused.
fn calls_after(
    runner: &mut Runner,
    refusal: Refusal,
    source: &mut Source<'_>,
    taste: &Taste,
) -> Result<u64, Divergence> {
    let mut refused = 0;
    let drawn: Vec<Op> = (0..CALLS_AFTER).map(|n| generate(source, taste, 2_000_000 + n)).collect();
    for op in drawn.into_iter().chain([Op::Persist]) {
        let written = runner.sim().ops();
        let outcome = runner.call(&op);
        if runner.sim().ops() != written {
            return Err(Divergence(format!("{op:?} stored something after a failed sync")));
        }
        match outcome {
            // What finds nothing to change is a read.
            Ok(()) if op != Op::Persist => {}
            Err(error) if error.kind() == ErrorKind::Closed && !is_read(&op) => {
                check_error(&error, &op, refusal)?;
                refused += 1;
            }
            Err(error) if !matches!(error.kind(), ErrorKind::Closed | ErrorKind::Io | ErrorKind::Full) => {}
            outcome => return Err(Divergence(format!("{op:?} after a failed sync: {outcome:?}"))),
        }
    }
    Ok(refused)
}
