//! A document as a tree, with the place of everything in it: what YAML and JSON are both read into.

use zeroize::Zeroizing;

use crate::{
    Fault, Position,
    problem::{MAX_DEPTH, MAX_NODES},
};

/// A value and where it begins.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) at: Position,
    pub(super) node: Node,
}

/// No `Debug`: texts may be keys.
#[derive(Clone)]
pub(super) enum Node {
    Null,
    Bool,
    Number(Number),
    Text(Zeroizing<String>),
    List(Vec<Item>),
    /// Fields in the order of the file; one may stand twice.
    Map(Vec<Field>),
}

#[derive(Clone)]
pub(super) struct Field {
    pub(super) at: Position,
    pub(super) name: Zeroizing<String>,
    pub(super) value: Item,
}

/// A number as far as anything here asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// One that Go's JSON writes without point and exponent.
    Whole(i128),
    Other,
}

/// A fault at a place, before anybody knows which field that is.
pub(super) type Misread = (Position, Fault);

impl Item {
    pub(super) fn null(at: Position) -> Self {
        Self { at, node: Node::Null }
    }
}

impl Node {
    /// For people.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Node::Null => "nothing",
            Node::Bool => "yes or no",
            Node::Number(_) => "a number",
            Node::Text(_) => "text",
            Node::List(_) => "a list",
            Node::Map(_) => "fields",
        }
    }
}

/// What a document has cost so far.
#[derive(Default)]
pub(super) struct Budget {
    nodes: usize,
}

impl Budget {
    /// One value more, `depth` levels down.
    pub(super) fn spend(&mut self, depth: usize, at: Position) -> Result<(), Misread> {
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES { Err((at, Fault::TooBig)) } else { Ok(()) }
    }

    /// The values of `item` again, `depth` levels down.
    pub(super) fn spend_all(&mut self, item: &Item, depth: usize) -> Result<(), Misread> {
        self.spend(depth, item.at)?;
        match &item.node {
            Node::List(items) => items.iter().try_for_each(|item| self.spend_all(item, depth + 1)),
            Node::Map(fields) => fields.iter().try_for_each(|field| self.spend_all(&field.value, depth + 1)),
            _ => Ok(()),
        }
    }
}
