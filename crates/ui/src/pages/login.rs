//! Login, logout, theme and time zone: the only forms that need no session.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::http::request::read_body_up_to;
use kafleet_api::state::Api;
use kafleet_config::Role;
use kafleet_model::task::id::clip;
use kafleet_runtime::now_ms;
use maud::{Markup, html};

use crate::forms::check_origin;
use crate::parts::View;
use crate::parts::frame::{COOKIE_S, frame};
use crate::parts::problem::problem_text;
use crate::response::{html_page, see_other, with_security_headers};
use crate::serve::{plain_problem, shell_without_session, view_of};
use crate::session;
use crate::visit::Fields;
use crate::zone::{COOKIE, FLEET, ReaderZone};

/// Maximum size of a form. Clients without a session use none of the memory that the bodies of requests share.
const MAX_FORM: usize = 16 << 10;

/// `GET /login`. With `check`: a login has just set the cookie, which must have come back. With `switch`: also with a session,
/// to log in with another token.
pub(in super::super) async fn show(State(api): State<Arc<Api>>, request: Request) -> Response {
    if let Err(error) = api.access.current().check_host(request.headers()) {
        return with_security_headers(plain_problem(&api, request.headers(), error));
    }
    let query = Fields::parse(request.uri().query().unwrap_or_default().as_bytes());
    let next = next_path(&api, query.get("next"));
    let is_again = query.is_set("again");
    if !is_again && session::caller(&api.access.current(), request.headers(), now_ms()).is_ok() {
        return with_security_headers(see_other(&next));
    }
    let lost = query.is_set("check").then(|| {
        ApiError::new(Code::Unauthorized, "the browser did not send the session's cookie back")
            .hint("use HTTPS, a loopback address, or set `api.ui.insecure_cookies = true` if the network is trusted")
    });
    page(&api, request.headers(), &next, lost)
}

/// `POST /login`.
pub(in super::super) async fn submit(State(api): State<Arc<Api>>, request: Request) -> Response {
    let (headers, fields) = match form(&api, request).await {
        Ok(form) => form,
        Err((headers, error)) => return with_security_headers(plain_problem(&api, &headers, error)),
    };
    let next = next_path(&api, fields.get("next"));
    let access = api.access.current();
    let Some(token) = access.token(fields.get("token").unwrap_or_default().trim()) else {
        let error = ApiError::new(Code::Unauthorized, "there is no such token").hint("tokens are in `api.tokens`");
        return page(&api, &headers, &next, Some(error));
    };
    tracing::info!(token = token.name, "login");
    let response = see_other(&view_of(&api, Role::Read).url_with("/login", &[("check", "1"), ("next", &next)]));
    with_cookie(response, session::start(token, &api.ui, &headers, now_ms()))
}

/// `POST /logout`.
pub(in super::super) async fn log_out(State(api): State<Arc<Api>>, request: Request) -> Response {
    match form(&api, request).await {
        Ok((headers, _)) => {
            let response = see_other(&format!("{}/login", api.ui.base_path));
            with_cookie(response, session::end(&api.ui, &headers))
        }
        Err((headers, error)) => with_security_headers(plain_problem(&api, &headers, error)),
    }
}

/// `POST /theme`.
pub(in super::super) async fn set_theme(State(api): State<Arc<Api>>, request: Request) -> Response {
    match form(&api, request).await {
        Ok((_, fields)) => {
            let theme = match fields.get("theme") {
                Some("dark") => "dark",
                Some("light") => "light",
                _ => "system",
            };
            let cookie = format!("kafleet-theme={theme}; Path=/; Max-Age={COOKIE_S}; SameSite=Lax");
            with_cookie(see_other(&next_path(&api, fields.get("next"))), HeaderValue::from_str(&cookie).ok())
        }
        Err((headers, error)) => with_security_headers(plain_problem(&api, &headers, error)),
    }
}

/// `POST /zone`.
pub(in super::super) async fn set_zone(State(api): State<Arc<Api>>, request: Request) -> Response {
    let (headers, fields) = match form(&api, request).await {
        Ok(form) => form,
        Err((headers, error)) => return with_security_headers(plain_problem(&api, &headers, error)),
    };
    let chosen = fields.get("zone").unwrap_or_default().trim();
    let Some(zone) = ReaderZone::of_choice(chosen, &api.ui) else {
        let error = ApiError::new(Code::BadField, format!("`{}` is not a time zone", clip(chosen)));
        let error = error.hint("names are those of the IANA database, such as `Europe/Berlin`");
        return with_security_headers(plain_problem(&api, &headers, error));
    };
    // The zone of the fleet may change later.
    let value = if chosen == FLEET { FLEET.to_owned() } else { zone.choice() };
    let cookie = format!("{COOKIE}={value}; Path=/; Max-Age={COOKIE_S}; SameSite=Lax");
    with_cookie(see_other(&next_path(&api, fields.get("next"))), HeaderValue::from_str(&cookie).ok())
}

async fn form(api: &Api, request: Request) -> Result<(HeaderMap, Fields), (HeaderMap, ApiError)> {
    let (head, body) = request.into_parts();
    let read = async {
        api.access.current().check_host(&head.headers)?;
        check_origin(&head.headers)?;
        Ok(Fields::parse(&read_body_up_to(body, MAX_FORM).await?))
    };
    match read.await {
        Ok(fields) => Ok((head.headers, fields)),
        Err(error) => Err((head.headers, error)),
    }
}

/// Path to continue at: only paths of this host.
fn next_path(api: &Api, next: Option<&str>) -> String {
    let is_path = |next: &&str| {
        next.starts_with('/') && !next.starts_with("//") && !next.contains('\\') && !next.chars().any(char::is_control)
    };
    let home = if api.ui.base_path.is_empty() { "/" } else { &api.ui.base_path };
    next.filter(is_path).unwrap_or(home).to_owned()
}

fn with_cookie(mut response: Response, cookie: Option<HeaderValue>) -> Response {
    if let Some(cookie) = cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    with_security_headers(response)
}

fn page(api: &Api, headers: &HeaderMap, next: &str, error: Option<ApiError>) -> Response {
    let view = view_of(api, Role::Read);
    let status = error.as_ref().map_or(200, |_| 401);
    let main = login_form(&view, api.ui.name.as_deref(), next, error);
    html_page(status, frame(&shell_without_session(api, &view, headers), "Log in", None, &main))
}

fn login_form(view: &View, fleet: Option<&str>, next: &str, error: Option<ApiError>) -> Markup {
    html! {
        section.login {
            h1 { "Log in" @if let Some(fleet) = fleet { " to " (fleet) } }
            @if let Some(error) = error { (problem_text(view, &error.document())) }
            form.panel.action method="post" action=(view.url("/login")) {
                input type="hidden" name="next" value=(next);
                div.field {
                    label for="f-token" { "Token" }
                    input id="f-token" name="token" type="password" autocomplete="current-password"
                    required autofocus aria-describedby="h-token";
                    p.hint id="h-token" { "one of " code { "api.tokens" } " in the configuration" }
                }
                div.buttons { button.primary type="submit" { "Log in" } }
            }
        }
    }
}
