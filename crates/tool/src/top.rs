//! A live picture of a running server in the terminal: `hedgerow top`.
//!
//! Owns the command's options, and the choice between one picture as text and one that lives. The work is in the modules: [`client`] (asking the
//! server), [`sample`] (what it answered), [`rates`] (what two answers say together), [`monitor`] (what is known, and for how long),
//! [`screen`] (what of it is shown where, on a [`canvas`]), [`terminal`] (the only one that knows of a terminal), [`keys`] (what they ask for), [`live`] (time, and a
//! server that goes away). Promises: a server that cannot be asked at the start is one plain line; what a server does not tell is shown as `-`, never as 0;
//! nothing of the server changes but its counts of connections and commands.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::units::parse_duration;

pub mod canvas;
pub mod client;
pub mod figures;
pub mod keys;
pub mod live;
pub mod monitor;
pub mod rates;
pub mod sample;
pub mod screen;
pub mod strip;
pub mod terminal;

use client::{RespClient, ServerAddress};
use monitor::Monitor;

/// How wide a picture is that is printed as text.
const TEXT_WIDTH: usize = 100;
/// What the server may be asked in, at the quickest and at the slowest.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Arguments of `hedgerow top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// The server's host: a name or an address.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The server's port.
    #[arg(long, default_value_t = 6379)]
    port: u16,
    /// The server's password.
    #[arg(long, env = "REDISCLI_AUTH", hide_env_values = true)]
    password: Option<TopPassword>,
    /// How often the server is asked: 100ms to 1m.
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one picture as text, after one interval, and end; so it is where standard output is no terminal.
    #[arg(long)]
    once: bool,
}

/// A password that no picture of the arguments shows.
#[derive(Clone)]
struct TopPassword(String);

impl From<String> for TopPassword {
    fn from(text: String) -> TopPassword {
        TopPassword(text)
    }
}

impl std::fmt::Debug for TopPassword {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("***")
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no interval: 100ms to 1m");
    parse_duration(text).filter(|interval| INTERVALS.contains(interval)).ok_or_else(wrong)
}

/// Shows the server until the user has seen enough.
pub fn run(args: TopArgs) -> Result<(), String> {
    // What a server says is part of it.
    show(args).map_err(|line| canvas::harmless_line(&line))
}

fn show(args: TopArgs) -> Result<(), String> {
    let password = args.password.map(|password| password.0).filter(|password| !password.is_empty());
    let address = ServerAddress::new(args.host, args.port, password);
    let mut client = RespClient::connect(&address)?;
    let mut monitor = Monitor::new(address.to_string(), args.interval);
    monitor.take(client.sample()?);
    if !args.once && std::io::stdout().is_terminal() {
        return live::run(address, client, monitor);
    }
    std::thread::sleep(args.interval);
    monitor.take(client.sample()?);
    let picture = screen::text(&monitor, Instant::now(), TEXT_WIDTH);
    let written = std::io::stdout().write_all(picture.as_bytes());
    written.map_err(|error| format!("the picture can not be printed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TopLine {
        #[command(flatten)]
        args: TopArgs,
    }

    #[test]
    fn arguments_are_shown_without_the_password() {
        let line = <TopLine as clap::Parser>::try_parse_from(["top", "--password", "open sesame"]).unwrap();
        assert_eq!(line.args.password.as_ref().unwrap().0, "open sesame");
        let shown = format!("{line:?}");
        assert!(shown.contains("password: Some(***)") && !shown.contains("sesame"), "{shown}");
    }
}
