//! The terminal: taken as a whole, painted, and given back as it was.
//!
//! Owns what is told to the terminal. Promises that it is given back however the program ends, by a panic or a signal that can be caught, before anything is said of it; and that only rows
//! that changed are painted. Must not know what is drawn.

use std::io::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};

use super::canvas::{Canvas, Tone};

/// Whether the terminal is ours now.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
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
        enable_raw_mode()?;
        IS_TAKEN.store(true, Ordering::SeqCst);
        let terminal = WholeTerminal { painted: None };
        let mut bytes = Vec::new();
        queue!(bytes, EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        write_out(&bytes)?;
        Ok(terminal)
    }

    /// Columns and rows now.
    pub fn size(&self) -> io::Result<(usize, usize)> {
        let (width, height) = size()?;
        Ok((width.into(), height.into()))
    }

    /// Shows a picture.
    pub fn paint(&mut self, canvas: Canvas) -> io::Result<()> {
        // A thread that panics gives it back under our hands.
        if !IS_TAKEN.load(Ordering::SeqCst) {
            return Ok(());
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

/// Gives it back, once.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let mut bytes = Vec::new();
        // Nobody is left to be told of a failure.
        drop(queue!(bytes, SetAttribute(Attribute::Reset), LeaveAlternateScreen, Show));
        drop(write_out(&bytes));
        drop(disable_raw_mode());
    }
}

fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
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
}
