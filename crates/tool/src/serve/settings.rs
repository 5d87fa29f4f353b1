//! The server's settings: those of the command line, and those CONFIG shows and changes.
//!
//! Owns: the one table of CONFIG parameters. A parameter that CONFIG SET accepts has an effect, or is one whose only effect in
//! Redis is on encodings that clients can see by OBJECT ENCODING; of limits by class of client those count that there are
//! clients of. What CONFIG GET shows of such a parameter CONFIG SET takes.

use std::net::IpAddr;
use std::time::Duration;

use subtle::ConstantTimeEq;

use super::limits::{self, OutputLimits};
use super::number;
use crate::open_files;
use crate::units::parse_bytes;

/// How the server runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Clients must know it, if there is one.
    pub password: Option<Vec<u8>>,
    /// Connections at a time. Default 10,000.
    pub clients_max: usize,
    /// A client that does nothing for so long is disconnected. Default never.
    pub idle_timeout: Option<Duration>,
    /// What a client's unread replies may take.
    pub output: OutputLimits,
    /// What all clients' buffers together may take. Default 1 GiB.
    pub client_bytes_max: usize,
    /// Commands slower than this many microseconds are logged; negative: none are. Default 10,000.
    pub slowlog_us: i64,
    /// Entries of the slow log. Default 128.
    pub slowlog_len: usize,
    /// Commands slower than this many ms are latency events; 0: none are.
    pub latency_ms: i64,
    /// A hash with more fields is said to be a `hashtable`. Default 128.
    pub listpack_entries: usize,
    /// A hash with a longer field or value is said to be a `hashtable`. Default 64.
    pub listpack_value: usize,
    /// Whether each write is durable before it is answered.
    pub sync_writes: bool,
    /// How the store syncs, as the command line said it.
    pub durability: String,
    /// Whether the store was opened for reading only.
    pub read_only: bool,
    /// The first port listened on.
    pub port: u16,
    /// The addresses listened on.
    pub listen: Vec<String>,
    /// The store, as `--store` says it.
    pub store: String,
    /// The directory where the data is, if it is in one.
    pub dir: String,
    /// Whether non-loopback listening without a password is refused.
    pub protected: bool,
    /// The most bytes the fast tier may take; 0 means no limit.
    pub fast_bytes_max: u64,
    /// The most bytes of memory that the index may take; 0 means no limit.
    pub index_bytes_max: u64,
    /// The directory of sorted tables; empty if the store has no place for any.
    pub capacity: String,
    /// The most bytes that they may take; 0 means no limit.
    pub capacity_bytes_max: u64,
    /// How they are compressed, as the command line says it.
    pub compression: &'static str,
    /// In what pieces writers write the log back; empty if nobody does.
    pub persist_granule: String,
    /// Bytes a second that background work may take of the disk of sorted tables; 0 means no limit.
    pub io_bytes_per_s: u64,
    /// Where clients may have backups made, if they may.
    pub backup_dir: Option<std::path::PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            password: None,
            clients_max: 10_000,
            idle_timeout: None,
            output: OutputLimits::default(),
            client_bytes_max: 1 << 30,
            slowlog_us: 10_000,
            slowlog_len: 128,
            latency_ms: 0,
            listpack_entries: 128,
            listpack_value: 64,
            sync_writes: false,
            durability: "interval:1s".into(),
            read_only: false,
            port: 6379,
            listen: Vec::new(),
            store: String::new(),
            dir: String::new(),
            protected: true,
            fast_bytes_max: 0,
            index_bytes_max: 0,
            capacity: String::new(),
            capacity_bytes_max: 0,
            compression: "",
            persist_granule: String::new(),
            io_bytes_per_s: 0,
            backup_dir: None,
        }
    }
}

/// All names CONFIG GET knows.
pub const PARAMETERS: &[&str] = &[
    "appendfsync",
    "appendonly",
    "bind",
    "capacity",
    "capacity-bytes-max",
    "client-output-buffer-limit",
    "client-query-buffer-limit",
    "cluster-enabled",
    "compression",
    "databases",
    "dir",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "hash-max-ziplist-entries",
    "hash-max-ziplist-value",
    "index-bytes-max",
    "io-bytes-per-s",
    "latency-monitor-threshold",
    "maxclients",
    "maxmemory",
    "maxmemory-clients",
    "maxmemory-policy",
    "persist-granule",
    "port",
    "protected-mode",
    "proto-max-bulk-len",
    "requirepass",
    "save",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "tcp-keepalive",
    "timeout",
];

impl Settings {
    /// Whether `given` is the password; takes the same time wherever they differ.
    pub fn is_password(&self, given: &[u8]) -> bool {
        match &self.password {
            None => true,
            Some(password) => bool::from(password.as_slice().ct_eq(given)),
        }
    }

    /// The value of a parameter as CONFIG GET shows it.
    pub fn get(&self, name: &str) -> Option<String> {
        let yes = |value: bool| if value { "yes" } else { "no" }.to_string();
        Some(match name {
            "appendfsync" if self.sync_writes => "always".into(),
            "appendfsync" if self.durability == "process" => "no".into(),
            "appendfsync" => "everysec".into(),
            "appendonly" => yes(true),
            "bind" => self.listen.join(" "),
            "capacity" => self.capacity.clone(),
            "capacity-bytes-max" => self.capacity_bytes_max.to_string(),
            "client-output-buffer-limit" => format!(
                "normal {} {} {} slave 0 0 0 pubsub 0 0 0",
                self.output.hard,
                self.output.soft,
                self.output.soft_time.as_secs()
            ),
            "client-query-buffer-limit" => limits::COMMAND_BYTES_MAX.to_string(),
            "cluster-enabled" => yes(false),
            "compression" => self.compression.into(),
            "databases" => limits::DATABASES.to_string(),
            "dir" => self.dir.clone(),
            "hash-max-listpack-entries" | "hash-max-ziplist-entries" => self.listpack_entries.to_string(),
            "hash-max-listpack-value" | "hash-max-ziplist-value" => self.listpack_value.to_string(),
            "index-bytes-max" => self.index_bytes_max.to_string(),
            "io-bytes-per-s" => self.io_bytes_per_s.to_string(),
            "latency-monitor-threshold" => self.latency_ms.to_string(),
            "maxclients" => self.clients_max.to_string(),
            "maxmemory" => self.fast_bytes_max.to_string(),
            "maxmemory-clients" => self.client_bytes_max.to_string(),
            "maxmemory-policy" => "noeviction".into(),
            "persist-granule" => self.persist_granule.clone(),
            "port" => self.port.to_string(),
            "proto-max-bulk-len" => limits::ARGUMENT_BYTES_MAX.to_string(),
            "protected-mode" => yes(self.protected),
            "requirepass" => String::from_utf8_lossy(self.password.as_deref().unwrap_or(b"")).into_owned(),
            "save" => String::new(),
            "slowlog-log-slower-than" => self.slowlog_us.to_string(),
            "slowlog-max-len" => self.slowlog_len.to_string(),
            "tcp-keepalive" => limits::KEEPALIVE.as_secs().to_string(),
            // Rounded up: 0 is never.
            "timeout" => self.idle_timeout.map_or(0, |time| time.as_millis().div_ceil(1000)).to_string(),
            _ => return None,
        })
    }

    /// Whether anybody may do anything, though that is not meant, once there is no password.
    fn would_be_open(&self) -> bool {
        let is_loopback = |listen: &String| listen.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        self.protected && !self.listen.iter().all(is_loopback)
    }

    /// Changes a parameter; the error is the reason, without a code.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let integer = |min: i64, max: i64| {
            number::parse_i64(value)
                .filter(|n| (min..=max).contains(n))
                .ok_or_else(|| format!("argument must be between {min} and {max} inclusive"))
        };
        match name {
            "hash-max-listpack-entries" | "hash-max-ziplist-entries" => {
                self.listpack_entries = integer(0, i64::MAX)? as usize;
            }
            "hash-max-listpack-value" | "hash-max-ziplist-value" => {
                self.listpack_value = integer(0, i64::MAX)? as usize;
            }
            "latency-monitor-threshold" => self.latency_ms = integer(0, i64::MAX / 1000)?,
            "maxclients" => {
                let wanted = integer(1, 1_000_000)? as usize;
                let room = open_files::make_room_for(wanted);
                if room < wanted {
                    return Err(format!(
                        "The operating system is not able to handle the specified number of clients, try with {room}"
                    ));
                }
                self.clients_max = wanted;
            }
            "maxmemory-clients" => {
                self.client_bytes_max = integer(limits::CLIENT_BYTES_MIN as i64, i64::MAX)? as usize;
            }
            "requirepass" if value.is_empty() && self.would_be_open() => {
                return Err(
                    "others can reach the server from other machines, and protected mode is on".into()
                );
            }
            "requirepass" => self.password = (!value.is_empty()).then(|| value.to_vec()),
            "slowlog-log-slower-than" => self.slowlog_us = integer(-1, i64::MAX)?,
            "slowlog-max-len" => self.slowlog_len = integer(0, 1_000_000)? as usize,
            "timeout" => {
                let seconds = integer(0, i64::from(i32::MAX))? as u64;
                self.idle_timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            "client-output-buffer-limit" => self.output = parse_output_limits(self.output, value)?,
            name if PARAMETERS.contains(&name) => return Err("can't set immutable config".into()),
            _ => return Err("unknown".into()),
        }
        Ok(())
    }
}

/// Classes of clients that Redis has limits of, and of which there are none here.
const OTHER_CLASSES: [&str; 3] = ["slave", "replica", "pubsub"];

/// The limits of normal clients, `before` unless `value` has them among those of one or more classes.
fn parse_output_limits(before: OutputLimits, value: &[u8]) -> Result<OutputLimits, String> {
    let wrong = || "Wrong number of arguments in buffer limit configuration.".to_string();
    let text = std::str::from_utf8(value).map_err(|_| wrong())?;
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    if words.is_empty() {
        return Err(wrong());
    }
    let mut limits = before;
    for words in words.chunks(4) {
        let [class, hard, soft, seconds] = words else { return Err(wrong()) };
        let is_normal = class.eq_ignore_ascii_case("normal");
        if !is_normal && !OTHER_CLASSES.iter().any(|other| class.eq_ignore_ascii_case(other)) {
            return Err("Invalid client class specified in buffer limit configuration.".into());
        }
        let (Some(hard), Some(soft), Ok(seconds)) = (parse_bytes(hard), parse_bytes(soft), seconds.parse())
        else {
            return Err("Error in hard, soft or soft_seconds setting in buffer limit configuration.".into());
        };
        if is_normal && (hard == 0 || soft == 0) {
            return Err("normal clients have both limits: 0, which is none in Redis, is not taken".into());
        }
        if is_normal {
            let soft_time = Duration::from_secs(seconds);
            limits = OutputLimits { hard: hard as usize, soft: soft as usize, soft_time };
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_a_value() {
        let settings = Settings::default();
        for name in PARAMETERS {
            assert!(settings.get(name).is_some(), "{name}");
        }
        assert!(PARAMETERS.is_sorted());
    }

    #[test]
    fn sets_what_it_may() {
        let mut settings = Settings::default();
        settings.set("timeout", b"5").unwrap();
        assert_eq!(settings.idle_timeout, Some(Duration::from_secs(5)));
        assert!(settings.set("timeout", b"-5").is_err());
        assert_eq!(settings.set("port", b"1"), Err("can't set immutable config".into()));
        assert_eq!(settings.set("nonsense", b"1"), Err("unknown".into()));
        settings.set("client-output-buffer-limit", b"normal 1mb 512kb 3").unwrap();
        assert_eq!(settings.output.hard, 1 << 20);
    }

    /// As tools do that write back what they have read.
    #[test]
    fn what_is_shown_can_be_set() {
        // As many clients as any machine has files for.
        let settings = Settings { clients_max: 10, ..Settings::default() };
        let shown =
            |settings: &Settings| PARAMETERS.iter().map(|name| settings.get(name)).collect::<Vec<_>>();
        let mut taken = Vec::new();
        for name in PARAMETERS {
            let mut again = settings.clone();
            match again.set(name, settings.get(name).unwrap().as_bytes()) {
                Ok(()) => taken.push(*name),
                Err(reason) => assert_eq!(reason, "can't set immutable config", "{name}"),
            }
            assert_eq!(shown(&again), shown(&settings), "{name}");
        }
        assert!(taken.contains(&"client-output-buffer-limit") && taken.contains(&"timeout"), "{taken:?}");
    }

    #[test]
    fn limits_of_replies_are_those_of_normal_clients() {
        let mut settings = Settings::default();
        let mut set = |value: &str| {
            let outcome = settings.set("client-output-buffer-limit", value.as_bytes());
            outcome.map(|()| settings.get("client-output-buffer-limit").unwrap())
        };
        let shown = |normal: &str| -> Result<String, String> {
            Ok(format!("normal {normal} slave 0 0 0 pubsub 0 0 0"))
        };
        assert_eq!(set("pubsub 32mb 8mb 60"), shown("268435456 67108864 60"));
        assert_eq!(set("replica 256mb 64mb 60 NORMAL 2mb 1mb 5 pubsub 0 0 0"), shown("2097152 1048576 5"));
        assert_eq!(set("slave 0 0 0"), shown("2097152 1048576 5"));
        for (value, why) in [
            ("", "Wrong number"),
            ("normal 1mb 1mb", "Wrong number"),
            ("normal 1mb 1mb 1 pubsub 1", "Wrong number"),
            ("master 1mb 1mb 1", "Invalid client class"),
            ("pubsub x 1mb 1", "Error in hard"),
            ("normal 1mb 1mb -1", "Error in hard"),
            ("normal 0 0 0", "0, which is none in Redis, is not taken"),
            ("pubsub 0 0 0 normal 1mb 0 0", "0, which is none in Redis, is not taken"),
        ] {
            let refused = set(value).unwrap_err();
            assert!(refused.contains(why), "{value}: {refused}");
        }
        // Whatever comes before what is refused.
        assert_eq!(set("pubsub 0 0 0"), shown("2097152 1048576 5"));
    }

    #[test]
    fn a_short_time_is_not_shown_as_never() {
        let shown = |ms| Settings { idle_timeout: Some(Duration::from_millis(ms)), ..Settings::default() };
        assert_eq!([1, 1000, 1001].map(|ms| shown(ms).get("timeout").unwrap()), ["1", "1", "2"]);
        assert_eq!(Settings::default().get("timeout").unwrap(), "0");
    }

    #[test]
    fn the_password_stays_where_others_could_do_anything_without() {
        let with_password = |listen: &[&str], protected| Settings {
            password: Some(b"secret".to_vec()),
            listen: listen.iter().map(|ip| ip.to_string()).collect(),
            protected,
            ..Settings::default()
        };
        let mut open = with_password(&["127.0.0.1", "0.0.0.0"], true);
        assert!(open.set("requirepass", b"").is_err());
        assert!(open.set("requirepass", b"other").is_ok());
        assert_eq!(open.password.as_deref(), Some(&b"other"[..]));
        for (listen, protected) in [(&["127.0.0.1", "::1"][..], true), (&["0.0.0.0"][..], false)] {
            let mut settings = with_password(listen, protected);
            assert!(settings.set("requirepass", b"").is_ok());
            assert_eq!(settings.password, None);
        }
    }

    #[test]
    fn compares_passwords() {
        let settings = Settings { password: Some(b"secret".to_vec()), ..Settings::default() };
        assert!(settings.is_password(b"secret"));
        assert!(!settings.is_password(b"secre"));
        assert!(!settings.is_password(b"secreT"));
        assert!(Settings::default().is_password(b"anything"));
    }
}
