//! Asking all that there is: API servers, files, etcd.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use casemate_census::etcd::{Options as Census, Scanner};
use casemate_census::survey::Survey;
use casemate_encryption_config::{EncryptionConfiguration, ServerFlags, file_hash};
use hyper::Uri;

use super::expected::{self, Answered, Expected, Found, Identity};
use crate::census::api::{reach::Reach, told};
use crate::census::read_small;
use crate::migrate::reach::EtcdReach;
use crate::output::{Exit, Failure, Output};

/// Where to look.
#[derive(clap::Args)]
pub(crate) struct Places {
    #[command(flatten)]
    pub(crate) reach: Reach,

    /// The EncryptionConfiguration that API servers are started with; may be given several times, and as SERVER=FILE for one
    /// of them, by its URL, host or name. Of its keys only a fingerprint is shown
    #[arg(long, value_name = "[SERVER=]FILE", value_parser = FileOf::parse)]
    pub(crate) encryption_config: Vec<FileOf>,

    #[command(flatten)]
    pub(crate) etcd: EtcdReach,
}

/// A file, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileOf {
    /// One server; else all that have none of their own.
    pub(crate) server: Option<String>,
    pub(crate) path: PathBuf,
}

/// What stands in a file.
#[derive(Debug)]
pub(crate) struct FileSeen {
    pub(crate) of: FileOf,
    /// SHA-256 of it, if it could be read.
    pub(crate) hash: Option<String>,
    /// What it says; or why API servers would not take it.
    pub(crate) says: Result<EncryptionConfiguration, String>,
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct Looked {
    /// Seconds since 1970.
    pub(crate) at: u64,
    pub(crate) expected: Expected,
    pub(crate) servers: Vec<Found>,
    pub(crate) files: Vec<FileSeen>,
    /// None: etcd was not to be asked.
    pub(crate) survey: Option<Survey>,
}

/// The most that a list of Leases or EndpointSlices may be.
const MOST: usize = 8 << 20;
/// How often compaction may make a census begin anew.
const PASSES: u32 = 8;

impl FileOf {
    fn parse(text: &str) -> Result<Self, String> {
        // A path may have a `=`, too.
        let is_server = |server: &str| {
            server.starts_with("https://") || server.starts_with("http://") || !server.contains(['/', '\\'])
        };
        let split = text.split_once('=').filter(|(server, _)| !server.is_empty() && is_server(server));
        let (server, path) = match split {
            Some((server, path)) => (Some(server.trim_end_matches('/').to_owned()), path),
            None => (None, text),
        };
        match path {
            "" => Err("there is no file: write it as FILE or as SERVER=FILE".to_owned()),
            path => Ok(Self { server, path: path.into() }),
        }
    }

    /// Whether it is of this server and of no other.
    pub(crate) fn is_of(&self, server: &Found) -> bool {
        let host = |url: &str| {
            let url: Uri = url.parse().ok()?;
            Some((url.host()?.to_owned(), url.authority()?.to_string()))
        };
        self.server.as_ref().is_some_and(|named| {
            let url = server.url.as_deref();
            *named == server.name
                || url == Some(named)
                || url.and_then(host).is_some_and(|(host, authority)| *named == host || *named == authority)
        })
    }
}

impl Places {
    /// Looks everywhere. Only what is wrong with the command line ends it: what can't be reached is part of what was seen.
    pub(crate) async fn look(&self, output: &Output) -> Result<Looked, Failure> {
        let files = self.encryption_config.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let (expected, servers) = self.servers().await?;
        for file in files.iter().filter(|file| file.of.server.is_some()) {
            if !servers.iter().any(|server| file.of.is_of(server)) {
                let named = file.of.server.as_deref().unwrap_or_default();
                let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
                let what = format!(
                    "--encryption-config names {named}, and the API servers are {}",
                    names.join(", ")
                );
                return Err(Failure::new(Exit::Usage, &what));
            }
        }
        let survey = match self.etcd.prefix(output).await? {
            Some(prefix) => Some(self.census(prefix, output).await?),
            None => None,
        };
        Ok(Looked { at: now(), expected, servers, files, survey })
    }

    async fn servers(&self) -> Result<(Expected, Vec<Found>), Failure> {
        let mut servers = self.reach.servers().await?;
        let expected = if self.reach.names_servers() {
            Expected::Named
        } else {
            let (expected, others) = self.expected(&servers).await?;
            let known: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
            let is_other = |url: &&String| expected == Expected::Endpoints || !known.contains(url);
            let others: Vec<Uri> =
                others.iter().filter(is_other).filter_map(|url| url.parse().ok()).collect();
            let others = self.reach.servers_at(&others).await?;
            match expected {
                // The context's own address leads to one of them.
                Expected::Endpoints => servers = others,
                _ => servers.extend(others),
            }
            expected
        };
        let mut answers = Vec::new();
        for server in &servers {
            let told = told(server).await.map_err(|error| error.to_string());
            answers.push(Answered { url: server.url.clone(), told });
        }
        let found = expected::found(&expected, answers);
        Ok((expected, found))
    }

    /// What tells which servers there must be, and where they may be.
    async fn expected(
        &self,
        servers: &[crate::census::api::reach::Server],
    ) -> Result<(Expected, Vec<String>), Failure> {
        const JSON: &str = "application/json";
        let Some(server) = servers.first() else {
            return Ok((Expected::Unknown("there is none".into()), Vec::new()));
        };
        let slices = server.get(expected::SLICES, JSON, MOST, "list endpointslices in default").await;
        let addresses = slices.ok().and_then(|slices| expected::addresses(&slices).ok()).unwrap_or_default();
        let leases = server.get(expected::LEASES, JSON, MOST, "list leases in kube-system").await;
        let why = match leases {
            Ok(leases) => match Identity::list(&leases) {
                Ok(identities) if !identities.is_empty() => {
                    return Ok((Expected::Leases(identities), addresses));
                }
                Ok(_) => "no API server keeps an identity Lease".to_owned(),
                Err(error) => format!("identity Leases can't be read: {error}"),
            },
            Err(error) => format!("identity Leases: {} {error}", server.url),
        };
        Ok(match addresses.is_empty() {
            false => (Expected::Endpoints, addresses),
            true => {
                let why = format!(
                    "{why}, and the Service kubernetes leads nowhere: name all API servers with --server"
                );
                (Expected::Unknown(why), addresses)
            }
        })
    }

    async fn census(&self, prefix: String, output: &Output) -> Result<Survey, Failure> {
        let client = self.etcd.connect(output).await?;
        let options = Census { prefix, rate: None, passes: PASSES };
        let mut progress = crate::census::scan::Progress::new(
            output,
            format!("census of {}", client.endpoint()),
            "values",
            0,
        );
        let mut scanner = Scanner::new(client, options);
        let survey = scanner.survey(|at| progress.now_at(at.done, at.all, at.done)).await;
        survey.map_err(|error| Failure::new(Exit::Unknown, &error))
    }
}

/// The file of each server, by the server's name.
pub(crate) fn files_of<'a>(files: &'a [FileSeen], servers: &[Found]) -> BTreeMap<String, &'a FileSeen> {
    let of = |server: &Found| {
        let own = files.iter().find(|file| file.of.is_of(server));
        own.or_else(|| files.iter().find(|file| file.of.server.is_none()))
    };
    servers.iter().filter_map(|server| Some((server.name.clone(), of(server)?))).collect()
}

fn read(of: &FileOf) -> Result<FileSeen, Failure> {
    if !Path::exists(&of.path) {
        // An API server that is started with no such flag has none: nothing is encrypted.
        let what =
            format!("{} is not there: name the file that API servers are started with", of.path.display());
        return Err(Failure::new(Exit::Usage, &what));
    }
    let bytes = read_small(&of.path)?;
    let flags = ServerFlags { kms_v1: true, ..ServerFlags::default() };
    let says = EncryptionConfiguration::read(&bytes, flags);
    let says = says.map_err(|refused| format!("{}: {refused}", of.path.display()));
    Ok(FileSeen { of: of.clone(), hash: Some(file_hash(&bytes)), says })
}

fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_one_server_or_of_all() {
        let of = |text: &str| FileOf::parse(text).map(|of| (of.server, of.path.display().to_string()));
        let named = |server: &str, path: &str| Ok((Some(server.to_owned()), path.to_owned()));
        assert_eq!(of("/etc/a=b.yaml"), Ok((None, "/etc/a=b.yaml".to_owned())));
        assert_eq!(of("n1=/etc/a.yaml"), named("n1", "/etc/a.yaml"));
        assert_eq!(of("https://10.0.0.1:6443/=a.yaml"), named("https://10.0.0.1:6443", "a.yaml"));
        assert!(of("").is_err() && of("n1=").is_err());
        let found = |name: &str, url: &str| Found {
            name: name.to_owned(),
            url: Some(url.to_owned()),
            is_expected: true,
            told: Err(String::new()),
        };
        let server = found("n1", "https://10.0.0.1:6443");
        for name in ["n1", "10.0.0.1", "10.0.0.1:6443", "https://10.0.0.1:6443"] {
            assert!(FileOf { server: Some(name.to_owned()), path: "a".into() }.is_of(&server), "{name}");
        }
        for name in ["n2", "10.0.0.10", "6443"] {
            assert!(!FileOf { server: Some(name.to_owned()), path: "a".into() }.is_of(&server), "{name}");
        }
        assert!(!FileOf { server: None, path: "a".into() }.is_of(&server));
    }
}
