//! A headless Chromium, which says what it thinks of a page and how it looks.
//!
//! It is driven by its DevTools protocol over a pipe, in messages of JSON that end with a zero byte: no port, and no library
//! for a dozen calls. Pages come from files; names of hosts lead nowhere.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{Error, Result, process};

/// How long an answer may take on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// Descriptors 3 and 4 are where Chromium reads and writes; a process of ours can be given 0 and 1.
const OVER_PIPES: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#;

/// A running Chromium with one page at a time. It ends with the value, and with our process.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: mpsc::Receiver<Value>,
    calls: u64,
    session: Option<String>,
    events: VecDeque<Value>,
}

/// What a page is shown on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// In pixels of CSS.
    pub width: u32,
    /// Whether its user prefers dark.
    pub dark: bool,
}

impl Browser {
    /// Starts one that keeps all that it keeps in `folder`, which must exist.
    pub fn start(folder: &Path) -> Result<Self> {
        let mut chromium = Command::new("sh");
        chromium.args(["-c", OVER_PIPES, "chromium"]).args([
            "--headless",
            // Pages of our own, as root of a container perhaps, where its sandbox does not start.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--remote-debugging-pipe",
        ]);
        chromium.arg(format!("--user-data-dir={}", folder.display())).arg("about:blank");
        for name in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            chromium.env(name, folder);
        }
        let log = folder.join("chromium.log");
        let sink = File::create(&log).map_err(Error::file("make", log))?;
        let mut tied = process::tied_to_us(&chromium);
        tied.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(sink);
        let mut child = process::spawn_on_lasting_thread(tied).map_err(|source| Error::Spawn {
            program: "chromium".into(),
            source,
            remedy: "the lab starts programs through setpriv, of Debian's package util-linux".into(),
        })?;
        let (heard, from) = mpsc::channel();
        if let Some(mut pipe) = child.stdout.take().map(BufReader::new) {
            thread::spawn(move || {
                let mut message = Vec::new();
                while pipe.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                    message.pop();
                    let sent = serde_json::from_slice(&message).ok().map(|message| heard.send(message));
                    if sent.is_some_and(|sent| sent.is_err()) {
                        break;
                    }
                    message.clear();
                }
            });
        }
        let to = child.stdin.take();
        let mut browser = Self { child, to, from, calls: 0, session: None, events: VecDeque::new() };
        browser.call("Browser.getVersion", json!({}))?;
        Ok(browser)
    }

    /// Opens a file of HTML in a page of its own, and waits until all of it is there. Scripts are refused if `scripts` is
    /// false; the lab's own questions are not.
    pub fn open(&mut self, file: &Path, screen: Screen, scripts: bool) -> Result<()> {
        let file = fs::canonicalize(file).map_err(Error::file("find", file))?;
        (self.session, self.events) = (None, VecDeque::new());
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}))?["targetId"].take();
        let attached = self.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}))?;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        let Screen { width, dark } = screen;
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}),
        )?;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}))?;
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": !scripts}))?;
        let opened = self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}))?;
        if let Some(why) = opened["errorText"].as_str() {
            return Err(failed("Page.navigate", why));
        }
        let is_loaded = |event: &Value| event["method"] == "Page.loadEventFired";
        while !self.events.iter().any(is_loaded) {
            let event = self.hear("Page.loadEventFired")?;
            self.events.push_back(event);
        }
        Ok(())
    }

    /// The value of an expression of JavaScript in the open page.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let mut answer =
            self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}))?;
        match answer.get("exceptionDetails") {
            Some(thrown) => Err(failed("Runtime.evaluate", &thrown.to_string())),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// The whole open page as PNG.
    pub fn screenshot(&mut self) -> Result<Vec<u8>> {
        let size = self.call("Page.getLayoutMetrics", json!({}))?["cssContentSize"].take();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        self.bytes(
            "Page.captureScreenshot",
            json!({"format": "png", "captureBeyondViewport": true, "clip": clip}),
        )
    }

    /// The open page as it is printed, as PDF.
    pub fn pdf(&mut self) -> Result<Vec<u8>> {
        self.bytes("Page.printToPDF", json!({"preferCSSPageSize": true, "printBackground": true}))
    }

    /// What the open page made the browser complain of: errors of its own and of scripts, what its policy refused.
    pub fn complaints(&self) -> Vec<String> {
        let bad = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        let complaints = self.events.iter().filter(|event| bad.iter().any(|name| event["method"] == *name));
        complaints.map(|event| event["params"].to_string()).collect()
    }

    /// Everything that the open page asked for, itself included.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| Some(event["params"]["request"]["url"].as_str()?.to_owned())).collect()
    }

    fn bytes(&mut self, method: &str, params: Value) -> Result<Vec<u8>> {
        let answer = self.call(method, params)?;
        let data = answer["data"].as_str().unwrap_or_default();
        STANDARD.decode(data).map_err(|error| failed(method, &error.to_string()))
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let line = format!("{message}\0");
        let sent = self.to.as_mut().map(|pipe| pipe.write_all(line.as_bytes()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(failed(method, REMEDY));
        }
        loop {
            let mut heard = self.hear(method)?;
            if heard["id"] != self.calls {
                self.events.push_back(heard);
            } else if heard["error"].is_null() {
                return Ok(heard["result"].take());
            } else {
                return Err(failed(method, &heard["error"].to_string()));
            }
        }
    }

    fn hear(&self, awaited: &str) -> Result<Value> {
        self.from.recv_timeout(PATIENCE).map_err(|_| failed(awaited, REMEDY))
    }
}

const REMEDY: &str =
    "Chromium does not answer; see that it is installed (Debian: `apt-get install chromium`)";

fn failed(request: &str, found: &str) -> Error {
    Error::Request { request: format!("chromium: {request}"), status: None, found: found.to_owned() }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends all its processes itself; what hangs is killed.
        self.session = None;
        let closed = self.call("Browser.close", json!({}));
        drop(self.to.take());
        if closed.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
