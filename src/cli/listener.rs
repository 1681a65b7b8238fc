//! Listeners of roles.

use tokio::net::TcpListener;

use super::exit::Failure;

/// Opens a listener; failures name the flag to change.
pub(super) async fn bind(address: &str, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let failure = |text: String| Failure::failed(text);
        match error.kind() {
            std::io::ErrorKind::AddrInUse => failure(format!("`{address}` is in use by another process"))
                .hint(format_args!("choose another address with {flag}, or port 0 for any free port")),
            std::io::ErrorKind::PermissionDenied => {
                failure(format!("listening on `{address}` is not permitted: {error}"))
                    .hint(format_args!("choose a port above 1023 with {flag}"))
            }
            _ => Failure::usage(format_args!("cannot listen on `{address}`: {error}"))
                .hint(format_args!("write {flag} as 127.0.0.1:8080")),
        }
    })
}
