//! Flags for an etcd that may be left out.
use std::path::PathBuf;
use std::time::Duration;

use casemate_census::etcd::Client;
use casemate_wire::etcd::{StatusRequest, maintenance_client::MaintenanceClient};

use crate::census::etcd::reach::Reach;
use crate::output::{Exit, Failure, Output};

/// How an etcd is reached, if it is.
#[derive(clap::Args)]
pub(crate) struct EtcdReach {
    /// Find etcd's endpoints, certificates and prefix in the files of this host: of kubeadm, RKE2, k3s or OpenShift
    #[arg(long, conflicts_with_all = ["etcd_endpoints", "etcd_cacert"])]
    etcd_detect: bool,

    /// Members of the etcd that API servers store to, as https://HOST:PORT; may be given several times, or with commas
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,

    /// Certificate of the authority that etcd's certificates are by, PEM
    #[arg(long, value_name = "FILE", requires = "etcd_endpoints")]
    etcd_cacert: Option<PathBuf>,

    /// Client certificate for etcd, PEM
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_cacert"])]
    etcd_cert: Option<PathBuf>,

    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,

    /// The name that etcd's certificate has, if it is not that of the endpoint
    #[arg(long, value_name = "NAME", requires = "etcd_endpoints")]
    etcd_tls_server_name: Option<String>,

    /// User of etcd
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,

    /// File with the user's password; a line break at its end is none of it
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,

    /// Below which key kube-apiserver keeps its objects: its --etcd-prefix [default: what is detected, or /registry]
    #[arg(long, value_name = "KEY")]
    prefix: Option<String>,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl EtcdReach {
    /// Below which key objects are, if etcd is to be asked and answers.
    pub(crate) async fn prefix(&self, output: &Output) -> Result<Option<String>, Failure> {
        if !self.etcd_detect && self.etcd_endpoints.is_empty() {
            return Ok(None);
        }
        let (settings, detected) = self.reach().settings(output)?;
        let prefix = self.prefix.clone().or(detected).unwrap_or_else(|| "/registry".to_owned());
        let mut client = Client::new(settings).map_err(|error| Failure::new(Exit::Usage, &error))?;
        let failures = client.connect(&prefix).await.map_err(|error| Failure::new(Exit::Unknown, &error))?;
        for failure in failures {
            output.note(format_args!("{failure}; the other endpoints are asked"));
        }
        Ok(Some(prefix))
    }

    /// A client: each that goes through keys has its own.
    pub(crate) async fn connect(&self, output: &Output) -> Result<Client, Failure> {
        let (settings, _) = self.reach().settings(output)?;
        Client::new(settings).map_err(|error| Failure::new(Exit::Usage, &error))
    }

    /// Bytes of the database of the first member that tells, if etcd is to be asked.
    pub(crate) async fn size(&self, output: &Output) -> Option<u64> {
        if !self.etcd_detect && self.etcd_endpoints.is_empty() {
            return None;
        }
        let (settings, _) = self.reach().settings(output).ok()?;
        for endpoint in &settings.endpoints {
            let Ok(endpoint) = settings.endpoint(endpoint) else { continue };
            let Ok(channel) = endpoint.connect().await else { continue };
            let answer = MaintenanceClient::new(channel).status(StatusRequest {}).await;
            if let Ok(size) = answer.map(|answer| u64::try_from(answer.into_inner().db_size)) {
                return size.ok();
            }
        }
        None
    }

    fn reach(&self) -> Reach {
        Reach {
            detect: self.etcd_detect,
            root: PathBuf::from("/"),
            endpoints: self.etcd_endpoints.clone(),
            cacert: self.etcd_cacert.clone(),
            cert: self.etcd_cert.clone(),
            key: self.etcd_key.clone(),
            tls_server_name: self.etcd_tls_server_name.clone(),
            user: self.etcd_user.clone(),
            password_file: self.etcd_password_file.clone(),
            patience: PATIENCE,
        }
    }
}
