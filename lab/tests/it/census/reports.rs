//! What `casemate census` writes for others: its page in Chromium, its gauges in Prometheus' own parser. Names in etcd are
//! those of somebody who would like to be more than text.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use casemate_lab::{Browser, Lab, Plugin, browser::Screen, plugin::product, python};
use serde_json::{Value, json};

const SCREENS: [Screen; 4] = [
    Screen { width: 1400, dark: false },
    Screen { width: 1400, dark: true },
    Screen { width: 360, dark: false },
    Screen { width: 360, dark: true },
];

const POLICY: &str = "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules:\n- resources: [secrets]\n  \
                      allow: [kms:v2]\n  maxKeyAge: 90d\n";

/// A file of a cluster in which somebody wrote names, and its report: gauges, page, and the JSON.
struct Reported {
    page: PathBuf,
    gauges: PathBuf,
    json: Value,
}

fn report(lab: &Lab) -> Reported {
    let plugin = Plugin::start(lab, "kms").unwrap();
    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    for name in ["one", "two", "three"] {
        server.kubectl(&["create", "secret", "generic", name, "--from-literal=word=hidden"]).unwrap();
    }
    // As long as a value of its kind must be.
    let block = "0123456789abcdef0123456789abcdef";
    let cbc = format!("k8s:enc:aescbc:v1:</td><script>alert(2)</script>:{block}");
    let v1 = format!("k8s:enc:kms:v1:<svg onload=alert(3)>:\0\u{4}wrap{block}");
    let long = "example.com/widgets/default/a-name-that-is-long-enough-to-be-wider-than-a-telephone";
    for (key, value) in [
        ("secrets/default/<script>alert(1)<script>", "{\"kind\": \"Secret\"}"),
        ("secrets/default/\" onload=\"alert(1)", &cbc),
        ("secrets/default/dot", &v1),
        ("<img src=x onerror=alert(4)>/default/a", "{\"a\": 1}"),
        ("secrets/default/\u{202e}reverse", "k8s:enc:kms:v2:</style><style>*{display:none}"),
        (long, "k8s\0plain"),
    ] {
        lab.etcd().put(&format!("/registry/{key}"), value.as_bytes()).unwrap();
    }
    let at = |name: &str| lab.dir().join(name);
    let file = at("<b>today & 'tomorrow'.db");
    lab.etcd().snapshot(&file).unwrap();
    fs::write(at("policy.yaml"), POLICY).unwrap();
    let (page, gauges) = (at("census.html"), at("census.prom"));
    let mut census = Command::new(product("casemate").unwrap());
    census.args(["census", "snapshot"]).arg(&file).arg("--encryption-config").arg(server.encryption_file());
    census.args(["--may-go", "kms:v2:casemate", "--needs", "aescbc:</td><script>alert(2)</script>"]);
    census.args(["--have", "kms:v2:casemate", "--output", "json", "--policy"]).arg(at("policy.yaml"));
    census.arg("--html").arg(&page).arg("--prometheus").arg(&gauges);
    let done = census.output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", String::from_utf8_lossy(&done.stderr));
    Reported { page, gauges, json: serde_json::from_slice(&done.stdout).unwrap() }
}

/// What a page looks like, as the browser laid it out.
const LOOK: &str = r#"(() => {
    const box = element => { const at = element.getBoundingClientRect();
        return {x: at.x + scrollX, y: at.y + scrollY, width: at.width, height: at.height, what: element.outerHTML.slice(0, 200)}; };
    const all = (where, what) => [...where.querySelectorAll(what)];
    const seen = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
    return {
        wide: document.documentElement.scrollWidth - innerWidth,
        beyond: all(document, 'body *').filter(element => seen(element) && !element.closest('.patterns, thead') &&
            element.getBoundingClientRect().right > innerWidth + 1).map(element => element.outerHTML.slice(0, 200)),
        ground: getComputedStyle(document.body).backgroundColor,
        headline: document.querySelector('h1')?.textContent,
        text: document.body?.textContent,
        scripts: document.querySelectorAll('script, iframe, object, embed, img, link').length,
        tables: document.querySelectorAll('table').length,
        plots: all(document, 'figure').map(figure => ({
            title: figure.querySelector('figcaption span')?.textContent,
            described: !!figure.querySelector('[role=img][aria-label], [role=img][aria-describedby]'),
            followed: !!figure.nextElementSibling?.matches('table, p + table, p'),
            shapes: all(figure, 'svg [class^=ink], svg .part').map(box),
            labels: all(figure, '.label, .tick').filter(seen).map(element => element.textContent),
        })),
    };
})()"#;

/// A screenshot, point by point.
struct Picture {
    width: usize,
    points: Vec<u8>,
}

impl Picture {
    fn read(png: &[u8]) -> Self {
        let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
        decoder.set_transformations(png::Transformations::ALPHA | png::Transformations::STRIP_16);
        let mut reader = decoder.read_info().unwrap();
        let mut points = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut points).unwrap();
        assert_eq!(info.color_type, png::ColorType::Rgba);
        Self { width: info.width as usize, points }
    }

    fn point(&self, x: usize, y: usize) -> [u8; 3] {
        let at = (y * self.width + x) * 4;
        [self.points[at], self.points[at + 1], self.points[at + 2]]
    }

    /// Whether there is something within a shape that is not on either side of it.
    fn shows(&self, shape: &Value, ground: [u8; 3]) -> bool {
        let number = |name: &str| shape[name].as_f64().unwrap();
        let (left, right) = (number("x").ceil() as usize, (number("x") + number("width")).floor() as usize);
        let (top, bottom) = (number("y").ceil() as usize, (number("y") + number("height")).floor() as usize);
        let differs = |point: [u8; 3]| {
            point.iter().zip(ground).map(|(one, other)| i32::from(one.abs_diff(other))).sum::<i32>() > 40
        };
        (top..bottom.max(top + 1))
            .any(|y| (left..right.max(left + 1)).any(|x| x < self.width && differs(self.point(x, y))))
    }
}

fn colour(css: &str) -> [u8; 3] {
    let numbers: Vec<u8> = css
        .trim_start_matches("rgb(")
        .trim_end_matches(')')
        .split(", ")
        .map(|number| number.parse().unwrap_or_else(|_| panic!("{css}")))
        .collect();
    numbers.try_into().unwrap()
}

/// Folder for pictures to look at, if somebody wants to.
fn keep(name: &str, bytes: &[u8]) {
    if let Some(folder) = std::env::var_os("CASEMATE_PICTURES") {
        fs::write(Path::new(&folder).join(name), bytes).unwrap();
    }
}

fn browser(lab: &Lab) -> Browser {
    let folder = lab.dir().join("chromium");
    fs::create_dir(&folder).unwrap();
    Browser::start(&folder).unwrap()
}

#[test]
fn the_page_is_one_that_anybody_can_look_at() {
    let lab = Lab::builder("report").apiservers(0).start().unwrap();
    let Reported { page, json, .. } = report(&lab);
    let mut browser = browser(&lab);
    let mut headlines = Vec::new();
    for screen in SCREENS {
        let Screen { width, dark } = screen;
        browser.open(&page, screen, false).unwrap();
        let look = browser.evaluate(LOOK).unwrap();
        assert_eq!(look["wide"].as_i64(), Some(0), "{screen:?}: {:#}", look["beyond"]);
        assert_eq!(look["beyond"], json!([]), "{screen:?}");
        assert_eq!(look["scripts"], 0, "{screen:?}");
        let light: u32 = colour(look["ground"].as_str().unwrap()).into_iter().map(u32::from).sum();
        assert_eq!(light < 200, dark, "{screen:?} is on {}", look["ground"]);
        headlines.push(look["headline"].as_str().unwrap().to_owned());

        let png = browser.screenshot().unwrap();
        keep(&format!("report-{width}-{}.png", if dark { "dark" } else { "light" }), &png);
        let picture = Picture::read(&png);
        assert_eq!(picture.width, width as usize);
        let plots = look["plots"].as_array().unwrap();
        assert!(plots.len() >= 4, "{plots:#?}");
        let ground =
            browser.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor").unwrap();
        let ground = colour(ground.as_str().unwrap());
        for plot in plots {
            let shapes = plot["shapes"].as_array().unwrap();
            assert!(!shapes.is_empty() && plot["described"] == true && plot["followed"] == true, "{plot:#}");
            assert!(!plot["labels"].as_array().unwrap().is_empty(), "{plot:#}");
            for shape in shapes {
                assert!(picture.shows(shape, ground), "{screen:?}: {} lacks {shape}", plot["title"]);
            }
        }
        // The page itself, and nothing but it.
        let requests = browser.requests();
        assert!(requests.len() == 1 && requests[0].ends_with("/census.html"), "{requests:?}");
        assert_eq!(browser.complaints(), Vec::<String>::new(), "{screen:?}");

        let text = look["text"].as_str().unwrap();
        for said in [
            "<script>alert(1)<script>",
            "aescbc:</td><script>alert(2)</script>",
            "<svg onload=alert(3)>",
            "36 bytes that are no name",
            json["files"][0]["sha256"].as_str().unwrap(),
            "What was not looked at",
        ] {
            assert!(text.contains(said), "{said:?} is not told in {text}");
        }
        assert!(!text.contains("hidden"), "a value is told");
    }
    assert!(headlines.iter().all(|headline| *headline == headlines[0]), "{headlines:?}");
    assert!(headlines[0].contains("policy is not kept"), "{headlines:?}");

    let pdf = browser.pdf().unwrap();
    keep("report.pdf", &pdf);
    assert!(pdf.starts_with(b"%PDF-"));
    assert!(pages(&pdf) >= 2, "{} pages", pages(&pdf));
    // With scripts allowed it is the same: there is none.
    browser.open(&page, SCREENS[0], true).unwrap();
    assert_eq!(browser.evaluate("document.querySelector('h1').textContent").unwrap(), headlines[0].as_str());
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Of a PDF, as its tree of pages counts them.
fn pages(pdf: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(pdf);
    let counts = text.split("/Count ").skip(1);
    counts
        .filter_map(|rest| rest.split(|end: char| !end.is_ascii_digit()).next()?.parse().ok())
        .max()
        .unwrap_or(0)
}

#[test]
fn what_is_wrong_with_a_page_is_seen() {
    let lab = Lab::builder("bad page").apiservers(0).start().unwrap();
    let mut browser = browser(&lab);
    let page = lab.dir().join("bad.html");
    fs::write(
        &page,
        "<!DOCTYPE html><html><head><meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src *\">\
         <title>Bad</title></head><body><h1>Bad</h1><section><img src='http://casemate.invalid/a.png'>\
         <p style='width: 3000px'>wide</p><figure><figcaption><span>Empty</span></figcaption><svg width='100%' height='20'>\
         <rect class='ink-blue' width='50%' height='20' fill='none'></rect></svg></figure></section>\
         <script>document.title = 'ran'</script></body></html>",
    )
    .unwrap();
    browser.open(&page, SCREENS[2], true).unwrap();
    let look = browser.evaluate(LOOK).unwrap();
    assert!(look["scripts"] == 2 && look["plots"][0]["described"] == false, "{look:#}");
    let requests = browser.requests();
    assert!(requests.iter().any(|url| url.contains("casemate.invalid")), "{requests:?}");
    let complaints = browser.complaints().join("\n");
    assert!(
        complaints.contains("Content Security Policy") && complaints.contains("ERR_NAME_NOT_RESOLVED"),
        "{complaints}"
    );
    assert_eq!(browser.evaluate("document.title").unwrap(), "Bad");
    let picture = Picture::read(&browser.screenshot().unwrap());
    assert!(!picture.shows(&look["plots"][0]["shapes"][0], [255, 255, 255]), "what is not drawn is seen");

    let loose = fs::read_to_string(&page).unwrap().replace("default-src 'none';", "");
    fs::write(&page, loose).unwrap();
    browser.open(&page, SCREENS[2], true).unwrap();
    assert_eq!(browser.evaluate("document.title").unwrap(), "ran");
    let look = browser.evaluate(LOOK).unwrap();
    assert!(look["wide"].as_i64() > Some(1000) && look["beyond"] != json!([]), "{look:#}");
    browser.open(&page, SCREENS[2], false).unwrap();
    assert_eq!(browser.evaluate("document.title").unwrap(), "Bad");
}

#[test]
fn the_gauges_are_those_of_prometheus_and_say_what_the_json_says() {
    const PARSE: &str = "import json, sys\nfrom prometheus_client.parser import text_string_to_metric_families as parse\n\
        print(json.dumps([[family.type, family.documentation, sample.name, sample.labels, sample.value]\n\
        for family in parse(open(sys.argv[1]).read()) for sample in family.samples]))";
    let lab = Lab::builder("gauges").apiservers(0).start().unwrap();
    let Reported { gauges, json, .. } = report(&lab);
    let parsed = Command::new(python().unwrap()).args(["-c", PARSE]).arg(&gauges).output().unwrap();
    assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
    let samples: Vec<(String, String, String, Value, f64)> = serde_json::from_slice(&parsed.stdout).unwrap();
    assert!(samples.iter().all(|(kind, help, name, ..)| {
        kind == "gauge" && !help.is_empty() && name.starts_with("casemate_census_")
    }));
    let sum = |name: &str, labels: &[(&str, &str)]| -> f64 {
        let fits = |of: &Value| labels.iter().all(|(label, value)| of[*label] == *value);
        let found = samples.iter().filter(|(_, _, found, of, _)| found == name && fits(of));
        found.map(|(.., value)| value).sum()
    };
    let file = &json["files"][0];
    let name = file["file"].as_str().unwrap();
    assert!(name.contains("<b>today & 'tomorrow'.db"));
    assert_eq!(sum("casemate_census_objects", &[("file", name)]), file["survey"]["live"].as_f64().unwrap());
    let groups = file["survey"]["groups"].as_array().unwrap();
    let secrets = groups.iter().filter(|group| group["resource"]["name"] == "secrets");
    let ours = secrets.filter(|group| group["encryption"]["provider"] == "casemate");
    let ours: f64 = ours.map(|group| group["live"]["values"].as_f64().unwrap()).sum();
    assert!(ours >= 3.0);
    let of_secrets =
        |encryption| sum("casemate_census_objects", &[("resource", "secrets"), ("encryption", encryption)]);
    assert_eq!(of_secrets("kms_v2"), ours);
    for encryption in ["plaintext", "aescbc", "kms_v1", "damaged"] {
        assert_eq!(of_secrets(encryption), 1.0, "{encryption}");
    }
    let hostile = sum("casemate_census_key_objects", &[("key", "aescbc:</td><script>alert(2)</script>")]);
    assert_eq!((hostile, sum("casemate_census_needed_by_values", &[("standing", "live")])), (1.0, 1.0));
    assert_eq!(sum("casemate_census_may_go", &[("verdict", "no")]), 1.0);
    assert_eq!(sum("casemate_census_exit_code", &[]), 1.0);
    assert_eq!(sum("casemate_census_revision", &[]), file["survey"]["revision"].as_f64().unwrap());
    assert!(sum("casemate_census_oldest_key_timestamp_seconds", &[]) > 1.7e9);
}
