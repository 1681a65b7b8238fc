//! Requests of the UI: authorization, the page or the action, and the rendered response.

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use axum::Router;
use axum::extract::{Path, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, any, get, on};
use futures::FutureExt;
use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::http::request::read_body;
use kafleet_api::http::routes::system::index_text;
use kafleet_api::read::consistency::ReachedOffset;
use kafleet_api::state::Api;
use kafleet_config::{Role, UiConfig, UiMode};
use kafleet_documents::Problem;
use kafleet_model::task::Position;
use kafleet_model::task::id::clip;
use kafleet_runtime::now_ms;
use maud::html;
use tokio::time::Instant;

use super::cache::{RenderedPage, SharedPart};
use super::icon::{icon_url, serve_icon};
use super::navigation::NavigationCounts;
use super::parts::advice::title_text;
use super::parts::frame::{FleetIdentity, Section, Shell, Theme, frame, list_of, main_element, rendered};
use super::parts::notice::{behind_notice, done_notice, incomplete_notice};
use super::parts::problem::{ErrorPage, problem_block};
use super::parts::times::in_zone;
use super::parts::{View, first_line, without_hidden};
use super::response::{html_page, page_response, see_other, status_code, with_security_headers, with_tag};
use super::state::Ui;
use super::visit::{Body, Fields, PAGE_DEADLINE, PageAnswer, Visit, stored, until};
use super::zone::ReaderZone;
use super::{PAGES, Page, cache, forms, live, navigation, outcome, pages, refresh, session, suggest};

/// Maximum number of characters of a title: windows and histories show less.
const MAX_TITLE: usize = 80;
/// Maximum number of named views in the menu; the index has all.
const MAX_MENU_VIEWS: usize = 12;

/// Routes of the table, and those of sessions and assets.
pub(super) fn router(config: &UiConfig) -> Router<Ui> {
    let base = config.base_path.as_str();
    let mut router = Router::new();
    for page in PAGES {
        let filter = if page.submit.is_some() { MethodFilter::GET.or(MethodFilter::POST) } else { MethodFilter::GET };
        let handler = move |State(ui), segments, request| answer(ui, page, segments, request);
        let path = if page.path == "/" && !base.is_empty() { base.to_owned() } else { format!("{base}{}", page.path) };
        router = router.route(&path, on(filter, handler));
    }
    router = router
        .route(&format!("{base}/login"), get(pages::login::show).post(pages::login::submit))
        .route(&format!("{base}/logout"), on(MethodFilter::POST, pages::login::log_out))
        .route(&format!("{base}/theme"), on(MethodFilter::POST, pages::login::set_theme))
        .route(&format!("{base}/zone"), on(MethodFilter::POST, pages::login::set_zone))
        .route(&format!("{base}/ui/live"), get(live::stream))
        .route(&format!("{base}/ui/suggestions"), get(suggest::answer))
        .route(&format!("{base}/ui/{{file}}"), get(asset))
        .layer(tower_http::compression::CompressionLayer::new());
    if base.is_empty() {
        return router;
    }
    let home = format!("{base}/");
    router.route(&home.clone(), any(move || async move { see_other(home.trim_end_matches('/')) }))
}

async fn asset(Path(file): Path<String>) -> Response {
    let missing = || ApiError::new(Code::UnknownRoute, format!("there is no file `{}`", clip(&file))).into_response();
    with_security_headers(cache::serve_asset(&file).or_else(|| serve_icon(&file)).unwrap_or_else(missing))
}

async fn answer(ui: Ui, page: &'static Page, segments: RawPathParams, request: Request) -> Response {
    let (started, api) = (Instant::now(), ui.api.clone());
    let is_post = request.method() == Method::POST;
    if page.path == "/" && !accepts_html(request.headers()) && api.ui.base_path.is_empty() {
        let index = api.access.current().check_host(request.headers()).map(|()| index_text());
        return with_security_headers(index.unwrap_or_else(IntoResponse::into_response));
    }
    let segments: Vec<String> = segments.iter().map(|(_, value)| value.to_owned()).collect();
    let work = AssertUnwindSafe(run(ui, page, segments, request)).catch_unwind();
    let response = work.await.unwrap_or_else(|_| {
        tracing::error!(page = page.path, "page panicked");
        ApiError::internal().into_response()
    });
    let label = format!("{} {}", if is_post { "POST" } else { "GET" }, page.path);
    api.ops.record_request(&label, response.status().as_u16(), started.elapsed());
    with_security_headers(response)
}

/// Whether the client asks for a page rather than for a document of the API.
fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|media| media.trim().split(';').next() == Some("text/html"))
}

async fn run(ui: Ui, page: &'static Page, segments: Vec<String>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    match open(&ui, &head, segments) {
        Ok(visit) => in_zone(&visit.view.clone(), run_visit(visit, page, head, body)).await,
        Err(error) => refused(&ui.api, &head, error),
    }
}

async fn run_visit(mut visit: Visit, page: &'static Page, head: Parts, body: axum::body::Body) -> Response {
    let mut shell = shell_parts(&visit, page, &head);
    shell.counts = navigation::counts(visit.live.clone(), visit.context()).await;
    let outcome = match forms::check_role(page, &visit.view) {
        Err(error) => Err(error),
        Ok(()) if head.method == Method::POST => submit(&mut visit, page, &head, body).await,
        Ok(()) if is_part(&head) && !shell.topic.is_empty() => {
            return refresh::answer(&visit, page, &shell, &head).await;
        }
        Ok(()) => show(&visit, page).await,
    };
    match rendered_page(&visit, page, outcome) {
        Ok(main) => respond(&visit, &shell, &head, &main),
        Err(response) => *response,
    }
}

/// Whether only `<main>` is requested.
fn is_part(head: &Parts) -> bool {
    head.headers.get("kafleet-part").is_some_and(|part| part == "main")
}

/// Authorizes a request.
fn open(Ui { api, live }: &Ui, head: &Parts, segments: Vec<String>) -> Result<Visit, ApiError> {
    api.access.current().check_host(&head.headers)?;
    let caller = session::caller(&api.access.current(), &head.headers, now_ms())?;
    let mut segments = segments.into_iter();
    Ok(Visit {
        api: api.clone(),
        live: live.clone(),
        by: caller.by.map(Into::into),
        view: View { zone: ReaderZone::of_request(&head.headers, &api.ui), ..view_of(api, caller.role) },
        path: head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        segment: segments.next().unwrap_or_default(),
        name: segments.next().unwrap_or_default(),
        query: Fields::parse(head.uri.query().unwrap_or_default().as_bytes()),
        entered: Fields::default(),
        problem: None,
    })
}

pub(super) fn view_of(api: &Api, role: Role) -> View {
    let read_only = api.ui.mode == UiMode::ReadOnly;
    let (base, zone) = (api.ui.base_path.clone(), ReaderZone::of_fleet(&api.ui));
    View { base, role, read_only, zone, now_ms: now_ms() }
}

/// Answers a request without a session: pages lead to the login.
fn refused(api: &Api, head: &Parts, error: ApiError) -> Response {
    let is_page = head.method == Method::GET && !head.headers.contains_key("kafleet-part");
    if error.is(Code::Unauthorized) && is_page && !head.headers.contains_key(header::AUTHORIZATION) {
        let next = head.uri.path_and_query().map_or("/", |path| path.as_str());
        return see_other(&view_of(api, Role::Read).url_with("/login", &[("next", next)]));
    }
    plain_problem(api, &head.headers, error)
}

/// Page of an error without a session.
pub(super) fn plain_problem(api: &Api, headers: &HeaderMap, error: ApiError) -> Response {
    let view = view_of(api, Role::Read);
    let problem = error.document();
    let main = problem_block(&view, &problem, ErrorPage::default());
    let page = frame(&shell_without_session(api, &view, headers), title_text(&problem), None, &main);
    page_response(problem.status, &page.into_string())
}

/// Frame of a page without a session.
pub(super) fn shell_without_session<'a>(api: &'a Api, view: &'a View, headers: &HeaderMap) -> Shell<'a> {
    let (section, topic, counts) = (Section::None, String::new(), NavigationCounts::default());
    Shell {
        view,
        fleet: FleetIdentity::of(&api.ui),
        section,
        topic,
        user: None,
        theme: theme(headers),
        counts,
        views: &[],
    }
}

/// Page for a path that does not exist, if a browser asks for it.
pub(crate) fn missing_page(api: &Api, request: &Request) -> Option<Response> {
    let path = request.uri().path().strip_prefix(api.ui.base_path.as_str())?;
    let is_page = api.ui.mode != UiMode::Off && request.method() == Method::GET && accepts_html(request.headers());
    if !is_page || path.starts_with("/v1/") {
        return None;
    }
    let error = ApiError::new(Code::NotFound, format!("there is no page `{}`", clip(request.uri().path())));
    let headers = request.headers();
    let Ok(caller) = session::caller(&api.access.current(), headers, now_ms()) else {
        return Some(with_security_headers(plain_problem(api, headers, error)));
    };
    let view = View { zone: ReaderZone::of_request(headers, &api.ui), ..view_of(api, caller.role) };
    let problem = error.document();
    let main = problem_block(&view, &problem, ErrorPage::default());
    let home = view.url("/");
    let user = Some((caller.by.as_deref(), home.as_str()));
    let shell = Shell { user, ..shell_without_session(api, &view, headers) };
    Some(html_page(problem.status, frame(&shell, title_text(&problem), None, &main)))
}

pub(super) fn theme(headers: &HeaderMap) -> Theme {
    match session::cookie(headers, "kafleet-theme") {
        Some("dark") => Theme::Dark,
        Some("light") => Theme::Light,
        _ => Theme::System,
    }
}

fn shell_parts(visit: &Visit, page: &Page, head: &Parts) -> ShellParts {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let topic = if head.method == Method::POST { String::new() } else { page.topic.replace("{}", &visit.segment) };
    ShellParts {
        section: page.section,
        topic,
        theme: theme(&head.headers),
        path: path.to_owned(),
        counts: NavigationCounts::default(),
        views: view_names(visit),
    }
}

/// Names of the first views that the reader may see.
fn view_names(visit: &Visit) -> Vec<String> {
    let control = visit.api.fleet.control.state();
    let visible = control.views.iter().filter(|(_, saved)| saved.role <= visit.view.role);
    visible.map(|(name, _)| name.clone()).take(MAX_MENU_VIEWS).collect()
}

/// Surroundings of a page's `<main>`.
pub(super) struct ShellParts {
    section: Section,
    pub topic: String,
    theme: Theme,
    pub path: String,
    counts: NavigationCounts,
    views: Vec<String>,
}

impl ShellParts {
    /// URL of the icon.
    pub(super) fn icon(&self, visit: &Visit) -> String {
        icon_url(&visit.view, FleetIdentity::of(&visit.api.ui).colour, self.counts.trouble() > 0)
    }
}

/// Shows a page, after waiting for the change that led to it.
pub(super) async fn show(visit: &Visit, page: &Page) -> Result<PageAnswer, ApiError> {
    let begun = Instant::now();
    let behind = wait_for_change(visit).await;
    let deadline = (begun + PAGE_DEADLINE).max(Instant::now() + PAGE_DEADLINE / 2);
    let answer = until(deadline, (page.show)(visit)).await?;
    let PageAnswer::Page(body) = answer else { return Ok(answer) };
    let incomplete = until(deadline, stored(visit.api.reads.incomplete())).await.unwrap_or_default();
    let main = html! {
        (incomplete_notice(&incomplete))
        @if let Some(done) = outcome::done(visit) { (done_notice(&visit.view, &done)) }
        @if behind { (behind_notice()) }
        (body.main)
    };
    // The values of a form are submitted as they are.
    let main = if page.submit.is_none() { without_hidden(main) } else { main };
    Ok(PageAnswer::Page(Body { main, title: first_line(&body.title, MAX_TITLE), ..body }))
}

/// Waits until the change that led to this page is visible here. Returns true if it is not.
async fn wait_for_change(visit: &Visit) -> bool {
    if let Some(position) = visit.query.get("after").and_then(|text| text.parse::<Position>().ok()) {
        let partition = u32::try_from(position.partition).unwrap_or_default();
        if partition >= visit.api.topology.events_partitions {
            return false;
        }
        let target = position.offset.saturating_add(1);
        let read = visit.api.reads.wait_until_projected(partition, target, PAGE_DEADLINE);
        return !matches!(tokio::time::timeout(PAGE_DEADLINE, read).await, Ok(Ok(ReachedOffset::Yes)));
    }
    if let Some(offset) = visit.query.get("control").and_then(|text| text.parse::<i64>().ok()) {
        return tokio::time::timeout(PAGE_DEADLINE, visit.api.fleet.control.wait_for_offset(offset)).await.is_err();
    }
    false
}

/// Performs the action of a form. A refused one shows the form again, with the values entered and the error.
async fn submit(
    visit: &mut Visit,
    page: &'static Page,
    head: &Parts,
    body: axum::body::Body,
) -> Result<PageAnswer, ApiError> {
    forms::check_origin(&head.headers)?;
    let Some(action) = page.submit else { return Err(ApiError::internal()) };
    let (text, _memory) = read_body(&visit.api, &head.headers, body).await?;
    visit.entered = Fields::parse(&text);
    if visit.step().is_some() {
        return show_again(visit, page, head, None).await;
    }
    match action(visit).await {
        Ok(redirect) => Ok(PageAnswer::Redirect(outcome::redirect_path(&redirect))),
        Err(error) => show_again(visit, page, head, Some(error)).await,
    }
}

/// Shows a form with the values entered, which are kept also while its page cannot be read: after an error, or with what a
/// button without effect asks for.
async fn show_again(
    visit: &mut Visit,
    page: &Page,
    head: &Parts,
    error: Option<ApiError>,
) -> Result<PageAnswer, ApiError> {
    visit.problem = error.clone().map(ApiError::document);
    match until(Instant::now() + PAGE_DEADLINE, (page.show)(visit)).await {
        Ok(answer @ PageAnswer::Page(_)) => Ok(answer),
        Err(unread) if unread.is(Code::StoreUnavailable) || unread.is(Code::KafkaUnavailable) => {
            visit.problem.get_or_insert(unread.document());
            Ok(pages::plain_form(visit, head.uri.path()))
        }
        Err(unread) => Err(error.unwrap_or(unread)),
        Ok(answer) => error.map_or(Ok(answer), Err),
    }
}

/// Renders a page, also that of an error. Other answers are responses by themselves.
pub(super) fn rendered_page(
    visit: &Visit,
    page: &Page,
    outcome: Result<PageAnswer, ApiError>,
) -> Result<RenderedPage, Box<Response>> {
    let (status, body) = match outcome {
        Ok(PageAnswer::Raw(response)) => return Err(Box::new(response)),
        Ok(PageAnswer::Redirect(path)) => return Err(Box::new(see_other(&visit.view.url(&path)))),
        Ok(PageAnswer::Missing(body)) => (404, body),
        Ok(PageAnswer::Page(body)) => (visit.problem.as_ref().map_or(200, |problem| problem.status), body),
        Err(error) => problem_page(visit, page, error.document()),
    };
    let main = body.main.into_string();
    let tag = cache::entity_tag(&body.title, body.state, &main);
    Ok(RenderedPage { status, title: body.title, state: body.state, main, tag, part: OnceLock::new() })
}

/// Response with a page, or its `<main>` alone, unless the client has it already.
pub(super) fn respond(visit: &Visit, shell: &ShellParts, head: &Parts, page: &RenderedPage) -> Response {
    let is_known = head.headers.get(header::IF_NONE_MATCH).is_some_and(|tag| *tag == *page.tag);
    if is_part(head) && is_known && page.status == 200 {
        return with_tag(StatusCode::NOT_MODIFIED.into_response(), &page.tag);
    }
    let shell = Shell {
        view: &visit.view,
        fleet: FleetIdentity::of(&visit.api.ui),
        section: shell.section,
        topic: shell.topic.clone(),
        user: Some((visit.by.as_deref(), &shell.path)),
        theme: shell.theme,
        counts: shell.counts,
        views: &shell.views,
    };
    let main = || rendered(page.main.clone());
    if is_part(head) {
        let element = || SharedPart::new(main_element(&shell, &page.title, page.state, &main()).into_string());
        let response = page.part.get_or_init(element).response(status_code(page.status), accepts_gzip(&head.headers));
        return with_tag(response, &page.tag);
    }
    with_tag(page_response(page.status, &frame(&shell, &page.title, page.state, &main()).into_string()), &page.tag)
}

/// Whether the client accepts a body compressed with gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    let mut encodings = accepted.split(',').map(|encoding| encoding.split_once(';').unwrap_or((encoding, "")));
    encodings.any(|(name, quality)| name.trim().eq_ignore_ascii_case("gzip") && quality.replace(' ', "") != "q=0")
}

fn problem_page(visit: &Visit, page: &Page, problem: Problem) -> (u16, Body) {
    let shown_on = ErrorPage { list: list_of(page.path), path: &visit.path };
    let main = problem_block(&visit.view, &problem, shown_on);
    (problem.status, Body::new(title_text(&problem), main))
}
