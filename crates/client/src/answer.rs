//! Heads of answers, and their description where something answers that is no kafleet.

use std::fmt;

use reqwest::{Method, Response, Url, header};

/// Maximum length of a text in a message, in characters.
const MAX_EXCERPT_CHARS: usize = 100;
/// Media type of a stream.
const STREAM_MEDIA: &str = "text/event-stream";

/// Method and address of a request, without its query.
#[derive(Clone)]
pub(super) struct RequestLine {
    pub method: Method,
    pub url: Url,
}

/// Status and media type of an answer, with the request.
pub(super) struct AnswerHead {
    line: RequestLine,
    pub status: u16,
    media: String,
    /// Address that has answered after a redirect.
    redirected: Option<Url>,
}

/// Answer whose body has been read.
pub(super) struct CompleteAnswer {
    pub head: AnswerHead,
    pub body: Vec<u8>,
}

/// Removes user and password, so that the URL can be shown.
pub(super) fn without_userinfo(mut url: Url) -> Url {
    // Both succeed for URLs with a host.
    let _ = (url.set_username(""), url.set_password(None));
    url
}

impl AnswerHead {
    pub(super) fn of(line: &RequestLine, answer: &Response) -> Self {
        let media = answer.headers().get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
        let media = media.and_then(|media| media.split(';').next()).unwrap_or_default().trim().to_owned();
        let address = |url: &Url| (url.origin(), url.path().to_owned());
        let redirected = (address(answer.url()) != address(&line.url)).then(|| without_userinfo(answer.url().clone()));
        Self { line: line.clone(), status: answer.status().as_u16(), media, redirected }
    }

    /// Returns whether the body is a stream of events.
    pub(super) fn is_stream(&self) -> bool {
        self.media == STREAM_MEDIA
    }

    /// Returns whether the body is a web page, which the API sends only as an attachment.
    pub(super) fn is_page(&self) -> bool {
        self.is_html() && !self.line.url.path().contains("/attachments/")
    }

    fn is_html(&self) -> bool {
        self.media.contains("html")
    }

    /// Describes an answer that is not of kafleet, with the beginning of its body.
    pub(super) fn with_excerpt(&self, body: &[u8]) -> String {
        let text = String::from_utf8_lossy(body);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let excerpt: String = words.chars().take(MAX_EXCERPT_CHARS).collect();
        if excerpt.is_empty() || self.is_html() { self.to_string() } else { format!("{self}, {excerpt}") }
    }
}

impl fmt::Display for AnswerHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let media = if self.media.is_empty() { "without a media type" } else { &self.media };
        write!(f, "{} {}: {} {media}", self.line.method, self.line.url.path(), self.status)?;
        self.redirected.as_ref().map_or(Ok(()), |url| write!(f, ", after a redirect to {url}"))
    }
}

impl CompleteAnswer {
    /// Describes an answer whose document cannot be read.
    pub(super) fn describe(&self, error: &serde_json::Error) -> String {
        let head = &self.head;
        if self.body.is_empty() {
            return format!("{head}, empty");
        }
        if head.media.contains("json") {
            return format!("{head}, a document of another service or version: {error}");
        }
        head.with_excerpt(&self.body)
    }
}
