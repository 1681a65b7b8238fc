//! Listeners of roles.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::exit::Failure;
use super::output::eprint_line;

/// Opens a listener like [`bind`], on one of the `more` next ports if the port is in use.
pub(super) async fn bind_next(address: &str, flag: &str, more: u16) -> Result<TcpListener, Failure> {
    let Ok(wanted) = address.parse::<SocketAddr>() else { return bind(address, flag).await };
    for port in wanted.port()..wanted.port().saturating_add(more) {
        match TcpListener::bind((wanted.ip(), port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                eprint_line(format_args!("port {port} is taken: trying the next one"));
            }
            Ok(listener) => return Ok(listener),
            Err(_) => return bind(address, flag).await,
        }
    }
    bind(&SocketAddr::new(wanted.ip(), wanted.port().saturating_add(more)).to_string(), flag).await
}

/// Opens a listener; failures name the flag to change.
pub(super) async fn bind(address: &str, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let failure = |text: String| Failure::failed(text);
        match error.kind() {
            ErrorKind::AddrInUse => failure(format!("`{address}` is in use by another process"))
                .hint(format_args!("choose another address with {flag}, or port 0 for any free port")),
            ErrorKind::PermissionDenied => failure(format!("listening on `{address}` is not permitted: {error}"))
                .hint(format_args!("choose a port above 1023 with {flag}")),
            _ => Failure::usage(format_args!("cannot listen on `{address}`: {error}"))
                .hint(format_args!("write {flag} as 127.0.0.1:8080")),
        }
    })
}
