//! How connections are protected, and clients that follow their certificate files.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, Identity, redirect, tls};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{Address, CONNECT, Trouble, sha256};

/// How long certificate files are taken to be what they were.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The longest certificate file that is read.
const MAX_FILE: u64 = 1024 * 1024;

/// How the connection to a key service is protected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// PEM file of the only authorities that are trusted. Without it those of the system are.
    pub ca_file: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host of the address. A host name, not an IP address.
    pub server_name: Option<String>,
    /// Who we are.
    pub client: Option<ClientCertificate>,
}

/// A client certificate and its key, both in PEM; may be one file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientCertificate {
    /// The certificate and those between it and its authority.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

impl Tls {
    /// Every file that is read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let client = self.client.iter().flat_map(|client| [&client.cert_file, &client.key_file]);
        self.ca_file.iter().chain(client).map(PathBuf::as_path)
    }
}

/// One client an address, made anew when the certificate files change.
pub(super) struct Clients {
    addresses: Vec<Address>,
    tls: Tls,
    loaded: ArcSwapOption<Loaded>,
    looked: tokio::sync::Mutex<Option<Instant>>,
    /// Files that can't be used: their digest, and what is wrong.
    bad: Mutex<Option<([u8; 32], String)>>,
}

struct Loaded {
    digest: [u8; 32],
    clients: Vec<Client>,
}

impl Clients {
    pub(super) fn new(addresses: Vec<Address>, tls: Tls) -> Self {
        Self {
            addresses,
            tls,
            loaded: ArcSwapOption::empty(),
            looked: tokio::sync::Mutex::new(None),
            bad: Mutex::new(None),
        }
    }

    pub(super) fn server_name(&self) -> Option<&str> {
        self.tls.server_name.as_deref()
    }

    pub(super) fn digest(&self) -> Option<[u8; 32]> {
        self.loaded.load().as_ref().map(|loaded| loaded.digest)
    }

    /// What is wrong with the files as they are, while others are in use.
    pub(super) fn complaint(&self) -> Option<String> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, what)| what.clone())
    }

    /// The client of this address; `fresh` if the files were looked at just now.
    pub(super) async fn client(&self, index: usize, fresh: bool) -> Result<Client, Trouble> {
        let loaded = self.loaded.load_full();
        let loaded = match loaded {
            Some(loaded) if fresh || self.tls.files().next().is_none() => loaded,
            Some(loaded) => match self.looked.try_lock() {
                Ok(mut looked) if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) => {
                    self.look(&mut looked).await.unwrap_or(loaded)
                }
                // Somebody looks, or has: what there is will do.
                _ => loaded,
            },
            None => {
                let mut looked = self.looked.lock().await;
                match self.loaded.load_full() {
                    Some(loaded) => loaded,
                    None => self.look(&mut looked).await?,
                }
            }
        };
        // One an address, by construction.
        Ok(loaded.clients[index].clone())
    }

    /// Looks at the files now; whether other ones than before are in use.
    pub(super) async fn look_again(&self) -> bool {
        if self.tls.files().next().is_none() {
            return false;
        }
        let before = self.digest();
        let mut looked = self.looked.lock().await;
        let _ = self.look(&mut looked).await;
        self.digest() != before
    }

    async fn look(&self, looked: &mut Option<Instant>) -> Result<Arc<Loaded>, Trouble> {
        let (tls, addresses, now) = (self.tls.clone(), self.addresses.clone(), self.digest());
        let load = tokio::task::spawn_blocking(move || load(&tls, &addresses, now));
        let result = load.await.unwrap_or_else(|_| Err(([0; 32], "reading was broken off".into())));
        *looked = Some(Instant::now());
        let mut bad = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(Some(loaded)) => {
                if self.loaded.swap(Some(Arc::new(loaded))).is_some() {
                    tracing::info!("changed certificate files are in use");
                }
                *bad = None;
            }
            Ok(None) => *bad = None,
            Err((digest, what)) => {
                if bad.as_ref().is_none_or(|(known, said)| (known, said) != (&digest, &what)) {
                    tracing::warn!(
                        "certificate files can't be used, the previous ones are if there are any: {what}"
                    );
                    *bad = Some((digest, what.clone()));
                }
                return self.loaded.load_full().ok_or(Trouble::Files(what));
            }
        }
        drop(bad);
        self.loaded.load_full().ok_or_else(|| Trouble::Files("no certificate files are loaded".into()))
    }
}

/// New clients, if the files are not those of `now`. An error has the digest of what can't be used.
fn load(
    tls: &Tls,
    addresses: &[Address],
    now: Option<[u8; 32]>,
) -> Result<Option<Loaded>, ([u8; 32], String)> {
    let files = Files::read(tls).map_err(|what| ([0; 32], what))?;
    let digest = files.digest();
    if now == Some(digest) {
        return Ok(None);
    }
    let build = |address| files.client(tls, address);
    let clients = addresses.iter().map(build).collect::<Result<_, _>>().map_err(|what| (digest, what))?;
    Ok(Some(Loaded { digest, clients }))
}

struct Files {
    authorities: Option<Vec<u8>>,
    /// Certificate, then key.
    identity: Option<Zeroizing<Vec<u8>>>,
}

impl Files {
    fn read(tls: &Tls) -> Result<Self, String> {
        let authorities = tls.ca_file.as_deref().map(read).transpose()?.map(|bytes| bytes.to_vec());
        let identity = match &tls.client {
            None => None,
            Some(client) => {
                let (certificate, key) = (read(&client.cert_file)?, read(&client.key_file)?);
                let mut both = Zeroizing::new(Vec::with_capacity(certificate.len() + 1 + key.len()));
                both.extend_from_slice(&certificate);
                if client.cert_file != client.key_file {
                    both.push(b'\n');
                    both.extend_from_slice(&key);
                }
                Some(both)
            }
        };
        Ok(Self { authorities, identity })
    }

    fn digest(&self) -> [u8; 32] {
        let part = |bytes: Option<&[u8]>| bytes.map_or([0; 32], sha256);
        let identity = self.identity.as_ref().map(|identity| identity.as_slice());
        sha256(&[part(self.authorities.as_deref()), part(identity)].concat())
    }

    fn client(&self, tls: &Tls, address: &Address) -> Result<Client, String> {
        let mut builder = Client::builder()
            .user_agent(concat!("casemate/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .tls_version_min(tls::Version::TLS_1_2)
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(4)
            // Shorter than servers and what stands before them keep a quiet connection.
            .pool_idle_timeout(Duration::from_secs(30));
        if let (Some(path), Some(pem)) = (&tls.ca_file, &self.authorities) {
            let refuse = |why: String| {
                let path = path.display();
                format!(
                    "{path} can't be used as authorities to trust: {why}; it must hold certificates in PEM"
                )
            };
            let authorities =
                Certificate::from_pem_bundle(pem).map_err(|error| refuse(super::trouble::chain(&error)))?;
            if authorities.is_empty() {
                return Err(refuse("it holds no certificate".into()));
            }
            builder = builder.tls_certs_only(authorities);
        } else if !address.is_protected() {
            // Nothing to trust is looked for, which may be out of reach.
            builder = builder.tls_certs_only([]);
        }
        if let (Some(client), Some(pem)) = (&tls.client, &self.identity) {
            let identity = Identity::from_pem(pem).map_err(|_| {
                // What the parser says could quote the key.
                format!(
                    "{} and {} can't be used as client certificate and key: they must hold a certificate and its \
                     unencrypted private key in PEM",
                    client.cert_file.display(),
                    client.key_file.display()
                )
            })?;
            builder = builder.identity(identity);
        }
        if tls.server_name.is_some() && address.is_protected() {
            // The URL then has the certificate's name; the connection goes to the address.
            let host = address.0.host_str().unwrap_or_default().trim_matches(|c| c == '[' || c == ']');
            builder = builder.dns_resolver(Arc::new(Elsewhere(host.to_owned())));
        }
        builder.build().map_err(|error| {
            let files: Vec<_> = tls.files().map(|path| path.display().to_string()).collect();
            let error = super::trouble::chain(&error.without_url());
            format!("TLS can't be set up with [{}]: {error}", files.join(", "))
        })
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let attempt = || -> io::Result<Zeroizing<Vec<u8>>> {
        let file = open(path)?;
        let length = file.metadata()?.len();
        if length > MAX_FILE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than 1 MiB"));
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(length as usize + 1));
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    attempt().map_err(|error| format!("certificate file {} can't be read: {error}", path.display()))
}

/// Opens a regular file; nothing that could make us wait.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// Finds every name at this host.
struct Elsewhere(String);

impl Resolve for Elsewhere {
    fn resolve(&self, _name: Name) -> Resolving {
        let host = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
