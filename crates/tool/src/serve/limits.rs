//! Every bound of the server, with its default. Owns the numbers; the modules that enforce them take them from here.

use std::time::Duration;

/// Arguments of one command, its name included.
pub const ARGUMENTS_MAX: usize = 1 << 20;
/// Bytes of one argument: what one row may hold, and a little for the message around it.
pub const ARGUMENT_BYTES_MAX: usize = hedgerow::limits::ROW_BYTES_MAX;
/// Bytes of one command, all arguments together.
pub const COMMAND_BYTES_MAX: usize = 256 << 20;
/// Bytes of one inline command.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Before authentication: arguments of one command.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: usize = 10;
/// Before authentication: bytes of one argument.
pub const UNAUTHENTICATED_ARGUMENT_BYTES_MAX: usize = 16 << 10;
/// Before authentication: bytes of replies the client has not read.
pub const UNAUTHENTICATED_OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Before authentication: how long a connection may stay.
pub const UNAUTHENTICATED_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a connection may be silent before the kernel asks whether the other side is still there.
pub const KEEPALIVE: Duration = Duration::from_secs(300);
/// Time between two such questions that are not answered, and how many are asked.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(100);
/// See above.
pub const KEEPALIVE_PROBES: u32 = 3;
/// Time between two lines of the log about web pages that speak to the server.
pub const CROSS_PROTOCOL_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How long the commands of one connection are done before the next one has its turn.
pub const TURN_TIME: Duration = Duration::from_millis(10);
/// Bytes of replies that are sent before more commands of a connection are done.
pub const FLUSH_BYTES: usize = 1 << 20;
/// Rows, or fields, that one SCAN or HSCAN passes, whatever its COUNT.
pub const SCAN_ROWS_MAX: usize = 16 << 10;
/// Bytes of keys, or of fields and values, after which one SCAN or HSCAN ends; a row's own fields come together.
pub const SCAN_BYTES_MAX: usize = 16 << 20;
/// Bytes of rows that one command, or transaction, may have at hand of a store of pairs.
pub const AT_HAND_BYTES_MAX: usize = 256 << 20;
/// Keys of one command whose rows are fetched from such a store at once.
pub const PREFETCHED_KEYS_MAX: usize = 64;
/// How often it is checked that the keys an `EXEC` read from such a store were there together, before it is answered without that: others write them all
/// the while.
pub const READ_CHECKS_MAX: u32 = 256;
/// Keys of one command that are looked at together for what it lacks of them: of hardly more a thread is told what it lacked, and they hold up others for some
/// milliseconds.
pub const LOOK_AHEAD_KEYS_MAX: usize = 4_000;
/// Commands of clients whose steps go on in one exchange with such a store.
pub const EXCHANGED_ATTEMPTS_MAX: usize = 256;
/// How long the server waits, when it stops, for what such a store has not answered yet.
pub const STORE_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the keys of one KEYS at a store of pairs, where they are in memory together.
pub const KEYS_BYTES_MAX: usize = 128 << 20;
/// Bytes of a hash that is copied or renamed, with those that each of its fields takes besides: it is read into memory, and written
/// as one change.
pub const COPIED_BYTES_MAX: usize = 192 << 20;
/// Bytes of the slow log.
pub const SLOWLOG_BYTES_MAX: usize = 16 << 20;
/// Bytes of a pattern of KEYS, SCAN, HSCAN and COMMAND LIST, or of all those of a CONFIG GET: what it takes to match is the product of its length and the key's.
pub const PATTERN_BYTES_MAX: usize = 4 << 10;
/// Bytes read from one connection before the next one has its turn.
pub const READ_BYTES_PER_TURN: usize = 256 << 10;
/// Bytes of a connection that ends are taken and thrown away, at most; there are no more in the kernel, as a rule.
pub const UNREAD_BYTES_MAX: usize = 8 << 20;
/// Bytes a pooled buffer starts with.
pub const BUFFER_BYTES: usize = 32 << 10;
/// Pooled buffers kept for reuse.
pub const POOLED_BUFFERS_MAX: usize = 64;
/// Databases a client can `SELECT`.
pub const DATABASES: usize = 16;
/// Tables that unknown key prefixes may create, over all databases; keys of further prefixes share one table.
pub const OPEN_TABLES_MAX: usize = 1024;
/// Fields an open table learns; further ones are kept as rows of their own.
pub const LEARNED_FIELDS_MAX: usize = 256;
/// Bytes of learned schemas, over all tables: the engine keeps its catalog in half of the root. Over this, new fields are kept
/// as rows of their own and new prefixes share one table.
pub const SCHEMA_BYTES_MAX: usize = 2 << 20;
/// Bytes of a field name an open table learns.
pub const LEARNED_NAME_BYTES_MAX: usize = 128;
/// Positions of unfinished `SCAN`s remembered.
pub const CURSORS_MAX: usize = 16 << 10;
/// Expiries of fields that are remembered, each with its key; the sweep finds the others.
pub const EXPIRIES_MAX: usize = 100_000;
/// Bytes of the keys that are remembered so.
pub const EXPIRIES_BYTES_MAX: usize = 16 << 20;
/// Commands queued by one `MULTI`: as many as one command has arguments.
pub const QUEUED_COMMANDS_MAX: usize = ARGUMENTS_MAX;
/// Keys watched by one client.
pub const WATCHED_KEYS_MAX: usize = 16 << 10;
/// Bytes of a client's name and of each other thing it says about itself.
pub const CLIENT_NAME_BYTES_MAX: usize = 1024;

/// The least that all clients' buffers together may be given.
pub const CLIENT_BYTES_MIN: usize = 1 << 20;

/// What the reply buffer of a client may grow to.
#[derive(Debug, Clone, Copy)]
pub struct OutputLimits {
    /// Over this the client is disconnected at once. Default 256 MiB.
    pub hard: usize,
    /// Over this no more of its commands are done, and after `soft_time` of that it is disconnected. Default 64 MiB.
    pub soft: usize,
    /// Default 60 s.
    pub soft_time: Duration,
}

impl Default for OutputLimits {
    fn default() -> OutputLimits {
        OutputLimits { hard: 256 << 20, soft: 64 << 20, soft_time: Duration::from_secs(60) }
    }
}
