//! The store against its model: the input chooses the operations.
#![no_main]

use hedgerow_sim::{Runner, Setup, Source, Taste, generate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut source = Source::from_bytes(bytes);
    let setup = Setup { delta_chain_max: 1 + source.below(7) as u8, ..Setup::default() };
    let taste = Taste { keys: 1 + source.below(60), value_bytes_max: 2_000, ..Taste::default() };
    let mut runner = Runner::new(setup).expect("an empty store opens");
    for stamp in 0..400 {
        if source.is_exhausted() {
            break;
        }
        let op = generate(&mut source, &taste, stamp);
        if let Err(divergence) = runner.step(&op) {
            panic!("operation {stamp}: {divergence}");
        }
    }
    if let Err(divergence) = runner.reopen_and_verify() {
        panic!("at the end: {divergence}");
    }
});
