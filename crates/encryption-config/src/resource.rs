//! Resources and the patterns that choose them.

use std::{fmt, str::FromStr};

/// A resource of an API group; the core group is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// As in `apps`.
    pub group: String,
    /// In plural and lower case, as in `deployments`.
    pub resource: String,
}

/// What stands under `resources`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourcePattern {
    /// `secrets`, `deployments.apps`: this one.
    One(GroupResource),
    /// `*.apps`, and `*.` for the core group: each of this group.
    Group(String),
    /// `*.*`: each of every group, those of custom resources too.
    All,
}

/// Why a pattern is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternFault {
    /// API servers know resources in lower case only.
    #[error("it has capital letters: write the resource and its group in lower case")]
    Capitals,
    /// `*` alone.
    #[error(
        "`*` alone is not a pattern: write `*.` for the core group, `*.GROUP` for another, `*.*` for all"
    )]
    Star,
    /// The resource of what has no REST API.
    #[error("it has no REST API and can't be encrypted: leave it out")]
    NoApi,
    /// Events are stored in the core group.
    #[error("events of the group `events.k8s.io` are stored as those of the core group: write `events`")]
    Events,
    /// A group that is gone.
    #[error("the group `extensions` is gone: name the group that has the resource now")]
    Extensions,
    /// `name.*`.
    #[error("one resource can't be chosen across groups: write `RESOURCE.GROUP`, or `*.*` for all")]
    AcrossGroups,
    /// Only of patterns that were not parsed: one that nothing can be written for.
    #[error("its text would be read as another pattern: take one that was parsed")]
    NotWritable,
}

/// The group that events are also served in.
const EVENTS_GROUP: &str = "events.k8s.io";

impl GroupResource {
    /// As kube-apiserver takes a name apart, at the first dot: `deployments.apps`. Any text is a name of something.
    pub fn parse(name: &str) -> Self {
        let (resource, group) = name.split_once('.').unwrap_or((name, ""));
        Self { group: group.to_owned(), resource: resource.to_owned() }
    }

    /// The one that API servers store: events of both groups are the core group's.
    pub fn stored(&self) -> Self {
        match (self.group.as_str(), self.resource.as_str()) {
            (EVENTS_GROUP, "events") => Self { group: String::new(), ..self.clone() },
            _ => self.clone(),
        }
    }
}

impl ResourcePattern {
    /// Whether it chooses `resource`.
    pub fn matches(&self, resource: &GroupResource) -> bool {
        match self {
            ResourcePattern::One(one) => one == resource,
            ResourcePattern::Group(group) => *group == resource.group,
            ResourcePattern::All => true,
        }
    }

    /// Whether it is no single resource.
    pub fn is_wildcard(&self) -> bool {
        !matches!(self, ResourcePattern::One(_))
    }

    /// Whether nothing of `other` would be left to it, `self` coming first.
    pub(crate) fn masks(&self, other: &Self) -> bool {
        match self {
            ResourcePattern::One(_) => false,
            ResourcePattern::Group(_) => self.group() == other.group(),
            ResourcePattern::All => true,
        }
    }

    /// Whether the two can't stand in one list.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (ResourcePattern::All, _) | (_, ResourcePattern::All) => true,
            _ => self.group() == other.group() && (self.is_wildcard() || other.is_wildcard()),
        }
    }

    /// The one group that it is about.
    fn group(&self) -> Option<&str> {
        match self {
            ResourcePattern::One(one) => Some(&one.group),
            ResourcePattern::Group(group) => Some(group),
            ResourcePattern::All => None,
        }
    }

    /// Whether it is one that can stand in a file.
    pub(crate) fn check(&self) -> Result<(), PatternFault> {
        match self.to_string().parse::<Self>()? {
            read if read == *self => Ok(()),
            _ => Err(PatternFault::NotWritable),
        }
    }
}

impl FromStr for ResourcePattern {
    type Err = PatternFault;

    fn from_str(text: &str) -> Result<Self, PatternFault> {
        if text.to_lowercase() != text {
            return Err(PatternFault::Capitals);
        }
        let GroupResource { group, resource } = GroupResource::parse(text);
        match (text, resource.as_str(), group.as_str()) {
            ("*", ..) => Err(PatternFault::Star),
            ("apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations", ..) => {
                Err(PatternFault::NoApi)
            }
            (_, _, EVENTS_GROUP) => Err(PatternFault::Events),
            (_, _, "extensions") => Err(PatternFault::Extensions),
            (_, "*", "*") => Ok(ResourcePattern::All),
            (_, _, "*") => Err(PatternFault::AcrossGroups),
            (_, "*", _) => Ok(ResourcePattern::Group(group)),
            _ => Ok(ResourcePattern::One(GroupResource { group, resource })),
        }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group.as_str() {
            "" => f.write_str(&self.resource),
            group => write!(f, "{}.{group}", self.resource),
        }
    }
}

impl fmt::Display for ResourcePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResourcePattern::One(one) => one.fmt(f),
            ResourcePattern::Group(group) => write!(f, "*.{group}"),
            ResourcePattern::All => f.write_str("*.*"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn one(group: &str, resource: &str) -> ResourcePattern {
        ResourcePattern::One(GroupResource { group: group.into(), resource: resource.into() })
    }

    #[test]
    fn patterns_are_read_and_written() {
        for (text, pattern) in [
            ("secrets", one("", "secrets")),
            ("deployments.apps", one("apps", "deployments")),
            ("pandas.awesome.bears.example", one("awesome.bears.example", "pandas")),
            ("*.", ResourcePattern::Group(String::new())),
            ("*.apps", ResourcePattern::Group("apps".into())),
            ("*.*", ResourcePattern::All),
            ("events", one("", "events")),
            ("", one("", "")),
            (".apps", one("apps", "")),
            ("*.*.*", ResourcePattern::Group("*.*".into())),
            ("**", one("", "**")),
            ("extensions", one("", "extensions")),
            ("apiserveripinfo.x", one("x", "apiserveripinfo")),
        ] {
            assert_eq!(text.parse(), Ok(pattern.clone()));
            assert_eq!(pattern.to_string(), text);
            assert_eq!(pattern.check(), Ok(()));
        }
        assert_eq!("secrets.".parse(), Ok(one("", "secrets")));
    }

    #[test]
    fn what_is_refused_has_a_reason() {
        for (text, fault) in [
            ("Secrets", PatternFault::Capitals),
            ("deployments.Apps", PatternFault::Capitals),
            ("*", PatternFault::Star),
            ("serviceipallocations", PatternFault::NoApi),
            ("servicenodeportallocations", PatternFault::NoApi),
            ("apiserveripinfo", PatternFault::NoApi),
            ("events.events.k8s.io", PatternFault::Events),
            ("*.events.k8s.io", PatternFault::Events),
            ("*.extensions", PatternFault::Extensions),
            ("ingresses.extensions", PatternFault::Extensions),
            ("secrets.*", PatternFault::AcrossGroups),
            (".*", PatternFault::AcrossGroups),
        ] {
            assert_eq!(text.parse::<ResourcePattern>(), Err(fault), "{text}");
        }
    }

    #[test]
    fn patterns_that_no_text_stands_for_are_found() {
        for pattern in [one("", "a.b"), one("", "*.x"), one("apps", "*"), ResourcePattern::Group("*".into())]
        {
            assert_eq!(pattern.check(), Err(PatternFault::NotWritable), "{pattern:?}");
        }
        assert_eq!(one("", "Secrets").check(), Err(PatternFault::Capitals));
    }

    #[test]
    fn events_are_stored_in_the_core_group() {
        assert_eq!(GroupResource::parse("events.events.k8s.io").stored(), GroupResource::parse("events"));
        let other = GroupResource::parse("others.events.k8s.io");
        assert_eq!(other.stored(), other);
    }
}
