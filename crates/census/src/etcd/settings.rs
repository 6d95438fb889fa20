//! How an etcd is reached.
use std::fmt;
use std::time::Duration;

use tonic::transport::{self, Certificate, ClientTlsConfig, Endpoint};
use zeroize::Zeroizing;

use super::Error;

/// How an etcd is reached, and as whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Members of one cluster: `https://HOST:PORT`, or `http://`. They are asked in this order.
    pub endpoints: Vec<String>,
    /// Needed by `https` ones.
    pub tls: Option<Tls>,
    /// Where authentication is on. A client certificate may name the user, too.
    pub user: Option<User>,
    /// How long one request may take.
    pub timeout: Duration,
    /// How long to go on trying while no member answers, once one has.
    pub patience: Duration,
}

/// Whom to trust, and who we are.
#[derive(Clone)]
pub struct Tls {
    /// Certificates of authorities, PEM.
    pub authorities: Vec<u8>,
    /// Our own certificate, where etcd wants one.
    pub identity: Option<Identity>,
    /// The name that the server's certificate must have, if it is not that of the endpoint.
    pub server_name: Option<String>,
}

/// A client certificate and its key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, intermediate ones behind it.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Zeroizing<Vec<u8>>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: Zeroizing<String>,
}

impl Settings {
    /// For `endpoints`, without TLS and user.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            user: None,
            timeout: Duration::from_secs(10),
            patience: Duration::from_secs(30),
        }
    }

    /// What to connect to for `endpoint`.
    ///
    /// # Errors
    /// If it is no address, or what it needs is missing.
    pub fn endpoint(&self, endpoint: &str) -> Result<Endpoint, Error> {
        let refused = |what| Error::Endpoint { endpoint: endpoint.to_owned(), what };
        let is_tls = match endpoint.split_once("://") {
            Some(("https", _)) => true,
            Some(("http", _)) => false,
            _ => {
                return Err(refused(
                    "write it as https://HOST:PORT, or http://HOST:PORT where etcd has no TLS",
                ));
            }
        };
        let made = Endpoint::from_shared(endpoint.to_owned())
            .map_err(|_| refused("it is no address: write it as https://HOST:PORT"))?;
        if made.uri().host().is_none_or(str::is_empty) || !matches!(made.uri().path(), "" | "/") {
            return Err(refused("it is no address: write it as https://HOST:PORT"));
        }
        let made = made.connect_timeout(self.timeout).tcp_nodelay(true);
        if !is_tls {
            return Ok(made);
        }
        let tls = self.tls.as_ref().ok_or_else(|| {
            refused("it is https, and no certificate of an authority was given to trust it by: give --cacert")
        })?;
        made.tls_config(tls.config()).map_err(|_| {
            refused("the certificates or the key can't be used: each file must be PEM, and key and certificate belong together")
        })
    }
}

impl Tls {
    fn config(&self) -> ClientTlsConfig {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authorities));
        if let Some(Identity { certificate, key }) = &self.identity {
            config = config.identity(transport::Identity::from_pem(certificate, key.as_slice()));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        config
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("has_identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}
