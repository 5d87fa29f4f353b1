//! A store against its model: the input chooses the operations, and whether they go to the tiered store or to rows over pairs.
#![no_main]

use std::sync::Arc;

use hedgerow::backend::memory::MemoryBackend;
use hedgerow_sim::{Divergence, Op, PairRunner, Runner, Setup, Source, Taste, generate};
use libfuzzer_sys::fuzz_target;

/// Draws operations until the input is exhausted, and does each.
fn run(source: &mut Source<'_>, taste: &Taste, mut step: impl FnMut(&Op) -> Result<(), Divergence>) {
    for stamp in 0..400 {
        if source.is_exhausted() {
            break;
        }
        if let Err(divergence) = step(&generate(source, taste, stamp)) {
            panic!("operation {stamp}: {divergence}");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut source = Source::from_bytes(bytes);
    let moving = source.one_in(2);
    let setup = Setup { delta_chain_max: 1 + source.below(7) as u8, moving, ..Setup::default() };
    let taste = Taste {
        keys: 1 + source.below(60),
        value_bytes_max: 2_000,
        loads: true,
        collect_one_in: if moving { 8 } else { 0 },
        ..Taste::default()
    };
    let at_the_end = if source.one_in(4) {
        let mut runner = PairRunner::new(Arc::new(MemoryBackend::default())).expect("tables are made");
        run(&mut source, &taste, |op| runner.step(op));
        runner.verify()
    } else {
        let mut runner = Runner::new(setup).expect("an empty store opens");
        run(&mut source, &taste, |op| runner.step(op).map(drop));
        runner.reopen_and_verify()
    };
    if let Err(divergence) = at_the_end {
        panic!("at the end: {divergence}");
    }
});
