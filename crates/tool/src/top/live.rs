//! The picture that lives: keys, time, and a server that goes away and comes back.
//!
//! Owns the loop, and the thread that asks. Promises that keys are obeyed while the server does not answer, that at most one question is under way,
//! and that the program ends by a key, a signal or the end of the terminal, not because of the server. Must not know what is asked, nor how it is drawn.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use hedgerow_device::spawn;

use super::client::{RespClient, ServerAddress};
use super::keys::{KeyReader, Wish, listen};
use super::monitor::Monitor;
use super::sample::ServerSample;
use super::screen;
use super::terminal::{WholeTerminal, heed_signals, suspend};

/// How long an answer may go unseen, and an Esc wait for what may belong to it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Shows the server until the user quits.
pub fn run(address: ServerAddress, client: RespClient, mut monitor: Monitor) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the terminal can not be used: {error}");
    heed_signals().map_err(|error| format!("signals can not be handled: {error}"))?;
    let asker = Asker::start(address, client)?;
    let keys = listen().map_err(failed)?;
    let mut reader = KeyReader::default();
    let mut terminal = WholeTerminal::take().map_err(failed)?;
    let mut due = Instant::now() + monitor.interval();
    let mut is_asked = false;
    loop {
        let (width, height) = terminal.size();
        terminal.paint(screen::draw(&monitor, Instant::now(), width, height)).map_err(failed)?;
        let wishes: Vec<Wish> = match keys.recv_timeout(LOOK_EVERY) {
            Ok(bytes) => bytes.into_iter().filter_map(|byte| reader.take(byte)).collect(),
            Err(RecvTimeoutError::Timeout) => reader.lapse().into_iter().collect(),
            Err(RecvTimeoutError::Disconnected) => return Err("the terminal has gone".to_string()),
        };
        for wish in wishes {
            match wish {
                Wish::Quit => return Ok(()),
                Wish::Repaint => terminal.forget(),
                Wish::Suspend => suspend().map_err(failed)?,
                of_monitor => obey(&mut monitor, of_monitor),
            }
        }
        if let Some(answer) = asker.answer()? {
            is_asked = false;
            match answer {
                Ok(sample) => monitor.take(sample),
                Err(reason) => monitor.miss(reason, Instant::now()),
            }
        }
        let now = Instant::now();
        due = due.min(now + monitor.interval());
        if now >= due && !is_asked && !monitor.is_paused() {
            asker.ask()?;
            (is_asked, due) = (true, now + monitor.interval());
        }
    }
}

fn obey(monitor: &mut Monitor, wish: Wish) {
    match wish {
        Wish::Pause => monitor.toggle_pause(),
        Wish::Help => monitor.toggle_help(),
        Wish::Longer => monitor.change_interval(true),
        Wish::Shorter => monitor.change_interval(false),
        Wish::Quit | Wish::Repaint | Wish::Suspend => {}
    }
}

/// The thread that waits for the server, so that nobody else has to.
struct Asker {
    questions: Sender<()>,
    answers: Receiver<Result<ServerSample, String>>,
}

impl Asker {
    fn start(address: ServerAddress, client: RespClient) -> Result<Asker, String> {
        let (questions, asked) = channel::<()>();
        let (answer, answers) = channel();
        let mut client = Some(client);
        // It ends when the sender of questions is gone, or with the process.
        spawn("top", move || {
            while asked.recv().is_ok() {
                let outcome = ask(&address, &mut client);
                if answer.send(outcome).is_err() {
                    break;
                }
            }
        })
        .map_err(|error| format!("no thread can be started: {error}"))?;
        Ok(Asker { questions, answers })
    }

    fn ask(&self) -> Result<(), String> {
        self.questions.send(()).map_err(|_| ended())
    }

    fn answer(&self) -> Result<Option<Result<ServerSample, String>>, String> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ended()),
        }
    }
}

fn ended() -> String {
    "the thread that asks the server has ended".to_string()
}

/// Asks over the connection there is, or over a new one. One that failed once is given up.
fn ask(address: &ServerAddress, client: &mut Option<RespClient>) -> Result<ServerSample, String> {
    let mut connected = match client.take() {
        Some(connected) => connected,
        None => RespClient::connect(address)?,
    };
    let sample = connected.sample()?;
    *client = Some(connected);
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_change_what_is_asked_and_shown() {
        let mut monitor = Monitor::new("x".into(), Duration::from_secs(1));
        for wish in [Wish::Longer, Wish::Pause, Wish::Help, Wish::Repaint] {
            obey(&mut monitor, wish);
        }
        assert_eq!(monitor.interval(), Duration::from_secs(2));
        assert!(monitor.is_paused() && monitor.shows_help());
        obey(&mut monitor, Wish::Shorter);
        assert_eq!(monitor.interval(), Duration::from_secs(1));
    }
}
