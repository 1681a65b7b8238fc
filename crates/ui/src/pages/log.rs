//! Log of a task, in pages of numbered lines.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::After;
use kafleet_api::service::log::{self, Lines};
use kafleet_api::service::task;
use kafleet_documents::{LogDocument, LogLine, Status};
use maud::{Markup, html};

use crate::parts::attempts::{AttemptStart, attempt_starts};
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::copy::copy_all;
use crate::parts::task_head::{head, tabs};
use crate::parts::times::{exact_clock, whole_time};
use crate::parts::{View, count, visible};
use crate::visit::{Body, PageAnswer, Visit, stored};

/// Lines of a page.
const PAGE_LINES: u64 = 500;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let (page, history) =
        tokio::join!(requested_lines(visit), stored(task::history(visit.context(), visit.id()?, After::default())),);
    let page = page?;
    // Without the history, the lines are shown without their attempts.
    let starts = history.map(|history| attempt_starts(&history)).unwrap_or_default();
    let main = html! {
        (head(view, &status))
        (tabs(view, &status, "log"))
        section.panel { (contents(&page, &starts)) (links(view, &status, &page)) }
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

fn contents(page: &LogDocument, starts: &[AttemptStart]) -> Markup {
    html! {
        @if page.lines.is_empty() {
            p.quiet { "The task has logged nothing on this page." }
        } @else {
            p.quiet {
                "Lines " (count(page.from + 1)) " to " (count(end_of(page))) " of " (count(page.total))
                @if page.dropped > 0 { "; the worker dropped " (count(page.dropped)) }
            }
            (lines(page, starts))
        }
    }
}

/// Links to other pages of the log.
fn links(view: &View, status: &Status, page: &LogDocument) -> Markup {
    let (id, end) = (&status.id, end_of(page));
    let link = |from: u64| format!("{}?from={from}", view.below_task(id, "log"));
    html! {
        nav.pager aria-label="pages" {
            @if page.from > 0 { a href=(link(page.from.saturating_sub(PAGE_LINES))) { "← older" } }
            @if end < page.total {
                a href=(link(end)) { "newer →" } a href=(view.below_task(id, "log")) { "newest" }
            }
            a href=(view.below_task(id, "log/raw")) { "as text" }
            @if page.total > 0 { (copy_all("ol.log code", "Copy lines")) }
            @if !status.state.is_terminal() && end >= page.total {
                button.app #follow type="button" aria-pressed="false" data-follow data-keep { "Follow" }
            }
        }
    }
}

/// Lines without escape codes, numbered from 1. `starts`: those of the attempts, by which lines are separated.
pub(super) fn lines(page: &LogDocument, starts: &[AttemptStart]) -> Markup {
    let mut newest: Option<&AttemptStart> = None;
    let mut start_above = |line: &LogLine| {
        let start = start_of(line, starts)?;
        let earlier = newest.replace(start);
        earlier.is_none_or(|earlier| !std::ptr::eq(earlier, start)).then_some(start)
    };
    html! {
        ol.log start=(page.from + 1) data-total=(page.total) {
            @for (n, line) in page.lines.iter().enumerate() {
                @if let Some(start) = start_above(line) { (separator(start)) }
                (numbered(page.from + n as u64 + 1, line))
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

fn numbered(number: u64, line: &LogLine) -> Markup {
    html! {
        li id={ "l" (number) } value=(number) {
            a href={ "#l" (number) } aria-label={ "line " (number) } { (number) }
            span.at title=(whole_time(&line.at)) { (exact_clock(&line.at)) }
            code { (visible(&line.text)) }
        }
    }
}
