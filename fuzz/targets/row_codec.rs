//! Schemas, rows and deltas of arbitrary bytes: a value or `Corrupted`, never a panic; what is rewritten reads the same.
#![no_main]

use hedgerow::parts::schema::Probe;
use libfuzzer_sys::fuzz_target;

/// Takes a part off the front: one byte (or two, above 223) says how long it is.
fn take<'b>(bytes: &mut &'b [u8]) -> &'b [u8] {
    let len = match **bytes {
        [] => return &[],
        [high @ 224..=255, low, ..] => {
            *bytes = &bytes[2..];
            usize::from(high - 224) << 8 | usize::from(low)
        }
        [len, ..] => {
            *bytes = &bytes[1..];
            usize::from(len)
        }
    };
    let (taken, rest) = bytes.split_at(len.min(bytes.len()));
    *bytes = rest;
    taken
}

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let schema = take(&mut rest);
    let Ok(probe) = Probe::new(schema) else { return };
    let (version, flags) = match take(&mut rest) {
        [version, flags, ..] => (1 + u16::from(*version) % probe.version(), *flags),
        _ => (probe.version(), 0),
    };
    let row = take(&mut rest);
    let deltas: Vec<&[u8]> =
        std::iter::from_fn(|| (!rest.is_empty()).then(|| take(&mut rest))).take(6).collect();
    drop(probe.read(version, row, flags & 1 != 0, &deltas, 1_000));
});
