//! How API servers are asked: kubectl's flags and files, and GET requests only.
use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Request, StatusCode, Uri};
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::{Client, Config, client::Body};

use crate::output::{Exit, Failure};

/// How API servers are reached.
#[derive(clap::Args)]
pub(crate) struct Reach {
    /// Kubeconfig; if left out, $KUBECONFIG or ~/.kube/config, and in a pod its service account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig; if left out, its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// An API server by its own address, with the credentials of the context; may be given several times, once for each
    #[arg(long, value_name = "URL")]
    server: Vec<Uri>,

    /// The name that the certificate of each --server has, if it is not that of the address
    #[arg(long, value_name = "NAME", requires = "server")]
    tls_server_name: Option<String>,

    /// How long one request may take, such as 30s
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::kms::timeout)]
    request_timeout: Duration,
}

/// One API server, or what answers for several.
pub(super) struct Server {
    pub(super) url: String,
    client: Client,
    timeout: Duration,
}

/// Why there is no answer. None of these shows what the server said: it may be anything.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error(
        "can't be reached ({reason}): check address, network and certificate; kubectl with the same flags fails alike"
    )]
    Unreached { reason: String },
    #[error("gave no answer within {timeout:?}: --request-timeout gives it longer")]
    Deadline { timeout: Duration },
    #[error("gets no credentials from the user of the context: kubectl auth whoami says why")]
    NoCredentials,
    #[error("does not know these credentials (401): kubectl auth whoami says whose they are")]
    Unauthorized,
    #[error(
        "does not allow it (403): the right to {right} is missing; docs/how-to/census.md has a ClusterRole"
    )]
    Forbidden { right: String },
    #[error("has no such thing (404): {what}")]
    Missing { what: String },
    #[error("answered {code} to {what}")]
    Code { code: u16, what: String },
    #[error("answered {what} with what is no such answer: is it an API server?")]
    Foreign { what: String },
}

impl Reach {
    /// Each server that is named, or the one of the context.
    pub(super) async fn servers(&self) -> Result<Vec<Server>, Failure> {
        self.configs().await?.into_iter().map(|config| self.connect(config)).collect()
    }

    /// What each server that is named, or the one of the context, is asked with.
    pub(crate) async fn configs(&self) -> Result<Vec<Config>, Failure> {
        let config = self.config().await?;
        let urls = match self.server.as_slice() {
            [] => std::slice::from_ref(&config.cluster_url),
            named => named,
        };
        Ok(urls.iter().map(|url| self.config_of(&config, url)).collect())
    }

    /// How long one request may take.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    async fn config(&self) -> Result<Config, Failure> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let read = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Usage, &format_args!("the kubeconfig can't be used: {error}"))
        };
        match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(|error| read(&error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| read(&error))
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| read(&error)),
            (None, None) => Config::infer().await.map_err(|error| {
                Failure::new(Exit::Usage, &format_args!("{error}: name a kubeconfig with --kubeconfig"))
            }),
        }
    }

    fn config_of(&self, config: &Config, url: &Uri) -> Config {
        let mut config = config.clone();
        if *url != config.cluster_url {
            config.tls_server_name = None;
        }
        if self.tls_server_name.is_some() {
            config.tls_server_name.clone_from(&self.tls_server_name);
        }
        config.cluster_url = url.clone();
        config.connect_timeout = Some(self.request_timeout);
        // A request that is sent twice would be counted twice.
        config.default_retry = false;
        config
    }

    fn connect(&self, config: Config) -> Result<Server, Failure> {
        let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config).map_err(|error| {
            let error = failed(&error);
            Failure::new(Exit::Usage, &format_args!("{url} {error}"))
        })?;
        Ok(Server { url, client, timeout: self.request_timeout })
    }
}

impl Server {
    /// What it answers with 200, at most `most` bytes. `right` is what one must be allowed to do.
    pub(super) async fn get(
        &self,
        path: &str,
        accept: &str,
        most: usize,
        right: &str,
    ) -> Result<Bytes, AskError> {
        let request = Request::get(path).header(ACCEPT, accept).body(Body::empty());
        let foreign = || AskError::Foreign { what: path.to_owned() };
        let request = request.map_err(|_| foreign())?;
        let answer = async {
            let response = self.client.send(request).await.map_err(|error| failed(&error))?;
            match response.status() {
                StatusCode::OK => {}
                StatusCode::UNAUTHORIZED => return Err(AskError::Unauthorized),
                StatusCode::FORBIDDEN => return Err(AskError::Forbidden { right: right.to_owned() }),
                StatusCode::NOT_FOUND => return Err(AskError::Missing { what: path.to_owned() }),
                code => return Err(AskError::Code { code: code.as_u16(), what: path.to_owned() }),
            }
            let body = Limited::new(response.into_body(), most).collect().await.map_err(|_| foreign())?;
            Ok(body.to_bytes())
        };
        let timeout = self.timeout;
        tokio::time::timeout(timeout, answer).await.map_err(|_| AskError::Deadline { timeout })?
    }
}

/// What a program for credentials said is left out: it may be one.
fn failed(error: &kube_client::Error) -> AskError {
    if let kube_client::Error::Auth(_) = error {
        return AskError::NoCredentials;
    }
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !reason.contains(&cause_text) {
            reason = format!("{reason}: {cause_text}");
        }
        source = cause.source();
    }
    AskError::Unreached { reason }
}
