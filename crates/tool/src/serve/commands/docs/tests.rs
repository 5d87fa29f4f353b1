use super::*;
use crate::serve::settings::{PARAMETERS, Settings};

/// What Redis 8 has besides what [`KINDS`] lists, subcommands behind a `|`.
const COMMANDS: &str = "\
    append auth bgrewriteaof bgsave client client|caching client|getname client|getredir client|help client|id client|info \
    client|kill client|list client|no-evict client|no-touch client|pause client|reply client|setinfo client|setname \
    client|tracking client|trackinginfo client|unblock client|unpause command command|count command|docs command|getkeys \
    command|getkeysandflags command|help command|info command|list config config|get config|help config|resetstat \
    config|rewrite config|set copy dbsize debug decr decrby del discard dump echo exec exists expire expireat expiretime \
    flushall flushdb function|flush get getdel getex getrange getset hdel hello hexists hexpire hexpireat hexpiretime hget \
    hgetall hgetdel hgetex hincrby hincrbyfloat hkeys hlen hmget hmset hpersist hpexpire hpexpireat hpexpiretime hpttl \
    hrandfield hscan hset hsetex hsetnx hstrlen httl hvals incr incrby incrbyfloat info keys lastsave latency \
    latency|doctor latency|graph latency|help latency|histogram latency|history latency|latest latency|reset lcs lolwut \
    memory memory|doctor memory|help memory|malloc-stats memory|purge memory|stats memory|usage mget migrate monitor move \
    mset msetnx multi object object|encoding object|freq object|help object|idletime object|refcount persist pexpire \
    pexpireat pexpiretime ping psetex pttl quit randomkey rename renamenx reset restore role save scan select set setex \
    setnx setrange shutdown slowlog slowlog|get slowlog|help slowlog|len slowlog|reset sort sort_ro strlen substr swapdb \
    time touch ttl type unlink unwatch wait waitaof watch";

/// Commands of the kinds that the page names instead of them.
const KINDS: [(&str, &str); 13] = [
    (
        "lists",
        "blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange lrem lset ltrim rpop rpoplpush rpush rpushx",
    ),
    (
        "sets",
        "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember smove spop srandmember srem sscan sunion sunionstore",
    ),
    (
        "sorted sets",
        "bzmpop bzpopmax bzpopmin zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore",
    ),
    (
        "streams",
        "xack xadd xautoclaim xclaim xdel xgroup xinfo xlen xpending xrange xread xreadgroup xrevrange xsetid xtrim",
    ),
    ("bitmaps", "bitcount bitfield bitfield_ro bitop bitpos getbit setbit"),
    ("HyperLogLog", "pfadd pfcount pfdebug pfmerge pfselftest"),
    (
        "geo",
        "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore",
    ),
    ("vector sets", "vadd vcard vdim vemb vgetattr vinfo vlinks vrandmember vrem vsetattr vsim"),
    (
        "pub/sub",
        "psubscribe publish pubsub punsubscribe spublish ssubscribe subscribe sunsubscribe unsubscribe",
    ),
    (
        "scripts and functions",
        "eval eval_ro evalsha evalsha_ro fcall fcall_ro script function|delete function|dump function|kill function|list function|load function|restore function|stats",
    ),
    ("ACL users", "acl"),
    ("replication", "failover psync replconf replicaof restore-asking slaveof sync"),
    ("cluster", "asking cluster readonly readwrite"),
];

/// The tree in the notation it came from.
fn show(arguments: &[Argument]) -> String {
    let one = |argument: &Argument| {
        let inner = match &argument.kind {
            Kind::Token => String::new(),
            Kind::Value(kind) => format!("{}:{kind}", argument.name),
            Kind::OneOf(options) => {
                format!(
                    "<{}>",
                    options.iter().map(|o| show(std::slice::from_ref(o))).collect::<Vec<_>>().join("|")
                )
            }
            Kind::Block(parts) => format!("({})", show(parts)),
        };
        let token = argument.token.clone().unwrap_or_default();
        let text = format!("{token} {inner}").trim().to_string();
        let text = if argument.multiple { format!("{text}...") } else { text };
        if argument.optional { format!("[{text}]") } else { text }
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_manuals_notation_is_understood() {
    for (syntax, tree) in [
        ("", ""),
        ("key", "key:key"),
        ("key [key ...]", "key:key..."),
        ("key value [NX | XX]", "key:key value:string [<NX|XX>]"),
        ("key [EX seconds | KEEPTTL]", "key:key [<EX seconds:integer|KEEPTTL>]"),
        ("key field value [field value ...]", "key:key (field:string value:string)..."),
        ("cursor [MATCH pattern]", "cursor:integer [MATCH pattern:pattern]"),
        ("key FIELDS numfields field [field ...]", "key:key FIELDS numfields:integer field:string..."),
        ("<ON | OFF>", "<ON|OFF>"),
    ] {
        assert_eq!(show(&parse(syntax)), tree, "{syntax}");
    }
}

#[test]
fn every_syntax_is_consumed_whole() {
    for command in all() {
        let tree = show(&parse(command.syntax));
        let words = |text: &str| {
            let mut words: Vec<String> = text
                .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
                .filter(|word| word.chars().any(|c| c.is_ascii_uppercase()))
                .map(str::to_string)
                .collect();
            words.sort();
            words.dedup();
            words
        };
        assert_eq!(words(&tree), words(command.syntax), "{command:?}: {tree}");
    }
}

#[test]
fn docs_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == markdown(), "run: cargo run -- commands > docs/commands.md");
}

#[test]
fn docs_are_maps_of_the_right_size() {
    // What a client that parses strictly would stumble over: the number of elements announced and sent must agree.
    for command in all() {
        for resp3 in [false, true] {
            let mut out = Vec::new();
            reply_docs(&mut Reply::new(&mut out, resp3), command);
            assert_eq!(skip(&out), Some(&b""[..]), "{command:?}");
            out.clear();
            reply_info(&mut Reply::new(&mut out, resp3), command);
            assert_eq!(skip(&out), Some(&b""[..]), "{command:?}");
        }
    }
}

/// What is left after one reply.
fn skip(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, mut rest) = (&bytes[1..end], &bytes[end + 2..]);
    let number = || std::str::from_utf8(line).ok()?.parse::<usize>().ok();
    match bytes.first()? {
        b'+' | b':' => Some(rest),
        b'$' => rest.get(number()? + 2..),
        marker @ (b'*' | b'%' | b'~') => {
            for _ in 0..number()? * if *marker == b'%' { 2 } else { 1 } {
                rest = skip(rest)?;
            }
            Some(rest)
        }
        _ => None,
    }
}

/// Every command of Redis is in the table, or the page says that it is not there.
#[test]
fn what_is_not_supported_is_told() {
    let page = markdown();
    let (_, rest) = page.split_once("Not supported").unwrap();
    let (told, _) = rest.split_once("\n\n").unwrap();
    let is_there = |name: &str| all().iter().any(|command| command.full_name() == name);
    for name in COMMANDS.split(' ') {
        let is_told = told.contains(&format!("`{}`", name.replace('|', " ").to_ascii_uppercase()));
        assert!(is_there(name) || is_told, "{name}");
        // The one function that is there is named because the others are not.
        assert!(
            !is_there(name) || !is_told || name == "function|flush",
            "{name} is there and said not to be"
        );
    }
    for (kind, names) in KINDS {
        let is_named = told.split([',', ':', '(']).any(|word| word.trim() == kind);
        assert!(is_named, "{kind}");
        let found = names.split(' ').find(|name| is_there(name));
        assert_eq!(found, None, "{kind} are said not to be there");
    }
    // All that is there is Redis's, or begins with HR.
    let others = all().iter().find(|command| {
        let name = command.full_name();
        !name.starts_with("hr.") && name != "function" && COMMANDS.split(' ').all(|known| known != name)
    });
    assert!(others.is_none(), "{others:?}");
}

#[test]
fn parameters_that_can_be_set_are_told() {
    let page = markdown();
    let (_, rest) = page.split_once("`CONFIG SET` takes ").unwrap();
    let (told, _) = rest.split_once("\n\n").unwrap();
    for name in PARAMETERS {
        let is_fixed = Settings::default().set(name, b"?") == Err("can't set immutable config".into());
        assert_eq!(told.contains(&format!("`{name}`")), !is_fixed, "{name}");
    }
}
