//! A node of a cluster: its provider, and a real gRPC server on a real socket in front of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{
    Core, Epoch, LocalKek, RECORD_ANNOTATION, ReadPolicy, ReadRule, Record, Root, Sealed, Suite, WritePolicy,
    names, payload,
};
use casemate_keyservice::guarded::Guarded;
use casemate_kms::grpc::Service;
use casemate_kms::hosted::Hosted;
use casemate_kms::provider::{Error, Observer, Protection, Provider, Settings, Store, Told};
use casemate_kms::socket::{Admission, Socket, transport};
use casemate_wire::kms_v2::DecryptRequest;
use casemate_wire::kms_v2::key_management_service_client::KeyManagementServiceClient;
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use zeroize::Zeroizing;

use crate::double::{RootKeyDouble, guarded};

pub(crate) const CLUSTER: &str = "prod";
/// What the record clock of a test shows at first.
pub(crate) const THEN: u64 = 1_800_000_000;

pub(crate) type Client = KeyManagementServiceClient<Channel>;

/// Settings of a provider that writes and reads with these keys.
pub(crate) fn settings_of(write: Vec<Arc<Guarded>>, rules: Vec<ReadRule>) -> Settings {
    Settings {
        name: "test".into(),
        cluster: CLUSTER.parse().unwrap(),
        epoch: Epoch(0),
        write_keys: write,
        read_only_keys: Vec::new(),
        key_names: Vec::new(),
        read_policy: ReadPolicy {
            cluster: CLUSTER.parse().unwrap(),
            also_accept: Vec::new(),
            rules,
            origin: OriginPolicy::Signed(Vec::new()),
        },
        signing: None,
        outage: casemate_kms_state::outage::Rules::default(),
        program: "test/1".parse().unwrap(),
        clock: Arc::new(|| THEN),
    }
}

/// Settings of a provider that writes with all of these doubles.
pub(crate) fn settings(doubles: &[&Arc<RootKeyDouble>]) -> Settings {
    let write = doubles.iter().map(|double| guarded(double)).collect();
    settings_of(write, doubles.iter().map(|double| double.rule()).collect())
}

/// Writes with `write`, reads with `read` too.
pub(crate) fn reading(write: &[&Arc<RootKeyDouble>], read: &[&Arc<RootKeyDouble>]) -> Settings {
    let mut settings = settings(write);
    settings.read_only_keys = read.iter().map(|key| guarded(key)).collect();
    settings.read_policy.rules.extend(read.iter().map(|key| key.rule()));
    settings
}

/// A clock that a test sets.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Gives `settings` a clock that shows [`THEN`] until it is set.
    pub(crate) fn of(settings: &mut Settings) -> Self {
        let clock = Self(Arc::new(AtomicU64::new(THEN)));
        let read = clock.clone();
        settings.clock = Arc::new(move || read.0.load(Ordering::SeqCst));
        clock
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

/// A provider that has looked at its root keys once. Nothing goes on by itself.
pub(crate) struct Node {
    pub(crate) provider: Arc<Provider>,
    pub(crate) observer: Observer,
    pub(crate) _folder: Option<TempDir>,
}

impl Node {
    /// On an empty state directory.
    pub(crate) async fn start(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut node = Self::start_in(folder.path(), settings).await;
        node._folder = Some(folder);
        node
    }

    /// On what an earlier one left in `folder`.
    pub(crate) async fn start_in(folder: &Path, settings: Settings) -> Self {
        Self::start_keeping_sealed(folder, settings, None).await
    }

    /// The same, with a sealed cache.
    pub(crate) async fn start_keeping_sealed(
        folder: &Path,
        settings: Settings,
        protection: Option<Protection>,
    ) -> Self {
        let store = Store::open(folder, &settings.name).unwrap();
        let provider = Arc::new(Provider::new(settings, store).keeping_sealed(protection).await);
        let mut observer = Observer::new(provider.clone(), None).unwrap();
        observer.look().await;
        Self { provider, observer, _folder: None }
    }

    pub(crate) async fn seal(&self, dek_source: &[u8]) -> Stored {
        let sealed = self.provider.encrypt(dek_source, &Told::default()).await.unwrap();
        Stored {
            ciphertext: sealed.ciphertext,
            key_id: sealed.kek.key_id().to_string(),
            annotation: sealed.kek.annotation().to_vec(),
        }
    }

    pub(crate) async fn open(&self, stored: &Stored) -> Result<Zeroizing<Vec<u8>>, Error> {
        stored.open(&self.provider).await
    }
}

/// What kube-apiserver keeps of an Encrypt reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) ciphertext: Vec<u8>,
    pub(crate) key_id: String,
    pub(crate) annotation: Vec<u8>,
}

impl Stored {
    /// `dek_source` sealed under a record that was put together by hand: each root with the payload of its own
    /// local KEK. The first one's id stands in the core, and it seals.
    pub(crate) fn forged(
        wraps: &[(&RootKeyDouble, &LocalKek)],
        change: impl FnOnce(&mut Vec<Vec<u8>>),
        dek_source: &[u8],
    ) -> Self {
        let roots = wraps.iter().map(|(double, _)| double.root()).collect();
        let policy = policy(roots);
        let sealing = wraps[0].1;
        let core = Core { policy, kek_id: sealing.id(), created: THEN, writer: "forger/1".parse().unwrap() };
        let digest = core.digest();
        let mut bytes: Vec<Vec<u8>> = core
            .policy
            .roots()
            .iter()
            .map(|root| {
                let (double, kek) = wraps.iter().find(|(double, _)| double.root() == *root).unwrap();
                double.wrap_of(root, &digest, &payload::encode(kek, &digest))
            })
            .collect();
        change(&mut bytes);
        Self::under(&Record::new(core, bytes, Vec::new(), None).unwrap(), sealing, dek_source)
    }

    pub(crate) fn under(record: &Record, kek: &LocalKek, dek_source: &[u8]) -> Self {
        let annotation = record.encode();
        let ciphertext = kek.seal(Suite::One, &names::sha256(&annotation), dek_source).unwrap();
        Self { ciphertext, key_id: record.core().policy.key_id().to_string(), annotation }
    }

    pub(crate) fn record(&self) -> Record {
        Record::decode(&self.annotation).unwrap()
    }

    pub(crate) async fn open(&self, provider: &Provider) -> Result<Zeroizing<Vec<u8>>, Error> {
        let annotations = [(RECORD_ANNOTATION, self.annotation.as_slice())];
        let sealed = Sealed { ciphertext: &self.ciphertext, key_id: &self.key_id, annotations: &annotations };
        provider.decrypt(&sealed).await
    }

    pub(crate) fn request(&self) -> DecryptRequest {
        DecryptRequest {
            ciphertext: self.ciphertext.clone().into(),
            uid: "uid-7".into(),
            key_id: self.key_id.clone(),
            annotations: [(RECORD_ANNOTATION.to_owned(), self.annotation.clone().into())].into(),
        }
    }
}

pub(crate) fn policy(roots: Vec<Root>) -> WritePolicy {
    WritePolicy::new(Suite::One, CLUSTER.parse().unwrap(), Epoch(0), roots, Vec::new(), None).unwrap()
}

/// A node with a socket.
pub(crate) struct Plugin {
    pub(crate) node: Node,
    pub(crate) socket: PathBuf,
    stop: CancellationToken,
    server: JoinHandle<()>,
    _folder: TempDir,
}

impl Plugin {
    pub(crate) async fn serve(settings: Settings) -> Self {
        Self::serve_to(settings, Admission::default()).await
    }

    pub(crate) async fn serve_to(settings: Settings, admission: Admission) -> Self {
        let (node, folder) = (Node::start(settings).await, tempfile::tempdir().unwrap());
        let (socket, stop) = (folder.path().join("kms.sock"), CancellationToken::new());
        let bound = Socket::bind(&endpoint(&socket), admission).await.unwrap();
        let connections = bound.serve(node.provider.traffic().clone(), stop.clone());
        let service = Service::server(Arc::new(Hosted::new(node.provider.clone(), None)));
        let stopped = stop.clone();
        let server = tokio::spawn(async move {
            let server = transport().add_service(service);
            let stopped = async move { stopped.cancelled().await };
            server.serve_with_incoming_shutdown(connections, stopped).await.unwrap();
        });
        Self { node, socket, stop, server, _folder: folder }
    }

    /// A connection of its own.
    pub(crate) async fn client(&self) -> Client {
        connect(&self.socket).await.unwrap()
    }

    pub(crate) async fn stop(self) -> Node {
        self.stop.cancel();
        self.server.await.unwrap();
        self.node
    }
}

pub(crate) fn endpoint(socket: &Path) -> casemate_kms::config::Endpoint {
    format!("unix://{}", socket.display()).parse().unwrap()
}

pub(crate) async fn channel(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().connect().await
}

/// A client of one connection, which is made already.
pub(crate) async fn client_over<S>(stream: S) -> Result<Client, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = stream.take();
        async { stream.map(TokioIo::new).ok_or_else(|| std::io::Error::other("there is one connection")) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.map(KeyManagementServiceClient::new)
}

pub(crate) async fn connect(socket: &Path) -> Result<Client, tonic::transport::Error> {
    channel(socket).await.map(KeyManagementServiceClient::new)
}
