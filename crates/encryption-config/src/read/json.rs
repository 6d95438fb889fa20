//! JSON, with the place of everything, which `serde_json` does not tell. What is in a string or number, it says.

use zeroize::Zeroizing;

use super::tree::{Budget, Field, Item, Misread, Node, Number};
use crate::{Fault, Position};

/// The tree of a document that is JSON from its first to its last character.
pub(super) fn parse(text: &str) -> Result<Item, Misread> {
    let start = Position { line: 1, column: 1 };
    let mut reader = Reader { rest: text, told: text, at: start, budget: Budget::default() };
    let item = reader.value(0)?;
    reader.skip_space();
    if reader.rest.is_empty() { Ok(item) } else { Err(reader.wrong()) }
}

struct Reader<'a> {
    rest: &'a str,
    /// What was left when the position was asked for last, and that position.
    told: &'a str,
    at: Position,
    budget: Budget,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Item, Misread> {
        self.skip_space();
        let at = self.position();
        self.budget.spend(depth, at)?;
        let node = match self.rest.as_bytes().first() {
            Some(b'{') => self.map(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Node::Text(self.string()?),
            _ => self.word()?,
        };
        Ok(Item { at, node })
    }

    fn map(&mut self, depth: usize) -> Result<Node, Misread> {
        let mut fields = Vec::new();
        self.eat('{');
        while !self.eat('}') {
            if !fields.is_empty() && !self.eat(',') {
                return Err(self.wrong());
            }
            self.skip_space();
            let at = self.position();
            let name = self.string()?;
            if !self.eat(':') {
                return Err(self.wrong());
            }
            fields.push(Field { at, name, value: self.value(depth + 1)? });
        }
        Ok(Node::Map(fields))
    }

    fn list(&mut self, depth: usize) -> Result<Node, Misread> {
        let mut items = Vec::new();
        self.eat('[');
        while !self.eat(']') {
            if !items.is_empty() && !self.eat(',') {
                return Err(self.wrong());
            }
            items.push(self.value(depth + 1)?);
        }
        Ok(Node::List(items))
    }

    fn string(&mut self) -> Result<Zeroizing<String>, Misread> {
        let bytes = self.rest.as_bytes();
        let mut end = 1;
        while let Some(byte) = bytes.get(end).filter(|byte| **byte != b'"') {
            end += if *byte == b'\\' { 2 } else { 1 };
        }
        let token = self.rest.get(..=end).ok_or_else(|| self.wrong())?;
        let read = serde_json::from_str::<String>(token).map_err(|_| self.wrong())?;
        self.rest = &self.rest[token.len()..];
        Ok(Zeroizing::new(read))
    }

    /// `null`, `true`, `false` or a number.
    fn word(&mut self) -> Result<Node, Misread> {
        let of_words = |next: char| next.is_ascii_alphanumeric() || "+-.".contains(next);
        let end = self.rest.find(|next| !of_words(next)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let node = match word {
            "null" => Node::Null,
            "true" | "false" => Node::Bool,
            _ if word.parse::<serde_json::Number>().is_ok() => {
                Node::Number(word.parse().map_or(Number::Other, Number::Whole))
            }
            _ => return Err(self.wrong()),
        };
        self.rest = rest;
        Ok(node)
    }

    fn eat(&mut self, wanted: char) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn wrong(&mut self) -> Misread {
        (self.position(), Fault::Json)
    }

    fn position(&mut self) -> Position {
        let passed = &self.told[..self.told.len() - self.rest.len()];
        match passed.rsplit_once('\n') {
            Some((before, last)) => {
                self.at.line += before.matches('\n').count() + 1;
                self.at.column = last.chars().count() + 1;
            }
            None => self.at.column += passed.chars().count(),
        }
        self.told = self.rest;
        self.at
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_value_has_its_place() {
        let Ok(Item { node: Node::Map(fields), .. }) = parse("{ \"ä\\\"\": null,\r\n\t\"b\" : [1, \"x\"]}\n")
        else {
            panic!("not a map")
        };
        assert_eq!(fields[0].name.as_str(), "ä\"");
        assert_eq!(fields[0].at, Position { line: 1, column: 3 });
        assert_eq!(fields[1].value.at, Position { line: 2, column: 8 });
        let Node::List(items) = &fields[1].value.node else { panic!("not a list") };
        assert_eq!(items[1].at, Position { line: 2, column: 12 });
    }

    #[test]
    fn only_json_is_read() {
        for text in [
            "{",
            "{}}",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "[1,]",
            "{'a':1}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":+1}",
            "{\"a\":tru}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"",
            "{\"a\":\"\\",
            "\"",
            "\"ä",
            "# x\n{}",
            "",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["{}", " [] ", "{\"a\":-0.5e3}", "{\"a\":\"\\ud83d\\ude00\\/\"}", "1e-3"] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }
}
