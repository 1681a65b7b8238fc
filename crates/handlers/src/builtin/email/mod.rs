//! `kafleet-email`: an email that notifies people about a task, sent through the configured SMTP server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet_config::{AddressPattern, EmailConfig, MailTls, TypePolicy, parse_mailbox};
use kafleet_model::json::RawJson;
use kafleet_model::task::action::EMAIL_TYPE;
use kafleet_model::task::delivery::EmailParams;
use kafleet_model::units::duration::Millis;
use lettre::message::Mailbox;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::{Error, response::Severity};
use lettre::{AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};

use crate::egress::secrets::SecretSource;
use crate::schema;
use crate::{
    Answer, AnswerFuture, Capabilities, Context, Failure, Handler, InChild, ParamsError, Schema, TypeRegistration,
};
use template::Templates;

mod template;

/// The type's name.
pub const TYPE: &str = EMAIL_TYPE;
/// Concurrent emails in one worker. Low, because SMTP servers limit connections.
const CONCURRENCY: u32 = 4;
const RETRIES: u32 = 10;
const MIN_BACKOFF: Millis = Millis::secs(5);
const MAX_BACKOFF: Millis = Millis::secs(600);
const TIMEOUT: Millis = Millis::secs(60);
/// SMTP codes about the client's credentials rather than the message; fixed only by the operator.
const ACCESS_CODES: [u16; 4] = [530, 534, 535, 538];

/// Handler of email tasks.
pub struct Emails(Arc<Mailer>);

/// SMTP server, sender and permitted recipients.
struct Mailer {
    server: String,
    port: u16,
    tls: Option<(MailTls, TlsParameters)>,
    username: Option<String>,
    password: SecretSource,
    from: Mailbox,
    recipients: Vec<AddressPattern>,
}

impl Emails {
    pub fn new(config: &EmailConfig) -> Result<Self, String> {
        let tls = match config.tls {
            MailTls::None => None,
            kind => Some((kind, tls_parameters(config)?)),
        };
        let recipients: Result<_, _> = config.recipients.iter().map(|text| AddressPattern::new(text)).collect();
        let password = match &config.password_file {
            Some(path) => SecretSource::File(path.clone()),
            None => SecretSource::Text(config.password.clone().unwrap_or_default()),
        };
        Ok(Self(Arc::new(Mailer {
            server: config.server.clone(),
            port: config.port.unwrap_or(config.tls.port()),
            tls,
            username: config.username.clone(),
            password,
            from: parse_mailbox(&config.from)?,
            recipients: recipients?,
        })))
    }

    /// Creates the type with its policy and schema.
    pub fn registered(config: &EmailConfig) -> Result<TypeRegistration, String> {
        let policy = TypePolicy {
            concurrency: Some(CONCURRENCY),
            retries: RETRIES,
            min_backoff: MIN_BACKOFF,
            max_backoff: MAX_BACKOFF,
            timeout: TIMEOUT,
            ..TypePolicy::default()
        };
        Ok(TypeRegistration {
            schema: Schema::described::<EmailParams>(),
            policy,
            ..TypeRegistration::new(Self::new(config)?)
        })
    }
}

fn tls_parameters(config: &EmailConfig) -> Result<TlsParameters, String> {
    let mut tls = TlsParameters::builder(config.server.clone());
    if let Some(path) = &config.ca {
        let failed = |reason: String| format!("`ca`: `{}` {reason}", path.display());
        let pem = std::fs::read(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
        tls = tls.add_root_certificate(
            Certificate::from_pem(&pem).map_err(|error| failed(format!("is not a certificate: {error}")))?,
        );
    }
    tls.build().map_err(|error| format!("cannot set up TLS: {error}"))
}

impl Handler for Emails {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let params: EmailParams = schema::read(params.text())?;
        self.0.check(&params)?;
        let mailer = self.0.clone();
        Ok(Box::pin(async move {
            tokio::select! {
                answer = mailer.send(&params, &cx) => answer,
                () = cx.cancelled().cancelled() => Err(Failure::cancelled()),
            }
        }))
    }

    fn capabilities(&self) -> Capabilities {
        let mailer = self.0.clone();
        let check = move |params: &RawJson| {
            schema::read::<EmailParams>(params.text()).and_then(|params| mailer.check(&params)).err()
        };
        Capabilities { in_child: InChild::Never, check_params: Some(Arc::new(check)), ..Capabilities::default() }
    }
}

impl Mailer {
    /// Validates params without contacting the server.
    fn check(&self, params: &EmailParams) -> Result<(), ParamsError> {
        for (field, list) in [("to", &params.to), ("cc", &params.cc), ("bcc", &params.bcc)] {
            for (n, text) in list.iter().enumerate() {
                self.recipient(text).map_err(|message| ParamsError { pointer: format!("/{field}/{n}"), message })?;
            }
        }
        Templates::new(params).map(drop)
    }

    fn recipient(&self, text: &str) -> Result<Mailbox, String> {
        let mailbox = parse_mailbox(text)?;
        let allowed =
            self.recipients.is_empty() || self.recipients.iter().any(|pattern| pattern.matches(&mailbox.email));
        if allowed {
            Ok(mailbox)
        } else {
            Err(format!(
                "`{}` is not a permitted recipient; hint: `email.recipients` lists the permitted ones",
                mailbox.email
            ))
        }
    }

    async fn send(&self, params: &EmailParams, cx: &Context) -> Answer {
        let message = self.message(params, cx)?;
        let transport = self.transport(cx).await?;
        let answer = transport.send(message).await.map_err(|error| self.failure(&error))?;
        let lines: Vec<&str> = answer.message().collect();
        RawJson::of(&serde_json::json!({"answer": lines.join(" ")})).map_err(|error| Failure::fail(error.to_string()))
    }

    fn message(&self, params: &EmailParams, cx: &Context) -> Result<Message, Failure> {
        let invalid = |reason: String| Failure::dead(reason).of_kind("template");
        let templates = Templates::new(params).map_err(|error| invalid(error.to_string()))?;
        let (subject, body) = templates.render(&params.about).map_err(invalid)?;
        // The same id in every attempt, so that mail clients recognise duplicates.
        let id = format!("<{}@{}>", cx.id, self.from.email.domain());
        let mut message = Message::builder().from(self.from.clone()).message_id(Some(id)).subject(subject);
        // Suppresses automatic replies, such as vacation notices.
        let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
        message = message.raw_header(HeaderValue::new(automatic, "auto-generated".to_owned()));
        for text in &params.to {
            message = message.to(self.recipient(text).map_err(invalid)?);
        }
        for text in &params.cc {
            message = message.cc(self.recipient(text).map_err(invalid)?);
        }
        for text in &params.bcc {
            message = message.bcc(self.recipient(text).map_err(invalid)?);
        }
        message
            .header(ContentType::TEXT_PLAIN)
            .body(body)
            .map_err(|error| invalid(format!("cannot build the email: {error}")))
    }

    async fn transport(&self, cx: &Context) -> Result<AsyncSmtpTransport<Tokio1Executor>, Failure> {
        let left = cx.deadline.map_or(TIMEOUT.into(), |at| at.saturating_duration_since(Instant::now()));
        let tls = match &self.tls {
            None => Tls::None,
            Some((MailTls::Tls, parameters)) => Tls::Wrapper(parameters.clone()),
            Some((_, parameters)) => Tls::Required(parameters.clone()),
        };
        let builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(self.server.clone());
        let mut builder = builder.port(self.port).tls(tls).timeout(Some(left.max(Duration::from_secs(1))));
        if let Some(username) = &self.username {
            let password = self.password.read().await.map_err(|error| Failure::retry(error).of_kind("secret"))?;
            builder = builder.credentials(Credentials::new(username.clone(), password));
        }
        Ok(builder.build())
    }

    fn failure(&self, error: &Error) -> Failure {
        let message = format!("`{}:{}`: {}", self.server, self.port, causes(error));
        let code = error.status().map(u16::from);
        if code.is_some_and(|code| ACCESS_CODES.contains(&code)) {
            return Failure::retry(message).of_kind("smtp_access");
        }
        match error.status().map(|code| code.severity) {
            Some(Severity::PermanentNegativeCompletion) => Failure::dead(message).of_kind("smtp_refused"),
            Some(_) => Failure::retry(message).of_kind("smtp_busy"),
            None => Failure::no_response(message, error.is_timeout()),
        }
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
