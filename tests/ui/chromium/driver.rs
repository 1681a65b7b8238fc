//! Client of chromedriver: the few commands of the WebDriver protocol that the tests use.
//!
//! No library: `thirtyfour` switches on `serde_json/preserve_order`, which would change the order of all JSON in tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// Time limit for a browser to end.
const END_DEADLINE: Duration = Duration::from_secs(10);
/// Property of a response that names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Process of the driver.
struct DriverProcess(Child);

impl Drop for DriverProcess {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Browser with its driver.
pub struct Driver {
    http: reqwest::Client,
    /// URL of the session.
    session: String,
    _process: DriverProcess,
}

/// Ends the browser; a driver that is only stopped leaves some of its processes.
impl Drop for Driver {
    fn drop(&mut self) {
        let address = self.session.trim_start_matches("http://");
        let (host, path) = address.split_once('/').unwrap_or((address, ""));
        let Ok(mut stream) = TcpStream::connect(host) else { return };
        let _ = stream.set_read_timeout(Some(END_DEADLINE));
        let _ = write!(stream, "DELETE /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let _ = stream.read(&mut [0; 64]);
    }
}

/// Starts the driver of this folder. Returns its port, or `None` if it ends at once.
fn start_driver(folder: &Path) -> Option<(DriverProcess, String)> {
    let mut command = Command::new(folder.join("chromedriver"));
    command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let output = BufReader::new(process.stdout.take().unwrap());
    let process = DriverProcess(process);
    let port_of = |line: String| Some(line.split_once("successfully on port ")?.1.trim_end_matches('.').to_owned());
    let port = output.lines().map_while(Result::ok).find_map(port_of)?;
    Some((process, port))
}

impl Driver {
    /// Starts the driver and a browser of this folder.
    pub async fn start(folder: &Path) -> Self {
        // It ends at once if the free port that it has chosen for IPv6 is in use for IPv4.
        let started = (0..5).find_map(|_| start_driver(folder));
        let (process, port) = started.expect("the driver names its port in one of five starts");
        let http = kafleet_testkit::http::client();
        let mut driver = Self { http, session: format!("http://127.0.0.1:{port}/session"), _process: process };
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"];
        let browser = json!({"args": arguments, "binary": folder.join("chromium")});
        let capabilities = json!({"goog:chromeOptions": browser, "goog:loggingPrefs": {"browser": "ALL"}});
        let begun = driver.post("", json!({"capabilities": {"alwaysMatch": capabilities}})).await;
        let id = begun["sessionId"].as_str().unwrap_or_else(|| panic!("no browser: {begun}"));
        driver.session = format!("{}/{id}", driver.session);
        driver
    }

    /// Sends a command; returns its value, which names the error of a failed one.
    async fn post(&self, command: &str, body: Value) -> Value {
        let request = self.http.post(format!("{}{command}", self.session)).json(&body);
        let answer = request.send().await.unwrap_or_else(|error| panic!("{command}: {error}"));
        let mut answer: Value = answer.json().await.unwrap();
        answer["value"].take()
    }

    /// Sends a command that must succeed.
    pub async fn command(&self, command: &str, body: Value) -> Value {
        let value = self.post(command, body.clone()).await;
        assert!(value.get("error").is_none() || value.get("stacktrace").is_none(), "{command} {body}: {value}");
        value
    }

    /// Sends a command of the developer tools.
    pub async fn devtools(&self, command: &str, params: Value) -> Value {
        self.command("/goog/cdp/execute", json!({"cmd": command, "params": params})).await
    }

    pub async fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Runs a script that calls its last argument with the result.
    pub async fn run_async(&self, script: &str) -> Value {
        self.command("/execute/async", json!({"script": script, "args": []})).await
    }

    async fn find(&self, css: &str) -> String {
        let found = self.command("/element", json!({"using": "css selector", "value": css})).await;
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("{css}: {found}")).to_owned()
    }

    pub async fn click(&self, css: &str) {
        let element = self.find(css).await;
        self.command(&format!("/element/{element}/click"), json!({})).await;
    }

    /// Types into an element.
    pub async fn fill(&self, css: &str, text: &str) {
        let element = self.find(css).await;
        self.command(&format!("/element/{element}/value"), json!({"text": text})).await;
    }

    /// Presses keys in the element with the focus.
    pub async fn press(&self, keys: &str) {
        let strokes = |key: char| {
            let key = key.to_string();
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        };
        let actions: Vec<Value> = keys.chars().flat_map(strokes).collect();
        self.command("/actions", json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]})).await;
    }

    /// Handles of the window shown and of a new tab.
    pub async fn new_tab(&self) -> (String, String) {
        let window = self.http.get(format!("{}/window", self.session)).send().await.unwrap();
        let window: Value = window.json().await.unwrap();
        let tab = self.command("/window/new", json!({"type": "tab"})).await;
        (window["value"].as_str().unwrap().to_owned(), tab["handle"].as_str().unwrap().to_owned())
    }

    pub async fn switch_to(&self, handle: &str) {
        self.command("/window", json!({"handle": handle})).await;
    }

    pub async fn delete_cookies(&self) {
        let sent = self.http.delete(format!("{}/cookie", self.session)).send().await;
        assert!(sent.unwrap().status().is_success());
    }

    /// Errors of scripts and violations of the policy. Answers with an error status are not among them.
    pub async fn console_errors(&self) -> Vec<String> {
        let entries = self.command("/se/log", json!({"type": "browser"})).await;
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        let severe = entries.as_array().into_iter().flatten().filter(|entry| entry["level"] == "SEVERE").map(text);
        severe.filter(|message| !message.contains("Failed to load resource")).collect()
    }
}
