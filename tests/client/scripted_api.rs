//! HTTP server with prepared answers, one a connection.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Answer to one request.
pub enum Answer {
    Json(u16, Value),
    /// Status, headers and body.
    Other(u16, &'static str, &'static str),
    /// The connection is closed without an answer.
    Close,
    /// The connection stays open without an answer.
    Never,
}

impl Answer {
    pub fn unavailable() -> Self {
        Self::Json(503, problem(503))
    }
}

/// Problem document.
pub fn problem(status: u16) -> Value {
    json!({"type": "about:blank", "title": "t", "status": status, "detail": "d", "code": "c"})
}

pub struct ScriptedApi {
    pub url: String,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl ScriptedApi {
    pub async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<Answer> = answers.into_iter().collect();
        tokio::spawn(serve(listener, answers, requests.clone()));
        Self { url, requests }
    }

    /// JSON bodies of the requests so far; null for a request without one.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().clone()
    }
}

async fn serve(listener: TcpListener, answers: Vec<Answer>, requests: Arc<Mutex<Vec<Value>>>) {
    let mut silent = Vec::new();
    for answer in answers {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let body = read_body(&mut stream).await;
        requests.lock().push(body);
        match answer {
            Answer::Json(status, body) => {
                write(stream.get_mut(), status, "content-type: application/json\r\n", &body.to_string()).await;
            }
            Answer::Other(status, headers, body) => write(stream.get_mut(), status, headers, body).await,
            Answer::Close => {}
            Answer::Never => silent.push(stream),
        }
    }
    std::future::pending::<()>().await;
}

async fn read_body(stream: &mut BufReader<TcpStream>) -> Value {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let line = line.trim().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    serde_json::from_slice(&body).unwrap_or_default()
}

/// `headers`: lines with their ends.
async fn write(stream: &mut TcpStream, status: u16, headers: &str, body: &str) {
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await.unwrap();
}
