//! What is not taken over, and that what held goes on.

use super::*;
use crate::process::set_mode;

#[tokio::test]
async fn what_is_no_configuration_is_not_taken_over_and_calls_go_on() {
    let plugin = Plugin::start().await;
    let load = Load::on(plugin.client().await);
    let config = plugin.host.config();
    let replace = |with: &dyn Fn(&Path)| {
        let aside = plugin.path("aside");
        with(&aside);
        if config.is_dir() {
            fs::remove_dir(&config).unwrap();
        }
        fs::rename(&aside, &config).unwrap_or_else(|_| {
            // A folder takes no file's place.
            fs::remove_file(&config).unwrap();
            fs::rename(&aside, &config).unwrap();
        });
    };
    let text = plugin.text.clone();
    let cut = text.find("rootKeys").unwrap() + 3;
    let whole_lines = text.find("admin:").unwrap();
    let write = |path: &Path, bytes: &[u8]| fs::write(path, bytes).unwrap();
    type Bad<'a> = (&'a str, Box<dyn Fn(&Path) + 'a>, &'a str);
    let bad: [Bad; 9] = [
        ("nonsense", Box::new(|path| write(path, b"\x00\xff%%%{{{")), "UTF-8"),
        ("text", Box::new(|path| write(path, b"Lorem ipsum: dolor\n")), "unknown field"),
        ("nothing", Box::new(|path| write(path, b"")), "the file is empty"),
        ("half of it", Box::new(|path| write(path, &text.as_bytes()[..cut])), "config.yaml:"),
        (
            "half a line",
            Box::new(|path| write(path, text[..whole_lines].trim_end().as_bytes())),
            "the last line has no end",
        ),
        ("a folder", Box::new(|path| fs::create_dir(path).unwrap()), "it is a folder"),
        ("a loop", Box::new(|path| symlink("config.yaml", path).unwrap()), "symbolic links"),
        ("a link to nothing", Box::new(|path| symlink("absent", path).unwrap()), "No such file"),
        (
            "a pipe",
            Box::new(|path| {
                let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
                assert!(made.success());
            }),
            "it is no file",
        ),
    ];
    for (what, make, said) in &bad {
        let before = plugin.held().await;
        replace(make);
        plugin.daemon.signal(Signal::HUP);
        let mut why = String::new();
        until(what, async || {
            let held = plugin.held().await;
            assert_eq!((&held.sha256, held.reloads), (&before.sha256, before.reloads));
            why = held.refused.unwrap_or_default();
            why.contains(said)
        })
        .await;
        load.goes_on().await;
        assert!(
            get(&plugin.path("admin.sock"), "/metrics").await.1.contains("casemate_kms_config_refused 1")
        );
    }
    // Nobody has to ask: it is looked at again and again.
    replace(&|path| write(path, text.as_bytes()));
    until("it says again what holds", async || plugin.held().await.refused.is_none()).await;
    load.goes_on().await;
    load.end().await;
    let log = plugin.end();
    assert_eq!(log.matches("is not taken over, what held goes on").count(), bad.len(), "{log}");
}

#[tokio::test]
async fn what_this_process_gave_up_needs_a_restart() {
    let plugin = Plugin::start().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let key = elsewhere.path().join("moved.key");
    fs::copy(plugin.host.key(), &key).unwrap();
    let why = plugin
        .refused(&plugin.with(&plugin.host.key().display().to_string(), &key.display().to_string()))
        .await;
    assert!(why.contains("needs a restart"), "{why}");
    let confined = why.contains(&*elsewhere.path().to_string_lossy());
    let landlock = fs::read_to_string("/sys/kernel/security/lsm").is_ok_and(|lsm| lsm.contains("landlock"));
    assert!(confined || !landlock, "{why}");
    for (from, to) in [("clusterId: prod", "clusterId: other"), ("/state", "/state2")] {
        plugin.deliver(&plugin.text).await;
        until("it is as it was", async || plugin.held().await.refused.is_none()).await;
        let why = plugin.refused(&plugin.with(from, to)).await;
        assert!(why.contains("needs a restart"), "{why}");
    }
    plugin.end();
}

/// Whoever delivers the file chooses what is in it, but not what else the log seems to say, nor how long it gets.
#[tokio::test]
async fn a_configuration_writes_no_lines_of_its_own_into_the_log() {
    let plugin = Plugin::start().await;
    let evil = r"\nERROR fake\e[31m\x9b1m\u202e\x7f";
    let state = plugin.path("state").display().to_string();
    let evil_path = format!("\"{state}{evil}\"");
    let many: String = (0..2000)
        .map(|number| {
            format!(
                "  - name: p{number}\n    endpoint: unix:///x/{number}\n    rootKeys:\n      - name: k\n        file: {{path: /k, id: \
                 \"{number:032}\"}}\n"
            )
        })
        .collect();
    for text in [
        format!("{}\"a{evil}\": 1\n", plugin.text),
        format!("{}\"{}\": 1\n", plugin.text, "a".repeat(500_000)),
        plugin.with(&state, &evil_path),
        plugin.with("name: main", &format!("name: \"{evil}\"")),
        plugin.with("admin:", &format!("{many}admin:")),
    ] {
        plugin.deliver(&plugin.text).await;
        until("it is as it was", async || plugin.held().await.refused.is_none()).await;
        let why = plugin.refused(&text).await;
        assert!(why.chars().count() <= 1100, "{} characters", why.len());
        assert!(!why.chars().any(|c| c.is_control() || c == '\u{202e}'), "{why:?}");
    }
    plugin.deliver(&plugin.text).await;
    until("it is as it was", async || plugin.held().await.refused.is_none()).await;
    // What is taken over has as many lines as people read.
    let groups = |from: u32| {
        format!("allowedPeers: {{uids: [0], gids: {:?}}}", (from..from + 5000).collect::<Vec<_>>())
    };
    plugin.change(&plugin.with("    rootKeys:", &format!("    {}\n    rootKeys:", groups(1)))).await;
    let log = plugin.end();
    assert!(log.lines().all(|line| line.len() < 3000 && !line.starts_with("ERROR fake")), "{log}");
    assert!(!log.chars().any(|c| c.is_control() && c != '\n'), "{log:?}");
}

/// A folder that is slow holds it up, and whoever delivered it corrects it meanwhile.
#[tokio::test]
async fn what_the_file_does_not_say_any_more_is_not_taken_over() {
    let plugin = Plugin::start().await;
    let mut client = plugin.client().await;
    let written = encrypt(&mut client, &DEK).await.unwrap();
    let record = plugin.path("state/casemate/record");
    fs::remove_file(&record).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&record).status().unwrap().success());
    plugin.deliver(&plugin.with("    rootKeys:", "    epoch: 1\n    rootKeys:")).await;
    let mut pipe = None;
    until("it reads the record", async || {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        // Fails while nobody reads.
        pipe = fs::OpenOptions::new().write(true).custom_flags(flags).open(&record).ok();
        pipe.is_some()
    })
    .await;
    deliver(plugin.text.as_bytes(), &plugin.host.config());
    drop(pipe);
    until("it goes on", async || plugin.daemon.log().contains("it changed again")).await;
    until("it says again what holds", async || plugin.held().await.refused.is_none()).await;
    assert_eq!(plugin.held().await.reloads, 0);
    assert_eq!(encrypt(&mut client, &DEK).await.unwrap().annotation, written.annotation);
    // What was rehearsed is not what a restart finds.
    until("nothing is left of it", async || !plugin.path("state/casemate/record.rehearsed").exists()).await;
    plugin.end();
}

/// It is tried again every ten seconds: each time it would begin a log.
/// Who can write it could have any data key wrapped for himself.
#[tokio::test]
async fn a_file_that_others_can_write_is_not_taken_over() {
    let plugin = Plugin::start().await;
    let config = plugin.host.config();
    set_mode(&config, 0o666);
    until("it is refused", async || {
        plugin.held().await.refused.is_some_and(|why| why.contains("has mode 0666"))
    })
    .await;
    set_mode(&config, 0o644);
    until("it says again what holds", async || plugin.held().await.refused.is_none()).await;
    plugin.end();
}

#[tokio::test]
async fn what_is_refused_begins_no_audit_log() {
    let plugin = Plugin::start().await;
    let log = plugin.path("state").join("new.log");
    let text = plugin.with("/kms.sock", "/absent/kms.sock");
    let why = plugin.refused(&format!("{text}audit: {{path: {}}}\n", log.display())).await;
    assert!(why.contains("no such folder"), "{why}");
    assert!(!log.exists());
    plugin.end();
}

#[tokio::test]
async fn a_socket_that_a_service_manager_holds_is_left_by_a_restart_only() {
    let host = Host::new();
    let listener = std::os::unix::net::UnixListener::bind(host.socket()).unwrap();
    let admin = host.folder().join("admin.sock");
    let text = fs::read_to_string(host.config()).unwrap()
        + &format!("admin: {{endpoint: unix://{}}}\n", admin.display());
    fs::write(host.config(), &text).unwrap();
    let mut daemon = host.serve_by(activate(&program(), &host, &listener, "casemate"));
    daemon.healthy().await;
    let plugin = Plugin { host, daemon, text };
    let why = plugin.refused(&plugin.with("kms.sock", "moved.sock")).await;
    assert!(why.contains("which a service manager has bound") && why.contains("needs a restart"), "{why}");
    assert!(plugin.client().await.status(StatusRequest {}).await.is_ok());
    // What else is said of it is taken over.
    plugin.change(&plugin.with("    rootKeys:", "    maxConnections: 5\n    rootKeys:")).await;
    plugin.end();
}
