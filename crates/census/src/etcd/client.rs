//! Asks the members of one cluster.
use std::time::Duration;

use casemate_wire::etcd::auth_client::AuthClient;
use casemate_wire::etcd::kv_client::KvClient;
use casemate_wire::etcd::watch_client::WatchClient;
use casemate_wire::etcd::{
    AuthenticateRequest, RangeRequest, RangeResponse, ResponseHeader, TOKEN, WatchCreateRequest,
    WatchRequest, WatchResponse, watch_request,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt as _;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use super::error::KeyRange;
use super::handshake::Handshake;
use super::{Error, Failure, Fault, Settings, User, page};

/// The largest answer that is taken. What etcd accepts of one value is 1.5 MiB, where `--max-request-bytes` says nothing
/// else.
pub const MAX_MESSAGE: usize = 32 << 20;

/// The first pause when no member answers; then twice as long each time, up to the last.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Asks one member, and the next if it does not answer.
#[derive(Clone, Debug)]
pub struct Client {
    members: Vec<Member>,
    /// Who is asked.
    current: usize,
    /// Whose cluster it is, and who said so.
    cluster: Option<(u64, usize)>,
    user: Option<User>,
    token: Option<MetadataValue<Ascii>>,
    timeout: Duration,
    patience: Duration,
}

#[derive(Clone, Debug)]
struct Member {
    endpoint: String,
    channel: Channel,
    handshake: Option<Handshake>,
}

/// Why a member gave no answer that counts.
enum Trouble {
    /// Another one may.
    Elsewhere(Fault),
    /// None would.
    Error(Error),
}

impl Client {
    /// For a cluster. Nothing is sent yet.
    ///
    /// # Errors
    /// If an endpoint, a certificate or a key can't be used.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let members: Vec<Member> = settings
            .endpoints
            .iter()
            .map(|endpoint| {
                let target = settings.endpoint(endpoint)?;
                let tls = settings.tls.as_ref().filter(|_| target.uri().scheme_str() == Some("https"));
                let handshake = tls.and_then(|tls| Handshake::new(target.uri(), tls));
                Ok(Member { endpoint: endpoint.clone(), channel: target.connect_lazy(), handshake })
            })
            .collect::<Result<_, Error>>()?;
        if members.is_empty() {
            return Err(Error::NoEndpoint);
        }
        let Settings { user, timeout, patience, .. } = settings;
        Ok(Self { members, current: 0, cluster: None, user, token: None, timeout, patience })
    }

    /// Asks all members at once who they are. Those that don't answer are told; one that answers is enough.
    ///
    /// # Errors
    /// If none answers, they are of different clusters, or the user is not taken or may not read below `prefix`.
    pub async fn connect(&mut self, prefix: &str) -> Result<Vec<Failure>, Error> {
        let mut asked = JoinSet::new();
        for (place, member) in self.members.iter().enumerate() {
            let mut client = Self { members: vec![member.clone()], cluster: None, ..self.alone() };
            let request = RangeRequest {
                key: format!("{}/", prefix.strip_suffix('/').unwrap_or(prefix)).into(),
                count_only: true,
                serializable: true,
                ..RangeRequest::default()
            };
            asked.spawn(async move { (place, client.range_once(&request).await) });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(place, _)| *place);
        let mut failures = Vec::new();
        for (place, answer) in answers {
            match answer {
                Ok(answer) => {
                    if self.cluster.is_none() {
                        self.current = place;
                    }
                    self.same_cluster(place, answer.header.as_ref())?;
                }
                Err(Trouble::Error(error)) => return Err(error),
                Err(Trouble::Elsewhere(fault)) => failures.push(self.failure(place, fault)),
            }
        }
        match self.cluster {
            Some(_) => Ok(failures),
            None => Err(Error::Unanswered { failures }),
        }
    }

    /// The endpoint that is asked now.
    pub fn endpoint(&self) -> &str {
        &self.members[self.current].endpoint
    }

    /// The number of the cluster, once one of its members has answered.
    pub fn cluster_id(&self) -> Option<u64> {
        self.cluster.map(|(id, _)| id)
    }

    /// The keys of a range. Whoever answers, the answer fits to the question.
    ///
    /// # Errors
    /// If no member answers for as long as patience lasts, or etcd refuses.
    pub async fn range(&mut self, request: &RangeRequest) -> Result<RangeResponse, Error> {
        let until = Instant::now() + self.patience;
        let [mut pause, longest] = PAUSES;
        loop {
            let mut failures = Vec::new();
            for _ in 0..self.members.len() {
                match self.range_once(request).await {
                    Ok(answer) => return Ok(answer),
                    Err(Trouble::Error(error)) => return Err(error),
                    Err(Trouble::Elsewhere(fault)) => failures.push(self.failure(self.current, fault)),
                }
                self.turn();
            }
            let is_lasting = failures.iter().all(|failure| failure.fault.is_lasting());
            if is_lasting || self.cluster.is_none() || Instant::now() + pause > until {
                return Err(Error::Unanswered { failures });
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Goes on with the next endpoint.
    pub fn turn(&mut self) {
        self.current = (self.current + 1) % self.members.len();
    }

    /// What changed, from one member. It ends with an error if that member goes away.
    pub(super) async fn watch(&mut self, create: WatchCreateRequest) -> Result<Watching, Error> {
        let request =
            WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
        let range = KeyRange::new(casemate_wire::etcd::UNBOUNDED, casemate_wire::etcd::UNBOUNDED);
        let mut is_fresh = false;
        loop {
            // It would be the end of the watch if nothing more could come.
            let requests = tokio_stream::once(request.clone()).chain(tokio_stream::pending());
            let mut client = WatchClient::new(self.members[self.current].channel.clone())
                .max_decoding_message_size(MAX_MESSAGE);
            let asked = Request::new(requests);
            let asked = self.with_token(asked).await.map_err(|trouble| self.told(trouble))?;
            let answer = self.in_time(client.watch(asked)).await;
            match answer.map_err(|trouble| self.told(trouble))? {
                Ok(answer) => return Ok(Watching { answers: answer.into_inner(), timeout: self.timeout }),
                Err(status) if !is_fresh && self.is_about_token(&status) => {
                    (is_fresh, self.token) = (true, None);
                }
                Err(status) => {
                    let trouble = self.trouble(&status, &range);
                    return Err(self.told(trouble));
                }
            }
        }
    }

    /// `trouble` as the error of the member that is asked.
    fn told(&self, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Error(error) => error,
            Trouble::Elsewhere(fault) => {
                Error::Unanswered { failures: vec![self.failure(self.current, fault)] }
            }
        }
    }

    /// One member's answer, or why it did not come.
    async fn range_once(&mut self, request: &RangeRequest) -> Result<RangeResponse, Trouble> {
        match self.try_range(request).await {
            Err(Trouble::Elsewhere(fault @ (Fault::Broken | Fault::Unreachable | Fault::Network(_)))) => {
                let found = match &self.members[self.current].handshake {
                    Some(handshake) => handshake.listen(self.timeout).await,
                    None => None,
                };
                Err(Trouble::Elsewhere(found.unwrap_or(fault)))
            }
            answer => answer,
        }
    }

    async fn try_range(&mut self, request: &RangeRequest) -> Result<RangeResponse, Trouble> {
        let mut is_fresh = false;
        let answer = loop {
            let mut client = KvClient::new(self.members[self.current].channel.clone())
                .max_decoding_message_size(MAX_MESSAGE);
            let asked = self.with_token(Request::new(request.clone())).await?;
            match self.in_time(client.range(asked)).await? {
                Ok(answer) => break answer.into_inner(),
                Err(status) if !is_fresh && self.is_about_token(&status) => {
                    (is_fresh, self.token) = (true, None);
                }
                Err(status) => {
                    let range = KeyRange::new(&request.key, &request.range_end);
                    return Err(self.trouble(&status, &range));
                }
            }
        };
        let wrong = |fault| Trouble::Error(Error::Page { endpoint: self.endpoint().to_owned(), fault });
        page::check(request, &answer).map_err(wrong)?;
        self.same_cluster(self.current, answer.header.as_ref()).map_err(Trouble::Error)?;
        Ok(answer)
    }

    async fn with_token<T>(&mut self, mut request: Request<T>) -> Result<Request<T>, Trouble> {
        if self.token.is_none() {
            self.token = self.authenticate().await?;
        }
        if let Some(token) = &self.token {
            request.metadata_mut().insert(TOKEN, token.clone());
        }
        Ok(request)
    }

    /// A token, if there is a user, and authentication is on.
    async fn authenticate(&self) -> Result<Option<MetadataValue<Ascii>>, Trouble> {
        let Some(User { name, password }) = &self.user else { return Ok(None) };
        let mut client = AuthClient::new(self.members[self.current].channel.clone());
        let request = AuthenticateRequest { name: name.clone(), password: password.to_string() };
        match self.in_time(client.authenticate(request)).await? {
            Ok(answer) => {
                let token = MetadataValue::try_from(answer.into_inner().token).map_err(|_| {
                    Trouble::Error(Error::Refused {
                        endpoint: self.endpoint().to_owned(),
                        code: Code::Ok,
                        message: "its token is no text of a header: it is no etcd".to_owned(),
                    })
                })?;
                Ok(Some(token))
            }
            // Then nobody needs one.
            Err(status) if status.code() == Code::FailedPrecondition => Ok(None),
            Err(status) if status.code() == Code::InvalidArgument => Err(Trouble::Error(Error::WrongUser {
                endpoint: self.endpoint().to_owned(),
                user: name.clone(),
            })),
            Err(status) => Err(self.trouble(&status, &KeyRange::new(b"", b""))),
        }
    }

    /// Tokens end, and are void when rights change.
    fn is_about_token(&self, status: &Status) -> bool {
        self.token.is_some() && matches!(status.code(), Code::Unauthenticated | Code::InvalidArgument)
    }

    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Result<Response<T>, Status>, Trouble> {
        timeout(self.timeout, answer).await.map_err(|_| Trouble::Elsewhere(Fault::Silent))
    }

    fn trouble(&self, status: &Status, range: &KeyRange) -> Trouble {
        if let Some(fault) = Fault::of(status) {
            return Trouble::Elsewhere(fault);
        }
        let endpoint = self.endpoint().to_owned();
        Trouble::Error(match status.code() {
            Code::PermissionDenied => {
                let user = self.user.as_ref().map(|user| user.name.clone());
                Error::Denied { endpoint, user, range: range.clone() }
            }
            Code::InvalidArgument | Code::Unauthenticated if self.token.is_none() => {
                Error::NoUser { endpoint }
            }
            code => Error::Refused { endpoint, code, message: status.message().escape_debug().to_string() },
        })
    }

    fn same_cluster(&mut self, place: usize, header: Option<&ResponseHeader>) -> Result<(), Error> {
        let Some(header) = header else { return Ok(()) };
        match self.cluster {
            None => self.cluster = Some((header.cluster_id, place)),
            Some((id, first)) if id != header.cluster_id => {
                return Err(Error::Clusters {
                    one: self.members[first].endpoint.clone(),
                    one_id: id,
                    other: self.members[place].endpoint.clone(),
                    other_id: header.cluster_id,
                });
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn failure(&self, place: usize, fault: Fault) -> Failure {
        Failure { endpoint: self.members[place].endpoint.clone(), fault }
    }

    /// The same without members.
    fn alone(&self) -> Self {
        let Self { user, token, timeout, patience, .. } = self;
        Self {
            members: Vec::new(),
            current: 0,
            cluster: None,
            user: user.clone(),
            token: token.clone(),
            timeout: *timeout,
            patience: *patience,
        }
    }
}

impl Error {
    /// Whether etcd says that it does not have the revision, or an answer was too large: gRPC has one code for both.
    pub(super) fn is_out_of_range(&self) -> bool {
        matches!(self, Self::Refused { code: Code::OutOfRange, .. })
    }
}

/// A watch that goes on.
pub(super) struct Watching {
    answers: Streaming<WatchResponse>,
    timeout: Duration,
}

impl Watching {
    /// The next answer; `None` if none comes in time, or the watch has ended.
    pub(super) async fn next(&mut self) -> Result<Option<WatchResponse>, Status> {
        match timeout(self.timeout, self.answers.message()).await {
            Ok(answer) => answer,
            Err(_) => Ok(None),
        }
    }
}
