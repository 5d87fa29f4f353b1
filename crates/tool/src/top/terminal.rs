//! The terminal: taken as a whole, painted, and given back as it was.
//!
//! Owns what is told to the terminal. Promises that it is given back however the program ends or is stopped, by a panic or a signal that can be caught, before anything is said of it, and taken again when the program
//! goes on; that a terminal which takes nothing can not keep a signal from ending the program, and that a signal which whoever started it ignores does not; and that only rows that changed are painted. Must not know what is drawn.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use hedgerow_device::spawn;
use rustix::io::Errno;
use rustix::process::{Signal, kill_current_process_group};
use rustix::stdio::stdout;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::canvas::{Canvas, Tone};
use crate::process::{self, Standing};

/// How long a terminal that takes nothing may delay the end by a signal.
const LAST_WORD_TIME_MAX: Duration = Duration::from_millis(200);
/// What a terminal counts as that does not know its size.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// Whether the terminal is ours now.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
/// Its size was changed, maybe there and back.
static WAS_RESIZED: AtomicBool = AtomicBool::new(false);
/// The program was stopped and goes on: somebody else had the terminal.
static WAS_CONTINUED: AtomicBool = AtomicBool::new(false);
/// A signal is about to end the program: the terminal is not taken again.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Its settings as they were.
static BEFORE: OnceLock<Termios> = OnceLock::new();
static GIVES_BACK_ON_PANIC: Once = Once::new();

/// The whole terminal, for as long as this lives.
pub struct WholeTerminal {
    painted: Option<Canvas>,
}

impl WholeTerminal {
    /// Takes it: what stood there is put away.
    pub fn take() -> io::Result<WholeTerminal> {
        GIVES_BACK_ON_PANIC.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        let terminal = WholeTerminal { painted: None };
        WholeTerminal::put_away()?;
        Ok(terminal)
    }

    /// Takes the settings and the screen.
    fn put_away() -> io::Result<()> {
        let before = tcgetattr(stdout())?;
        let mut raw = BEFORE.get_or_init(|| before).clone();
        raw.make_raw();
        IS_TAKEN.store(true, Ordering::SeqCst);
        tcsetattr(stdout(), OptionalActions::Now, &raw)?;
        let mut bytes = Vec::new();
        queue!(bytes, EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        write_out(&bytes)?;
        // A signal may have given it back meanwhile, for good.
        if IS_ENDING.load(Ordering::SeqCst) {
            give_back();
        }
        Ok(())
    }

    /// Columns and rows now.
    pub fn size(&self) -> (usize, usize) {
        tcgetwinsize(stdout()).map_or(USUAL_SIZE, |size| known_size(size.ws_col.into(), size.ws_row.into()))
    }

    /// Paints all of the next picture: who knows what stands there.
    pub fn forget(&mut self) {
        self.painted = None;
    }

    /// Shows a picture.
    pub fn paint(&mut self, canvas: Canvas) -> io::Result<()> {
        if WAS_CONTINUED.swap(false, Ordering::SeqCst) {
            WholeTerminal::put_away()?;
            self.forget();
        }
        // A thread that panics, or a signal, gives it back under our hands.
        if !IS_TAKEN.load(Ordering::SeqCst) {
            return Ok(());
        }
        if WAS_RESIZED.swap(false, Ordering::SeqCst) {
            self.forget();
        }
        write_out(&painting(self.painted.as_ref(), &canvas)?)?;
        self.painted = Some(canvas);
        Ok(())
    }
}

impl Drop for WholeTerminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// From now on a signal ends the program or stops it, whatever its other threads wait for; the terminal is given back before, if it lets us. One that was ignored when the program began, as `nohup` has it, is ignored.
pub fn heed_signals() -> io::Result<()> {
    let heeded =
        [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP].into_iter().filter(|signal| !process::ignores(*signal));
    let mut signals = Signals::new(heeded.chain([SIGWINCH, SIGCONT]))?;
    spawn("signals", move || {
        for signal in signals.forever() {
            match signal {
                SIGWINCH => WAS_RESIZED.store(true, Ordering::SeqCst),
                SIGCONT => WAS_CONTINUED.store(true, Ordering::SeqCst),
                SIGTSTP if is_nobody_to_continue() => {}
                SIGTSTP => {
                    give_back_in_time();
                    // Here the program stands until it is told to go on.
                    emulate_default_handler(SIGTSTP).ok();
                }
                ends => {
                    IS_ENDING.store(true, Ordering::SeqCst);
                    give_back_in_time();
                    std::process::exit(128 + ends);
                }
            }
        }
    })?;
    Ok(())
}

/// Stops the program, and what was started together with it, as Ctrl-Z does where a terminal is not raw.
pub fn suspend() -> io::Result<()> {
    if !process::ignores(SIGTSTP) && !is_nobody_to_continue() {
        kill_current_process_group(Signal::TSTP)?;
    }
    Ok(())
}

/// Whether the program's process group is orphaned: no shell with job control started it, which would have it go on. The
/// system would not stop it either.
fn is_nobody_to_continue() -> bool {
    let Some(own) = Standing::own() else { return true };
    let mut above = Standing::of(own.parent);
    // A shell without job control is in the group of what it starts, and may be stopped together with it.
    while let Some(parent) = above.filter(|parent| parent.session == own.session) {
        if parent.group != own.group {
            return false;
        }
        above = Standing::of(parent.parent);
    }
    true
}

/// [`give_back`], if the terminal lets us before long.
fn give_back_in_time() {
    let (sender, done) = channel();
    let given_back = spawn("terminal", move || {
        give_back();
        sender.send(()).ok();
    });
    if given_back.is_ok() {
        done.recv_timeout(LAST_WORD_TIME_MAX).ok();
    }
}

/// Gives it back: the settings first, which waits for nothing; the rest once.
fn give_back() {
    // Nobody is left to be told of a failure.
    if let Some(before) = BEFORE.get() {
        tcsetattr(stdout(), OptionalActions::Now, before).ok();
    }
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let mut bytes = Vec::new();
        drop(queue!(bytes, SetAttribute(Attribute::Reset), LeaveAlternateScreen, Show));
        drop(write_out(&bytes));
    }
}

/// To the terminal itself, past the lock of standard output: who holds that may wait for ever.
fn write_out(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stdout(), bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn known_size(width: usize, height: usize) -> (usize, usize) {
    if width == 0 || height == 0 { USUAL_SIZE } else { (width, height) }
}

/// What makes of the picture before this one: rows that are the same are left as they are.
fn painting(before: Option<&Canvas>, canvas: &Canvas) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let before =
        before.filter(|before| (before.width(), before.height()) == (canvas.width(), canvas.height()));
    if before.is_none() {
        queue!(bytes, Clear(ClearType::All))?;
    }
    let is_changed = |y: &usize| before.is_none_or(|before| !canvas.has_row_of(before, *y));
    for y in (0..canvas.height()).filter(is_changed) {
        queue!(bytes, MoveTo(0, u16::try_from(y).unwrap_or(u16::MAX)), Clear(ClearType::CurrentLine))?;
        for (text, tone) in canvas.pieces(y) {
            match tone {
                Tone::Plain => {}
                Tone::Dim => queue!(bytes, SetAttribute(Attribute::Dim))?,
                Tone::Strong => queue!(bytes, SetAttribute(Attribute::Bold))?,
                Tone::Accent => queue!(bytes, SetForegroundColor(Color::Cyan))?,
                Tone::Warn => queue!(bytes, SetForegroundColor(Color::Yellow))?,
                Tone::Bad => queue!(bytes, SetAttribute(Attribute::Bold), SetForegroundColor(Color::Red))?,
            }
            queue!(bytes, Print(text), SetAttribute(Attribute::Reset))?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canvas(rows: &[&str], width: usize) -> Canvas {
        let mut canvas = Canvas::new(width, rows.len());
        for (y, text) in rows.iter().enumerate() {
            canvas.put(0, y, text, Tone::Plain);
        }
        canvas
    }

    fn painted(before: Option<&Canvas>, canvas: &Canvas) -> String {
        String::from_utf8(painting(before, canvas).unwrap()).unwrap()
    }

    #[test]
    fn only_rows_that_changed_are_painted() {
        let (first, second) = (canvas(&["one", "two", "three"], 10), canvas(&["one", "2", "three"], 10));
        let all = painted(None, &first);
        assert!(
            all.starts_with("\x1b[2J") && ["one", "two", "three"].iter().all(|row| all.contains(row)),
            "{all:?}"
        );
        let change = painted(Some(&first), &second);
        assert!(change.contains("\x1b[2;1H\x1b[2K2"), "{change:?}");
        assert!(!change.contains("one") && !change.contains("three"), "{change:?}");
        assert_eq!(painted(Some(&first), &first), "");
        // Of another size nothing is left as it was.
        assert_eq!(painted(Some(&canvas(&["one", "two", "three"], 11)), &first), all);
    }

    #[test]
    fn a_terminal_without_a_size_is_a_usual_one() {
        assert_eq!([known_size(0, 0), known_size(100, 0), known_size(0, 9)], [USUAL_SIZE; 3]);
        assert_eq!(known_size(1, 2), (1, 2));
    }
}
