//! How API servers are asked: over one HTTP/2 connection each, one after another.
//!
//! kube-client reads kubeconfigs, certificates and credentials; its own connector speaks HTTP/1.1 only, with a connection
//! for each request in flight. One connection of HTTP/2 carries them all, which is what kube-apiserver's other clients do.
mod answer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::{Method, Request};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube_client::client::{Body, ConfigExt as _};
use kube_client::{Client, Config};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tower::{BoxError, ServiceBuilder};

pub(crate) use answer::{Listed, Object, Refusal, Status};

use crate::targets::{self, Plan, Target, Version};
use crate::token;
use crate::verdict::{Reply, Silence};

/// API servers of one cluster. A clone asks over the same connections.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Vec<Server>,
    next: AtomicUsize,
    requests: AtomicU64,
    timeout: Duration,
    begun: Instant,
}

struct Server {
    client: Client,
    /// It did not answer: until so many milliseconds after the beginning, others are asked.
    away_until: AtomicU64,
}

/// Why API servers can't be asked at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// No server was named.
    #[error("name an API server")]
    Nobody,
    /// The kubeconfig wants a proxy.
    #[error("{url}: its kubeconfig has a proxy-url, which is not supported here: name the API server itself")]
    Proxy {
        /// Which server.
        url: String,
    },
    /// Certificates or credentials can't be used.
    #[error("{url}: its certificates or credentials can't be used: {reason}")]
    Config {
        /// Which server.
        url: String,
        /// Why.
        reason: String,
    },
    /// Nobody says what there is.
    #[error(
        "no API server says what it serves ({what}): kubectl api-resources with the same flags fails alike"
    )]
    Discovery {
        /// What was asked, and what came.
        what: String,
    },
}

/// Metadata of one object, or of a list.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// The largest list that is taken: a page of it is small, unless its objects have much metadata.
const MOST_LIST: usize = 16 << 20;
/// The largest answer about one object that is taken.
const MOST_OBJECT: usize = 4 << 20;
const AWAY: Duration = Duration::from_secs(5);
/// What may stand in a path as it is.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Api {
    /// Of the servers that `configs` are for. To be called on a tokio runtime. Nothing is sent yet.
    ///
    /// # Errors
    /// If a configuration can't be used.
    pub fn new(configs: &[Config], timeout: Duration) -> Result<Self, ApiError> {
        if configs.is_empty() {
            return Err(ApiError::Nobody);
        }
        let server = |config: &Config| {
            let client = client(config, timeout)?;
            Ok(Server { client, away_until: AtomicU64::new(0) })
        };
        let servers = configs.iter().map(server).collect::<Result<_, _>>()?;
        let (next, requests, begun) = (AtomicUsize::new(0), AtomicU64::new(0), Instant::now());
        Ok(Self { inner: Arc::new(Inner { servers, next, requests, timeout, begun }) })
    }

    /// How many requests were sent.
    pub fn requests(&self) -> u64 {
        self.inner.requests.load(Ordering::Relaxed)
    }

    /// What of the resources that are served `patterns` choose.
    ///
    /// # Errors
    /// If no server says what it serves.
    pub async fn plan(
        &self,
        patterns: &[casemate_encryption_config::ResourcePattern],
    ) -> Result<Plan, ApiError> {
        let mut versions = Vec::new();
        let mut roots = vec![(String::new(), "/api/v1".to_owned())];
        let groups = self.document("/apis").await?;
        roots.extend(targets::groups(&groups).ok_or_else(|| ApiError::Discovery {
            what: "/apis: the answer is none of an API server".into(),
        })?);
        for (group, root) in roots {
            let served = match self.document(&root).await {
                Ok(answer) => targets::served(&answer).ok_or_else(|| {
                    "what it serves is not known: the answer is none of an API server".to_owned()
                }),
                Err(error) => Err(error.to_string()),
            };
            versions.push(Version { group, root, served });
        }
        Ok(targets::choose(&versions, patterns))
    }

    /// How many objects of `target` there are; `None` if that is not told.
    pub async fn count(&self, target: &Target) -> Option<u64> {
        let listed = self.list(target, None, 1, "").await.ok()?.ok()?;
        listed.behind.map(|behind| behind + listed.items.len() as u64)
    }

    async fn document(&self, path: &str) -> Result<Bytes, ApiError> {
        const TRIES: u32 = 3;

        let mut what = String::new();
        for attempt in 0..TRIES {
            match self.send(Method::GET, path, JSON, None, MOST_LIST).await {
                Ok((200, _, body)) => return Ok(body),
                Ok((code, ..)) => what = format!("{path}: {code}"),
                Err(silence) => what = format!("{path}: {silence}"),
            }
            tokio::time::sleep(Duration::from_millis(200) * (attempt + 1)).await;
        }
        Err(ApiError::Discovery { what })
    }

    /// A page of `target`, in one namespace if one is given, at most `limit` objects.
    pub(crate) async fn list(
        &self,
        target: &Target,
        namespace: Option<&str>,
        limit: u64,
        token: &str,
    ) -> Result<Result<Listed, Refusal>, Silence> {
        let token = match token {
            "" => String::new(),
            token => format!("&continue={}", escaped(token)),
        };
        let path = format!("{}?limit={limit}{token}", collection(target, namespace));
        let (code, after, body) = self.send(Method::GET, &path, LIST, None, MOST_LIST).await?;
        if code != 200 {
            return Ok(Err(Refusal { reply: reply(code, after, &body), status: Status::read(&body) }));
        }
        Ok(Listed::read(&body).ok_or_else(|| Refusal::nonsense(code)))
    }

    /// Names of namespaces, sorted as etcd sorts them.
    pub(crate) async fn namespaces(&self) -> Result<Result<Vec<String>, Reply>, Silence> {
        let target = Target {
            resource: casemate_encryption_config::GroupResource::parse("namespaces"),
            root: "/api/v1".into(),
            is_namespaced: false,
        };
        let (mut names, mut next) = (Vec::new(), String::new());
        loop {
            match self.list(&target, None, 500, &next).await? {
                Ok(listed) => {
                    names.extend(listed.items.into_iter().map(|object| object.name));
                    next = listed.next;
                }
                Err(Refusal { reply: Reply { code: 410, .. }, .. }) => {
                    next = names.last().map(|name| token::behind(name)).unwrap_or_default();
                    continue;
                }
                Err(refusal) => return Ok(Err(refusal.reply)),
            }
            if next.is_empty() {
                names.sort();
                names.dedup();
                return Ok(Ok(names));
            }
        }
    }

    /// The object as it is now, read from etcd.
    pub(crate) async fn read(
        &self,
        target: &Target,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<(Reply, Option<Object>), Silence> {
        let path = object(target, namespace, name);
        let (code, after, body) = self.send(Method::GET, &path, METADATA, None, MOST_OBJECT).await?;
        Ok((reply(code, after, &body), Object::read(&body).filter(|_| code == 200)))
    }

    /// Writes it as it is, if it still is the version that is named. A server that finds it fresh writes nothing.
    pub(crate) async fn write(
        &self,
        target: &Target,
        namespace: Option<&str>,
        name: &str,
        uid: Option<&str>,
        version: &str,
    ) -> Result<(Reply, Option<Object>), Silence> {
        let mut metadata = serde_json::json!({"resourceVersion": version});
        if let Some(uid) = uid {
            metadata["uid"] = uid.into();
        }
        let patch = serde_json::json!({"metadata": metadata}).to_string();
        let path = object(target, namespace, name);
        let (code, after, body) = self.send(Method::PATCH, &path, METADATA, Some(patch), MOST_OBJECT).await?;
        Ok((reply(code, after, &body), Object::read(&body).filter(|_| (200..300).contains(&code))))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<String>,
        most: usize,
    ) -> Result<(u16, Option<Duration>, Bytes), Silence> {
        let mut request = Request::builder().method(method).uri(path).header(ACCEPT, accept);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, MERGE_PATCH);
        }
        let body = body.map_or_else(Body::empty, |text| Body::from(text.into_bytes()));
        let request = request.body(body).map_err(|_| Silence::Connection)?;
        self.inner.requests.fetch_add(1, Ordering::Relaxed);
        let server = self.inner.choose();
        let answer = async {
            let response = server.client.send(request).await.map_err(|error| match error {
                kube_client::Error::Auth(_) => Silence::Credentials,
                _ => Silence::Connection,
            })?;
            let code = response.status().as_u16();
            let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let after = after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
            let body = Limited::new(response.into_body(), most).collect().await;
            let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                true => Silence::TooLarge,
                false => Silence::Connection,
            })?;
            Ok((code, after, body.to_bytes()))
        };
        let answer = tokio::time::timeout(self.inner.timeout, answer).await.unwrap_or(Err(Silence::Deadline));
        if matches!(answer, Err(Silence::Deadline | Silence::Connection)) {
            let until = (self.inner.begun.elapsed() + AWAY).as_millis();
            server.away_until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        answer
    }
}

impl Inner {
    /// The next one that answers, as far as is known.
    fn choose(&self) -> &Server {
        let count = self.servers.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_there = |server: &&Server| server.away_until.load(Ordering::Relaxed) <= now;
        let all = || (first..first + count).map(|place| &self.servers[place % count]);
        all().find(is_there).unwrap_or(&self.servers[first % count])
    }
}

fn client(config: &Config, timeout: Duration) -> Result<Client, ApiError> {
    let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    if config.proxy_url.is_some() {
        return Err(ApiError::Proxy { url });
    }
    let unfit =
        |error: &dyn std::fmt::Display| ApiError::Config { url: url.clone(), reason: error.to_string() };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(timeout));
    let tls = config.rustls_client_config().map_err(|error| unfit(&error))?;
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|_| unfit(&"its tls-server-name is no name"))?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let pool: Pool<_, Body> = Pool::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        // A server that went away without a word is noticed before requests time out.
        .http2_keep_alive_interval(Duration::from_secs(5))
        .http2_keep_alive_timeout(Duration::from_secs(5))
        .build(https.enable_all_versions().wrap_connector(tcp));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(|error| unfit(&error))?)
        .layer(config.extra_headers_layer().map_err(|error| unfit(&error))?)
        .map_err(BoxError::from)
        .service(pool);
    Ok(Client::new(service, config.default_namespace.clone()))
}

fn reply(code: u16, after: Option<Duration>, body: &[u8]) -> Reply {
    let status = if (200..300).contains(&code) { Status::default() } else { Status::read(body) };
    Reply { code, reason: status.reason(), after, webhook: status.webhook() }
}

fn collection(Target { resource, root, .. }: &Target, namespace: Option<&str>) -> String {
    let within = namespace.map(|namespace| format!("namespaces/{}/", escaped(namespace)));
    format!("{root}/{}{}", within.unwrap_or_default(), escaped(&resource.resource))
}

fn object(target: &Target, namespace: Option<&str>, name: &str) -> String {
    format!("{}/{}", collection(target, namespace), escaped(name))
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, IN_PATH).to_string()
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Api({} servers)", self.inner.servers.len())
    }
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Deadline => "no answer in time",
            Self::Connection => "no connection",
            Self::Credentials => "no credentials",
            Self::TooLarge => "more than is taken",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_part_of_a_path() {
        let resource = casemate_encryption_config::GroupResource::parse("things.a.example");
        let target = Target { resource, root: "/apis/a.example/v1".into(), is_namespaced: true };
        assert_eq!(
            object(&target, Some("n"), "a/../b?c"),
            "/apis/a.example/v1/namespaces/n/things/a%2F..%2Fb%3Fc"
        );
        assert_eq!(object(&target, None, "system:a"), "/apis/a.example/v1/things/system%3Aa");
    }
}
