//! Patterns of `KEYS`, `SCAN MATCH` and `CONFIG GET`: `*`, `?`, `[a-z]`, `[^a]`, `\x`.
//!
//! Promises: time at most pattern x text, whatever the pattern: no exponential backtracking.

use super::failure::{Failure, Outcome};
use super::limits;

/// The pattern, if it is not too long.
pub fn checked(pattern: &[u8]) -> Outcome<&[u8]> {
    check_bytes(pattern.len()).map(|()| pattern)
}

/// Refuses a pattern, or some of one command, of too many bytes.
pub fn check_bytes(bytes: usize) -> Outcome<()> {
    match bytes <= limits::PATTERN_BYTES_MAX {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "ERR a pattern has at most {} bytes; this one has {bytes}",
            limits::PATTERN_BYTES_MAX,
        ))),
    }
}

/// Whether `pattern` matches the whole of `text`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // The classic two-pointer walk: on a mismatch go back to the last star only and let it take one byte more.
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if let Some(after) = match_one(pattern, p, text[t]) {
            p = after;
            t += 1;
            continue;
        }
        match &mut star {
            Some((resume, taken)) => {
                *taken += 1;
                p = *resume;
                t = *taken;
            }
            None => return false,
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Whether the pattern element at `p` matches `byte`, and where the next element starts.
fn match_one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => match_class(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    }
}

fn match_class(pattern: &[u8], mut p: usize, byte: u8) -> Option<usize> {
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut found = false;
    loop {
        match *pattern.get(p..)? {
            [] => break,
            [b']', ..] => {
                p += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= literal == byte;
                p += 2;
            }
            [low, b'-', high, ..] => {
                found |= (low.min(high)..=low.max(high)).contains(&byte);
                p += 3;
            }
            [literal, ..] => {
                found |= literal == byte;
                p += 1;
            }
        }
    }
    (found != negated).then_some(p)
}

/// The bytes every match starts with.
pub fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len());
    &pattern[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_redis_does() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("user:*:name", "user:42:name", true),
            ("", "", true),
            ("", "a", false),
            ("[", "[", false),
            ("a[", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_linear_steps() {
        let pattern = b"a*".repeat(5_000);
        let text = b"a".repeat(50_000);
        let started = std::time::Instant::now();
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text));
        assert!(started.elapsed().as_secs() < 10);
    }

    #[test]
    fn finds_the_literal_prefix() {
        assert_eq!(literal_prefix(b"users:*"), b"users:");
        assert_eq!(literal_prefix(b"*"), b"");
        assert_eq!(literal_prefix(b"plain"), b"plain");
    }
}
