//! What plain text means: in YAML 1.1, which has more numbers and truths than one expects, and as a time in Go.

use std::time::Duration;

use zeroize::Zeroizing;

use super::tree::{Node, Number};

const NULLS: &[&str] = &["", "~", "null", "Null", "NULL"];
const BOOLS: &[&str] = &[
    "y", "Y", "yes", "Yes", "YES", "n", "N", "no", "No", "NO", "true", "True", "TRUE", "false", "False",
    "FALSE", "on", "On", "ON", "off", "Off", "OFF",
];

/// The value of a scalar without quotes and tag. Times of day and dates are texts here.
pub(super) fn resolve(text: Zeroizing<String>) -> Node {
    let plain = text.as_str();
    if NULLS.contains(&plain) {
        Node::Null
    } else if BOOLS.contains(&plain) {
        Node::Bool
    } else {
        number(plain).map_or(Node::Text(text), Node::Number)
    }
}

fn number(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if [".inf", ".Inf", ".INF"].contains(&unsigned) || [".nan", ".NaN", ".NAN"].contains(&text) {
        return Some(Number::Other);
    }
    // Nothing else begins a number. Most keys end here, before they are copied.
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return None;
    }
    let digits = Zeroizing::new(if text.starts_with('.') { text.to_owned() } else { text.replace('_', "") });
    integer(&digits).map(Number::Whole).or_else(|| float(&digits))
}

/// As Go's `strconv` reads an integer whose base its prefix tells, in 64 bits.
fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let value = sign * i128::from_str_radix(digits, base).ok()?;
    let has_sign = text.starts_with(['+', '-']);
    let fits = i64::try_from(value).is_ok() || !has_sign && u64::try_from(value).is_ok();
    fits.then_some(value)
}

fn float(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let begins = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    if !begins || !unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte)) {
        return None;
    }
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite())?;
    // From 1e21 on, Go's JSON writes an exponent.
    let whole = value.fract() == 0.0 && value.abs() < 1e21;
    Some(if whole { Number::Whole(value as i128) } else { Number::Other })
}

/// A time above zero as Go's `time.ParseDuration` reads it: `3s`, `1m30s`, `1.5h`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit_ends = after.find(|next: char| next == '.' || next.is_ascii_digit()).unwrap_or(after.len());
        let unit = nanoseconds(&after[..unit_ends])?;
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
        sum = sum.checked_add(whole.checked_mul(unit)?)?.checked_add(part(fraction, unit))?;
        if sum > i64::MAX as u64 {
            return None;
        }
        rest = &after[unit_ends..];
    }
    (sum > 0).then(|| Duration::from_nanos(sum))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|next: char| !next.is_ascii_digit()).unwrap_or(text.len()))
}

fn nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `0.<fraction>` of a unit, rounded down as Go does it, in floating point. Digits that don't fit are dropped.
fn part(fraction: &str, unit: u64) -> u64 {
    let (mut value, mut scale) = (0_u64, 1.0_f64);
    for digit in fraction.bytes() {
        match value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0'))) {
            Some(more) if more <= i64::MAX as u64 => value = more,
            _ => break,
        }
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn plain_text_is_what_yaml_1_1_says() {
        let kind = |text: &str| resolve(Zeroizing::new(text.to_owned())).kind();
        for text in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(kind(text), "nothing", "{text}");
        }
        for text in ["y", "N", "yes", "No", "TRUE", "off"] {
            assert_eq!(kind(text), "yes or no", "{text}");
        }
        for text in
            ["1", "-1", "+1", "1_000", "0x1f", "0o17", "017", "08", "0b11", "1e3", "1.", ".5", "-.5", ".inf"]
        {
            assert_eq!(kind(text), "a number", "{text}");
        }
        for text in [
            "nULL",
            "tRUE",
            "nope",
            "1a",
            "0xg",
            "0x",
            "1e",
            ".",
            "-",
            "1.2.3",
            "12:30:45",
            "2026-01-31",
            "1e999",
            "0xfffffffffffffffff",
            "inf",
            "-nan",
            "_1",
            "=",
            "<<",
        ] {
            assert_eq!(kind(text), "text", "{text}");
        }
    }

    #[test]
    fn whole_numbers_have_their_value() {
        for (text, value) in [
            ("1000", 1000),
            ("-5", -5),
            ("1_000", 1000),
            ("0x10", 16),
            ("010", 8),
            ("09", 9),
            ("0b101", 5),
            ("1e3", 1000),
            ("1000.0", 1000),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(number(text), Some(Number::Whole(value)), "{text}");
        }
        for text in ["1.5", "1e21", ".inf", "-.inf", ".nan"] {
            assert_eq!(number(text), Some(Number::Other), "{text}");
        }
    }

    #[test]
    fn times_are_those_of_go() {
        for (text, nanoseconds) in [
            ("3s", 3_000_000_000),
            ("+3s", 3_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("500ms", 500_000_000),
            ("2us3µs4μs", 9_000),
            ("1ns", 1),
            ("0h1s", 1_000_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9223372036854775807ns", i64::MAX as u64),
        ] {
            assert_eq!(duration(text), Some(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for text in [
            "",
            "0",
            "0s",
            "-3s",
            "3",
            "s",
            ".s",
            "3 s",
            " 3s",
            "3s ",
            "3S",
            "3d",
            "1e3s",
            "0.1ns",
            "3s-1s",
            "++3s",
            "9223372036854775808ns",
            "9999999999h",
            "300000000000000000000s",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
