use super::*;
use crate::serve::command::Flag;
use crate::serve::resp::Span;

fn with_args<R>(words: &[&str], check: impl FnOnce(Args<'_>) -> R) -> R {
    let mut bytes = Vec::new();
    let spans: Vec<Span> = words
        .iter()
        .map(|word| {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(word.as_bytes());
            (start, bytes.len() as u32)
        })
        .collect();
    check(Args::new(&bytes, &spans))
}

fn found(words: &[&str]) -> Option<&'static str> {
    with_args(words, |args| match look_up(args) {
        Lookup::Found(command) => Some(command.full_name()),
        _ => None,
    })
}

#[test]
fn finds_every_command_in_any_case() {
    let mut names = std::collections::HashSet::new();
    for (index, command) in all().iter().enumerate() {
        assert_eq!(command.index(), index);
        assert!(names.insert(command.full_name()), "{command:?} is there twice");
        assert!(command.full_name().len() <= NAME_BYTES_MAX, "{command:?}");
        let upper = command.full_name().to_ascii_uppercase();
        assert_eq!(by_name(upper.as_bytes()).map(Command::index), Some(index));
    }
}

#[test]
fn looks_up_subcommands() {
    assert_eq!(found(&["get"]), Some("get"));
    assert_eq!(found(&["CONFIG", "Get"]), Some("config|get"));
    assert_eq!(found(&["config"]), Some("config"));
    assert_eq!(found(&["config|get", "x"]), None);
    assert_eq!(found(&["nonsense"]), None);
    assert_eq!(found(&["", "x"]), None);
    assert_eq!(found(&[&"x".repeat(1000)]), None);
    with_args(&["CONFIG", &"x".repeat(1000)], |args| {
        assert!(matches!(look_up(args), Lookup::UnknownSub(parent) if parent.full_name() == "config"));
    });
}

#[test]
fn the_table_makes_sense() {
    for command in all() {
        let (first, last, step) = command.keys;
        assert!(command.arity != 0 && !command.summary.is_empty(), "{command:?}");
        assert!(command.summary.ends_with('.'), "{command:?}");
        assert_eq!(first == 0, last == 0 && step == 0, "{command:?}");
        assert!(first < command.arity.abs(), "{command:?} has its keys within its arity");
        assert_eq!(command.is_container, subcommands(command).next().is_some(), "{command:?}");
        if let Some(parent) = command.parent() {
            assert!(by_name(parent.as_bytes()).is_some(), "{command:?}");
        }
        if command.is(Flag::Batch) {
            assert!(command.is(Flag::Write) && first > 0, "{command:?}");
        }
        if command.is(Flag::Pinned) {
            assert_eq!(command.keys, (1, 1, 1), "{command:?}");
            assert!(["string", "hash"].contains(&command.group), "{command:?}");
        }
    }
}

#[test]
fn unknown_commands_have_redis_texts() {
    let text = |words: &[&str]| with_args(words, |args| unknown_command(args).as_str().to_string());
    assert_eq!(text(&["FOO"]), "ERR unknown command 'FOO', with args beginning with: ");
    assert_eq!(text(&["lpush", "a", "b"]), "ERR unknown command 'lpush', with args beginning with: 'a' 'b' ");
    assert!(text(&["FOO", &"x".repeat(10_000)]).len() < 400);
    let sub = with_args(&["CONFIG", "NOPE"], |args| {
        let parent = by_name(b"config").unwrap();
        unknown_subcommand(parent, args).as_str().to_string()
    });
    assert_eq!(sub, "ERR unknown subcommand 'NOPE'. Try CONFIG HELP.");
}

#[test]
fn finds_keys_among_arguments() {
    let keys = |words: &[&str]| {
        with_args(words, |args| {
            let command = by_name(args.at(0)).unwrap();
            command.keys_of(args).map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>()
        })
    };
    assert_eq!(keys(&["get", "a"]), ["a"]);
    assert_eq!(keys(&["del", "a", "b", "c"]), ["a", "b", "c"]);
    assert_eq!(keys(&["mset", "a", "1", "b", "2"]), ["a", "b"]);
    assert_eq!(keys(&["copy", "a", "b", "REPLACE"]), ["a", "b"]);
    assert!(keys(&["ping"]).is_empty());
}
