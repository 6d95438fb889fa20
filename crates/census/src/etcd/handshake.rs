//! Why a connection with TLS broke.
//!
//! A server that does not take a client's certificate says so when the client takes the handshake for done, and then the
//! HTTP/2 stack is told of a broken pipe before it reads that. So where a connection broke, one more is made by hand,
//! and listened to.
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::Uri;

use super::{Fault, Identity, Tls};

/// A server with TLS, and who we are to it.
#[derive(Clone, Debug)]
pub(super) struct Handshake {
    host: String,
    port: u16,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Handshake {
    /// With the server at `uri`; `None` if a file is not what it should be, which [`Settings`](super::Settings) tell.
    pub(super) fn new(uri: &Uri, tls: &Tls) -> Option<Self> {
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(tls.server_name.clone().unwrap_or_else(|| host.clone())).ok()?;
        let mut roots = RootCertStore::empty();
        let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&tls.authorities).collect();
        roots.add_parsable_certificates(authorities.ok()?);
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .ok()?
            .with_root_certificates(roots);
        let mut config = match &tls.identity {
            Some(Identity { certificate, key }) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
                builder.with_client_auth_cert(chain.ok()?, PrivateKeyDer::from_pem_slice(key).ok()?).ok()?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols.push(b"h2".to_vec());
        Some(Self { host, port: uri.port_u16().unwrap_or(443), name, config: Arc::new(config) })
    }

    /// What the server says to it; `None` if nothing is wrong.
    pub(super) async fn listen(&self, patience: Duration) -> Option<Fault> {
        match timeout(patience, self.try_it()).await {
            Ok(Err(error)) => Some(Fault::of_io(&error)),
            Ok(Ok(())) => None,
            Err(_) => Some(Fault::Silent),
        }
    }

    async fn try_it(&self) -> std::io::Result<()> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let connector = TlsConnector::from(self.config.clone());
        let mut stream = connector.connect(self.name.clone(), stream).await?;
        // A server of HTTP/2 speaks first, and one that refuses does, too.
        stream.read(&mut [0; 1]).await.map(drop)
    }
}
