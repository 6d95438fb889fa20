//! Trees as the distributions lay them out.
use std::fs;
use std::path::Path;

use super::*;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| tree.write(path, text));
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let at = below(self.0.path(), path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, text).unwrap();
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn told(&self) -> String {
        detect(self.root()).unwrap_err().to_string()
    }
}

const KUBEADM: &str = "apiVersion: v1
kind: Pod
metadata: {name: kube-apiserver, namespace: kube-system}
spec:
  containers:
  - name: kube-apiserver
    command:
    - kube-apiserver
    - --etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt
    - --etcd-certfile=/etc/kubernetes/pki/apiserver-etcd-client.crt
    - --etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key
    - --etcd-servers=https://10.0.0.1:2379,https://10.0.0.2:2379
    - --secure-port=6443
";

const PEM: &str = "-----BEGIN CERTIFICATE-----\n";

fn kubeadm() -> Tree {
    let pki = |file: &str| format!("/etc/kubernetes/pki/{file}");
    Tree::new(&[
        (APISERVER_OF_KUBEADM, KUBEADM),
        (&pki("etcd/ca.crt"), PEM),
        (&pki("apiserver-etcd-client.crt"), PEM),
        (&pki("apiserver-etcd-client.key"), PEM),
    ])
}

#[test]
fn the_flags_of_kube_apiserver_are_taken_as_it_takes_them() {
    let tree = kubeadm();
    let found = detect(tree.root()).unwrap();
    assert_eq!(found.endpoints, ["https://10.0.0.1:2379", "https://10.0.0.2:2379"]);
    assert_eq!((found.distribution, found.prefix.as_str()), (Distribution::Kubeadm, "/registry"));
    assert_eq!(found.cert, Some(below(tree.root(), "/etc/kubernetes/pki/apiserver-etcd-client.crt")));
    assert!(found.to_string().starts_with("kubeadm by "), "{found}");
    // Two words, and a second one that overrules the first.
    let flags = "    - --etcd-prefix=first\n    - --etcd-prefix\n    - second\n";
    tree.write(APISERVER_OF_KUBEADM, &format!("{KUBEADM}{flags}"));
    assert_eq!(detect(tree.root()).unwrap().prefix, "/second");

    for (text, expected) in [
        (KUBEADM.replace("--etcd-servers", "--servers"), "names no endpoint of etcd"),
        (
            KUBEADM.replace("https://10.0.0.1:2379", "unix:///run/kine.sock"),
            "which is no etcd on the network",
        ),
        ("spec: {containers: 7}".to_owned(), "kube-apiserver.yaml"),
        ("spec: {containers: &a [*a]}".to_owned(), "kube-apiserver.yaml"),
    ] {
        tree.write(APISERVER_OF_KUBEADM, &text);
        assert!(tree.told().contains(expected) && tree.told().contains("--endpoints"), "{}", tree.told());
    }
    tree.write(APISERVER_OF_KUBEADM, KUBEADM);
    fs::remove_file(below(tree.root(), "/etc/kubernetes/pki/apiserver-etcd-client.key")).unwrap();
    assert!(tree.told().contains("apiserver-etcd-client.key: can't be read"), "{}", tree.told());
}

#[test]
fn nothing_and_too_much_are_told_with_all_that_there_is() {
    let nothing = Tree::new(&[]).told();
    for at in [APISERVER_OF_KUBEADM, APISERVER_OF_RKE2, K3S, openshift::CERTIFICATES] {
        assert!(nothing.contains(at), "{nothing}");
    }
    let tree = kubeadm();
    tree.write(APISERVER_OF_RKE2, &KUBEADM.replace("10.0.0.1", "10.9.9.9"));
    let told = tree.told();
    assert!(told.contains("several were detected: kubeadm by"), "{told}");
    assert!(told.contains("RKE2 by") && told.contains("10.0.0.1") && told.contains("10.9.9.9"), "{told}");
}

#[test]
fn k3s_has_etcd_or_sqlite() {
    let at = |file: &str| format!("{K3S}/{file}");
    let config = "listen-client-urls: https://127.0.0.1:2379,https://10.0.0.1:2379\nname: one\n";
    let tree = Tree::new(&[(&at("db/state.db"), "")]);
    assert!(tree.told().contains("state.db: this k3s has no etcd"), "{}", tree.told());
    for file in ["server-ca.crt", "client.crt", "client.key"] {
        tree.write(&at(&format!("tls/etcd/{file}")), PEM);
    }
    // What is left of SQLite after a move to etcd does not count.
    fs::create_dir_all(below(tree.root(), &at("db/etcd"))).unwrap();
    assert_eq!(detect(tree.root()).unwrap().endpoints, [CLIENT_PORT]);
    tree.write(&at("db/etcd/config"), config);
    let found = detect(tree.root()).unwrap();
    assert_eq!(found.endpoints, ["https://127.0.0.1:2379", "https://10.0.0.1:2379"]);
    assert_eq!(found.key, Some(below(tree.root(), &at("tls/etcd/client.key"))));
}

#[test]
fn openshift_has_certificates_of_all_its_hosts() {
    let at = |file: &str| format!("{}/{file}", openshift::CERTIFICATES);
    let tree = Tree::new(&[(&at("configmaps/etcd-serving-ca/ca-bundle.crt"), PEM)]);
    for host in ["one.example", "two.example"] {
        for kind in ["crt", "key"] {
            tree.write(&at(&format!("secrets/etcd-all-certs/etcd-peer-{host}.{kind}")), PEM);
        }
    }
    assert!(tree.told().contains("none of etcd-peer-*.crt is of this host"), "{}", tree.told());
    tree.write("/etc/hostname", "two.example\n");
    let found = detect(tree.root()).unwrap();
    assert_eq!(found.endpoints, [CLIENT_PORT]);
    assert_eq!(
        (found.prefix.as_str(), found.source),
        ("/kubernetes.io", below(tree.root(), openshift::CERTIFICATES))
    );
    assert_eq!(found.cert, Some(below(tree.root(), &at("secrets/etcd-all-certs/etcd-peer-two.example.crt"))));

    // The scripts' own file says more, where it is text.
    let in_the_pod = "/etc/kubernetes/static-pod-certs/secrets/etcd-all-certs/etcd-peer-one.example";
    let environment = format!(
        "export ALL_ETCD_ENDPOINTS=\"https://10.0.0.1:2379,https://10.0.0.2:2379\"\n\
         export ETCDCTL_CERT=\"{in_the_pod}.crt\"\nexport ETCDCTL_KEY=\"{in_the_pod}.key\"\n\
         export ETCDCTL_CACERT=\"$OTHER/ca.crt\"\n"
    );
    tree.write(&at("configmaps/etcd-scripts/etcd.env"), &environment);
    let found = detect(tree.root()).unwrap();
    assert_eq!(found.endpoints.len(), 2);
    assert_eq!(found.key, Some(below(tree.root(), &at("secrets/etcd-all-certs/etcd-peer-one.example.key"))));
    assert_eq!(found.cacert, Some(below(tree.root(), &at("configmaps/etcd-serving-ca/ca-bundle.crt"))));
}
