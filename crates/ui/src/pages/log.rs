//! Log of a task, in pages of numbered lines.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::After;
use kafleet_api::service::log::{self, Lines};
use kafleet_api::service::task;
use kafleet_documents::{LogDocument, LogLine, Status};
use kafleet_model::event::log_line::LogStream;
use maud::{Markup, html};

use crate::parts::attempts::{AttemptStart, attempt_starts};
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::copy::copy_all;
use crate::parts::log_level::LineLevels;
use crate::parts::task_head::{head, tabs};
use crate::parts::tasks::short_id;
use crate::parts::times::{exact_clock, whole_time};
use crate::parts::{View, count, counted, query_text, visible};
use crate::visit::{Body, Fields, PageAnswer, Visit, stored};

/// Lines of a page.
const PAGE_LINES: u64 = 500;
/// Found lines that are linked.
const LISTED_FOUND: usize = 20;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let (page, history) =
        tokio::join!(requested_lines(visit), stored(task::history(visit.context(), visit.id()?, After::default())),);
    let page = page?;
    // Without the history, the lines are shown without their attempts.
    let starts = history.map(|history| attempt_starts(&history)).unwrap_or_default();
    let reading = Reading::of(&visit.query);
    let main = html! {
        (head(view, &status))
        (tabs(view, &status, "log"))
        section.panel {
            (find_form(view, &status, &page, &reading))
            (contents(&page, &starts, &reading))
            (links(view, &status, &page, &reading))
        }
        (commands(&[
            format!("kafleet log {}", quoted(id)),
            format!("kafleet log {} --follow", quoted(id)),
            curl_get(&format!("/v1/tasks/{id}/log")),
        ]))
    };
    Ok(PageAnswer::Page(Body { title: format!("Log of {id}"), state: Some(status.state), main }))
}

async fn requested_lines(visit: &Visit) -> Result<LogDocument, ApiError> {
    let limit = PAGE_LINES as usize;
    let lines = visit.query.number("from")?.map_or(Lines::Newest(limit), |from| Lines::From { from, limit });
    stored(log::page(visit.context(), visit.id()?, lines, After::default())).await
}

/// Number of the line after the page.
const fn end_of(page: &LogDocument) -> u64 {
    page.from + page.lines.len() as u64
}

/// Choices of the reader.
#[derive(Clone, Copy, Default)]
pub(super) struct Reading<'a> {
    /// Lines are not wrapped.
    is_unwrapped: bool,
    /// Text to find in the lines of the page.
    find: Option<&'a str>,
}

impl<'a> Reading<'a> {
    fn of(query: &'a Fields) -> Self {
        Self { is_unwrapped: query.get("wrap") == Some("no"), find: query.get("find") }
    }

    /// URL of the log from a line on, with these choices.
    fn url(&self, view: &View, id: &str, from: Option<u64>) -> String {
        let from = from.map(|from| from.to_string());
        let query = [("from", from.as_deref()), ("wrap", self.is_unwrapped.then_some("no")), ("find", self.find)];
        let query: Vec<(&str, &str)> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let path = view.below_task(id, "log");
        if query.is_empty() { path } else { format!("{path}?{}", query_text(&query)) }
    }
}

fn contents(page: &LogDocument, starts: &[AttemptStart], reading: &Reading<'_>) -> Markup {
    html! {
        @if page.total == 0 {
            p.quiet { "The task has logged nothing." }
        } @else if page.lines.is_empty() {
            p.quiet { "No line is on this page; the log has " (counted(page.total, "line", "lines")) "." }
        } @else {
            p.quiet {
                "Lines " (count(page.from + 1)) " to " (count(end_of(page))) " of " (count(page.total))
                @if page.dropped > 0 { "; the worker dropped " (count(page.dropped)) }
            }
            (lines(page, starts, reading))
        }
    }
}

/// Form that finds a text in the lines of the page, with the lines found.
fn find_form(view: &View, status: &Status, page: &LogDocument, reading: &Reading<'_>) -> Markup {
    html! {
        form.searching method="get" action=(view.below_task(&status.id, "log")) {
            input name="find" aria-label="Find" placeholder="find in the lines of this page" value=[reading.find] autocomplete="off";
            // Without it, a log that has grown would show other lines.
            input type="hidden" name="from" value=(page.from);
            @if reading.is_unwrapped { input type="hidden" name="wrap" value="no"; }
            button type="submit" { "Find" }
        }
        @if let Some(text) = reading.find { (found(page, text)) }
    }
}

/// Number of the lines with a text, with links to the first ones.
fn found(page: &LogDocument, text: &str) -> Markup {
    let has_text = |line: &LogLine| !split(&visible(&line.text), text).1.is_empty();
    let numbers: Vec<u64> =
        (page.from + 1..).zip(&page.lines).filter(|(_, line)| has_text(line)).map(|(number, _)| number).collect();
    html! {
        p role="status" {
            (counted(numbers.len() as u64, "line", "lines")) " of " (count(page.lines.len())) " on this page with "
            code { (visible(text)) } @if !numbers.is_empty() { ": " }
            @for number in numbers.iter().take(LISTED_FOUND) { a href={ "#l" (number) } { (number) } " " }
            @if numbers.len() > LISTED_FOUND { "…" }
        }
    }
}

/// Links to other pages of the log.
fn links(view: &View, status: &Status, page: &LogDocument, reading: &Reading<'_>) -> Markup {
    let (id, end) = (&status.id, end_of(page));
    let link = |from: Option<u64>| reading.url(view, id, from);
    let other = Reading { is_unwrapped: !reading.is_unwrapped, ..*reading };
    html! {
        nav.pager aria-label="pages" {
            @if page.from > 0 { a href=(link(Some(page.from.saturating_sub(PAGE_LINES)))) { "← older" } }
            @if end < page.total { a href=(link(Some(end))) { "newer →" } a href=(link(None)) { "newest" } }
            a href=(other.url(view, id, Some(page.from))) { @if reading.is_unwrapped { "wrap lines" } @else { "do not wrap lines" } }
            a href=(view.below_task(id, "log/raw")) download={ (short_id(id)) ".log" } { "download as text" }
            @if page.total > 0 { (copy_all("ol.log code", "Copy lines")) }
            @if !status.state.is_terminal() && end >= page.total {
                button.app #follow type="button" aria-pressed="false" data-follow data-keep { "Follow" }
            }
        }
    }
}

/// Lines without escape codes, numbered from 1. `starts`: those of the attempts, by which lines are separated.
pub(super) fn lines(page: &LogDocument, starts: &[AttemptStart], reading: &Reading<'_>) -> Markup {
    let mut newest: Option<&AttemptStart> = None;
    let mut start_above = |line: &LogLine| {
        let start = start_of(line, starts)?;
        let earlier = newest.replace(start);
        earlier.is_none_or(|earlier| !std::ptr::eq(earlier, start)).then_some(start)
    };
    let mut levels = LineLevels::default();
    html! {
        ol.log.unwrapped[reading.is_unwrapped] start=(page.from + 1) data-total=(page.total) {
            @for (n, line) in page.lines.iter().enumerate() {
                @if let Some(start) = start_above(line) { (separator(start)) }
                (numbered(page.from + n as u64 + 1, line, &mut levels, reading.find))
            }
        }
    }
}

/// Start of the attempt that wrote a line. An attempt that was interrupted has several, of which the one before the line counts.
fn start_of<'a>(line: &LogLine, starts: &'a [AttemptStart]) -> Option<&'a AttemptStart> {
    let mut of_attempt = starts.iter().filter(|start| (start.run, start.number) == (line.run, line.attempt));
    let first = of_attempt.next()?;
    Some(of_attempt.take_while(|start| start.at <= line.at).last().unwrap_or(first))
}

fn separator(start: &AttemptStart) -> Markup {
    html! {
        li.attempt id={ "a" (start.at) } { (start.name) " · started " (exact_clock(&start.at)) }
    }
}

fn numbered(number: u64, line: &LogLine, levels: &mut LineLevels, find: Option<&str>) -> Markup {
    let text = visible(&line.text);
    html! {
        li class=[levels.of(&text)] id={ "l" (number) } value=(number) {
            a href={ "#l" (number) } aria-label={ "line " (number) } { (number) }
            span.at title=(whole_time(&line.at)) { (exact_clock(&line.at)) }
            @if line.stream == Some(LogStream::Stderr) {
                span.at title="The process of the attempt wrote the line to stderr." { "stderr" }
            }
            code { @match find { Some(find) => { (marked(&text, find)) } None => { (text) } } }
        }
    }
}

/// Text with the places marked that contain another text.
fn marked(text: &str, find: &str) -> Markup {
    let (parts, found) = split(text, find);
    html! {
        @for (n, part) in parts.iter().enumerate() {
            (part) @if let Some(found) = found.get(n) { mark { (found) } }
        }
    }
}

/// Parts of a text around another text, in any case of ASCII, and the parts between them.
fn split<'a>(text: &'a str, find: &str) -> (Vec<&'a str>, Vec<&'a str>) {
    // The lower case of ASCII has the same positions.
    let (lower, find) = (text.to_ascii_lowercase(), find.to_ascii_lowercase());
    let (mut parts, mut found, mut end) = (Vec::new(), Vec::new(), 0);
    for (at, _) in lower.match_indices(&find) {
        parts.push(&text[end..at]);
        end = at + find.len();
        found.push(&text[at..end]);
    }
    parts.push(&text[end..]);
    (parts, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_stderr_are_marked() {
        let is_marked = |stream| {
            let line =
                LogLine { at: "2026-11-28T12:00:00.000Z".into(), run: 1, attempt: 1, stream, text: "a line".into() };
            numbered(1, &line, &mut LineLevels::default(), None).into_string().contains(">stderr</span>")
        };
        assert_eq!([Some(LogStream::Stderr), Some(LogStream::Stdout), None].map(is_marked), [true, false, false]);
    }

    #[test]
    fn found_text_is_marked_in_any_case() {
        assert_eq!(
            marked("An error: ERROR <b>", "error").into_string(),
            "An <mark>error</mark>: <mark>ERROR</mark> &lt;b&gt;"
        );
        assert_eq!(marked("ärger", "x").into_string(), "ärger");
    }
}
