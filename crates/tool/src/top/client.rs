//! A client of the Redis protocol (RESP2) that asks a server what it tells about itself.
//!
//! Owns the connection and the protocol. Promises that every failure is one plain line that names the server, that no answer is waited for without end,
//! or is read without end, and that nothing is allocated because of a declared length. Must not know what the answers mean.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::sample::ServerSample;

/// How long connecting may take, and a command from its first byte to the last of its answer.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
const COMMAND_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of a whole answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Bytes in a line and in a bulk string, items in an array, arrays in arrays.
const LINE_BYTES_MAX: u64 = 64 << 10;
const BULK_BYTES_MAX: u64 = 16 << 20;
const ITEMS_MAX: u64 = 64 << 10;
const DEPTH_MAX: u32 = 4;
/// What is asked of INFO: not the keyspace, for which a store of pairs comes by every table.
const SECTIONS: &[&str] =
    &["server", "clients", "memory", "persistence", "stats", "commandstats", "hedgerow", "sortedtables"];

/// Where a server is, and how to get in.
#[derive(Clone)]
pub struct ServerAddress {
    host: String,
    port: u16,
    password: Option<String>,
}

impl ServerAddress {
    /// Of this host and port.
    pub fn new(host: String, port: u16, password: Option<String>) -> ServerAddress {
        ServerAddress { host, port, password }
    }
}

/// As URLs have it; the password stays out.
impl fmt::Display for ServerAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(out, "[{}]:{}", self.host, self.port);
        }
        write!(out, "{}:{}", self.host, self.port)
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RespValue {
    /// A word, such as `OK`, or a bulk string.
    Text(Vec<u8>),
    /// A number.
    Integer(i64),
    /// Nothing.
    Nil,
    /// What the server could not do.
    Failure(String),
    /// Several.
    Array(Vec<RespValue>),
}

/// A connection of which a command takes so long at most, and its answer so many bytes.
struct BoundedStream {
    stream: TcpStream,
    time_max: Duration,
    deadline: Instant,
    bytes_left: u64,
}

impl BoundedStream {
    fn new(stream: TcpStream, time_max: Duration) -> BoundedStream {
        BoundedStream { stream, time_max, deadline: Instant::now() + time_max, bytes_left: 0 }
    }

    /// Another command begins.
    fn begin(&mut self) {
        (self.deadline, self.bytes_left) = (Instant::now() + self.time_max, ANSWER_BYTES_MAX);
    }

    fn time_left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for BoundedStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.bytes_left == 0 {
            return Err(io::Error::other(format!(
                "an answer of more than {ANSWER_BYTES_MAX} bytes is too much"
            )));
        }
        self.stream.set_read_timeout(Some(self.time_left()?))?;
        let len = bytes.len().min(usize::try_from(self.bytes_left).unwrap_or(usize::MAX));
        let count = self.stream.read(&mut bytes[..len])?;
        self.bytes_left -= count as u64;
        Ok(count)
    }
}

impl Write for BoundedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.time_left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// One connection.
pub struct RespClient {
    stream: BufReader<BoundedStream>,
    name: String,
}

impl RespClient {
    /// Connects, and says the password if there is one.
    pub fn connect(address: &ServerAddress) -> Result<RespClient, String> {
        let name = address.to_string();
        let stream = open(address).map_err(|error| format!("no connection to {name}: {error}"))?;
        let stream = BufReader::new(BoundedStream::new(stream, COMMAND_TIME_MAX));
        let mut client = RespClient { stream, name };
        if let Some(password) = &address.password
            && let RespValue::Failure(text) = client.command(&["AUTH", password])?
            // Who wants no password lets everybody in.
            && !text.contains("without any password configured")
        {
            return Err(format!("{} refuses the password: {text}", client.name));
        }
        // For who looks at CLIENT LIST; a server that knows no names goes without.
        client.command(&["CLIENT", "SETNAME", "hedgerow-top"])?;
        Ok(client)
    }

    /// Asks for all that is shown.
    pub fn sample(&mut self) -> Result<ServerSample, String> {
        let sent = Instant::now();
        self.answer(&["PING"])?;
        let round_trip = sent.elapsed();
        let mut words = vec!["INFO"];
        words.extend(SECTIONS);
        let RespValue::Text(info) = self.answer(&words)? else {
            return Err(format!("{} does not answer INFO with text", self.name));
        };
        let at = Instant::now();
        let mut sample = ServerSample::parse(&String::from_utf8_lossy(&info), at, round_trip);
        // A server that has no such command tells all it has in INFO.
        if let RespValue::Array(metrics) = self.command(&["HR.METRICS"])? {
            add_metrics(&mut sample, &metrics);
        }
        Ok(sample)
    }

    /// An answer that is no refusal.
    fn answer(&mut self, words: &[&str]) -> Result<RespValue, String> {
        match self.command(words)? {
            RespValue::Failure(text) if text.starts_with("NOAUTH") => {
                Err(format!("{} wants a password: --password, or REDISCLI_AUTH", self.name))
            }
            RespValue::Failure(text) => Err(format!("{} refuses {}: {text}", self.name, words[0])),
            value => Ok(value),
        }
    }

    /// Sends a command, and waits for its answer.
    fn command(&mut self, words: &[&str]) -> Result<RespValue, String> {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.stream.get_mut().begin();
        let sent = self.stream.get_mut().write_all(bytes.as_bytes());
        sent.and_then(|()| read_value(&mut self.stream, DEPTH_MAX)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("{} does not answer within {} s", self.name, COMMAND_TIME_MAX.as_secs())
            }
            io::ErrorKind::UnexpectedEof => format!("{} closed the connection", self.name),
            _ => format!("asking {}: {error}", self.name),
        })
    }
}

fn open(address: &ServerAddress) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::other("the host has no address"));
    for address in (address.host.as_str(), address.port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, CONNECT_TIME_MAX);
        if outcome.is_ok() {
            break;
        }
    }
    let stream = outcome?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Names and values, one after the other; what is no such pair is passed over.
fn add_metrics(sample: &mut ServerSample, metrics: &[RespValue]) {
    for pair in metrics.chunks_exact(2) {
        if let [RespValue::Text(name), RespValue::Integer(value)] = pair {
            sample.add_metric(&String::from_utf8_lossy(name), *value);
        }
    }
}

fn read_value(stream: &mut impl BufRead, depth: u32) -> io::Result<RespValue> {
    let line = read_line(stream)?;
    let text = String::from_utf8_lossy(&line).into_owned();
    let rest = text.get(1..).unwrap_or_default();
    let number = || rest.parse::<i64>().map_err(|_| not_resp(&text));
    match line.first() {
        Some(b'+') => Ok(RespValue::Text(rest.as_bytes().to_vec())),
        Some(b'-') => Ok(RespValue::Failure(rest.to_string())),
        Some(b':') => Ok(RespValue::Integer(number()?)),
        Some(b'$' | b'*') if number()? < 0 => Ok(RespValue::Nil),
        Some(b'$') => read_bulk(stream, number()? as u64, &text),
        Some(b'*') => {
            let count = number()? as u64;
            if count > ITEMS_MAX || depth == 0 {
                return Err(io::Error::other(format!("an answer of {count} items is too much")));
            }
            (0..count).map(|_| read_value(stream, depth - 1)).collect::<io::Result<_>>().map(RespValue::Array)
        }
        _ => Err(not_resp(&text)),
    }
}

fn not_resp(line: &str) -> io::Error {
    let said: String = line.chars().take(40).collect();
    io::Error::other(format!("this is not the Redis protocol: {said:?}"))
}

fn read_line(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    stream.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\n") && (line.len() as u64) < LINE_BYTES_MAX {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match line.strip_suffix(b"\r\n") {
        Some(text) => Ok(text.to_vec()),
        None => Err(not_resp(&String::from_utf8_lossy(&line))),
    }
}

/// The bytes that were promised, and the end of line behind them.
fn read_bulk(stream: &mut impl BufRead, len: u64, line: &str) -> io::Result<RespValue> {
    if len > BULK_BYTES_MAX {
        return Err(io::Error::other(format!("an answer of {len} bytes is too much")));
    }
    let mut bytes = Vec::new();
    stream.take(len + 2).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != len + 2 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match bytes.strip_suffix(b"\r\n") {
        Some(text) => Ok(RespValue::Text(text.to_vec())),
        None => Err(not_resp(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> Result<RespValue, String> {
        read_value(&mut &bytes[..], DEPTH_MAX).map_err(|error| error.to_string())
    }

    #[test]
    fn answers_are_read_as_they_are() {
        let text = |text: &str| RespValue::Text(text.into());
        assert_eq!(value(b"+OK\r\n"), Ok(text("OK")));
        assert_eq!(value(b"$4\r\na\r\nb\r\n"), Ok(text("a\r\nb")));
        assert_eq!(value(b"$0\r\n\r\n"), Ok(text("")));
        assert_eq!(value(b":-12\r\n"), Ok(RespValue::Integer(-12)));
        assert_eq!(value(b"$-1\r\n"), Ok(RespValue::Nil));
        assert_eq!(value(b"-ERR no\r\n"), Ok(RespValue::Failure("ERR no".into())));
        let array = RespValue::Array(vec![text("rows"), RespValue::Integer(3), RespValue::Array(vec![])]);
        assert_eq!(value(b"*3\r\n$4\r\nrows\r\n:3\r\n*0\r\n"), Ok(array));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for (bytes, why) in [
            (&b"SSH-2.0-x\r\n"[..], "not the Redis protocol: \"SSH-2.0-x\""),
            (b"\r\n", "not the Redis protocol"),
            (b"+OK\n", "not the Redis protocol"),
            (b":twelve\r\n", "not the Redis protocol"),
            (b"$3\r\nabcd\r\n", "not the Redis protocol"),
            (b"\xff\xfe\r\n", "not the Redis protocol"),
            (b"$99999999999\r\n", "too much"),
            (b"*99999999999\r\n", "too much"),
            (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "too much"),
            (b"*2\r\n:1\r\n", "end of file"),
            (b"$5\r\nab", "end of file"),
            (b"", "end of file"),
            (b"+O", "end of file"),
            (b"+OK\r", "end of file"),
        ] {
            let error = value(bytes).unwrap_err();
            assert!(error.contains(why), "{}: {error}", bytes.escape_ascii());
        }
        let line = [b"+".to_vec(), vec![b'a'; 1 << 20], b"\r\n".to_vec()].concat();
        assert!(value(&line).unwrap_err().contains("not the Redis protocol"));
    }

    #[test]
    fn addresses_are_shown_without_the_password() {
        let shown = |host: &str| ServerAddress::new(host.into(), 6379, Some("secret".into())).to_string();
        assert_eq!(shown("127.0.0.1"), "127.0.0.1:6379");
        assert_eq!(shown("::1"), "[::1]:6379");
    }

    /// What a client says of a peer that does this to a connection, and how long that took.
    fn said_of(peer: impl FnOnce(TcpStream) + Send + 'static) -> (String, Duration) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = std::thread::spawn(move || peer(listener.accept().unwrap().0));
        let stream = BufReader::new(BoundedStream::new(stream, Duration::from_millis(500)));
        let mut client = RespClient { stream, name: "it".into() };
        let begun = Instant::now();
        let said = client.command(&["PING"]).unwrap_err();
        let took = begun.elapsed();
        drop(client);
        peer.join().unwrap();
        (said, took)
    }

    #[test]
    fn a_peer_that_drips_is_not_waited_for() {
        let (said, took) = said_of(|mut stream| {
            // Until the other side has had enough.
            while stream.write_all(b"+").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(said, "it does not answer within 5 s");
        assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(4), "{took:?}");
    }

    #[test]
    fn a_peer_that_sends_too_much_is_not_read_to_the_end() {
        let (said, _) = said_of(|mut stream| {
            let bulk = [&b"$1048576\r\n"[..], &[b'x'; 1 << 20], b"\r\n"].concat();
            drop(stream.write_all(b"*64\r\n"));
            while stream.write_all(&bulk).is_ok() {}
        });
        assert!(said.ends_with("an answer of more than 16777216 bytes is too much"), "{said}");
        let (said, _) = said_of(|mut stream| {
            stream.read_exact(&mut [0; b"*1\r\n$4\r\nPING\r\n".len()]).unwrap();
            stream.write_all(b"+half a li").unwrap();
        });
        assert_eq!(said, "it closed the connection");
    }
}
