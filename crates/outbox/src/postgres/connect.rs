//! Connections to Postgres: URL, TLS, deadlines, and the task that drives a connection.

use std::sync::Arc;
use std::time::Duration;

use futures::future::poll_fn;
use postgres_native_tls::MakeTlsConnector;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error};

use crate::table::TableError;

/// Deadline of a connection attempt, over all addresses of the URL.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of a statement. A scan beside millions of deleted rows takes seconds.
pub(super) const STATEMENT_DEADLINE: Duration = Duration::from_secs(30);

/// Connection to Postgres, whose task ends with it.
pub struct PostgresConnection {
    pub client: Client,
    /// Signals notifications.
    pub(super) notified: Arc<Notify>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for PostgresConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Parses a URL, such as `postgres://user:password@host/database?sslmode=require`.
pub(super) fn parse_url(url: &str) -> Result<Config, String> {
    let mut config: Config = url.parse().map_err(|error: Error| messages(&error))?;
    if config.get_application_name().is_none() {
        config.application_name("kafleet-outbox");
    }
    config.connect_timeout(CONNECT_DEADLINE);
    config.keepalives_idle(Duration::from_secs(30));
    Ok(config)
}

/// Connects. `sslmode=require` checks the certificate of the server against the authorities of the system, or those of
/// `SSL_CERT_FILE`; `prefer`, the default of URLs, encrypts if the server can, without a check.
pub(super) async fn connect(config: &Config) -> Result<PostgresConnection, TableError> {
    let mut tls = native_tls::TlsConnector::builder();
    if config.get_ssl_mode() == SslMode::Prefer {
        tls.danger_accept_invalid_certs(true).danger_accept_invalid_hostnames(true);
    }
    let tls = tls.build().map_err(|error| TableError::Unavailable(format!("TLS: {error}")))?;
    let connecting = timeout(CONNECT_DEADLINE, config.connect(MakeTlsConnector::new(tls)));
    let no_answer = || TableError::Unavailable(format!("no connection within {} s", CONNECT_DEADLINE.as_secs()));
    let (client, connection) = connecting.await.map_err(|_| no_answer())?.map_err(|error| of_postgres(&error))?;
    let notified = Arc::new(Notify::new());
    let driver = kafleet_runtime::spawn(drive(connection, notified.clone()));
    Ok(PostgresConnection { client, notified, driver })
}

/// Exchanges messages with the server until the connection ends.
async fn drive<S, T>(mut connection: Connection<S, T>, notified: Arc<Notify>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if matches!(message, AsyncMessage::Notification(_)) {
            notified.notify_one();
        }
    }
}

/// Waits for a statement, within its deadline.
pub(super) async fn answered<T>(statement: impl Future<Output = Result<T, Error>>) -> Result<T, TableError> {
    let no_answer = || TableError::Unavailable(format!("no answer within {} s", STATEMENT_DEADLINE.as_secs()));
    timeout(STATEMENT_DEADLINE, statement).await.map_err(|_| no_answer())?.map_err(|error| of_postgres(&error))
}

/// Classifies an error by its code.
pub(super) fn of_postgres(error: &Error) -> TableError {
    let text = messages(error);
    let Some(code) = error.code() else { return TableError::Unavailable(text) };
    let is_missing = *code == SqlState::UNDEFINED_TABLE || *code == SqlState::UNDEFINED_COLUMN;
    if is_missing || *code == SqlState::UNDEFINED_FUNCTION {
        return TableError::Schema(format!("{text}; run `kafleet outbox schema | psql` on this database"));
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return TableError::Schema(format!(
            "{text}; the relay's user needs SELECT, INSERT, UPDATE and DELETE on its tables"
        ));
    }
    let denied =
        [&SqlState::INVALID_PASSWORD, &SqlState::INVALID_AUTHORIZATION_SPECIFICATION, &SqlState::INVALID_CATALOG_NAME];
    if denied.contains(&code) { TableError::Denied(text) } else { TableError::Unavailable(text) }
}

/// Messages of an error and its sources.
fn messages(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{} ({})", error.message(), error.code().code()),
        None => kafleet_runtime::error_text::messages(error),
    }
}
