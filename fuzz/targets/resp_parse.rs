//! Requests of arbitrary bytes: the same commands, or the same refusal, however they are cut into reads; and what is
//! said to wait for is never more than the limits allow.
//!
//! The first byte seeds the cuts, and its top bit says whether the client has authenticated.
#![no_main]

use hedgerow_device::Random;
use hedgerow_tool::serve::resp::{Parsed, Parser, ProtocolError, RequestLimits};
use libfuzzer_sys::fuzz_target;

type Command = Vec<Vec<u8>>;

/// All commands of `bytes`, read in pieces of the lengths that `piece` gives.
fn commands(
    bytes: &[u8],
    limits: &RequestLimits,
    mut piece: impl FnMut() -> usize,
) -> (Vec<Command>, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut found) = (Parser::default(), Vec::new(), Vec::new());
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(piece().clamp(1, rest.len()));
        buffer.extend_from_slice(now);
        rest = later;
        loop {
            match parser.parse(&buffer, limits) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Command) => {}
                Err(error) => return (found, Some(error)),
            }
            let command: Command = parser.args(&buffer).iter().map(<[u8]>::to_vec).collect();
            assert!(command.len() <= limits.arguments_max.max(buffer.len()));
            found.push(command);
            let consumed = parser.consumed();
            assert!(consumed > 0 && consumed <= buffer.len());
            buffer.drain(..consumed);
            parser.next();
        }
        assert!(parser.wanted(buffer.len()) <= limits.argument_bytes_max + 2);
        assert!(parser.memory_bytes() <= 64 * 1024 + 16 * bytes.len());
    }
    (found, None)
}

fuzz_target!(|bytes: &[u8]| {
    let [seed, bytes @ ..] = bytes else { return };
    let limits = match seed & 128 {
        0 => RequestLimits::UNAUTHENTICATED,
        _ => RequestLimits::AUTHENTICATED,
    };
    let mut random = Random::from_seed(u64::from(*seed));
    let whole = commands(bytes, &limits, || bytes.len());
    let cut = commands(bytes, &limits, || random.below(7) as usize);
    assert_eq!(whole, cut);
});
