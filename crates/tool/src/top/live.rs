//! The picture that lives: keys, time, and a server that goes away and comes back.
//!
//! Owns the loop, and the thread that asks. Promises that keys are obeyed while the server does not answer, that at most one question is under way,
//! and that the program ends by a key or a signal, not because of the server. Must not know what is asked, nor how it is drawn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use hedgerow_device::spawn;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::client::{RespClient, ServerAddress};
use super::monitor::Monitor;
use super::sample::ServerSample;
use super::screen;
use super::terminal::WholeTerminal;

/// How long an answer, or a signal, may go unseen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Quit,
    Pause,
    Help,
    Longer,
    Shorter,
}

/// Shows the server until the user quits.
pub fn run(address: ServerAddress, client: RespClient, mut monitor: Monitor) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the terminal can not be used: {error}");
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&is_over));
        registered.map_err(|error| format!("signals can not be handled: {error}"))?;
    }
    let asker = Asker::start(address, client)?;
    let mut terminal = WholeTerminal::take().map_err(failed)?;
    let mut due = Instant::now() + monitor.interval();
    let mut is_asked = false;
    while !is_over.load(Ordering::Relaxed) {
        let (width, height) = terminal.size().map_err(failed)?;
        terminal.paint(screen::draw(&monitor, Instant::now(), width, height)).map_err(failed)?;
        if event::poll(LOOK_EVERY).map_err(failed)? {
            match event::read().map_err(failed)? {
                Event::Key(key) if wish(key) == Some(Wish::Quit) => break,
                Event::Key(key) => obey(&mut monitor, wish(key)),
                _ => {}
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
    Ok(())
}

fn wish(key: KeyEvent) -> Option<Wish> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('p') => Some(Wish::Pause),
        KeyCode::Char('h' | '?') => Some(Wish::Help),
        KeyCode::Char('+' | '=') => Some(Wish::Longer),
        KeyCode::Char('-' | '_') => Some(Wish::Shorter),
        _ => None,
    }
}

fn obey(monitor: &mut Monitor, wish: Option<Wish>) {
    match wish {
        Some(Wish::Pause) => monitor.toggle_pause(),
        Some(Wish::Help) => monitor.toggle_help(),
        Some(Wish::Longer) => monitor.change_interval(true),
        Some(Wish::Shorter) => monitor.change_interval(false),
        Some(Wish::Quit) | None => {}
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
    fn keys_mean_what_the_screen_says() {
        let key = |code| wish(KeyEvent::new(code, KeyModifiers::NONE));
        for (letter, expected) in [
            ('q', Some(Wish::Quit)),
            ('p', Some(Wish::Pause)),
            ('h', Some(Wish::Help)),
            ('?', Some(Wish::Help)),
            ('+', Some(Wish::Longer)),
            ('-', Some(Wish::Shorter)),
            ('c', None),
            ('x', None),
        ] {
            assert_eq!(key(KeyCode::Char(letter)), expected, "{letter}");
        }
        assert_eq!(key(KeyCode::Esc), Some(Wish::Quit));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(wish(control_c), Some(Wish::Quit));
        let mut monitor = Monitor::new("x".into(), Duration::from_secs(1));
        obey(&mut monitor, Some(Wish::Longer));
        obey(&mut monitor, Some(Wish::Pause));
        obey(&mut monitor, Some(Wish::Help));
        obey(&mut monitor, None);
        assert_eq!(monitor.interval(), Duration::from_secs(2));
        assert!(monitor.is_paused() && monitor.shows_help());
    }
}
