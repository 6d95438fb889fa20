//! One object, with every revision of it that etcd still has.
use std::path::PathBuf;

use casemate_census::classify::{Class, Classifier, Name, ObjectPath};
use casemate_census::mvcc::{Item, Standing};
use casemate_census::survey::{Encryption, Key, Resource};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Prefix, scan};
use crate::output::{Exit, Failure, Output, Section};

#[derive(clap::Args)]
pub(super) struct ObjectArgs {
    /// A snapshot, a stopped member's member/snap/db, or k3s' state.db
    file: PathBuf,

    /// NAMESPACE/NAME, of whatever resource; or the key in etcd, which begins with `/`
    #[arg(value_name = "NAMESPACE/NAME|KEY")]
    object: String,

    /// Of this resource only, as in secrets or deployments.apps
    #[arg(long)]
    resource: Option<String>,

    #[command(flatten)]
    prefix: Prefix,
}

/// The whole answer. Its JSON is a contract: `docs/reference/census-object.schema.json`.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(title = "casemate census object --output json")]
pub(super) struct Answer {
    /// Each value, newest first; at most 1000.
    values: Vec<Value>,
    /// Whether there are more.
    truncated: bool,
}

/// One value.
#[derive(Debug, Serialize, JsonSchema)]
struct Value {
    /// Its key in etcd.
    key: String,
    /// Whose it is.
    resource: String,
    /// The revision that wrote it.
    revision: u64,
    /// Whether it is what the object is now.
    live: bool,
    /// Bytes of it.
    bytes: u64,
    /// How it is encrypted.
    encryption: Encryption,
    /// SHA-256 of its encrypted DEK source: one for each start of an API server and key id.
    dek_source: Option<String>,
    /// Names of a plugin's annotations.
    annotations: Vec<String>,
    /// Each key that opens it.
    keys: Vec<Key>,
    /// What is wrong with it.
    faults: Vec<String>,
}

/// The most values that are told.
const MOST: usize = 1000;

pub(super) fn run(args: &ObjectArgs, output: &Output) -> Result<Exit, Failure> {
    let wanted = Wanted::new(&args.object, args.resource.as_deref())?;
    let answer = look(args, &wanted, output).map_err(|error| Failure::new(Exit::Unknown, &error))?;
    output.sections(&answer, &answer.sections())?;
    if answer.values.is_empty() {
        output.note(format_args!("{} is not in {}", args.object, args.file.display()));
        return Ok(Exit::No);
    }
    Ok(Exit::Yes)
}

/// What was asked for.
enum Wanted<'a> {
    Key(&'a str),
    Name { namespace: &'a str, name: &'a str, resource: Option<&'a str> },
}

impl<'a> Wanted<'a> {
    fn new(object: &'a str, resource: Option<&'a str>) -> Result<Self, Failure> {
        if object.starts_with('/') {
            return Ok(Self::Key(object));
        }
        match object.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::Name { namespace, name, resource })
            }
            _ => Err(Failure::new(
                Exit::Usage,
                &format_args!(
                    "{object:?} is no object: write NAMESPACE/NAME, or its key in etcd as in /registry/namespaces/default"
                ),
            )),
        }
    }

    fn is(&self, prefix: &str, key: &[u8]) -> bool {
        match *self {
            Self::Key(wanted) => wanted.as_bytes() == key,
            Self::Name { namespace, name, resource } => ObjectPath::parse(prefix, key).is_some_and(|path| {
                (path.namespace, path.name) == (Some(namespace), name)
                    && resource.is_none_or(|resource| Resource::of(Some(path)).to_string() == resource)
            }),
        }
    }
}

fn look(args: &ObjectArgs, wanted: &Wanted<'_>, output: &Output) -> Result<Answer, scan::ScanError> {
    let prefix = &args.prefix.prefix;
    let below = if let Wanted::Key(_) = wanted { "" } else { prefix.as_str() };
    let mut looked = Looked { prefix, wanted, classifier: Classifier::new(), answer: Answer::default() };
    #[cfg(feature = "kine")]
    if casemate_census::kine::is_sqlite(&args.file) {
        scan::open_kine(&args.file, output)?.values(below, |item, standing, _| looked.at(item, standing))?;
        return Ok(looked.answer);
    }
    let (snapshot, _) = scan::open(&args.file, output)?;
    let store = snapshot.store()?;
    let mut values = store.live(below.as_bytes()).map_err(|error| snapshot.error(error))?;
    while let Some((item, standing)) = values.next_value().map_err(|error| snapshot.error(error))? {
        if !looked.at(&item, standing) {
            break;
        }
    }
    snapshot.ensure_unchanged()?;
    Ok(looked.answer)
}

/// What was found so far.
struct Looked<'a> {
    prefix: &'a str,
    wanted: &'a Wanted<'a>,
    classifier: Classifier,
    answer: Answer,
}

impl Looked<'_> {
    /// Looks at a value, and tells whether to go on.
    fn at(&mut self, item: &Item<'_>, standing: Standing) -> bool {
        let Self { prefix, wanted, classifier, answer } = self;
        if !wanted.is(prefix, item.pair.key) {
            return true;
        }
        if answer.values.len() == MOST {
            answer.truncated = true;
            return false;
        }
        let class = classifier.classify(item.pair.value);
        let encryption = Encryption::of(&class);
        let (dek_source, annotations) = match &class {
            Class::KmsV2(kms) => (
                Some(hex::encode(kms.dek_source.digest)),
                kms.annotations.iter().map(|annotation| annotation.name.to_string()).collect(),
            ),
            _ => (None, Vec::new()),
        };
        let faults = match (&class, &encryption) {
            (Class::Malformed(malformed), _) => malformed.reasons.iter().map(ToString::to_string).collect(),
            (_, Encryption::KmsV2 { faults, .. }) => faults.clone(),
            _ => Vec::new(),
        };
        answer.values.push(Value {
            key: Name::new(item.pair.key).to_string(),
            resource: Resource::of(ObjectPath::parse(prefix, item.pair.key)).to_string(),
            revision: item.revision.main,
            live: standing == Standing::Live,
            bytes: item.pair.value.len() as u64,
            keys: encryption.keys(),
            encryption,
            dek_source,
            annotations,
            faults,
        });
        true
    }
}

impl Answer {
    fn sections(&self) -> Vec<Section> {
        self.values.iter().map(Value::section).collect()
    }
}

impl Value {
    fn section(&self) -> Section {
        let age = if self.live { "" } else { ", overwritten or deleted since" };
        let mut section = Section::new(format!("{}  revision {}{age}", self.key, self.revision));
        let mut row = |name: &str, value: String| section.row([name.to_owned(), value]);
        row("resource", self.resource.clone());
        row("encryption", self.encryption.to_string());
        if let Encryption::KmsV2 { key_id, .. } = &self.encryption {
            row("key id", key_id.clone());
        }
        row("bytes", self.bytes.to_string());
        for key in &self.keys {
            row("opened by", key.to_string());
        }
        if let Some(digest) = &self.dek_source {
            row("DEK source", format!("sha256:{digest}"));
        }
        for fault in &self.faults {
            row("PROBLEM", fault.clone());
        }
        section
    }
}
