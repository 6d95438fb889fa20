//! Killed, and begun again.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

use casemate_lab::Lab;
use serde_json::{Value, json};

use super::{Scene, ended};

/// What a page may have.
const PAGE: u64 = 500;

/// Whether a page was done, by the cursor; what was done.
fn done(folder: &Path) -> u64 {
    let Ok(text) = fs::read(folder.join("cursor.json")) else { return 0 };
    let cursor: Value = serde_json::from_slice(&text).unwrap();
    let lanes = cursor["lanes"].as_object().unwrap().values();
    let tallies = lanes.flat_map(|lane| lane["done"].as_object().unwrap().values());
    tallies.map(|tally| tally["written"].as_u64().unwrap() + tally["fresh"].as_u64().unwrap()).sum()
}

fn until(what: &str, so: impl Fn() -> bool) {
    let came = (0..6000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        so()
    });
    assert!(came, "never: {what}");
}

fn kill9(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killed_three_times_it_repeats_a_page_each_time_at_most() {
    let lab = Lab::builder("migrate killed").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(3000);
    scene.rotate();
    let all = scene.stale().objects();
    let state = lab.dir().join("migration");
    let arguments = ["--yes", "--in-flight", "8", "--state", state.to_str().unwrap()];
    for _ in 0..3 {
        let before = done(&state);
        let running = scene.command(&[0], false, &arguments).spawn().unwrap();
        until("a page was done", || done(&state) > before);
        // Somewhere in the next one.
        thread::sleep(Duration::from_millis(70));
        kill9(running);
        let (passed, stale) = (done(&state), scene.stale().objects());
        let lost = all - stale - passed;
        assert!(stale > 0 && lost <= PAGE, "{all} in all, {stale} stale, {passed} passed");
        eprintln!("killed with {passed} of {all} passed, and {lost} done beyond");
    }
    // One at a time.
    let running = scene.command(&[0], false, &arguments).spawn().unwrap();
    until("it has the folder", || done(&state) > 0);
    let (code, answer) = ended(running);
    assert_eq!((code, &answer["report"]["resumed"]), (3, &json!(true)), "{answer:#}");
    let tallies = answer["report"]["resources"].as_object().unwrap().values();
    let sum = |field: &str| tallies.clone().map(|tally| tally[field].as_u64().unwrap()).sum::<u64>();
    // What was done beyond a page when it was killed is found fresh.
    assert_eq!(sum("written") + sum("fresh"), all, "{answer:#}");
    assert!(sum("fresh") <= 3 * PAGE, "{answer:#}");
    assert_eq!(scene.stale().objects(), 0);
    assert!(!state.join("cursor.json").exists());
}

#[test]
fn an_api_server_that_is_killed_is_left_out_and_all_servers_gone_are_waited_for() {
    let lab = Lab::builder("migrate server killed").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 2);
    scene.fill(1500);
    scene.rotate();
    let all = scene.stale().objects();
    let state = lab.dir().join("migration");
    let arguments = ["--yes", "--in-flight", "4", "--state", state.to_str().unwrap()];
    let running = scene.command(&[0, 1], false, &arguments).spawn().unwrap();
    until("a page was done", || done(&state) > 0);
    scene.server(1).kill9();
    let before = done(&state);
    until("it went on with the other one", || done(&state) > before || !state.join("cursor.json").exists());
    scene.server(0).kill9();
    thread::sleep(Duration::from_millis(500));
    scene.server(0).start().unwrap();
    scene.server(1).start().unwrap();
    let (code, answer) = ended(running);
    assert_eq!((code, &answer["verdict"]), (3, &json!("unproven")), "{answer:#}");
    let tallies = answer["report"]["resources"].as_object().unwrap().values();
    let dealt: u64 =
        tallies.map(|tally| tally["written"].as_u64().unwrap() + tally["fresh"].as_u64().unwrap()).sum();
    assert_eq!((dealt, &answer["report"]["failed"]), (all, &json!([])), "{answer:#}");
    assert_eq!(scene.stale().objects(), 0);
}

#[test]
fn one_folder_is_of_one_migration_and_ctrl_c_keeps_the_cursor() {
    let lab = Lab::builder("migrate twice").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(1500);
    scene.rotate();
    let state = lab.dir().join("migration");
    let arguments = ["--yes", "--in-flight", "2", "--state", state.to_str().unwrap()];
    let running = scene.command(&[0], true, &arguments).spawn().unwrap();
    until("a page was done", || done(&state) > 0);
    let second = scene.command(&[0], true, &arguments).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(2) && said.contains("another migration"), "{said}");
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (code, answer) = ended(running);
    let stopped = answer["report"]["stopped"].as_str().unwrap();
    assert!(code == 4 && stopped.contains("interrupted"), "{answer:#}");
    assert!(!answer["proof"]["stale"].as_array().unwrap().is_empty(), "{answer:#}");
    // Two in different folders do each other no harm.
    let other = lab.dir().join("another");
    let others = ["--yes", "--state", other.to_str().unwrap()];
    let running =
        [&arguments[..], &others[..]].map(|arguments| scene.command(&[0], true, arguments).spawn().unwrap());
    for (code, answer) in running.map(ended) {
        assert_eq!((code, &answer["report"]["failed"]), (0, &json!([])), "{answer:#}");
    }
    assert_eq!(scene.stale().objects(), 0);
}
