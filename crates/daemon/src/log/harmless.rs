//! JSON that does nothing to the terminal of who looks at it.
//!
//! JSON must escape only the first 32 characters. What a client chose may also hold those from U+0080 on, of which U+009B
//! begins a terminal's commands and U+0085 ends a line, and those that end lines or turn text round for other programs.

use std::io::{self, Write};

/// Escapes such characters in JSON texts, in which they can stand only inside of strings.
pub(super) struct Harmless<W>(pub(super) W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if text.contains(is_harmful) {
            let mut escaped = String::with_capacity(line.len() + 64);
            for c in text.chars() {
                match is_harmful(c) {
                    true => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
                    false => escaped.push(c),
                }
            }
            self.0.write_all(escaped.as_bytes())?;
        } else {
            self.0.write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn is_harmful(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(line: &str) -> String {
        let mut bytes = Vec::new();
        Harmless(&mut bytes).write_all(line.as_bytes()).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_means_the_same() {
        let harmful = "a\u{7f}\u{85}\u{9b}2J\u{2028}\u{202e}b";
        let line = format!("{{\"uid\":\"{harmful}\"}}\n");
        assert_eq!(written(&line), "{\"uid\":\"a\\u007f\\u0085\\u009b2J\\u2028\\u202eb\"}\n");
    }

    #[test]
    fn all_else_is_left_as_it_is() {
        let line = "{\"uid\":\"äöü € 鍵 \\n\"}\n";
        assert_eq!(written(line), line);
    }
}
