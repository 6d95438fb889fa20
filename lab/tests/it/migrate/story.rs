//! Everything is stale, then nothing is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use casemate_lab::Lab;
use reqwest::Method;
use serde_json::json;

use super::{Scene, THINGS, WIDE, secret};
use crate::over::Over;

#[test]
fn all_that_is_stale_is_written_once_and_a_census_proves_it() {
    let lab = Lab::builder("migrate").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 2);
    scene.fill(600);
    // As large as etcd takes.
    let large = json!({"kind": "Thing", "apiVersion": "a.example/v2", "metadata": {"name": "large"},
        "spec": {"word": "y".repeat(1_400_000)}});
    scene.create([(format!("{THINGS}/b/things"), large)]);
    assert_eq!(scene.stale().objects(), 0);
    scene.rotate();
    let before = scene.stale();
    assert_eq!(before.current, 0, "{before:?}");
    assert!(before.stale["secrets"] == 600 && before.stale["things.a.example"] == 61, "{before:?}");
    assert!(before.stale["configmaps"] >= 120 && before.stale["wides.a.example"] == 60, "{before:?}");
    let collections =
        ["/api/v1/secrets", "/api/v1/configmaps", "/apis/a.example/v2/things", WIDE].map(str::to_owned);
    let untouched = collections.each_ref().map(|path| scene.versions(path));
    assert_eq!(scene.migrate(&[0, 1], true, &["--dry-run"]).0, 0);
    assert_eq!(collections.each_ref().map(|path| scene.versions(path)), untouched, "a dry run wrote");
    let (_, secrets) = scene.ask(0, Method::GET, "/api/v1/namespaces/a/secrets/s-0");

    // By etcd, with both servers, while others make and delete objects.
    let (over, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (code, answer) = thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&over);
            for number in 100_000.. {
                let (path, object) = secret(number);
                scene.create([(path.clone(), object)]);
                let name = format!("{path}/s-{}", if number % 2 == 0 { number } else { number % 600 });
                assert!([200, 404].contains(&scene.ask(1, Method::DELETE, &name).0), "{name}");
                for other in (0..8).map(|step| (number * 8 + step) % 600).filter(|other| *other > 0) {
                    scene.label(other, number);
                }
                made.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _over = Over(&over);
        while made.load(Ordering::Relaxed) == 0 && !over.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        scene.migrate(&[0, 1], true, &["--yes"])
    });
    assert_eq!((code, &answer["verdict"]), (0, &json!("proven")), "{answer:#}");
    let report = &answer["report"];
    assert!(report["failed"].as_array().unwrap().is_empty(), "{report:#}");
    // Each once at most; of some, others were quicker.
    let count = |field: &str| report["resources"]["secrets"][field].as_u64().unwrap();
    let (written, fresh, gone) = (count("written"), count("fresh"), count("gone"));
    assert!(written > 0 && written + fresh + gone <= 600, "{report:#}");
    assert_eq!(report["resources"]["wides.a.example"]["written"], 60, "{report:#}");
    assert_eq!(report["resources"]["things.a.example"]["written"], 61, "{report:#}");
    assert_eq!(scene.stale().objects(), 0);
    eprintln!("{} objects in {} s", report["resources"], answer["seconds"]);

    // Nothing in them changed.
    let (_, after) = scene.ask(0, Method::GET, "/api/v1/namespaces/a/secrets/s-0");
    let plain = |text: &str| {
        let mut object: serde_json::Value = serde_json::from_str(text).unwrap();
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion").unwrap();
        object
    };
    assert_eq!(plain(&after), plain(&secrets));

    // Once more: nothing is stale, and nothing is written.
    let (code, answer) = scene.migrate(&[0], true, &["--yes"]);
    assert_eq!((code, &answer["report"]["resources"]), (0, &json!({})), "{answer:#}");
    let untouched = scene.versions(WIDE);
    let (code, answer) = scene.migrate(&[0], false, &["--yes"]);
    assert_eq!((code, &answer["verdict"]), (3, &json!("unproven")), "{answer:#}");
    assert_eq!(answer["report"]["resources"]["wides.a.example"]["fresh"], 60, "{answer:#}");
    assert_eq!(scene.versions(WIDE), untouched);
}

#[test]
fn without_etcd_lists_of_api_servers_do_and_the_end_is_called_unproven() {
    let lab = Lab::builder("migrate lists").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(1200);
    scene.rotate();
    let before = scene.stale();
    assert_eq!(before.current, 0);
    let (code, answer) = scene.migrate(&[0], false, &["--yes"]);
    assert_eq!((code, &answer["verdict"]), (3, &json!("unproven")), "{answer:#}");
    let report = &answer["report"];
    for (resource, objects) in &before.stale {
        assert_eq!(report["resources"][resource]["written"], *objects, "{resource}: {report:#}");
        assert_eq!(report["resources"][resource]["fresh"], 0, "{resource}: {report:#}");
    }
    assert_eq!(scene.stale().objects(), 0);
    eprintln!("{} objects in {} s, {} requests", before.objects(), answer["seconds"], report["requests"]);
}
