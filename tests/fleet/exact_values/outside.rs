//! Types whose handler is a program or a web service.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use kafleet::handlers::TypeRegistration;
use kafleet::handlers::builtin::exec::{Exec, Program};
use kafleet::handlers::builtin::http::{Call, Http, client};
use reqwest::Method;
use reqwest::header::HeaderMap;

use crate::fleet::in_process::Fleet;

/// Program that returns its params.
pub const PROGRAM: &str = "program";
/// Program that returns the content of the file that its params name.
pub const READER: &str = "reader";
/// Service that returns its params, or the content of a text.
pub const SERVICE: &str = "service";

const MAX_OUTPUT: usize = 64 * 1024;

pub async fn add_types(fleet: &mut Fleet) {
    fleet.add_type(PROGRAM, program("cat")).await;
    fleet.add_type(READER, program(r#"cat "$(tr -d '"')""#)).await;
    fleet.add_type(SERVICE, service().await).await;
}

fn program(script: &str) -> TypeRegistration {
    TypeRegistration::new(Exec::new(Program {
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        env: Default::default(),
        cwd: Path::new(".").into(),
        retry_exit_codes: Vec::new(),
        wait_exit_codes: Vec::new(),
        max_output: MAX_OUTPUT,
        grace: Duration::from_secs(1),
    }))
}

async fn service() -> TypeRegistration {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let respond = |body: String| async move { serde_json::from_str::<String>(&body).unwrap_or(body) };
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(respond))).await.unwrap() });
    let (method, headers) = (Method::POST, HeaderMap::new());
    TypeRegistration::new(Http::new(
        client().unwrap(),
        Call { url, method, headers, max_output: MAX_OUTPUT, resend_on_close: true },
    ))
}
