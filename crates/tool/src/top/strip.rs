//! One row of the picture: a name, and what belongs to it, from the left to the right.
//!
//! Owns how texts, bars and courses share the width of a row. Promises that a text is there whole or not at all; but the first of a row is cut, and
//! then ends in `…`, so that nobody takes a part of a number for all of it. Must not know what is shown.

use std::collections::VecDeque;

use super::canvas::{Canvas, Tone};

/// Places of the name.
const NAME_WIDTH: usize = 9;
/// A course with fewer says nothing.
const COURSE_WIDTH_MIN: usize = 8;
const COURSE_LETTERS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const BAR_EMPTY: char = '·';

/// A part of a bar: how much of it all, as which letter.
pub type Fill = (f64, char, Tone);

enum Content {
    /// Behind so many blanks.
    Text(usize, String, Tone),
    /// None where it is not known how full.
    Bar(Option<Vec<Fill>>),
    Course(Vec<Option<f64>>),
}

/// A row.
pub struct Strip {
    /// Rows of higher ranks go first where there is little room.
    pub rank: u8,
    name: Option<&'static str>,
    content: Vec<Content>,
}

impl Strip {
    /// An empty one with a name.
    pub fn new(rank: u8, name: &'static str) -> Strip {
        Strip { rank, name: Some(name), content: Vec::new() }
    }

    /// One that begins at the left.
    pub fn unnamed(rank: u8) -> Strip {
        Strip { rank, name: None, content: Vec::new() }
    }

    /// Adds a text.
    pub fn text(self, text: impl Into<String>) -> Strip {
        self.toned(text, Tone::Plain)
    }

    /// Adds a text in a tone.
    pub fn toned(mut self, text: impl Into<String>, tone: Tone) -> Strip {
        self.content.push(Content::Text(2, text.into(), tone));
        self
    }

    /// Adds a text close to the one before.
    pub fn near(mut self, text: impl Into<String>) -> Strip {
        self.content.push(Content::Text(1, text.into(), Tone::Plain));
        self
    }

    /// Adds what `add` makes of the strip, if there is something.
    pub fn given<T>(self, what: Option<T>, add: impl FnOnce(Strip, T) -> Strip) -> Strip {
        match what {
            Some(what) => add(self, what),
            None => self,
        }
    }

    /// Adds a bar.
    pub fn bar(mut self, fills: Option<Vec<Fill>>) -> Strip {
        self.content.push(Content::Bar(fills));
        self
    }

    /// Adds what there was of something, in all the room that is left; the last at the right. One moment is no course.
    pub fn course(mut self, past: &VecDeque<Option<f64>>) -> Strip {
        if past.iter().flatten().nth(1).is_none() {
            return self;
        }
        self.content.push(Content::Course(past.iter().copied().collect()));
        self
    }

    /// Draws it into a row.
    pub fn draw(&self, canvas: &mut Canvas, y: usize) {
        let mut x = 0;
        if let Some(name) = self.name {
            x = canvas.put(0, y, &format!("{name:<NAME_WIDTH$}"), Tone::Strong);
        }
        for (index, content) in self.content.iter().enumerate() {
            let is_first = index == 0;
            match content {
                Content::Text(blanks, text, tone) => {
                    let at = x + if is_first { 0 } else { *blanks };
                    let is_whole = at + text.chars().count() <= canvas.width();
                    if !is_first && !is_whole {
                        return;
                    }
                    x = canvas.put(at, y, text, *tone);
                    // A ruler has no end that could be missed.
                    if !is_whole && at < canvas.width() && !text.ends_with('─') {
                        canvas.put(canvas.width().saturating_sub(1), y, "…", *tone);
                    }
                }
                Content::Bar(fills) => x = draw_bar(canvas, (x, y), fills.as_deref()),
                Content::Course(past) => {
                    let width = canvas.width().saturating_sub(x + 2);
                    if width >= COURSE_WIDTH_MIN {
                        x = canvas.put(x + 2, y, &course(past, width), Tone::Accent);
                    }
                }
            }
        }
    }
}

fn draw_bar(canvas: &mut Canvas, (x, y): (usize, usize), fills: Option<&[Fill]>) -> usize {
    let width = (canvas.width() / 4).clamp(8, 48);
    let mut at = canvas.put(x, y, "[", Tone::Dim);
    let begin = at;
    let mut sum = 0.0;
    for (part, letter, tone) in fills.unwrap_or_default() {
        // The ends are rounded, not the parts, or these would not add up.
        sum += part.clamp(0.0, 1.0);
        let end = begin + ((sum * width as f64).round() as usize).min(width);
        let text: String = std::iter::repeat_n(*letter, end.saturating_sub(at)).collect();
        at = canvas.put(at, y, &text, *tone);
    }
    let empty = if fills.is_some() { BAR_EMPTY } else { ' ' };
    let text: String = std::iter::repeat_n(empty, begin + width - at).collect();
    at = canvas.put(at, y, &text, Tone::Dim);
    canvas.put(at, y, "]", Tone::Dim)
}

/// As high as the highest that is shown allows; blanks where nothing is known.
fn course(past: &[Option<f64>], width: usize) -> String {
    let shown = &past[past.len().saturating_sub(width)..];
    let highest = shown.iter().flatten().copied().fold(0.0, f64::max);
    let letter = |value: &Option<f64>| match value {
        None => ' ',
        Some(value) if highest > 0.0 => {
            COURSE_LETTERS[(value / highest * 7.0).round().clamp(0.0, 7.0) as usize]
        }
        Some(_) => COURSE_LETTERS[0],
    };
    let letters: String = shown.iter().map(letter).collect();
    format!("{letters:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(strip: &Strip, width: usize) -> String {
        let mut canvas = Canvas::new(width, 1);
        strip.draw(&mut canvas, 0);
        canvas.text().trim_end_matches('\n').to_string()
    }

    #[test]
    fn texts_are_whole_or_left_out() {
        let strip = Strip::new(0, "log").text("12.3M").near("of 45.6M").text("7 runs");
        assert_eq!(drawn(&strip, 80), "log      12.3M of 45.6M  7 runs");
        assert_eq!(drawn(&strip, 30), "log      12.3M of 45.6M");
        assert_eq!(drawn(&strip, 22), "log      12.3M");
        assert_eq!(drawn(&strip, 4), "log");
        assert_eq!(drawn(&Strip::unnamed(0).text("a long title").text("x"), 8), "a long …");
        assert_eq!(drawn(&Strip::new(0, "log").text("12.3M"), 12), "log      12…");
    }

    #[test]
    fn bars_are_as_full_as_they_should() {
        let bar = |fills: Option<Vec<Fill>>| drawn(&Strip::new(0, "").bar(fills), 40).trim().to_string();
        let part = |part: f64, letter: char| (part, letter, Tone::Plain);
        assert_eq!(bar(Some(vec![part(0.5, '#')])), "[#####·····]");
        assert_eq!(bar(Some(vec![part(0.25, '#'), part(0.25, '+'), part(0.25, '-')])), "[###++---··]");
        assert_eq!(bar(Some(vec![part(0.0, '#')])), "[··········]");
        assert_eq!(bar(Some(vec![part(7.0, '#'), part(f64::NAN, '+'), part(1.0, '-')])), "[##########]");
        assert_eq!(bar(None), "[          ]");
    }

    #[test]
    fn a_course_ends_with_what_is_now() {
        let past: VecDeque<_> = [Some(9.0), Some(0.0), None, Some(2.0), Some(4.0)].into();
        let strip = Strip::new(0, "x").course(&past);
        assert_eq!(drawn(&strip, 9 + 2 + 8), "x             █▁ ▃▄");
        assert_eq!(drawn(&strip, 9 + 2 + 7), "x");
        let past: VecDeque<_> = (0..20).map(|n| Some(f64::from(n))).collect();
        assert_eq!(drawn(&Strip::unnamed(0).course(&past), 10), "  ▅▆▆▇▇▇██");
        assert_eq!(drawn(&Strip::unnamed(0).text("x").course(&[None, Some(1.0)].into()), 20), "x");
        let flat: VecDeque<_> = [Some(0.0); 9].into();
        assert_eq!(drawn(&Strip::unnamed(0).course(&flat), 10), "  ▁▁▁▁▁▁▁▁");
    }
}
