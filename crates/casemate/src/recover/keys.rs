//! Keys of the command line, and how they open what they are asked for.
//!
//! Offline ones come first: an identity asks nobody. Root keys are asked by the rules of their configuration, as
//! casemate-kms asks them; a plugin by its socket, as kube-apiserver asks it.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use casemate_census::recover::{LocalKeys, NotOpened, Opener, Origin, Records, Unwrapped, Unwrapper};
use casemate_census::survey::Key;
use casemate_keys::crypto_module::FIPS_BUILD;
use casemate_keys::names::sha256;
use casemate_keys::origin::OriginPolicy;
use casemate_keys::{Fingerprint, ReadPolicy, Record, Refusal, Sealed, Skipped};
use casemate_keyservice::RootKey;
use casemate_kms::config::ProviderConfig;
use casemate_kms::key_services::KeyServices;
use casemate_recipients::Identity;
use casemate_wire::kms_v2::EncryptResponse;
use casemate_wire::kms_v2::stored::EncryptedObject;
use jiff::Timestamp;
use prost::bytes::Bytes;
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use crate::census;
use crate::host::{HostArgs, bounded, runtime};
use crate::inspect::input;
use crate::kms::client::{CallError, Plugin};
use crate::kms::socket::Socket;
use crate::output::{Exit, Failure, Output};

/// How long a plugin's socket gets: its key service may be slow on its first call.
const PLUGIN: Duration = Duration::from_secs(20);

/// What opens.
#[derive(clap::Args)]
#[command(next_help_heading = "Keys: any of these, many times each")]
pub(super) struct KeyArgs {
    /// A recovery identity, as `casemate recovery new` wrote it
    #[arg(long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,

    /// The local keys of an EncryptionConfiguration: aescbc, aesgcm, secretbox
    #[arg(long = "encryption-config", value_name = "FILE")]
    encryption_configs: Vec<PathBuf>,

    /// The root keys of a configuration of casemate-kms, asked as it asks them
    #[arg(long = "config", value_name = "FILE")]
    configs: Vec<PathBuf>,

    /// Of the configuration only the root keys of this provider
    #[arg(long, value_name = "NAME", requires = "configs")]
    provider: Option<String>,

    /// The casemate-kms program, which loads PKCS#11 modules; found beside this program or in PATH if left out
    #[arg(long, value_name = "FILE", requires = "configs")]
    plugin: Option<PathBuf>,

    /// The socket of any KMS plugin, v2 or v1, as in kms=unix:///run/kms.sock; NAME is its provider's in the
    /// EncryptionConfiguration
    #[arg(long = "kms", value_name = "NAME=URL")]
    sockets: Vec<NamedSocket>,

    /// What `casemate census snapshot --output json` said while etcd was trusted: proves where its records come from
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

/// A provider's name in etcd, and where its plugin listens.
#[derive(Clone)]
struct NamedSocket {
    name: String,
    socket: Socket,
}

impl FromStr for NamedSocket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, socket) = text
            .rsplit_once("=unix://")
            .filter(|(name, _)| !name.is_empty() && !name.contains(':'))
            .ok_or("write NAME=unix:///run/plugin.sock; NAME is what the EncryptionConfiguration calls the plugin")?;
        let socket = format!("unix://{socket}").parse().map_err(|error| format!("{error}"))?;
        Ok(Self { name: name.to_owned(), socket })
    }
}

/// All keys that were given, but for local ones.
pub(super) struct Ring {
    identities: Vec<(Fingerprint, Identity)>,
    hosts: Vec<Host>,
    sockets: BTreeMap<String, Vec<Peer>>,
    records: Records,
    runtime: Runtime,
    /// In seconds since 1970.
    now: u64,
    /// Calls to key services and plugins.
    pub(super) calls: u64,
}

/// Root keys of a configuration.
struct Host {
    services: KeyServices,
    providers: Vec<Provider>,
}

struct Provider {
    read: ReadPolicy,
    keys: Vec<Away<Box<dyn RootKey>>>,
}

/// A plugin that is connected when it is first asked.
struct Peer {
    socket: Socket,
    plugin: Option<Away<Plugin>>,
}

/// Somebody who may be away: then nobody waits for it a second time.
struct Away<T> {
    who: T,
    since: Option<String>,
}

impl KeyArgs {
    /// What opens with all of these.
    pub(super) fn opener(&self, output: &Output) -> Result<Opener<Ring>, Failure> {
        let mut local = LocalKeys::default();
        for path in &self.encryption_configs {
            local.add(&census::read_configuration(path)?.1);
        }
        let mut ring = Ring::new()?;
        for path in &self.identities {
            if FIPS_BUILD {
                let text = "--identity: age is not available in a FIPS build; use a casemate that was built without it";
                return Err(Failure::new(Exit::Usage, &text));
            }
            let identity = Identity::parse(&input::read(Some(path), output)?).map_err(|error| {
                Failure::new(Exit::Usage, &format_args!("--identity {}: {error}", path.display()))
            })?;
            ring.identities.push((identity.recipient().fingerprint(), identity));
        }
        if let Some(path) = &self.records {
            let json = input::read(Some(path), output)?;
            ring.records = Records::parse(&json).map_err(|error| {
                Failure::new(Exit::Usage, &format_args!("--records {}: {error}", path.display()))
            })?;
        }
        for config in &self.configs {
            let host = self.host(HostArgs { config: config.clone(), plugin: self.plugin.clone() })?;
            ring.hosts.push(host);
        }
        if let Some(wanted) = &self.provider
            && ring.hosts.iter().all(|host| host.providers.is_empty())
        {
            let text = format_args!("--provider {wanted}: no provider of the configuration has this name");
            return Err(Failure::new(Exit::Usage, &text));
        }
        for NamedSocket { name, socket } in &self.sockets {
            let peer = Peer { socket: socket.clone(), plugin: None };
            ring.sockets.entry(name.clone()).or_default().push(peer);
        }
        Ok(Opener::new(local, ring))
    }

    fn host(&self, host: HostArgs) -> Result<Host, Failure> {
        let config = host.load()?;
        let services = host.services(&config).map_err(|why| Failure::new(Exit::Unknown, &why))?;
        let state = &*config.state_directory;
        let is_wanted =
            |one: &&ProviderConfig| self.provider.as_deref().is_none_or(|name| one.name.as_str() == name);
        let mut providers = Vec::new();
        for provider in config.providers.iter().filter(is_wanted) {
            let not_here = |error| Failure::new(Exit::Unknown, &error);
            let write = provider.write_keys(&services, state).map_err(not_here)?;
            let read = provider.read_only_keys(&services, state).map_err(not_here)?;
            let keys = write.into_iter().chain(read).map(|who| Away { who, since: None });
            providers
                .push(Provider { read: provider.read_policy(&config.cluster_id.0), keys: keys.collect() });
        }
        Ok(Host { services, providers })
    }
}

impl Ring {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            identities: Vec::new(),
            hosts: Vec::new(),
            sockets: BTreeMap::new(),
            records: Records::default(),
            runtime: runtime()?,
            now: u64::try_from(Timestamp::now().as_second()).unwrap_or_default(),
            calls: 0,
        })
    }

    /// Ends what was begun at key services, and tells how often they and plugins were asked.
    pub(super) fn finish(self) -> u64 {
        for host in &self.hosts {
            self.runtime.block_on(host.services.log_out());
        }
        self.calls
    }

    fn by_identity(&self, record: &Record, seen: bool) -> Result<Unwrapped, NotOpened> {
        let mut why = NotOpened::NoKey;
        for (fingerprint, identity) in &self.identities {
            let Some((_, wrap)) = record.recovery_wraps().find(|(of, _)| *of == fingerprint) else {
                continue;
            };
            let opened =
                identity.unwrap(wrap).map_err(|error| format!("its recovery wrap does not open: {error}"));
            let kek = opened.and_then(|payload| {
                record.core().local_kek(&*payload).ok_or_else(|| {
                    "its recovery wrap opens, and what is in it is not the local KEK of this record"
                        .to_owned()
                })
            });
            match kek {
                Ok(kek) => {
                    let by = Key::Recovery(fingerprint.to_string());
                    return Ok(Unwrapped { kek, by, origin: Origin::of(seen) });
                }
                Err(text) => why = NotOpened::Refused(text),
            }
        }
        Err(why)
    }

    fn by_root(&mut self, sealed: &Sealed<'_>, seen: bool) -> Result<Unwrapped, NotOpened> {
        let Self { hosts, runtime, now, calls, .. } = self;
        let mut why = NotOpened::NoKey;
        for provider in hosts.iter_mut().flat_map(|host| &mut host.providers) {
            match provider.open(sealed, *now, runtime, calls, seen) {
                Ok(unwrapped) => return Ok(unwrapped),
                Err(other) => why = why.or(other),
            }
        }
        Err(why)
    }
}

impl Ring {
    /// Asks the plugins of this name, until one opens it.
    fn by_plugin(
        &mut self,
        provider: &str,
        decrypt: impl AsyncFn(&mut Plugin) -> Result<Bytes, CallError>,
    ) -> Result<Zeroizing<Vec<u8>>, NotOpened> {
        let Self { sockets, runtime, calls, .. } = self;
        let mut why = NotOpened::NoKey;
        for peer in sockets.get_mut(provider).into_iter().flatten() {
            match runtime.block_on(peer.ask(calls, &decrypt)) {
                Err(other) => why = why.or(other),
                opened => return opened,
            }
        }
        Err(why)
    }
}

impl Provider {
    fn open(
        &mut self,
        sealed: &Sealed<'_>,
        now: u64,
        runtime: &Runtime,
        calls: &mut u64,
        seen: bool,
    ) -> Result<Unwrapped, NotOpened> {
        let readable = self.read.check(sealed, now).map_err(|refusal| match &refusal {
            Refusal::NoReadableRoot { roots }
                if roots.iter().all(|(_, reason)| *reason == Skipped::UnknownRoot) =>
            {
                NotOpened::NoKey
            }
            refusal => NotOpened::Refused(refusal.to_string()),
        })?;
        let mut why = NotOpened::NoKey;
        for attempt in readable.attempts() {
            let lineage = &attempt.root.lineage;
            let of = |key: &&mut Away<Box<dyn RootKey>>| key.who.prefix().rest(lineage).is_some();
            let Some(key) = self.keys.iter_mut().find(of) else { continue };
            if let Some(text) = &key.since {
                why = why.or(NotOpened::Unreachable(text.clone()));
                continue;
            }
            *calls += 1;
            let unwrapped = bounded(key.who.unwrap(&attempt.root, readable.core(), &attempt.wrap));
            match runtime.block_on(unwrapped) {
                Ok(payload) => match readable.local_kek(&payload) {
                    Some(kek) => {
                        // With a key that anybody has, anybody makes a wrap; `check` asked for a signature then, unless
                        // the configuration goes without.
                        let is_proven = !attempt.root.algorithm.is_asymmetric()
                            || self.read.origin != OriginPolicy::AcceptUnproven;
                        let origin = Origin::of(is_proven || seen);
                        return Ok(Unwrapped { kek, by: Key::Root(lineage.to_string()), origin });
                    }
                    None => {
                        let text =
                            format!("root:{lineage} opens its wrap to something else than its local KEK");
                        why = why.or(NotOpened::Refused(text));
                    }
                },
                Err(failure) if failure.class.could_not_be_asked() => {
                    let text = format!("root:{lineage} could not be asked: {failure}");
                    key.since = Some(text.clone());
                    why = why.or(NotOpened::Unreachable(text));
                }
                Err(failure) => {
                    let text = format!("root:{lineage} does not open its wrap: {failure}");
                    why = why.or(NotOpened::Refused(text));
                }
            }
        }
        Err(why)
    }
}

impl Unwrapper for Ring {
    fn local_kek(&mut self, record: &Record, sealed: &Sealed<'_>) -> Result<Unwrapped, NotOpened> {
        let annotation = sealed.annotations.first().map(|(_, value)| sha256(value));
        let seen = annotation.is_some_and(|digest| self.records.has(&digest));
        match self.by_identity(record, seen) {
            Err(why) => self.by_root(sealed, seen).map_err(|other| why.or(other)),
            opened => opened,
        }
    }

    fn dek_source(
        &mut self,
        provider: &str,
        object: &EncryptedObject,
    ) -> Result<Zeroizing<Vec<u8>>, NotOpened> {
        let stored = EncryptResponse {
            ciphertext: object.encrypted_dek_source.clone(),
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        self.by_plugin(provider, async |plugin| Ok(plugin.decrypt(stored.clone()).await?.plaintext))
    }

    fn kms_v1_key(&mut self, provider: &str, encrypted: &[u8]) -> Result<Zeroizing<Vec<u8>>, NotOpened> {
        let cipher = Bytes::copy_from_slice(encrypted);
        self.by_plugin(provider, async |plugin| Ok(plugin.decrypt_v1(cipher.clone()).await?.plain))
    }
}

impl Peer {
    async fn ask(
        &mut self,
        calls: &mut u64,
        decrypt: impl AsyncFn(&mut Plugin) -> Result<Bytes, CallError>,
    ) -> Result<Zeroizing<Vec<u8>>, NotOpened> {
        if self.plugin.is_none() {
            let who = Plugin::connect(self.socket.clone(), PLUGIN)
                .await
                .map_err(|error| NotOpened::Unreachable(error.to_string()))?;
            self.plugin = Some(Away { who, since: None });
        }
        let Some(plugin) = &mut self.plugin else { return Err(NotOpened::NoKey) };
        if let Some(text) = &plugin.since {
            return Err(NotOpened::Unreachable(text.clone()));
        }
        *calls += 1;
        match decrypt(&mut plugin.who).await {
            Ok(opened) => Ok(Zeroizing::new(opened.to_vec())),
            Err(error) if error.is_answer() => Err(NotOpened::Refused(error.to_string())),
            Err(error) => {
                plugin.since = Some(error.to_string());
                Err(NotOpened::Unreachable(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_goes_with_the_name_that_values_carry() {
        let named: NamedSocket = "my=kms=unix:///run/a=b.sock".parse().unwrap();
        assert_eq!(
            (named.name.as_str(), named.socket.to_string().as_str()),
            ("my=kms", "unix:///run/a=b.sock")
        );
        for wrong in
            ["unix:///run/a.sock", "=unix:///run/a.sock", "kms=/run/a.sock", "a:b=unix:///c", "kms=unix://"]
        {
            assert!(wrong.parse::<NamedSocket>().is_err(), "{wrong}");
        }
    }
}
