use hedgerow_device::Random;

use super::*;

const LIMITS: RequestLimits = RequestLimits::AUTHENTICATED;

/// Feeds `pieces` one after the other, as reads would, and collects the commands.
fn parse_pieces<'p>(
    pieces: impl Iterator<Item = &'p [u8]>,
    limits: &RequestLimits,
) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    let mut parser = Parser::default();
    let mut buffer: Vec<u8> = Vec::new();
    let mut commands = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while parser.parse(&buffer, limits)? == Parsed::Command {
            commands.push(parser.args(&buffer).iter().map(<[u8]>::to_vec).collect());
            buffer.drain(..parser.consumed());
            parser.next();
        }
    }
    Ok(commands)
}

fn parse(bytes: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    parse_pieces(std::iter::once(bytes), &LIMITS)
}

fn error(bytes: &[u8], limits: &RequestLimits) -> String {
    parse_pieces(std::iter::once(bytes), limits).unwrap_err().0
}

const PIPELINE: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\nb\0\r\n*1\r\n$4\r\nPING\r\nSET key \"two words\\x41\\n\" 'it\\'s'\r\n\
    *0\r\n*-1\r\n\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\nPING\n";

fn pipeline_commands() -> Vec<Vec<Vec<u8>>> {
    let command = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect();
    vec![
        command(&[b"SET", b"k", b"a\r\nb\0"]),
        command(&[b"PING"]),
        command(&[b"SET", b"key", b"two wordsA\n", b"it's"]),
        command(&[]),
        command(&[]),
        command(&[]),
        command(&[b"ECHO", b""]),
        command(&[b"PING"]),
    ]
}

#[test]
fn pipelines_are_taken_apart() {
    assert_eq!(parse(PIPELINE), Ok(pipeline_commands()));
}

#[test]
fn every_split_gives_the_same_commands() {
    for first in 0..PIPELINE.len() {
        for second in first..PIPELINE.len() {
            let pieces = [&PIPELINE[..first], &PIPELINE[first..second], &PIPELINE[second..]];
            assert_eq!(
                parse_pieces(pieces.into_iter(), &LIMITS),
                Ok(pipeline_commands()),
                "{first} {second}"
            );
        }
    }
    assert_eq!(parse_pieces(PIPELINE.chunks(1), &LIMITS), Ok(pipeline_commands()));
}

#[test]
fn commands_before_garbage_count() {
    let mut parser = Parser::default();
    let bytes = b"*1\r\n$4\r\nPING\r\n*1\r\n!oops\r\n";
    assert_eq!(parser.parse(bytes, &LIMITS), Ok(Parsed::Command));
    assert_eq!(parser.args(bytes).at(0), b"PING");
    let rest = &bytes[parser.consumed()..];
    parser.next();
    let error = parser.parse(rest, &LIMITS).unwrap_err();
    assert_eq!(error.0, "ERR Protocol error: expected '$', got '!'");
}

#[test]
fn malformed_requests_have_redis_texts() {
    for (bytes, text) in [
        (&b"*abc\r\n"[..], "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*2147483647\r\n", "invalid multibulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$abc\r\n", "invalid bulk length"),
        (b"*1\r\n$9999999999\r\n", "invalid bulk length"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*1\r\n$3\r\nabcdef", "expected the end of a line after an argument"),
        (b"*1\rx", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*00000000000000000000000000000000000000001\r\n", "too big mbulk count string"),
        (b"*1\r\n$00000000000000000000000000000000000000001\r\n", "too big bulk count string"),
        (b"SET \"unbalanced\r\n", "unbalanced quotes in request"),
        (b"SET \"a\"b\r\n", "unbalanced quotes in request"),
    ] {
        assert_eq!(error(bytes, &LIMITS), format!("ERR Protocol error: {text}"), "{}", bytes.escape_ascii());
    }
    let long = vec![b'a'; crate::serve::limits::INLINE_BYTES_MAX];
    assert_eq!(error(&long, &LIMITS), "ERR Protocol error: too big inline request");
}

#[test]
fn strangers_have_small_limits() {
    let limits = RequestLimits::UNAUTHENTICATED;
    assert_eq!(error(b"*11\r\n", &limits), "ERR Protocol error: unauthenticated multibulk length");
    assert_eq!(error(b"*1\r\n$16385\r\n", &limits), "ERR Protocol error: unauthenticated bulk length");
    assert_eq!(parse_pieces(std::iter::once(&b"*10\r\n$16384\r\n"[..]), &limits), Ok(vec![]));
}

#[test]
fn declared_lengths_allocate_nothing() {
    let mut parser = Parser::default();
    let bytes = b"*1048576\r\n$67108864\r\nabc";
    assert_eq!(parser.parse(bytes, &LIMITS), Ok(Parsed::Incomplete));
    assert!(parser.memory_bytes() < 1024, "{}", parser.memory_bytes());
    let many: Vec<u8> = [&b"*1048576\r\n"[..], &b"$1\r\nx\r\n".repeat(100)].concat();
    let mut parser = Parser::default();
    assert_eq!(parser.parse(&many, &LIMITS), Ok(Parsed::Incomplete));
    assert!(parser.memory_bytes() < 4096, "{}", parser.memory_bytes());
}

#[test]
fn a_command_is_bounded_as_a_whole() {
    let argument = crate::serve::limits::ARGUMENT_BYTES_MAX;
    let mut parser = Parser::default();
    let mut bytes = b"*9\r\n".to_vec();
    let mut outcome = Ok(Parsed::Incomplete);
    for _ in 0..9 {
        bytes.extend_from_slice(format!("${argument}\r\n").as_bytes());
        outcome = parser.parse(&bytes, &LIMITS);
        if outcome.is_err() {
            break;
        }
        bytes.resize(bytes.len() + argument, b'x');
        bytes.extend_from_slice(b"\r\n");
    }
    assert_eq!(outcome.unwrap_err().0, "ERR Protocol error: too big command");
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random::from_seed(0x1234_5678);
    let alphabet = b"*$0123456789-\r\n\"'\\ xaPING";
    for _ in 0..20_000 {
        let bytes: Vec<u8> =
            (0..40).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect();
        let whole = parse(&bytes);
        let in_bytes = parse_pieces(bytes.chunks(1), &LIMITS);
        assert_eq!(whole, in_bytes, "{}", bytes.escape_ascii());
    }
}

#[test]
fn arguments_can_be_owned_and_sliced() {
    let bytes = b"*4\r\n$3\r\nDEL\r\n$1\r\na\r\n$2\r\nbc\r\n$0\r\n\r\n";
    let mut parser = Parser::default();
    assert_eq!(parser.parse(bytes, &LIMITS), Ok(Parsed::Command));
    let owned = parser.args(bytes).to_owned();
    let args = owned.borrow();
    assert_eq!((args.len(), args.at(2), args.get(3), args.get(4)), (4, &b"bc"[..], Some(&b""[..]), None));
    assert_eq!(args.from(1).first(2).iter().collect::<Vec<_>>(), [&b"a"[..], b"bc"]);
    assert_eq!(args.from(9).len(), 0);
}

fn names_and_keys(input: &[u8]) -> Vec<(&[u8], &[u8])> {
    NamesAndKeys::of(input, 64).collect()
}

#[test]
fn whole_commands_are_seen_ahead() {
    let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nHGET\r\n$2\r\nab";
    assert_eq!(names_and_keys(input), [(&b"SET"[..], &b"k"[..]), (b"PING", b"")]);
    let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\n0123456789\r\n*2\r\n$3\r\nGET\r\n$1\r\nx\r\n";
    assert_eq!(names_and_keys(input), [(&b"SET"[..], &b"k"[..]), (b"GET", b"x")]);
}

#[test]
fn what_makes_no_sense_ends_the_look_ahead() {
    for input in [
        &b""[..],
        b"PING\r\n",
        b"*-1\r\n",
        b"*\r\n",
        b"*99999999999999999999\r\n",
        b"*2\r\n$99999999\r\nx",
        b"*2\r\n$9223372036854775807\r\nx",
        b"*2\r\n:1\r\n",
        b"*65\r\n$1\r\na\r\n",
        b"*2\r\n$1",
        b"*1\r:$4\r\nPING\r\n",
        b"*1\r\n$4\r\nPING:\n",
    ] {
        assert_eq!(names_and_keys(input), [], "{}", input.escape_ascii());
    }
}

/// What is looked up ahead of a command must be of the command that is then done.
#[test]
fn what_is_seen_ahead_is_what_is_parsed() {
    let mut random = Random::from_seed(1);
    let mut seen = 0;
    for _ in 0..50_000 {
        let mut bytes = PIPELINE[..31].repeat(3);
        for _ in 0..random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = b"*$0123456789-\r\n "[random.below(16) as usize];
        }
        let (mut rest, mut parser) = (&bytes[..], Parser::default());
        for ahead in NamesAndKeys::of(&bytes, 64) {
            assert_eq!(parser.parse(rest, &LIMITS), Ok(Parsed::Command), "{}", bytes.escape_ascii());
            let args = parser.args(rest);
            assert_eq!(ahead, (args.at(0), args.at(1)), "{}", bytes.escape_ascii());
            rest = &rest[parser.consumed()..];
            parser.next();
            seen += 1;
        }
    }
    assert!(seen > 50_000, "{seen}");
}
