//! A server with etcd's revisions in memory.
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use casemate_wire::etcd::auth_server::{Auth, AuthServer};
use casemate_wire::etcd::event::EventType;
use casemate_wire::etcd::kv_server::{Kv, KvServer};
use casemate_wire::etcd::watch_request::RequestUnion;
use casemate_wire::etcd::watch_server::{Watch, WatchServer};
use casemate_wire::etcd::{
    AuthenticateRequest, AuthenticateResponse, Event, KeyValue, RangeRequest, RangeResponse, ResponseHeader,
    TOKEN, WatchRequest, WatchResponse,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

type OnRange = dyn FnMut(&RangeRequest, &mut RangeResponse) -> Result<(), Status> + Send;
type OnWatch = dyn FnMut(&mut WatchResponse) -> bool + Send;

/// It ends with the runtime of its test.
#[derive(Clone)]
pub(super) struct StandIn {
    port: u16,
    cluster: u64,
    state: Arc<Mutex<State>>,
    on_range: Arc<Mutex<Option<Box<OnRange>>>>,
    on_watch: Arc<Mutex<Option<Box<OnWatch>>>>,
    password: Arc<Mutex<Option<String>>>,
    values_read: Arc<AtomicUsize>,
    uses: Arc<AtomicU64>,
    /// How many tokens were given.
    pub(super) tokens: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    /// Each change: at revision 2 and later, one a revision.
    changes: Vec<KeyValue>,
    compacted: i64,
}

impl State {
    fn revision(&self) -> i64 {
        self.changes.len() as i64 + 1
    }

    /// Keys as of a revision. A deletion has version 0.
    fn at(&self, revision: i64) -> BTreeMap<&[u8], &KeyValue> {
        let mut keys = BTreeMap::new();
        for change in self.changes.iter().take_while(|change| change.mod_revision <= revision) {
            match change.version {
                0 => keys.remove(&change.key[..]),
                _ => keys.insert(&change.key[..], change),
            };
        }
        keys
    }
}

impl StandIn {
    pub(super) async fn start(cluster: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            cluster,
            state: Arc::default(),
            on_range: Arc::default(),
            on_watch: Arc::default(),
            password: Arc::default(),
            values_read: Arc::default(),
            uses: Arc::default(),
            tokens: Arc::default(),
        };
        let serving = tonic::transport::Server::builder()
            .add_service(KvServer::new(server.clone()))
            .add_service(WatchServer::new(server.clone()))
            .add_service(AuthServer::new(server.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        server
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn put(&self, key: &str, value: &[u8]) {
        self.change(key, value, true);
    }

    pub(super) fn delete(&self, key: &str) {
        self.change(key, b"", false);
    }

    /// Forgets what was overwritten up to now.
    pub(super) fn compact(&self) {
        let mut state = self.state.lock().unwrap();
        state.compacted = state.revision();
    }

    /// As after a restore from a backup of long ago.
    pub(super) fn lose_all(&self) {
        *self.state.lock().unwrap() = State::default();
    }

    /// Wants a token for each request, which is good for three.
    pub(super) fn guard(&self, password: &str) {
        *self.password.lock().unwrap() = Some(password.to_owned());
    }

    /// Done to each answer before it is sent.
    pub(super) fn on_range(
        &self,
        change: impl FnMut(&RangeRequest, &mut RangeResponse) -> Result<(), Status> + Send + 'static,
    ) {
        *self.on_range.lock().unwrap() = Some(Box::new(change));
    }

    /// Done to each answer of a watch before it is sent, if it is.
    pub(super) fn on_watch(&self, change: impl FnMut(&mut WatchResponse) -> bool + Send + 'static) {
        *self.on_watch.lock().unwrap() = Some(Box::new(change));
    }

    /// How many values were sent.
    pub(super) fn values_read(&self) -> usize {
        self.values_read.load(Ordering::Relaxed)
    }

    fn change(&self, key: &str, value: &[u8], is_there: bool) {
        let mut state = self.state.lock().unwrap();
        let revision = state.revision() + 1;
        let before = state.changes.iter().rev().find(|change| change.key == key.as_bytes());
        let before = before.filter(|change| change.version > 0);
        let (create_revision, version) =
            before.map_or((revision, 0), |pair| (pair.create_revision, pair.version));
        state.changes.push(KeyValue {
            key: key.to_owned().into(),
            value: value.to_vec().into(),
            create_revision,
            mod_revision: revision,
            version: if is_there { version + 1 } else { 0 },
            lease: 0,
        });
    }

    fn header(&self, state: &State) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster,
            revision: state.revision(),
            ..ResponseHeader::default()
        })
    }

    fn let_in<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if self.password.lock().unwrap().is_none() {
            return Ok(());
        }
        match request.metadata().get(TOKEN) {
            None => Err(Status::invalid_argument("user name is empty")),
            Some(_) if self.uses.fetch_add(1, Ordering::Relaxed) % 4 == 3 => Err(Status::unauthenticated("")),
            Some(_) => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Kv for StandIn {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.let_in(&request)?;
        let request = request.into_inner();
        let mut answer = {
            let state = self.state.lock().unwrap();
            let revision = if request.revision == 0 { state.revision() } else { request.revision };
            if revision < state.compacted || revision > state.revision() {
                return Err(Status::out_of_range("compacted, or not there yet"));
            }
            let keys = state.at(revision);
            let is_within = |key: &[u8]| match &request.range_end[..] {
                [] => key == request.key,
                [0] => key >= &request.key[..],
                end => (&request.key[..]..end).contains(&key),
            };
            let found: Vec<&KeyValue> = keys.into_values().filter(|pair| is_within(&pair.key)).collect();
            let count = found.len() as i64;
            let limit = if request.limit == 0 { usize::MAX } else { request.limit as usize };
            let wanted = found.into_iter().filter(|pair| pair.mod_revision >= request.min_mod_revision);
            let mut kvs: Vec<KeyValue> = match request.count_only {
                true => Vec::new(),
                false => wanted.cloned().collect(),
            };
            let more = kvs.len() > limit;
            kvs.truncate(limit);
            if request.keys_only {
                kvs.iter_mut().for_each(|pair| pair.value.clear());
            }
            RangeResponse { header: self.header(&state), kvs, more, count }
        };
        if let Some(change) = &mut *self.on_range.lock().unwrap() {
            change(&request, &mut answer)?;
        }
        self.values_read
            .fetch_add(answer.kvs.iter().filter(|pair| !pair.value.is_empty()).count(), Ordering::Relaxed);
        Ok(Response::new(answer))
    }
}

#[tonic::async_trait]
impl Watch for StandIn {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.let_in(&request)?;
        let Ok(Some(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) })) =
            request.into_inner().message().await
        else {
            return Err(Status::invalid_argument("no watch"));
        };
        let state = self.state.lock().unwrap();
        let header = || self.header(&state);
        let mut answers = vec![WatchResponse { header: header(), created: true, ..WatchResponse::default() }];
        if create.start_revision < state.compacted {
            answers.push(WatchResponse {
                header: header(),
                canceled: true,
                compact_revision: state.compacted,
                ..WatchResponse::default()
            });
        } else {
            let later = state.changes.iter().filter(|change| change.mod_revision >= create.start_revision);
            let event = |change: &KeyValue| {
                let kind = if change.version == 0 { EventType::Delete } else { EventType::Put };
                let before =
                    state.at(change.mod_revision - 1).get(&change.key[..]).map(|pair| (*pair).clone());
                Event { r#type: kind.into(), kv: Some(change.clone()), prev_kv: before }
            };
            let events: Vec<Event> = later.map(event).collect();
            for part in events.chunks(10) {
                answers.push(WatchResponse {
                    header: header(),
                    events: part.to_vec(),
                    ..WatchResponse::default()
                });
            }
        }
        if let Some(change) = &mut *self.on_watch.lock().unwrap() {
            answers.retain_mut(|answer| change(answer));
        }
        let answers = tokio_stream::iter(answers.into_iter().map(Ok));
        Ok(Response::new(Box::pin(answers.chain(tokio_stream::pending()))))
    }
}

#[tonic::async_trait]
impl Auth for StandIn {
    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let expected = self.password.lock().unwrap().clone();
        let Some(expected) = expected else {
            return Err(Status::failed_precondition("authentication is not enabled"));
        };
        if request.into_inner().password != expected {
            return Err(Status::invalid_argument("invalid user ID or password"));
        }
        let number = self.tokens.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(AuthenticateResponse { header: None, token: format!("token-{number}") }))
    }
}
