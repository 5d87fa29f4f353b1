//! Numbers as Redis clients write and expect them.
//!
//! Owns: strict integer parsing (no sign `+`, no leading zero, no spaces) and the text of floating-point numbers.

/// The integer `text` is, if it is one in the only spelling Redis knows.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        b"0" => return Some(0),
        [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..] => {}
        _ => return None,
    }
    if text.len() > 20 {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The unsigned integer `text` is, in the same spelling.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match text {
        b"0" => Some(0),
        [b'1'..=b'9', ..] if text.len() <= 20 => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// The floating-point number `text` is; infinities are, NaN and spaces are not.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.is_empty() || text.len() > 400 || text.starts_with(|c: char| c.is_whitespace()) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    (!value.is_nan()).then_some(value)
}

/// Appends the shortest text that reads back as `value`, never in exponent form where 17 digits do.
pub fn write_f64(out: &mut Vec<u8>, value: f64) {
    use std::io::Write;
    let written = match value {
        _ if value == f64::INFINITY => out.write_all(b"inf"),
        _ if value == f64::NEG_INFINITY => out.write_all(b"-inf"),
        _ if value != 0.0 && (value.abs() >= 1e21 || value.abs() < 1e-7) => write!(out, "{value:e}"),
        _ => write!(out, "{value}"),
    };
    debug_assert!(written.is_ok(), "a Vec takes every write");
}

/// Appends `value` the way INCRBYFLOAT does: no exponent, no trailing zeros. The shortest text that reads back is what a
/// person expects of 10.5 + 0.1; Redis computes in 80 bits to hide the binary fraction behind it.
pub fn write_f64_plain(out: &mut Vec<u8>, value: f64) {
    use std::io::Write;
    let written = write!(out, "{}", if value == 0.0 { 0.0 } else { value });
    debug_assert!(written.is_ok(), "a Vec takes every write");
}

/// A decimal number as written: digits without the point, and how many of them are behind it.
fn parse_decimal(text: &[u8]) -> Option<(i128, u32)> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let exponent_at = digits.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e'));
    let (digits, exponent) = match exponent_at {
        None => (digits, 0),
        Some(at) => (&digits[..at], std::str::from_utf8(&digits[at + 1..]).ok()?.parse::<i16>().ok()?),
    };
    let (mut value, mut scale, mut is_behind) = (0i128, 0i32, false);
    for &byte in digits {
        match byte {
            b'.' if !is_behind => is_behind = true,
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
                scale += i32::from(is_behind);
            }
            _ => return None,
        }
    }
    scale -= i32::from(exponent);
    if scale < 0 {
        value = value.checked_mul(10i128.checked_pow(scale.unsigned_abs())?)?;
        scale = 0;
    }
    (scale <= 17).then_some((if is_negative { -value } else { value }, scale as u32))
}

/// The sum of two numbers that [`parse_f64`] accepts, as text. Exact where both are plain decimals of moderate length, so
/// that 0.1 + 0.2 is 0.3; by floating point otherwise. None if the sum is no finite number.
pub fn add_decimal(a: &[u8], b: &[u8]) -> Option<Vec<u8>> {
    if let Some(sum) = add_exactly(a, b) {
        return Some(sum);
    }
    let sum = parse_f64(a)? + parse_f64(b)?;
    let mut text = Vec::new();
    write_f64_plain(&mut text, sum);
    sum.is_finite().then_some(text)
}

fn add_exactly(a: &[u8], b: &[u8]) -> Option<Vec<u8>> {
    let ((a, a_scale), (b, b_scale)) = (parse_decimal(a)?, parse_decimal(b)?);
    let scale = a_scale.max(b_scale);
    let widen = |value: i128, from: u32| value.checked_mul(10i128.checked_pow(scale - from)?);
    let sum = widen(a, a_scale)?.checked_add(widen(b, b_scale)?)?;
    let digits = format!("{:0width$}", sum.unsigned_abs(), width = scale as usize + 1);
    let (whole, behind) = digits.split_at(digits.len() - scale as usize);
    let behind = behind.trim_end_matches('0');
    let sign = if sum < 0 { "-" } else { "" };
    let point = if behind.is_empty() { "" } else { "." };
    Some(format!("{sign}{whole}{point}{behind}").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_spelling() {
        assert_eq!(parse_i64(b"0"), Some(0));
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        for bad in ["", "-", "-0", "01", "+1", " 1", "1 ", "9223372036854775808", "1e3", "0x10", "1_0"] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"-1"), None);
    }

    #[test]
    fn floats_read_back() {
        for value in [0.0, -1.5, 3.0, 1e20, 1e22, 1e-9, 0.1 + 0.2, f64::MAX, f64::INFINITY] {
            let mut text = Vec::new();
            write_f64(&mut text, value);
            assert_eq!(parse_f64(&text), Some(value));
        }
        assert_eq!(parse_f64(b"nan"), None);
        assert_eq!(parse_f64(b" 1"), None);
        assert_eq!(parse_f64(b""), None);
        let mut text = Vec::new();
        write_f64_plain(&mut text, 5.0e3);
        assert_eq!(text, b"5000");
    }

    #[test]
    fn decimals_add_as_on_paper() {
        for (a, b, sum) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "200", "5200"),
            ("-1.5", "1.5", "0"),
            ("-0.05", "0.01", "-0.04"),
            ("3", "1.500", "4.5"),
            ("-9223372036854775808", "1.0e-5", "-9223372036854775807.99999"),
            ("9007199254740993", "1e0", "9007199254740994"),
            ("9007199254740993", "2E+3", "9007199254742993"),
            ("128", "0.1", "128.1"),
            (
                "12345678901234567890.12345678901234567",
                "0.00000000000000001",
                "12345678901234567890.12345678901234568",
            ),
            ("0", "1e-20", "0.00000000000000000001"),
            ("0", "1e-30", "0.000000000000000000000000000001"),
            ("1e300", "1", &format!("{}", 1e300)),
        ] {
            let found = add_decimal(a.as_bytes(), b.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), sum, "{a} + {b}");
        }
        assert_eq!(add_decimal(b"1.7e308", b"1.7e308"), None);
        assert_eq!(add_decimal(b"inf", b"1"), None);
        assert_eq!(add_decimal(b"0", b"1e400"), None);
        assert_eq!(parse_f64(b"0x10"), None);
    }
}
