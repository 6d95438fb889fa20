//! The main job on real servers, told step by step: what was done, and how it is known.

use std::fmt::Write as _;
use std::io;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use serde_json::{Value, json};

use crate::plugin::{TokenRoot, TransitRoot, casemate, casemate_json};
use crate::{Apiserver, KeyService, Lab, OpenBao, Plugin, Proof, SoftHsm, Tool};

mod census;
mod scene;

use census::{Census, may_go};
pub use scene::On;

const CONFIG_MAPS: &str = "/registry/configmaps/";
const SECRETS: usize = 20;
/// Where they are in etcd.
const DEMO: &str = "/registry/secrets/default/demo-";
/// What kube-apiserver puts in front of what the provider `casemate` encrypts.
const MARK: &str = "k8s:enc:kms:v2:casemate:";
/// What stands in every one of them.
const WORD: &str = "of-the-demo";
/// kube-apiserver asks for Status once a minute, more often while its /readyz is asked.
const ADOPTION_LOOKS: usize = 240;
/// Looks for the begin and the end of trouble.
const TROUBLE_LOOKS: usize = 600;

/// Runs the story on a key service; with `once` ends after it, else stays up until standard input ends.
pub fn run(on: On, once: bool) -> anyhow::Result<()> {
    let mut story = Story::default();
    story.say("Casemate: Kubernetes Secrets, encrypted with a key that you hold. All servers are real, on loopback.");

    let lab = Lab::builder("demo").apiservers(0).start()?;
    match on {
        On::File => tell(&mut story, &lab, KeyService::File, once)?,
        On::OpenBao => {
            let bao = OpenBao::start(&lab)?;
            let root = TransitRoot::create(&bao, "casemate", &json!({"token_ttl": "1h"}))?;
            tell(&mut story, &lab, KeyService::Transit(&root), once)?;
        }
        On::SoftHsm => {
            let hsm = SoftHsm::create(&lab.dir().join("softhsm"))?;
            let root = TokenRoot::create(&hsm, "casemate")?;
            tell(&mut story, &lab, KeyService::Pkcs11(&root), once)?;
        }
    }
    drop(lab);
    story.say("All servers have ended, and the folder of the run is gone.");
    Ok(())
}

fn tell(story: &mut Story, lab: &Lab, service: KeyService<'_>, once: bool) -> anyhow::Result<()> {
    story.step(service.set_up());
    let plugin = Plugin::start_on(lab, "kms", service)?;
    let first = plugin.key_id()?;
    story.known(&format!("casemate kms status: ok, new data is written under key id {first}"));

    story.step("etcd and a kube-apiserver that encrypts Secrets and ConfigMaps through it");
    let server = lab.add_apiserver(plugin.encryption())?;
    server.kubectl(&["create", "secret", "generic", "first"])?;
    let stored = Proof::read(lab.etcd(), &["/registry/secrets/default/first"])?;
    ensure!(stored.all_under(&first), "the first Secret is not under {first}: {stored}");
    server.kubectl(&["delete", "secret", "first"])?;
    story.known(&format!("{} runs; a first Secret is in etcd under key id {first}", server.url()));

    story.step(&format!("{SECRETS} Secrets are written with kubectl"));
    for number in 0..SECRETS {
        server.kubectl(&[
            "create",
            "secret",
            "generic",
            &secret(number),
            &format!("--from-literal=word={}", word(number)),
        ])?;
    }
    let values = lab.etcd().list(DEMO)?;
    ensure!(values.len() == SECRETS, "etcd holds {} Secrets", values.len());
    for (key, value) in &values {
        let key = String::from_utf8_lossy(key);
        ensure!(value.starts_with(MARK.as_bytes()), "etcd {key} does not begin with {MARK:?}");
        ensure!(!contains(value, WORD.as_bytes()), "etcd {key} holds a Secret's word in clear");
    }
    story.known(&format!("etcd: all {SECRETS} begin with {MARK:?}, and none holds {WORD:?} anywhere"));
    let (key, value) = values.first().context("no Secret is in etcd")?;
    let file = lab.dir().join("value");
    std::fs::write(&file, value)?;
    let written = Census::take(lab, "1-written")?;
    ensure!(written.all_under(&first), "not everything is under {first}: {written}");
    story.known(&format!("casemate census snapshot: {written}"));
    story.known(&format!("casemate inspect says of the first, {}:", String::from_utf8_lossy(key)));
    story.shown(&casemate(&["inspect", &file.display().to_string()])?);

    story.step("They are read back");
    read_all(&|args| Ok(server.kubectl(args)?))?;
    story.known("kubectl get gives every word as it was written");

    story.step(service.rotation());
    let second = service.rotate(&plugin, &first, story)?;
    adopted(&|args| Ok(server.kubectl(args)?), lab, &second)?;
    let rotated = Census::take(lab, "2-rotated")?;
    ensure!(!rotated.all_under(&second), "everything is under the new key id before it was migrated");
    story.known("kube-apiserver writes under it; what was there is as it was");
    story.known(&format!("casemate census snapshot: {rotated}"));
    let held = may_go(&first, &[rotated.file()])?;
    ensure!(held.verdict == "no" && held.objects >= SECRETS as u64, "the old key may go: {}", held.verdict);
    story.known(&format!("may the old key go? no: {} objects are under it", held.objects));

    story.step("Storage is migrated: casemate migrate --yes");
    let done = migrate(lab, &server)?;
    story.known(&format!("casemate migrate: {done}"));
    let migrated = Census::take(lab, "3-migrated")?;
    ensure!(migrated.all_under(&second), "not everything is under {second}: {migrated}");
    story.known(&format!("casemate census snapshot: {migrated}"));
    let held = may_go(&first, &[migrated.file()])?;
    ensure!(held.verdict == "no" && held.objects == 0, "{} objects are under the old key", held.objects);
    story.known(&format!(
        "may the old key go? no: {} old revisions are under it, which etcd still has",
        held.old_revisions
    ));
    for (key, _) in lab.etcd().list(CONFIG_MAPS)? {
        let key = String::from_utf8_lossy(&key);
        story.say(&format!("     ({SECRETS} of them are the Secrets; kube-apiserver itself wrote {key})"));
    }

    story.step(
        "etcd is compacted, as kube-apiserver has it done each five minutes: what was overwritten goes",
    );
    lab.etcd().compact(migrated.revision())?;
    let compacted = Census::take(lab, "4-compacted")?;
    let free = may_go(&first, &[compacted.file()])?;
    ensure!(free.verdict == "yes", "the old key may not go: {}", free.verdict);
    story.known("may the old key go? yes: nothing in etcd is under it");
    let held = may_go(&first, &[compacted.file(), written.file()])?;
    ensure!(held.verdict == "no", "the first snapshot does not hold the old key back: {}", held.verdict);
    story.known(&format!(
        "… as long as nobody wants to read the first snapshot: {} of its objects are under it",
        held.objects
    ));

    live_through_an_outage(story, &server, &plugin, service)?;

    story.step("A fresh kube-apiserver reads everything through a restarted plugin: no cache helps");
    plugin.terminate()?;
    plugin.start_again()?;
    let fresh = lab.start_fresh(0)?;
    read_all(&|args| Ok(fresh.kubectl(args)?))?;
    story.known("kubectl get gives every word as it was written");

    story.step("A page for who was not there: casemate census snapshot … --policy … --html");
    let end = Census::take(lab, "5-end")?;
    let (page, headline) = census::page(lab, &end, &server.encryption_file(), &first)?;
    story.known(&format!("it says: {headline}"));
    story.known(&format!("open it in a browser; it stays there after the demo: {}", page.display()));

    story.say("\nThe story is told: every step was checked as it says.");
    if !once {
        stay(story, lab, &plugin, service)?;
    }
    Ok(())
}

/// Has all objects written anew; answers what came of it.
fn migrate(lab: &Lab, server: &Apiserver) -> anyhow::Result<String> {
    let [kubeconfig, configuration] =
        [server.kubeconfig(), server.encryption_file()].map(|path| path.display().to_string());
    let endpoint = lab.etcd().endpoint();
    let told = casemate_json(&[
        "migrate",
        "--yes",
        "--kubeconfig",
        &kubeconfig,
        "--encryption-config",
        &configuration,
        "--etcd-endpoints",
        &endpoint,
    ])?;
    ensure!(told["verdict"] == "proven", "casemate migrate: {told:#}");
    let resources = told["report"]["resources"].as_object().context("no resources")?;
    let written: u64 = resources.values().filter_map(|tally| tally["written"].as_u64()).sum();
    Ok(format!("{written} objects written anew; proven: a census of etcd finds none that is stale"))
}

/// Without its key service, nothing stops.
fn live_through_an_outage(
    story: &mut Story,
    server: &Apiserver,
    plugin: &Plugin<'_>,
    service: KeyService<'_>,
) -> anyhow::Result<()> {
    let Some(happens) = service.take_away()? else { return Ok(()) };
    story.step(&format!("{happens}: what does that stop?"));
    let look = || -> anyhow::Result<Value> {
        plugin.refresh()?;
        Ok(plugin.status()?["providers"][0].take())
    };
    let out = || -> anyhow::Result<Option<String>> {
        let key = look()?["root_keys"][0].take();
        let is_out = key["state"] == "failing" && key["last_error"]["class"] == "unreachable";
        Ok(key["last_error"]["message"].as_str().filter(|_| is_out).map(str::to_owned))
    };
    let told = looked_for(out).context("the plugin does not say that its root key is out")?;
    story.known("casemate kms status --admin says so, and what to do:");
    story.shown(&told);
    let word = format!("--from-literal=word={WORD}");
    server.kubectl(&["create", "secret", "generic", "in-the-outage", &word])?;
    let found = server.kubectl(&[
        "get",
        "secret",
        "in-the-outage",
        "--output",
        "go-template={{.data.word | base64decode}}",
    ])?;
    ensure!(found == WORD, "the Secret that was written in the outage reads as another word");
    read_all(&|args| Ok(server.kubectl(args)?))?;
    server.kubectl(&["delete", "secret", "in-the-outage"])?;
    story.known("a Secret is written and read, and all others are: both are done from memory");
    let back = service.bring_back()?;
    looked_for(|| Ok(look()?["trouble"].is_null().then_some(())))
        .context("the plugin's trouble does not end")?;
    story.known(&format!("{back}: casemate kms status --admin has nothing to tell any more"));
    Ok(())
}

/// Looks until there is something.
fn looked_for<T>(look: impl Fn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    for _ in 0..TROUBLE_LOOKS {
        if let Some(found) = look()? {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(100));
    }
    anyhow::bail!("it was looked for {TROUBLE_LOOKS} times")
}

fn stay(story: &mut Story, lab: &Lab, plugin: &Plugin<'_>, service: KeyService<'_>) -> anyhow::Result<()> {
    let server = lab.apiserver(0)?;
    let programs = [Tool::Kubectl.path()?, Tool::Etcdctl.path()?, crate::plugin::product("casemate")?];
    let folders: Vec<_> =
        programs.iter().filter_map(|program| Some(program.parent()?.display().to_string())).collect();
    let folder = plugin.dir().display();
    let mut text = String::from("\nIt stays up for you. In another terminal:\n");
    writeln!(text, "  cd {folder}")?;
    writeln!(text, "  export PATH=\"{}:$PATH\"", folders.join(":"))?;
    writeln!(text, "  export KUBECONFIG={}", server.kubeconfig().display())?;
    // Nothing of kubectl in the user's home.
    writeln!(text, "  export KUBECACHEDIR={}", lab.dir().join("kubectl").display())?;
    writeln!(text, "  export ETCDCTL_ENDPOINTS={}\n", lab.etcd().endpoint())?;
    writeln!(text, "  kubectl get secrets")?;
    writeln!(text, "  etcdctl get --print-value-only {DEMO}1 | casemate inspect")?;
    writeln!(text, "  casemate kms probe --socket unix://$PWD/kms.sock")?;
    write!(
        text,
        "{}\nThe end of standard input (Ctrl-D) ends all of it and says so; Ctrl-C ends it too. Nothing stays.",
        service.suggestions()?
    )?;
    story.say(&text);
    // No signal handler: the kernel ends the servers of a process that is killed.
    io::copy(&mut io::stdin(), &mut io::sink()).context("can't wait for standard input")?;
    Ok(())
}

/// Waits until a Secret that is written now is stored under `key_id`.
pub fn adopted(
    kubectl: &dyn Fn(&[&str]) -> anyhow::Result<String>,
    lab: &Lab,
    key_id: &str,
) -> anyhow::Result<()> {
    for _ in 0..ADOPTION_LOOKS {
        kubectl(&["get", "--raw", "/readyz"])?;
        kubectl(&["create", "secret", "generic", "canary"])?;
        let stored = Proof::read(lab.etcd(), &["/registry/secrets/default/canary"])?;
        kubectl(&["delete", "secret", "canary"])?;
        if stored.all_under(key_id) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(500));
    }
    anyhow::bail!("kube-apiserver still does not write under {key_id} after {ADOPTION_LOOKS} looks")
}

fn read_all(kubectl: &dyn Fn(&[&str]) -> anyhow::Result<String>) -> anyhow::Result<()> {
    for number in 0..SECRETS {
        let template = "go-template={{.data.word | base64decode}}";
        let found = kubectl(&["get", "secret", &secret(number), "--output", template])?;
        ensure!(found == word(number), "Secret {} reads as another word", secret(number));
    }
    Ok(())
}

fn secret(number: usize) -> String {
    format!("demo-{number}")
}

fn word(number: usize) -> String {
    format!("word-number-{number}-{WORD}")
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|part| part == needle)
}

#[derive(Default)]
struct Story {
    steps: usize,
}

impl Story {
    fn say(&mut self, text: &str) {
        println!("{text}");
    }

    fn step(&mut self, what: &str) {
        self.steps += 1;
        println!("\n{}. {what}", self.steps);
    }

    fn known(&mut self, how: &str) {
        println!("   ✓ {how}");
    }

    fn shown(&mut self, text: &str) {
        for line in text.lines() {
            println!("   │ {line}");
        }
    }
}
