//! YAML as kube-apiserver's library reads it: version 1.1, the first document only.

use std::collections::HashMap;

use granit_parser::{Event, Marker, Parser, ScalarStyle, StructureStyle, Tag};
use zeroize::Zeroizing;

use super::{
    scalar::resolve,
    tree::{Budget, Field, Item, Misread, Node},
};
use crate::{Fault, Position};

/// The tree of the first document. Nothing at all is null.
pub(super) fn parse(text: &str) -> Result<Item, Misread> {
    check_line_ends(text)?;
    let options = granit_parser::options! { emit_comments: false };
    let mut builder = Builder::default();
    let mut last_line = 0;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| (position(error.marker()), Fault::Yaml))?;
        let at = position(&span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                // A block begins with its content: a tab there is one too much in YAML 1.1.
                builder.beside_tabs.push((at.line, span.end.line()));
                if style == ScalarStyle::Plain && text.contains('?') && builder.is_in_flow() {
                    // YAML 1.1 takes it for the beginning of a key.
                    return Err((at, Fault::Yaml));
                }
                builder.budget.spend(builder.open.len(), at)?;
                let merges = style == ScalarStyle::Plain && tag.is_none() && text == "<<";
                let node = scalar(Zeroizing::new(text.into_owned()), style, tag.as_deref(), at)?;
                builder.place(Item { at, node }, anchor, merges)?;
            }
            Event::SequenceStart(style, anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                builder.begin(at, anchor, style, Collected::List(Vec::new()))?;
            }
            Event::MappingStart(style, anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                builder.begin(at, anchor, style, Collected::map())?;
            }
            Event::SequenceEnd | Event::MappingEnd => builder.end(position(&span.end))?,
            Event::Alias(anchor) => builder.repeat(anchor, at)?,
            Event::UnresolvedAlias(_) => return Err((at, Fault::Alias)),
            // What follows is another document, which nobody reads.
            Event::DocumentEnd => {
                last_line = at.line;
                break;
            }
            _ => {}
        }
    }
    check_tabs(text, last_line, &builder.beside_tabs)?;
    Ok(builder.root.unwrap_or_else(|| Item::null(Position { line: 1, column: 1 })))
}

#[derive(Default)]
struct Builder {
    budget: Budget,
    /// From the outermost inwards.
    open: Vec<Open>,
    /// By the parser's numbers.
    anchored: HashMap<usize, Item>,
    /// First and last lines of what may have tabs at the beginning of all but the first: texts and flow style.
    beside_tabs: Vec<(usize, usize)>,
    root: Option<Item>,
}

/// A list or map whose end has not come.
struct Open {
    at: Position,
    anchor: usize,
    style: StructureStyle,
    collected: Collected,
}

enum Collected {
    List(Vec<Item>),
    Map { fields: Vec<Field>, key: Option<Key> },
}

/// A field's name whose value has not come.
enum Key {
    Name(Position, Zeroizing<String>),
    Merge,
}

impl Collected {
    fn map() -> Self {
        Collected::Map { fields: Vec::new(), key: None }
    }
}

impl Builder {
    fn is_in_flow(&self) -> bool {
        self.open.last().is_some_and(|open| open.style == StructureStyle::Flow)
    }

    fn begin(
        &mut self,
        at: Position,
        anchor: usize,
        style: StructureStyle,
        collected: Collected,
    ) -> Result<(), Misread> {
        self.budget.spend(self.open.len(), at)?;
        self.open.push(Open { at, anchor, style, collected });
        Ok(())
    }

    fn end(&mut self, end: Position) -> Result<(), Misread> {
        let Some(Open { at, anchor, style, collected }) = self.open.pop() else {
            return Err((end, Fault::Yaml));
        };
        if style == StructureStyle::Flow {
            self.beside_tabs.push((at.line, end.line));
        }
        let node = match collected {
            Collected::List(items) => Node::List(items),
            Collected::Map { fields, .. } => Node::Map(fields),
        };
        self.place(Item { at, node }, anchor, false)
    }

    fn repeat(&mut self, anchor: usize, at: Position) -> Result<(), Misread> {
        // One that is not there yet is an alias to what it stands in.
        let Some(item) = self.anchored.get(&anchor) else { return Err((at, Fault::Alias)) };
        self.budget.spend_all(item, self.open.len())?;
        let item = Item { at, node: item.node.clone() };
        self.place(item, 0, false)
    }

    /// Puts a finished value where it belongs.
    fn place(&mut self, item: Item, anchor: usize, merges: bool) -> Result<(), Misread> {
        if anchor != 0 {
            self.budget.spend_all(&item, self.open.len())?;
            self.anchored.insert(anchor, item.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(item);
            return Ok(());
        };
        match &mut open.collected {
            Collected::List(items) => items.push(item),
            Collected::Map { fields, key } => match key.take() {
                Some(Key::Name(at, name)) => fields.push(Field { at, name, value: item }),
                Some(Key::Merge) => merge(fields, item)?,
                None if merges => *key = Some(Key::Merge),
                None => match item.node {
                    Node::Text(name) => *key = Some(Key::Name(item.at, name)),
                    _ => return Err((item.at, Fault::FieldName)),
                },
            },
        }
        Ok(())
    }
}

/// `<<: *a` and `<<: [*a, *b]`. A field that is there already is found later, as one that stands twice: that is how
/// kube-apiserver, which is strict, takes it.
fn merge(fields: &mut Vec<Field>, item: Item) -> Result<(), Misread> {
    let mut take = |item: Item| match item.node {
        Node::Map(more) => {
            fields.extend(more);
            Ok(())
        }
        _ => Err((item.at, Fault::Merge)),
    };
    match item.node {
        Node::List(items) => items.into_iter().rev().try_for_each(take),
        _ => take(item),
    }
}

fn scalar(
    text: Zeroizing<String>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: Position,
) -> Result<Node, Misread> {
    let plain = style == ScalarStyle::Plain;
    let Some(tag) = check_tag(tag, at)? else {
        return Ok(if plain { resolve(text) } else { Node::Text(text) });
    };
    let fits = |fits: fn(&Node) -> bool, text| {
        let node = resolve(text);
        if fits(&node) { Ok(node) } else { Err((at, Fault::Tag)) }
    };
    match tag {
        // In YAML 1.1 a comma after a tag is part of the tag.
        _ if plain && text.is_empty() => Err((at, Fault::Tag)),
        "null" => fits(|node| matches!(node, Node::Null), text),
        "bool" => fits(|node| matches!(node, Node::Bool), text),
        "int" | "float" => fits(|node| matches!(node, Node::Number(_)), text),
        _ => Ok(Node::Text(text)),
    }
}

/// The name of one of YAML's own tags. Others mean nothing here, and where they end is told differently by version.
fn check_tag(tag: Option<&Tag>, at: Position) -> Result<Option<&str>, Misread> {
    match tag {
        None => Ok(None),
        // `!` alone, of which one part is empty.
        Some(tag) if [tag.handle(), tag.suffix()].concat() == "!" => Ok(None),
        Some(tag) => tag.core_suffix().map(Some).ok_or((at, Fault::Tag)),
    }
}

/// Three characters end lines in YAML 1.1 and not in 1.2.
fn check_line_ends(text: &str) -> Result<(), Misread> {
    match text.find(['\u{85}', '\u{2028}', '\u{2029}']) {
        Some(found) => Err((position_of(text, found), Fault::LineEnd)),
        None => Ok(()),
    }
}

/// In block style, YAML 1.1 has no tabs before the first thing on a line, not on an empty line either.
fn check_tabs(text: &str, last_line: usize, beside: &[(usize, usize)]) -> Result<(), Misread> {
    for (line, content) in (1..=last_line).zip(text.lines()) {
        let begins = content.trim_start_matches([' ', '-', '?']);
        if begins.starts_with('\t') && !beside.iter().any(|(first, last)| (first + 1..=*last).contains(&line))
        {
            let column = content.chars().count() - begins.chars().count() + 1;
            return Err((Position { line, column }, Fault::Tab));
        }
    }
    Ok(())
}

fn position_of(text: &str, offset: usize) -> Position {
    let before = &text[..offset];
    let last = before.rsplit('\n').next().unwrap_or_default();
    Position { line: before.matches('\n').count() + 1, column: last.chars().count() + 1 }
}

/// The parser's columns begin with 0.
fn position(marker: &Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}
