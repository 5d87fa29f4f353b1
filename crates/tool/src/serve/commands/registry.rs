//! The rows of the table.

use super::{Handler, connection, expiration, hash, key, server, string, table, transaction};
use crate::serve::command::Flag::{
    Admin, Batch, Fast, Follows, NoAuth, NoMulti, NoQueue, Pinned, Read, SkipSlowlog, Write,
};
use crate::serve::command::{Command, Flag};

type Row =
    (&'static str, i32, &'static [Flag], (i32, i32, i32), &'static str, &'static str, &'static str, Handler);

const NONE: (i32, i32, i32) = (0, 0, 0);
const ONE: (i32, i32, i32) = (1, 1, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);

const GROUPS: [(&str, &[Row]); 7] = [
    ("connection", CONNECTION),
    ("server", SERVER),
    ("generic", GENERIC),
    ("string", STRING),
    ("hash", HASH),
    ("transactions", TRANSACTIONS),
    ("table", TABLE),
];

/// How many commands there are.
pub(super) const COUNT: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].1.len();
        group += 1;
    }
    count
};

/// The commands, in the order of the groups.
pub(super) static COMMANDS: [Command; COUNT] = {
    let mut commands = [const { command(0) }; COUNT];
    let mut index = 1;
    while index < COUNT {
        commands[index] = command(index);
        index += 1;
    }
    commands
};

/// What does each of [`COMMANDS`].
pub(super) static HANDLERS: [Handler; COUNT] = {
    let mut handlers = [row(0).1.7; COUNT];
    let mut index = 1;
    while index < COUNT {
        handlers[index] = row(index).1.7;
        index += 1;
    }
    handlers
};

/// A row by its position in all groups together, and its group.
const fn row(index: usize) -> (&'static str, &'static Row) {
    let (mut rest, mut group) = (index, 0);
    while rest >= GROUPS[group].1.len() {
        rest -= GROUPS[group].1.len();
        group += 1;
    }
    (GROUPS[group].0, &GROUPS[group].1[rest])
}

const fn command(index: usize) -> Command {
    let (group, &(name, arity, flags, keys, since, syntax, summary, _)) = row(index);
    let (mut flag_bits, mut flag) = (0, 0);
    while flag < flags.len() {
        flag_bits |= 1 << flags[flag] as u32;
        flag += 1;
    }
    // Subcommands follow their parent.
    let is_container = index + 1 < COUNT && is_subcommand(row(index + 1).1.0) && !is_subcommand(name);
    Command { name, arity, flags, keys, group, since, summary, syntax, index, flag_bits, is_container }
}

const fn is_subcommand(name: &str) -> bool {
    let mut index = 0;
    while index < name.len() {
        if name.as_bytes()[index] == b'|' {
            return true;
        }
        index += 1;
    }
    false
}

#[rustfmt::skip]
const CONNECTION: &[Row] = &[
    ("auth", -2, &[Fast, NoAuth, SkipSlowlog], NONE, "1.0.0", "[username] password", "Authenticates the connection.", connection::auth),
    ("client", -2, &[], NONE, "2.4.0", "", "A container for client connection commands.", server::container),
    ("client|caching", 3, &[], NONE, "6.0.0", "<YES | NO>", "Refused: the server does not track keys for clients.", connection::client_tracking),
    ("client|getname", 2, &[], NONE, "2.6.9", "", "Returns the name of the connection.", connection::client_getname),
    ("client|getredir", 2, &[], NONE, "6.0.0", "", "Returns -1: there is no tracking.", connection::client_getredir),
    ("client|help", 2, &[], NONE, "5.0.0", "", "Returns helpful text about the different subcommands.", server::help),
    ("client|id", 2, &[], NONE, "5.0.0", "", "Returns the unique client ID of the connection.", connection::client_id),
    ("client|info", 2, &[], NONE, "6.2.0", "", "Returns information about the connection.", connection::client_info),
    ("client|kill", -3, &[Admin], NONE, "2.4.0", "<old-addr | <ID client-id | ADDR addr | LADDR addr | SKIPME yes-no | TYPE type | USER username | MAXAGE seconds> [...]>", "Terminates open connections.", connection::client_kill),
    ("client|list", -2, &[Admin], NONE, "2.4.0", "[TYPE type] [ID client-id [client-id ...]]", "Lists open connections.", connection::client_list),
    ("client|no-evict", 3, &[Admin], NONE, "7.0.0", "<ON | OFF>", "Sets the client eviction mode of the connection.", connection::client_no_evict),
    ("client|no-touch", 3, &[], NONE, "7.2.0", "<ON | OFF>", "Controls whether commands sent by the client affect the LRU/LFU of accessed keys.", connection::client_no_touch),
    ("client|pause", -3, &[Admin], NONE, "3.0.0", "timeout [WRITE | ALL]", "Suspends commands processing.", connection::client_pause),
    ("client|reply", 3, &[], NONE, "3.2.0", "<ON | OFF | SKIP>", "Instructs the server whether to reply to commands.", connection::client_reply),
    ("client|setinfo", 4, &[], NONE, "7.2.0", "<LIB-NAME libname | LIB-VER libver>", "Sets information specific to the client or connection.", connection::client_setinfo),
    ("client|setname", 3, &[], NONE, "2.6.9", "connection-name", "Sets the connection name.", connection::client_setname),
    ("client|tracking", -3, &[], NONE, "6.0.0", "<ON | OFF>", "Refused unless OFF: the server does not track keys for clients.", connection::client_tracking),
    ("client|trackinginfo", 2, &[], NONE, "6.2.0", "", "Returns that there is no tracking.", connection::client_trackinginfo),
    ("client|unblock", -3, &[Admin], NONE, "5.0.0", "client-id [TIMEOUT | ERROR]", "Returns 0: no command of this server blocks.", connection::client_unblock),
    ("client|unpause", 2, &[Admin], NONE, "6.2.0", "", "Resumes processing commands from paused clients.", connection::client_unpause),
    ("echo", 2, &[Fast], NONE, "1.0.0", "message", "Returns the given string.", connection::echo),
    ("hello", -1, &[Fast, NoAuth, SkipSlowlog], NONE, "6.0.0", "[protover [AUTH username password] [SETNAME clientname]]", "Handshakes with the server.", connection::hello),
    ("ping", -1, &[Fast], NONE, "1.0.0", "[message]", "Returns the server's liveliness response.", connection::ping),
    ("quit", -1, &[Fast, NoAuth, NoQueue], NONE, "1.0.0", "", "Closes the connection.", connection::quit),
    ("reset", 1, &[Fast, NoAuth, NoQueue], NONE, "6.2.0", "", "Resets the connection.", connection::reset),
    ("select", 2, &[Fast], NONE, "1.0.0", "index", "Changes the selected database.", connection::select),
];

#[rustfmt::skip]
const SERVER: &[Row] = &[
    ("bgsave", -1, &[Admin, NoMulti], NONE, "1.0.0", "[SCHEDULE]", "Makes everything written so far durable, in the background.", server::bgsave),
    ("command", -1, &[], NONE, "2.8.13", "", "Returns detailed information about all commands.", server::command),
    ("command|count", 2, &[], NONE, "2.8.13", "", "Returns a count of commands.", server::command_count),
    ("command|docs", -2, &[], NONE, "7.0.0", "[command-name [command-name ...]]", "Returns documentary information about one, multiple or all commands.", server::command_docs),
    ("command|getkeys", -3, &[], NONE, "2.8.13", "command [arg [arg ...]]", "Extracts the key names from an arbitrary command.", server::command_getkeys),
    ("command|help", 2, &[], NONE, "5.0.0", "", "Returns helpful text about the different subcommands.", server::help),
    ("command|info", -2, &[], NONE, "2.8.13", "[command-name [command-name ...]]", "Returns information about one, multiple or all commands.", server::command_info),
    ("command|list", -2, &[], NONE, "7.0.0", "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]", "Returns a list of command names.", server::command_list),
    ("config", -2, &[], NONE, "2.0.0", "", "A container for server configuration commands.", server::container),
    ("config|get", -3, &[Admin], NONE, "2.0.0", "parameter [parameter ...]", "Returns the effective values of configuration parameters.", server::config_get),
    ("config|help", 2, &[], NONE, "5.0.0", "", "Returns helpful text about the different subcommands.", server::help),
    ("config|resetstat", 2, &[Admin], NONE, "2.0.0", "", "Resets the server's statistics.", server::config_resetstat),
    ("config|rewrite", 2, &[Admin], NONE, "2.8.0", "", "Refused: the server has no configuration file.", server::config_rewrite),
    ("config|set", -4, &[Admin, SkipSlowlog], NONE, "2.0.0", "parameter value [parameter value ...]", "Sets configuration parameters in-flight.", server::config_set),
    ("dbsize", 1, &[Read, Fast], NONE, "1.0.0", "", "Returns the number of keys in the database.", server::dbsize),
    ("flushall", -1, &[Write], NONE, "1.0.0", "[ASYNC | SYNC]", "Removes all keys from all databases. Tables with a declared schema keep it.", server::flushall),
    ("flushdb", -1, &[Write], NONE, "1.0.0", "[ASYNC | SYNC]", "Removes all keys from the current database. Tables with a declared schema keep it.", server::flushdb),
    ("function", -2, &[], NONE, "7.0.0", "", "A container for function commands.", server::container),
    ("function|flush", -2, &[Write], NONE, "7.0.0", "[ASYNC | SYNC]", "Does nothing: the server has no functions.", server::function_flush),
    ("info", -1, &[], NONE, "1.0.0", "[section [section ...]]", "Returns information and statistics about the server.", server::info),
    ("lastsave", 1, &[Fast], NONE, "1.0.0", "", "Returns the Unix timestamp of the last successful requested sync.", server::lastsave),
    ("latency", -2, &[], NONE, "2.8.13", "", "A container for latency diagnostics commands.", server::container),
    ("latency|doctor", 2, &[Admin], NONE, "2.8.13", "", "Returns a human-readable latency analysis report.", server::latency_doctor),
    ("latency|help", 2, &[], NONE, "2.8.13", "", "Returns helpful text about the different subcommands.", server::help),
    ("latency|history", 3, &[Admin], NONE, "2.8.13", "event", "Returns timestamp-latency samples for an event.", server::latency_history),
    ("latency|latest", 2, &[Admin], NONE, "2.8.13", "", "Returns the latest latency samples for all events.", server::latency_latest),
    ("latency|reset", -2, &[Admin], NONE, "2.8.13", "[event [event ...]]", "Resets the latency data for one or more events.", server::latency_reset),
    ("memory", -2, &[], NONE, "4.0.0", "", "A container for memory diagnostics commands.", server::container),
    ("memory|help", 2, &[], NONE, "4.0.0", "", "Returns helpful text about the different subcommands.", server::help),
    ("memory|usage", -3, &[Read], (2, 2, 1), "4.0.0", "key [SAMPLES count]", "Estimates the bytes of a key, its fields and its share of the index.", key::memory_usage),
    ("role", 1, &[Fast], NONE, "2.8.12", "", "Returns the replication role: a master without replicas.", server::role),
    ("save", 1, &[Admin, NoMulti], NONE, "1.0.0", "", "Makes everything written so far durable before it answers.", server::save),
    ("shutdown", -1, &[Admin, NoMulti], NONE, "1.0.0", "[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]", "Persists and closes the store, and stops the server.", server::shutdown),
    ("slowlog", -2, &[], NONE, "2.2.12", "", "A container for slow log commands.", server::container),
    ("slowlog|get", -2, &[Admin], NONE, "2.2.12", "[count]", "Returns the slow log's entries.", server::slowlog_get),
    ("slowlog|help", 2, &[], NONE, "6.2.0", "", "Returns helpful text about the different subcommands.", server::help),
    ("slowlog|len", 2, &[Admin], NONE, "2.2.12", "", "Returns the number of entries in the slow log.", server::slowlog_len),
    ("slowlog|reset", 2, &[Admin], NONE, "2.2.12", "", "Clears all entries from the slow log.", server::slowlog_reset),
    ("time", 1, &[Fast], NONE, "2.6.0", "", "Returns the server time.", server::time),
];

#[rustfmt::skip]
const GENERIC: &[Row] = &[
    ("copy", -3, &[Write, Batch], (1, 2, 1), "6.2.0", "source destination [DB destination-db] [REPLACE]", "Copies the value of a key to a new key.", key::copy),
    ("del", -2, &[Write, Batch], ALL, "1.0.0", "key [key ...]", "Deletes one or more keys.", key::del),
    ("exists", -2, &[Read, Fast], ALL, "1.0.0", "key [key ...]", "Determines whether one or more keys exist.", key::exists),
    ("expire", -3, &[Write, Fast, Batch, Follows], ONE, "1.0.0", "key seconds [NX | XX | GT | LT]", "Sets the expiration time of a key in seconds.", expiration::expire),
    ("expireat", -3, &[Write, Fast, Batch, Follows], ONE, "1.2.0", "key unix-time-seconds [NX | XX | GT | LT]", "Sets the expiration time of a key to a Unix timestamp.", expiration::expireat),
    ("expiretime", 2, &[Read, Fast], ONE, "7.0.0", "key", "Returns the expiration time of a key as a Unix timestamp.", expiration::expiretime),
    ("keys", 2, &[Read], NONE, "1.0.0", "pattern", "Returns all key names that match a pattern.", key::keys),
    ("object", -2, &[], NONE, "2.2.3", "", "A container for object introspection commands.", server::container),
    ("object|encoding", 3, &[Read], (2, 2, 1), "2.2.3", "key", "Returns the encoding Redis would use for the value.", key::object_encoding),
    ("object|freq", 3, &[Read], (2, 2, 1), "4.0.0", "key", "Refused: access frequency is not tracked.", key::object_freq),
    ("object|help", 2, &[], NONE, "6.2.0", "", "Returns helpful text about the different subcommands.", server::help),
    ("object|idletime", 3, &[Read], (2, 2, 1), "2.2.3", "key", "Returns 0 for a key that exists: idle time is not tracked.", key::object_idletime),
    ("object|refcount", 3, &[Read], (2, 2, 1), "2.2.3", "key", "Returns 1 for a key that exists.", key::object_refcount),
    ("persist", 2, &[Write, Fast, Batch, Follows], ONE, "2.2.0", "key", "Removes the expiration time of a key.", expiration::persist),
    ("pexpire", -3, &[Write, Fast, Batch, Follows], ONE, "2.6.0", "key milliseconds [NX | XX | GT | LT]", "Sets the expiration time of a key in milliseconds.", expiration::pexpire),
    ("pexpireat", -3, &[Write, Fast, Batch, Follows], ONE, "2.6.0", "key unix-time-milliseconds [NX | XX | GT | LT]", "Sets the expiration time of a key to a Unix milliseconds timestamp.", expiration::pexpireat),
    ("pexpiretime", 2, &[Read, Fast], ONE, "7.0.0", "key", "Returns the expiration time of a key as a Unix milliseconds timestamp.", expiration::pexpiretime),
    ("pttl", 2, &[Read, Fast], ONE, "2.6.0", "key", "Returns the expiration time in milliseconds of a key.", expiration::pttl),
    ("randomkey", 1, &[Read], NONE, "1.0.0", "", "Returns a random key name from the database.", key::randomkey),
    ("rename", 3, &[Write, Batch], (1, 2, 1), "1.0.0", "key newkey", "Renames a key and overwrites the destination.", key::rename),
    ("renamenx", 3, &[Write, Batch], (1, 2, 1), "1.0.0", "key newkey", "Renames a key only when the target key name doesn't exist.", key::renamenx),
    ("scan", -2, &[Read], NONE, "2.8.0", "cursor [MATCH pattern] [COUNT count] [TYPE type]", "Iterates over the key names in the database.", key::scan),
    ("touch", -2, &[Read, Fast], ALL, "3.2.1", "key [key ...]", "Returns the number of existing keys out of those specified.", key::exists),
    ("ttl", 2, &[Read, Fast], ONE, "1.0.0", "key", "Returns the expiration time in seconds of a key.", expiration::ttl),
    ("type", 2, &[Read, Fast], ONE, "1.0.0", "key", "Determines the type of value stored at a key.", key::type_of),
    ("unlink", -2, &[Write, Fast, Batch], ALL, "4.0.0", "key [key ...]", "Deletes one or more keys; what is large is freed later.", key::del),
    ("wait", 3, &[], NONE, "3.0.0", "numreplicas timeout", "Makes the connection's writes durable; returns 0, for there are no replicas.", server::wait),
    ("waitaof", 4, &[], NONE, "7.2.0", "numlocal numreplicas timeout", "Makes the connection's writes durable; returns 1 and 0.", server::waitaof),
];

#[rustfmt::skip]
const STRING: &[Row] = &[
    ("append", 3, &[Write, Fast, Batch], ONE, "2.0.0", "key value", "Appends a string to the value of a key. Creates the key if it doesn't exist.", string::append),
    ("decr", 2, &[Write, Fast, Batch], ONE, "1.0.0", "key", "Decrements the integer value of a key by one. Uses 0 as initial value if the key doesn't exist.", string::decr),
    ("decrby", 3, &[Write, Fast, Batch], ONE, "1.0.0", "key decrement", "Decrements a number from the integer value of a key. Uses 0 as initial value if the key doesn't exist.", string::decrby),
    ("get", 2, &[Read, Fast, Pinned], ONE, "1.0.0", "key", "Returns the string value of a key.", string::get),
    ("getdel", 2, &[Write, Fast, Batch], ONE, "6.2.0", "key", "Returns the string value of a key after deleting the key.", string::getdel),
    ("getex", -2, &[Write, Fast, Batch], ONE, "6.2.0", "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]", "Returns the string value of a key after setting its expiration time.", string::getex),
    ("getrange", 4, &[Read], ONE, "2.4.0", "key start end", "Returns a substring of the string stored at a key.", string::getrange),
    ("getset", 3, &[Write, Fast, Batch], ONE, "1.0.0", "key value", "Returns the previous string value of a key after setting it to a new value.", string::getset),
    ("incr", 2, &[Write, Fast, Batch], ONE, "1.0.0", "key", "Increments the integer value of a key by one. Uses 0 as initial value if the key doesn't exist.", string::incr),
    ("incrby", 3, &[Write, Fast, Batch], ONE, "1.0.0", "key increment", "Increments the integer value of a key by a number. Uses 0 as initial value if the key doesn't exist.", string::incrby),
    ("incrbyfloat", 3, &[Write, Fast, Batch], ONE, "2.6.0", "key increment", "Increments the floating point value of a key by a number. Uses 0 as initial value if the key doesn't exist.", string::incrbyfloat),
    ("mget", -2, &[Read, Fast], ALL, "1.0.0", "key [key ...]", "Atomically returns the string values of one or more keys.", string::mget),
    ("mset", -3, &[Write, Batch], (1, -1, 2), "1.0.1", "key value [key value ...]", "Atomically creates or modifies the string values of one or more keys.", string::mset),
    ("msetnx", -3, &[Write, Batch], (1, -1, 2), "1.0.1", "key value [key value ...]", "Atomically modifies the string values of one or more keys only when all keys don't exist.", string::msetnx),
    ("psetex", 4, &[Write, Batch], ONE, "2.6.0", "key milliseconds value", "Sets both string value and expiration time in milliseconds of a key. The key is created if it doesn't exist.", string::psetex),
    ("set", -3, &[Write, Batch], ONE, "1.0.0", "key value [NX | XX] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]", "Sets the string value of a key, ignoring its type. The key is created if it doesn't exist.", string::set),
    ("setex", 4, &[Write, Batch], ONE, "2.0.0", "key seconds value", "Sets the string value and expiration time of a key. Creates the key if it doesn't exist.", string::setex),
    ("setnx", 3, &[Write, Fast, Batch], ONE, "1.0.0", "key value", "Set the string value of a key only when the key doesn't exist.", string::setnx),
    ("setrange", 4, &[Write, Batch], ONE, "2.2.0", "key offset value", "Overwrites a part of a string value with another by an offset. Creates the key if it doesn't exist.", string::setrange),
    ("strlen", 2, &[Read, Fast], ONE, "2.2.0", "key", "Returns the length of a string value.", string::strlen),
    ("substr", 4, &[Read], ONE, "1.0.0", "key start end", "Returns a substring from a string value.", string::getrange),
];

#[rustfmt::skip]
const HASH: &[Row] = &[
    ("hdel", -3, &[Write, Fast, Batch], ONE, "2.0.0", "key field [field ...]", "Deletes one or more fields and their values from a hash. Deletes the hash if no fields remain.", hash::hdel),
    ("hexists", 3, &[Read, Fast], ONE, "2.0.0", "key field", "Determines whether a field exists in a hash.", hash::hexists),
    ("hexpire", -6, &[Write, Fast, Batch], ONE, "7.4.0", "key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", "Set expiry for hash field using relative time to expire (seconds).", expiration::hexpire),
    ("hexpireat", -6, &[Write, Fast, Batch], ONE, "7.4.0", "key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", "Set expiry for hash field using an absolute Unix timestamp (seconds).", expiration::hexpireat),
    ("hexpiretime", -5, &[Read, Fast], ONE, "7.4.0", "key FIELDS numfields field [field ...]", "Returns the expiration time of a hash field as a Unix timestamp, in seconds.", expiration::hexpiretime),
    ("hget", 3, &[Read, Fast, Pinned], ONE, "2.0.0", "key field", "Returns the value of a field in a hash.", hash::hget),
    ("hgetall", 2, &[Read, Pinned], ONE, "2.0.0", "key", "Returns all fields and values in a hash.", hash::hgetall),
    ("hgetdel", -5, &[Write, Fast, Batch], ONE, "8.0.0", "key FIELDS numfields field [field ...]", "Returns the value of a field and deletes it from the hash.", hash::hgetdel),
    ("hgetex", -5, &[Write, Fast, Batch], ONE, "8.0.0", "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] FIELDS numfields field [field ...]", "Get the value of one or more fields of a given hash key, and optionally set their expiration.", hash::hgetex),
    ("hincrby", 4, &[Write, Fast, Batch], ONE, "2.0.0", "key field increment", "Increments the integer value of a field in a hash by a number. Uses 0 as initial value if the field doesn't exist.", hash::hincrby),
    ("hincrbyfloat", 4, &[Write, Fast, Batch], ONE, "2.6.0", "key field increment", "Increments the floating point value of a field by a number. Uses 0 as initial value if the field doesn't exist.", hash::hincrbyfloat),
    ("hkeys", 2, &[Read, Pinned], ONE, "2.0.0", "key", "Returns all fields in a hash.", hash::hkeys),
    ("hlen", 2, &[Read, Fast], ONE, "2.0.0", "key", "Returns the number of fields in a hash.", hash::hlen),
    ("hmget", -3, &[Read, Fast, Pinned], ONE, "2.0.0", "key field [field ...]", "Returns the values of all fields in a hash.", hash::hmget),
    ("hmset", -4, &[Write, Fast, Batch, Pinned], ONE, "2.0.0", "key field value [field value ...]", "Sets the values of multiple fields.", hash::hmset),
    ("hpersist", -5, &[Write, Fast, Batch], ONE, "7.4.0", "key FIELDS numfields field [field ...]", "Removes the expiration time for each specified field.", expiration::hpersist),
    ("hpexpire", -6, &[Write, Fast, Batch], ONE, "7.4.0", "key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", "Set expiry for hash field using relative time to expire (milliseconds).", expiration::hpexpire),
    ("hpexpireat", -6, &[Write, Fast, Batch], ONE, "7.4.0", "key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", "Set expiry for hash field using an absolute Unix timestamp (milliseconds).", expiration::hpexpireat),
    ("hpexpiretime", -5, &[Read, Fast], ONE, "7.4.0", "key FIELDS numfields field [field ...]", "Returns the expiration time of a hash field as a Unix timestamp, in msec.", expiration::hpexpiretime),
    ("hpttl", -5, &[Read, Fast], ONE, "7.4.0", "key FIELDS numfields field [field ...]", "Returns the TTL in milliseconds of a hash field.", expiration::hpttl),
    ("hrandfield", -2, &[Read], ONE, "6.2.0", "key [count [WITHVALUES]]", "Returns one or more random fields from a hash.", hash::hrandfield),
    ("hscan", -3, &[Read], ONE, "2.8.0", "key cursor [MATCH pattern] [COUNT count] [NOVALUES]", "Iterates over fields and values of a hash.", hash::hscan),
    ("hset", -4, &[Write, Fast, Batch, Pinned], ONE, "2.0.0", "key field value [field value ...]", "Creates or modifies the value of a field in a hash.", hash::hset),
    ("hsetex", -6, &[Write, Fast, Batch], ONE, "8.0.0", "key [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL] FIELDS numfields field value [field value ...]", "Set the value of one or more fields of a given hash key, and optionally set their expiration.", hash::hsetex),
    ("hsetnx", 4, &[Write, Fast, Batch], ONE, "2.0.0", "key field value", "Sets the value of a field in a hash only when the field doesn't exist.", hash::hsetnx),
    ("hstrlen", 3, &[Read, Fast], ONE, "3.2.0", "key field", "Returns the length of the value of a field.", hash::hstrlen),
    ("httl", -5, &[Read, Fast], ONE, "7.4.0", "key FIELDS numfields field [field ...]", "Returns the TTL in seconds of a hash field.", expiration::httl),
    ("hvals", 2, &[Read, Pinned], ONE, "2.0.0", "key", "Returns all values in a hash.", hash::hvals),
];

#[rustfmt::skip]
const TRANSACTIONS: &[Row] = &[
    ("discard", 1, &[Fast, NoQueue], NONE, "2.0.0", "", "Discards a transaction.", transaction::discard),
    ("exec", 1, &[NoQueue], NONE, "1.2.0", "", "Executes all commands in a transaction.", transaction::exec),
    ("multi", 1, &[Fast, NoQueue], NONE, "1.2.0", "", "Starts a transaction.", transaction::multi),
    ("unwatch", 1, &[Fast], NONE, "2.2.0", "", "Forgets about watched keys of a transaction.", transaction::unwatch),
    ("watch", -2, &[Fast, NoQueue], ALL, "2.2.0", "key [key ...]", "Monitors changes to keys to determine the execution of a transaction.", transaction::watch),
];

#[rustfmt::skip]
const TABLE: &[Row] = &[
    ("hr.addfield", -4, &[Write, NoMulti], NONE, "0.1.0", "table field type", "Adds a nullable field to a table; rows are not rewritten. Refused where hashes of the table have fields besides those of the table, one of which may have that name.", table::addfield),
    ("hr.backup", -2, &[Admin, NoMulti], NONE, "0.1.0", "<START name | STATUS | CANCEL>", "START begins a verified backup of the whole store, in the background, in the directory of that name under --backup-dir, and is refused without that setting; a name used before is brought up to date. STATUS returns a map of what the last is doing or did. CANCEL ends it; START goes on with it.", table::backup),
    ("hr.create", -4, &[Write, NoMulti], NONE, "0.1.0", "table field type [NULLABLE] [field type [NULLABLE] ...]", "Declares a table: hashes whose keys start with its name and ':' have these typed fields. Types: bool, i8 to i64, u8 to u64, f32, f64, timestamp, bytes, bytes(N), string.", table::create),
    ("hr.drop", 2, &[Write, NoMulti], NONE, "0.1.0", "table", "Drops a table with its schema and all its rows; returns whether there was one.", table::drop_table),
    ("hr.dropfield", 3, &[Write, NoMulti], NONE, "0.1.0", "table field", "Removes a field from a table and so from all its rows; rows are not rewritten.", table::dropfield),
    ("hr.metrics", 1, &[Read], NONE, "0.1.0", "", "Returns the counters and gauges of the store as a map.", table::metrics),
    ("hr.renamefield", 4, &[Write, NoMulti], NONE, "0.1.0", "table field newname", "Gives a field another name; rows are not rewritten.", table::renamefield),
    ("hr.scan", -2, &[Read], NONE, "0.1.0", "table [FROM row] [TO row] [PREFIX prefix] [REVERSE] [LIMIT count] [FIELDS numfields field [field ...]]", "Returns rows of a table in order, whole or some fields: an array of pairs of row and map. FROM is included, TO is not; LIMIT is 100 unless given.", table::scan),
    ("hr.schema", 2, &[Read, Fast], NONE, "0.1.0", "table", "Returns the fields of a table: a map of name, type and whether it may be absent.", table::schema),
    ("hr.tables", 1, &[Read], NONE, "0.1.0", "", "Returns the tables of the database as a map of name to rows, fields and whether the schema is open.", table::tables),
];
