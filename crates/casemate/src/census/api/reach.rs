//! How API servers are asked: kubectl's flags and files, and GET requests only.
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Request, StatusCode, Uri};
use kube_client::client::{AuthError, Body};
use kube_client::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube_client::{Client, Config};

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
    #[arg(long, value_name = "URL", value_parser = server_url)]
    server: Vec<Uri>,

    /// The name that the certificate of each --server has, if it is not that of the address
    #[arg(long, value_name = "NAME", requires = "server")]
    tls_server_name: Option<String>,

    /// How long one request may take, such as 30s
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::kms::timeout)]
    request_timeout: Duration,
}

/// One API server, or what answers for several.
pub(crate) struct Server {
    pub(crate) url: String,
    client: Client,
    timeout: Duration,
}

/// Why there is no answer. None of these shows what the server said: it may be anything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(
        "can't be reached ({reason}): check address and network; kubectl with the same flags fails alike"
    )]
    Unreached { reason: String },
    #[error(
        "can't be spoken to over TLS ({reason}): the address has to serve it, and its certificate to be of the kubeconfig's certificate-authority, in its \
         time, and for this address, else name it with --tls-server-name"
    )]
    Tls { reason: String },
    #[error("gave no answer within {timeout:?}: --request-timeout gives it longer")]
    Deadline { timeout: Duration },
    #[error(
        "gets no credentials from the user of the context: {why}; kubectl auth whoami with the same kubeconfig fails alike"
    )]
    NoCredentials { why: String },
    #[error(
        "does not know these credentials (401): they are of another cluster, expired or revoked; get new ones, and see \
         whose they are with kubectl auth whoami"
    )]
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
    pub(crate) async fn servers(&self) -> Result<Vec<Server>, Failure> {
        self.configs().await?.into_iter().map(|config| self.connect(config)).collect()
    }

    /// Those servers and no other, with the credentials of the context.
    pub(crate) async fn servers_at(&self, urls: &[Uri]) -> Result<Vec<Server>, Failure> {
        let config = self.config().await?;
        urls.iter().map(|url| self.connect(self.config_of(&config, url))).collect()
    }

    /// Whether servers are named.
    pub(crate) fn names_servers(&self) -> bool {
        !self.server.is_empty()
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
        let usage = |error: KubeconfigFault| Failure::new(Exit::Usage, &error);
        let (kubeconfig, path) = match &self.kubeconfig {
            Some(path) => (Kubeconfig::read_from(path), path.display().to_string()),
            None => (Kubeconfig::read(), "the kubeconfig".to_owned()),
        };
        let kubeconfig = match kubeconfig {
            Err(error) if self.kubeconfig.is_none() && self.context.is_none() && is_absent(&error) => {
                // As in a pod: the service account's.
                return Config::incluster()
                    .map_err(|error| usage(KubeconfigFault::Nowhere(error.to_string())));
            }
            kubeconfig => kubeconfig.map_err(|error| usage(KubeconfigFault::of(path.clone(), error)))?,
        };
        without_user(&kubeconfig, self.context.as_deref(), &path).map_err(usage)?;
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        config.map_err(|error| usage(KubeconfigFault::of(path, error)))
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
    pub(crate) async fn get(
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

/// Why a kubeconfig is of no use. Of what stands in it only names are shown: the rest may be credentials.
#[derive(Debug, thiserror::Error)]
enum KubeconfigFault {
    #[error(
        "there is no kubeconfig, and no service account of a pod ({0}): name one with --kubeconfig, or set KUBECONFIG"
    )]
    Nowhere(String),
    #[error("{path} can't be read: {error}")]
    Unreadable { path: String, error: String },
    #[error("{path} is no kubeconfig: line {line}, column {column} is wrong")]
    Malformed { path: String, line: u64, column: u64 },
    #[error("{path} is no kubeconfig: a field is missing, or is of another kind than kubectl writes it")]
    Foreign { path: String },
    #[error(
        "{path} has no current context: choose one with --context; kubectl config get-contexts lists them"
    )]
    NoCurrentContext { path: String },
    #[error("{path} has no context {context:?}: kubectl config get-contexts lists those that it has")]
    NoContext { path: String, context: String },
    #[error(
        "{path} has no user {user:?}, which its context {context:?} names: choose another with --context"
    )]
    NoUser { path: String, context: String, user: String },
    #[error("{path} can't be used: {error}")]
    Other { path: String, error: String },
}

impl KubeconfigFault {
    fn of(path: String, error: KubeconfigError) -> Self {
        match error {
            KubeconfigError::ReadConfig(error, at) => {
                Self::Unreadable { path: at.display().to_string(), error: error.to_string() }
            }
            // Its text quotes the lines around.
            KubeconfigError::Parse(error) => match error.location() {
                Some(at) => Self::Malformed { path, line: at.line(), column: at.column() },
                None => Self::Foreign { path },
            },
            KubeconfigError::CurrentContextNotSet => Self::NoCurrentContext { path },
            KubeconfigError::LoadContext(context) => Self::NoContext { path, context },
            error => Self::Other { path, error: error.to_string() },
        }
    }
}

/// Whether there is none where kubectl looks.
fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// A context whose user is absent would be used by nobody, and refused for a reason that misleads.
fn without_user(kubeconfig: &Kubeconfig, context: Option<&str>, path: &str) -> Result<(), KubeconfigFault> {
    let Some(name) = context.or(kubeconfig.current_context.as_deref()) else { return Ok(()) };
    let chosen = kubeconfig.contexts.iter().find(|one| one.name == name);
    let user = chosen.and_then(|one| one.context.as_ref()?.user.as_deref()).filter(|user| !user.is_empty());
    match user {
        Some(user) if kubeconfig.auth_infos.iter().all(|one| one.name != user) => {
            Err(KubeconfigFault::NoUser {
                path: path.to_owned(),
                context: name.to_owned(),
                user: user.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// Credentials go over TLS, or to this machine, as to a kubectl proxy.
fn server_url(text: &str) -> Result<Uri, String> {
    const FORM: &str = "an API server is written as https://HOST:PORT";
    let url: Uri = text.parse().map_err(|error| format!("{error}: {FORM}"))?;
    let Some(host) = url.host() else { return Err(FORM.to_owned()) };
    match url.scheme_str() {
        Some("https") => Ok(url),
        Some("http") if ["localhost", "127.0.0.1", "[::1]"].contains(&host) => Ok(url),
        Some("http") => Err(format!("the credentials would go over the network in clear: {FORM}")),
        _ => Err(FORM.to_owned()),
    }
}

/// What a program for credentials said is left out: it may be one.
fn failed(error: &kube_client::Error) -> AskError {
    if let kube_client::Error::Auth(error) = error {
        return AskError::NoCredentials { why: no_credentials(error) };
    }
    // The first two say only that it is an error of a client.
    let mut causes = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        causes.push(cause);
        source = cause.source();
    }
    let telling = causes.get(1..).filter(|telling| !telling.is_empty()).unwrap_or(&causes);
    let mut reason = String::new();
    for cause in telling {
        let text = cause.to_string();
        if !reason.contains(&text) {
            reason = if reason.is_empty() { text } else { format!("{reason}: {text}") };
        }
    }
    if causes.iter().any(|cause| is_of_tls(*cause)) {
        AskError::Tls { reason }
    } else {
        AskError::Unreached { reason }
    }
}

/// What TLS can't make sense of is invalid data, and a peer that knows no TLS hangs up; both are in an error of input and
/// output, or in one that it wraps.
fn is_of_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let Some(error) = error.downcast_ref::<io::Error>() else { return false };
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
        || error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<io::Error>())
            .is_some_and(|inner| is_of_tls(inner))
}

fn no_credentials(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecStart(error) => format!("its program can't be started: {error}"),
        AuthError::AuthExecRun { out, .. } => match out.status.code() {
            Some(code) => format!("its program ended with exit code {code}"),
            None => "its program was killed".to_owned(),
        },
        AuthError::ReadTokenFile(error, path) => {
            format!("its token file {} can't be read: {error}", path.display())
        }
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            "what its program prints is no ExecCredential with a status".to_owned()
        }
        _ => "its token can't be used".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_to_nobody_in_clear() {
        for right in
            ["https://10.0.0.1:6443", "http://localhost:8001", "http://127.0.0.1:8001", "http://[::1]:8001"]
        {
            assert!(server_url(right).is_ok(), "{right}");
        }
        for (wrong, says) in [
            ("http://10.0.0.1:8080", "in clear"),
            ("localhost:6443", "https://HOST:PORT"),
            ("10.0.0.1", "https://HOST:PORT"),
            ("/metrics", "https://HOST:PORT"),
            ("ftp://10.0.0.1", "https://HOST:PORT"),
            ("", "https://HOST:PORT"),
        ] {
            assert!(server_url(wrong).is_err_and(|said| said.contains(says)), "{wrong}");
        }
    }
}
