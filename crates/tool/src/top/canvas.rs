//! A picture of letters: what stands in each place of a screen, and in which tone.
//!
//! Owns the places, and which letters may stand there. Promises that whatever a server calls things, a terminal is told nothing but letters that take one place; that nothing is drawn beyond them, and that a picture is the same on a screen, as text, and in a test. Must not know what is drawn,
//! nor of terminals.

/// How letters stand out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// As usual.
    #[default]
    Plain,
    /// Of less interest.
    Dim,
    /// A heading.
    Strong,
    /// A drawn line or bar.
    Accent,
    /// To be looked at.
    Warn,
    /// Wrong.
    Bad,
}

/// One place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Glyph {
    letter: char,
    tone: Tone,
}

const BLANK: Glyph = Glyph { letter: ' ', tone: Tone::Plain };

/// A picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canvas {
    width: usize,
    rows: Vec<Vec<Glyph>>,
}

impl Canvas {
    /// An empty one.
    pub fn new(width: usize, height: usize) -> Canvas {
        Canvas { width, rows: vec![vec![BLANK; width]; height] }
    }

    /// Places in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.rows.len()
    }

    /// Writes letters that take one place each, as far as there are places; says where the next one would stand.
    pub fn put(&mut self, x: usize, y: usize, text: &str, tone: Tone) -> usize {
        let mut end = x;
        for letter in text.chars() {
            if let Some(place) = self.rows.get_mut(y).and_then(|row| row.get_mut(end)) {
                *place = Glyph { letter: harmless(letter), tone };
            }
            end += 1;
        }
        end
    }

    /// Whether a row is the same in both.
    pub fn has_row_of(&self, other: &Canvas, y: usize) -> bool {
        self.width == other.width && self.rows.get(y) == other.rows.get(y)
    }

    /// A row in pieces of one tone, without the blanks at its end.
    pub fn pieces(&self, y: usize) -> Vec<(String, Tone)> {
        let row = self.rows.get(y).map_or(&[][..], Vec::as_slice);
        let len = row.iter().rposition(|glyph| *glyph != BLANK).map_or(0, |last| last + 1);
        let mut pieces: Vec<(String, Tone)> = Vec::new();
        for glyph in &row[..len] {
            match pieces.last_mut() {
                Some((text, tone)) if *tone == glyph.tone => text.push(glyph.letter),
                _ => pieces.push((glyph.letter.to_string(), glyph.tone)),
            }
        }
        pieces
    }

    /// All of it as lines of text.
    pub fn text(&self) -> String {
        let line = |row: &Vec<Glyph>| {
            let letters: String = row.iter().map(|glyph| glyph.letter).collect();
            format!("{}\n", letters.trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

/// A letter that takes one place and that no terminal obeys.
fn harmless(letter: char) -> char {
    match letter {
        ' '..='~' | '·' | '…' | '\u{2500}'..='\u{259f}' => letter,
        _ => '?',
    }
}

/// A line of such letters.
pub fn harmless_line(text: &str) -> String {
    text.chars().map(harmless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_place_is_not_drawn() {
        let mut canvas = Canvas::new(5, 2);
        assert_eq!(canvas.put(3, 0, "abc", Tone::Plain), 6);
        assert_eq!(canvas.put(0, 1, "▁x", Tone::Bad), 2);
        canvas.put(0, 2, "below", Tone::Plain);
        assert_eq!(canvas.text(), "   ab\n▁x\n");
        Canvas::new(0, 0).put(0, 0, "nowhere", Tone::Plain);
    }

    #[test]
    fn rows_come_in_pieces_of_one_tone() {
        let mut canvas = Canvas::new(10, 2);
        let end = canvas.put(0, 0, "ab", Tone::Warn);
        canvas.put(end + 1, 0, "c", Tone::Plain);
        assert_eq!(canvas.pieces(0), [("ab".to_string(), Tone::Warn), (" c".to_string(), Tone::Plain)]);
        assert_eq!((canvas.pieces(1).len(), canvas.pieces(7).len()), (0, 0));
        let mut other = canvas.clone();
        assert!(canvas.has_row_of(&other, 0));
        other.put(0, 0, "a", Tone::Plain);
        assert!(!canvas.has_row_of(&other, 0) && canvas.has_row_of(&other, 1));
    }
}
