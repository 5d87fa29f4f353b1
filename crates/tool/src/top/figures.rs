//! Numbers for a person, as short as a screen wants them.
//!
//! Owns how they are written. Promises that what nobody knows is `-`.

use std::time::Duration;

/// What stands where nothing is known.
pub const UNKNOWN: &str = "-";

/// A number of things: `999`, `1.23k`, `45.6M`.
pub fn count(number: u64) -> String {
    scaled(number as f64, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes: `999B`, `1.23K`, `45.6M`; 1K is 1,024.
pub fn bytes(number: u64) -> String {
    scaled(number as f64, 1024.0, &["B", "K", "M", "G", "T", "P", "E"])
}

/// How many a second.
pub fn per_second(number: f64) -> String {
    match number {
        // Little is not nothing.
        little if little > 0.0 && little < 0.05 => "<0.1/s".to_string(),
        few if few > 0.0 && few < 10.0 => format!("{few:.1}/s"),
        many => format!("{}/s", count(many.round() as u64)),
    }
}

/// How many bytes a second.
pub fn bytes_per_second(number: f64) -> String {
    format!("{}/s", bytes(number.round() as u64))
}

/// A time that something took: `0us`, `1.2us`, `350us`, `4.56ms`, `45.6ms`, `1.20s`.
pub fn took(seconds: f64) -> String {
    match seconds {
        0.0 => "0us".to_string(),
        short if short < 100e-6 => format!("{:.1}us", short * 1e6),
        short if short < 1e-3 => format!("{:.0}us", short * 1e6),
        longer if longer < 10e-3 => format!("{:.2}ms", longer * 1e3),
        longer if longer < 1.0 => format!("{:.1}ms", longer * 1e3),
        long => format!("{long:.2}s"),
    }
}

/// A time that goes by: `250ms`, `7s`, `4m 7s`, `3h 4m`, `12d 3h`.
pub fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.as_millis() > 0 => format!("{}ms", time.as_millis()),
        0 => "0s".to_string(),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// A part of one.
pub fn percent(part: f64) -> String {
    match part * 100.0 {
        little if little > 0.0 && little < 0.5 => "<1%".to_string(),
        part => format!("{part:.0}%"),
    }
}

/// Three digits and a unit; all digits of what needs no unit.
fn scaled(number: f64, base: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (number, 0);
    // What would be written as 1000 is one of the next unit.
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / base, unit + 1);
    }
    let digits = match value {
        _ if unit == 0 => 0,
        small if small < 9.995 => 2,
        middle if middle < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let counts =
            [0, 7, 999, 1_000, 9_994, 9_996, 12_345, 999_400, 999_600, 10_200_000, u64::MAX].map(count);
        assert_eq!(
            counts,
            ["0", "7", "999", "1.00k", "9.99k", "10.0k", "12.3k", "999k", "1.00M", "10.2M", "18.4E"]
        );
        let sizes = [0, 999, 1_000, 1 << 20, 64 << 20, 67_000_000_000, u64::MAX].map(bytes);
        assert_eq!(sizes, ["0B", "999B", "0.98K", "1.00M", "64.0M", "62.4G", "16.0E"]);
    }

    #[test]
    fn rates_and_times_are_short() {
        assert_eq!(
            [0.0, 0.01, 0.25, 9.5, 250.4, 12_345.0].map(per_second),
            ["0/s", "<0.1/s", "0.2/s", "9.5/s", "250/s", "12.3k/s"]
        );
        assert_eq!(bytes_per_second(2048.0), "2.00K/s");
        assert_eq!([0.0, 1.25e-6, 350e-6, 4.56e-3].map(took), ["0us", "1.2us", "350us", "4.56ms"]);
        let ages = [0, 7, 247, 11_047, 1_047_600].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "7s", "4m 7s", "3h 4m", "12d 3h"]);
        assert_eq!(age(Duration::from_millis(250)), "250ms");
        assert_eq!([45.6e-3, 1.2].map(took), ["45.6ms", "1.20s"]);
        assert_eq!([0.0, 0.001, 0.126, 1.0].map(percent), ["0%", "<1%", "13%", "100%"]);
    }
}
