//! The `email` handler with a real SMTP server. Runs if `KAFLEET_TEST_SMTP` names a Python with aiosmtpd, as created
//! by `tests/tools smtp` and set by `tests/run`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kafleet::config::{EmailConfig, MailTls};
use kafleet::handlers::builtin::email::Emails;
use kafleet::handlers::testing::{Outcome, TestRun};
use kafleet::handlers::{Fail, TypeRegistration};
use kafleet::model::json::RawJson;
use kafleet_testkit::wait::DEADLINE;
use serde_json::{Value, json};

/// An SMTP server and the emails it received.
struct Server {
    process: Child,
    mails: Receiver<String>,
    port: u16,
    folder: tempfile::TempDir,
}

impl Server {
    /// Returns `None` with a message if no server is available.
    fn start(mode: &str) -> Option<Self> {
        let Ok(python) = std::env::var("KAFLEET_TEST_SMTP") else {
            kafleet_testkit::services::skip("KAFLEET_TEST_SMTP is not set");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = certificate(folder.path());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/email/server.py");
        let mut process = Command::new(python)
            .arg(script)
            .arg(mode)
            .arg(certificate)
            .arg(key)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, mails) = channel();
        let out = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let port = mails.recv_timeout(DEADLINE).expect("the server prints its port").parse().unwrap();
        Some(Self { process, mails, port, folder })
    }

    /// Configuration of a fleet that may send through this server.
    fn config(&self, tls: MailTls) -> EmailConfig {
        let secret = |text: &str| (tls != MailTls::None).then(|| text.to_owned());
        EmailConfig {
            server: "localhost".into(),
            port: Some(self.port),
            tls,
            ca: Some(self.folder.path().join("certificate.pem")),
            username: secret("kafleet"),
            password: secret("mail-secret"),
            password_file: None,
            from: "The fleet <fleet@example.com>".into(),
            recipients: Vec::new(),
        }
    }

    fn mail(&self) -> Value {
        serde_json::from_str(&self.mails.recv_timeout(DEADLINE).expect("a mail")).unwrap()
    }

    fn has_nothing(&self) -> bool {
        self.mails.try_recv().is_err()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl is needed for a certificate").success());
    (certificate, key)
}

async fn attempt(config: &EmailConfig, params: &Value, number: u32) -> Outcome {
    let registered: TypeRegistration = Emails::registered(config).unwrap();
    let trial = TestRun::new().id("email-abc").attempt(number).timeout(Duration::from_secs(100));
    let attempt = trial.handle("kafleet-email", &registered, RawJson::of(params).unwrap());
    tokio::time::timeout(DEADLINE, attempt).await.expect("an attempt ends")
}

fn params() -> Value {
    let task = json!({"id": "order-42", "state": "failed", "name": "Größe", "type": "resize"});
    json!({
        "to": ["Ops <ops@example.com>"], "cc": ["lead@example.com"], "bcc": ["hidden@example.com"],
        "subject": "{{ task.name }} ({{ task.id }}) is {{ task.state }}", "body": "Ended {{ timestamp }}.\n.\n{{ task.name }}\n",
        "about": {"type": "task.state", "timestamp": "2026-01-31T12:00:00.000Z", "data": task}
    })
}

#[tokio::test]
async fn email_is_sent_over_tls_and_starttls() {
    for (mode, tls) in [("starttls", MailTls::Starttls), ("tls", MailTls::Tls)] {
        let Some(server) = Server::start(mode) else { return };
        assert!(attempt(&server.config(tls), &params(), 1).await.output()["answer"].as_str().unwrap().contains("kept"));
        let mail = server.mail();
        let everybody = json!(["ops@example.com", "lead@example.com", "hidden@example.com"]);
        assert_eq!(mail["envelope"], json!(["fleet@example.com", everybody]), "{mode}");
        for (name, value) in [
            ("from", "The fleet <fleet@example.com>"),
            ("to", "Ops <ops@example.com>"),
            ("cc", "lead@example.com"),
            ("subject", "Größe (order-42) is failed"),
            ("message-id", "<email-abc@example.com>"),
            ("auto-submitted", "auto-generated"),
        ] {
            assert_eq!(mail["headers"][name], value, "{mode}: {mail}");
        }
        assert!(mail["headers"]["date"].is_string() && mail["headers"].get("bcc").is_none(), "{mail}");
        assert_eq!(
            mail["body"].as_str().unwrap().replace("\r\n", "\n").trim_end(),
            "Ended 2026-01-31T12:00:00.000Z.\n.\nGröße"
        );
        if mode == "starttls" {
            assert_eq!(mail["encrypted"], true, "{mail}");
        }
        // A repeated send has the same message id.
        attempt(&server.config(tls), &params(), 2).await.output();
        assert_eq!(server.mail()["headers"]["message-id"], "<email-abc@example.com>");
    }
}

#[tokio::test]
async fn smtp_code_determines_retry() {
    let Some(server) = Server::start("starttls") else { return };
    let config = server.config(MailTls::Starttls);
    for (to, then, kind) in [
        ("refused@example.com", Fail::Dead, "smtp_refused"),
        ("busy@example.com", Fail::Retry { after: None }, "smtp_busy"),
    ] {
        let mut params = params();
        params["to"] = json!([to]);
        let outcome = attempt(&config, &params, 1).await;
        assert_eq!(
            (outcome.failure().then, outcome.failure().kind.as_ref()),
            (then, kind),
            "{to}: {}",
            outcome.failure()
        );
    }
    let wrong = EmailConfig { password: Some("wrong-secret".into()), ..config.clone() };
    let outcome = attempt(&wrong, &params(), 1).await;
    assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Retry { after: None }, "smtp_access"));
    assert!(!outcome.failure().message.contains("wrong-secret"), "{}", outcome.failure());
    assert!(server.has_nothing(), "no email was accepted");
    // The password may come from a file that is corrected later.
    let file = server.folder.path().join("password");
    let by_file = EmailConfig { password: None, password_file: Some(file.clone()), ..config };
    let outcome = attempt(&by_file, &params(), 1).await;
    assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Retry { after: None }, "secret"));
    std::fs::write(&file, "mail-secret\n").unwrap();
    attempt(&by_file, &params(), 1).await.output();
    server.mail();
}

/// Nothing is sent to a server with an untrusted certificate, or without TLS if it is required.
#[tokio::test]
async fn untrusted_smtp_server_is_refused() {
    let Some(server) = Server::start("starttls") else { return };
    let unknown = EmailConfig { ca: None, ..server.config(MailTls::Starttls) };
    let Some(clear) = Server::start("none") else { return };
    let in_the_clear = EmailConfig { port: Some(clear.port), ..server.config(MailTls::Starttls) };
    for config in [unknown, in_the_clear] {
        let outcome = attempt(&config, &params(), 1).await;
        assert_eq!(outcome.failure().then, Fail::Retry { after: None }, "{}", outcome.failure());
    }
    assert!(server.has_nothing() && clear.has_nothing());
    attempt(&clear.config(MailTls::None), &params(), 1).await.output();
    assert_eq!(clear.mail()["encrypted"], false, "unencrypted only if configured");
}

#[tokio::test]
async fn unreachable_smtp_server_is_retried() {
    // No process listens on this port.
    let config: EmailConfig = toml::from_str("server = \"localhost\"\nport = 1\nfrom = \"a@b.c\"").unwrap();
    let outcome = attempt(&config, &params(), 1).await;
    assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Retry { after: None }, "unreachable"));
}

#[tokio::test]
async fn recipient_outside_the_list_is_rejected() {
    let config: EmailConfig =
        toml::from_str("server = \"localhost\"\nfrom = \"a@b.c\"\nrecipients = [\"*@example.com\"]").unwrap();
    let registered = Emails::registered(&config).unwrap();
    let refused = |field: &str, value: Value| {
        let mut params = params();
        params[field] = value;
        registered.validate(&RawJson::of(&params).unwrap()).map(|rejection| (rejection.pointer, rejection.message))
    };
    assert_eq!(refused("cc", json!([])), None);
    let (pointer, message) = refused("bcc", json!(["a@example.com", "x@example.org"])).unwrap();
    assert!(pointer == "/bcc/1" && message.contains("email.recipients"), "{pointer}: {message}");
    assert_eq!(refused("to", json!(["a@example.com, b@example.com"])).unwrap().0, "/to/0");
    assert_eq!(refused("subject", json!("{{ task.id")).unwrap().0, "/subject");
}
