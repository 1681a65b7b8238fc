//! Page of a task. On the left error, reasons, progress, result, params and log, on the right facts and attempts, below them
//! children, history and the rest.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::failures;
use kafleet_api::service::context::{After, Paging};
use kafleet_api::service::log::{self, Lines};
use kafleet_api::service::{attachments, dead_letters, task, why};
use kafleet_config::{Role, TRACE_ID};
use kafleet_documents::{
    AttachmentDocument, Attachments, Deliveries, Delivery, FailureGroup, Finding, LogDocument, Params, Status,
    TaskPage, Why,
};
use kafleet_model::json::RawJson;
use kafleet_model::record::state::{Category, State};
use kafleet_model::task::id::TaskId;
use maud::{Markup, html};

use super::unique::key_box;
use crate::parts::attempts::{AttemptStart, attempt_bars, attempt_starts, history_table, number_of};
use crate::parts::bar::{in_order, state_bar, tree_bar};
use crate::parts::clock::{run_spans, state_time};
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::copy::copied;
use crate::parts::facts::{Fact, code, facts, text};
use crate::parts::failures::kin;
use crate::parts::json::json_block;
use crate::parts::natural::natural_order;
use crate::parts::notice::{missing, unknown_value};
use crate::parts::progress::progress_block;
use crate::parts::state::pill;
use crate::parts::statistics::ms_text;
use crate::parts::table::table;
use crate::parts::task_head::{head, tabs};
use crate::parts::tasks::{is_long, state_counts, task_table, type_link, worker_link};
use crate::parts::times::{exact_time, time};
use crate::parts::{View, bytes_text, count, counted, encoded, prose, search_text, visible};
use crate::visit::{Body, PageAnswer, Visit, from_kafka, stored};

/// Newest lines of the log on the page.
const LOG_LINES: usize = 20;
/// Children on the page.
const LISTED_CHILDREN: usize = 20;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let (live, id, after) = (&visit.live, visit.id()?, After::default());
    let children = Paging { cursor: None, limit: LISTED_CHILDREN };
    // Params are shared by the visits of a role under one mask: others may see more or less of them.
    let (role, mask) =
        (visit.view.role.name(), visit.api.reads.masks.of(status.task_type.as_deref().unwrap_or_default()));
    let record = status.record.as_deref().map(|record| format!("{role} {mask:?} {} {record}", status.id));
    let (same_error, letter, explanation, params, history, children, log, attachments, unique_key) = tokio::join!(
        same_error(visit, &status),
        letter_of(visit, &id, &status),
        from_kafka(live.reasons.get(Some(reason_key(&status)), why::why_soon(&visit.api, &id, &live.queues))),
        from_kafka(live.params.get(record, task::params(visit.context(), id.clone(), after))),
        stored(task::history(visit.context(), id.clone(), after)),
        stored(task::children(visit.context(), id.clone(), children, after)),
        stored(log::page(visit.context(), id.clone(), Lines::Newest(LOG_LINES), after)),
        stored(attachments::list(visit.context(), id.clone(), after)),
        key_box(visit, &status),
    );
    let view = &visit.view;
    let starts = history.as_ref().map(attempt_starts).unwrap_or_default();
    let quiet_ms = explanation.as_ref().ok().and_then(|why| why.findings.iter().find_map(|finding| finding.quiet_ms));
    let main = html! {
        (head(view, &status))
        (tabs(view, &status, "overview"))
        div.columns {
            div.column {
                (error_block(visit, &status, same_error.as_ref(), letter.as_deref()))
                (reasons(view, &status, explanation))
                (progress_block(view, &status, quiet_ms))
                (result(view, &status))
                (values(view, &status, params))
                (log_block(view, &status.id, &log, &starts))
            }
            div.column {
                (times(visit, &status))
                (unique_key)
                @match &history {
                    Ok(history) => { (attempt_bars(view, history, status.fields.retries)) }
                    Err(error) => { (missing("The history", &error.clone().document())) }
                }
            }
        }
        (children_block(view, &status, children))
        @if let Ok(history) = &history { (history_table(history)) }
        (attached(view, &status.id, &attachments))
        (deliveries(view, &status))
        (empty_parts(view, &status, &log, &attachments))
        (definition(visit, &status))
        (commands(&lines(&status.id)))
    };
    let title = status.fields.name.clone().unwrap_or_else(|| status.id.clone());
    Ok(PageAnswer::Page(Body { title, state: Some(status.state), main }))
}

/// Properties that decide about the reason for the state.
fn reason_key(status: &Status) -> String {
    let Status { id, state, own_state, run, attempt, waits, tree, .. } = status;
    let due = status.due_at.as_deref().unwrap_or_default();
    format!("{id} {} {} {run} {attempt} {waits} {due} {} {}", state.name(), own_state.name(), tree.pending, tree.total)
}

fn times(visit: &Visit, status: &Status) -> Markup {
    let view = &visit.view;
    let trace_url = visit.api.ui.trace_url.as_deref();
    let [waited, ran, total] = run_spans(status);
    let at = |text: &Option<String>| text.as_deref().map(exact_time);
    let facts_shown: Vec<Fact> = vec![
        ("Id", Some(copied(html! { code.long[is_long(&status.id)] { (status.id) } }))),
        ("Type", Some(type_link(view, status.task_type.as_deref()))),
        ("Run", text(status.run)),
        ("Attempt", attempt_text(status).and_then(text)),
        ("Waits", (status.waits > 0).then(|| text(format!("{}, not counted as attempts", status.waits))).flatten()),
        ("Time", Some(state_time(view, status)).filter(|_| !status.state.is_terminal())),
        ("Worker", status.worker.as_deref().map(|worker| copied(worker_link(view, worker)))),
        ("Creator", status.fields.creator.as_deref().map(|creator| html! { (visible(creator)) })),
        ("Created", at(&status.created_at)),
        ("Due", at(&status.due_at).filter(|_| !status.state.is_terminal())),
        ("Started", at(&status.started_at)),
        ("Ended", at(&status.ended_at)),
        ("Waited", waited),
        ("Ran", ran),
        ("Total", total),
        ("Tags", (!status.fields.tags.is_empty()).then(|| tags(view, &status.fields.tags))),
        ("Link", status.fields.link.as_deref().map(link)),
        ("Trace", status.trace_id.as_deref().map(|id| trace_link(trace_url, id))),
    ];
    html! { section.panel { (facts(&facts_shown)) } }
}

/// Number of the attempt; before the first one, how many the task may have.
fn attempt_text(status: &Status) -> Option<String> {
    match (status.attempt, status.fields.retries) {
        (0, retries) => retries.map(|retries| format!("none yet, at most {}", u64::from(retries) + 1)),
        (attempt, retries) => Some(number_of(attempt, retries)),
    }
}

fn tags(view: &View, tags: &[String]) -> Markup {
    html! {
        @for tag in tags {
            a.tag href=(view.search(&search_text(&[("tag", tag), ("level", "any")]))) { (visible(tag)) } " "
        }
    }
}

/// Link of a task; other schemes than http are shown as text.
fn link(url: &str) -> Markup {
    let is_web = url.starts_with("https://") || url.starts_with("http://");
    html! {
        @if is_web {
            a href=(url) rel="noopener noreferrer" target="_blank" { (visible(url)) }
        } @else { code { (visible(url)) } }
    }
}

/// Trace of a task, with a link to it if there is a template.
fn trace_link(template: Option<&str>, id: &str) -> Markup {
    html! {
        @match template {
            Some(template) => {
                a href=(template.replace(TRACE_ID, id)) rel="noopener noreferrer" target="_blank" { code { (id) } }
            }
            None => { (copied(html! { code { (id) } })) }
        }
    }
}

fn reasons(view: &View, status: &Status, explanation: Result<Arc<Why>, ApiError>) -> Markup {
    html! {
        @match explanation {
            Ok(explanation) => {
                details.panel #why open[status.state != State::Succeeded] {
                    summary { h2 { "Why" } }
                    ul.plain { @for finding in &explanation.findings { li { (finding_text(view, status, finding)) } } }
                }
            }
            Err(error) => { (missing("The reason for the state", &error.document())) }
        }
    }
}

fn finding_text(view: &View, status: &Status, finding: &Finding) -> Markup {
    html! {
        p {
            @let message = message_of(status, finding);
            @match finding.task.as_deref().map(|task| (task, message.split_once(&format!("`{task}`")))) {
                Some((task, Some((before, after)))) => {
                    (prose(before)) a href=(view.task(task)) { code { (visible(task)) } } (prose(after))
                }
                Some((task, None)) => { (prose(&message)) " " a href=(view.task(task)) { code { (visible(task)) } } }
                None => { (prose(&message)) }
            }
        }
        @if let Some(ms) = finding.expected_in_ms {
            p.quiet { "Expected to start in " (ms_text(ms)) "." }
        }
    }
}

/// Message of a reason, without the error that stands above it on the page.
fn message_of<'a>(status: &Status, finding: &'a Finding) -> Cow<'a, str> {
    const ABOVE: &str = "see the error above";
    match status.error.as_ref().filter(|_| finding.task.is_none()) {
        Some(error) if finding.message == error.message => ABOVE.into(),
        Some(error) => finding.message.replacen(&*error.text(), ABOVE, 1).into(),
        None => finding.message.as_str().into(),
    }
}

/// Group of the failed tasks with the error of this one, while it is failed or expired.
async fn same_error(visit: &Visit, status: &Status) -> Option<FailureGroup> {
    let is_failed = matches!(status.own_state, State::Failed | State::Expired);
    let (error, task_type) = (status.error.as_ref().filter(|_| is_failed)?, status.task_type.as_deref()?);
    stored(failures::same_error(&visit.api.reads, task_type, error)).await.ok()?
}

/// Unresolved dead letter of a task that is failed.
async fn letter_of(visit: &Visit, id: &TaskId, status: &Status) -> Option<String> {
    let task_type = status.task_type.as_deref().filter(|_| status.own_state == State::Failed)?;
    let read = async {
        let letter = dead_letters::letter_of(&visit.api, task_type, id, status.run).await?;
        Ok(letter.map(|letter| letter.to_string()))
    };
    let key = format!("{id} {}", status.run);
    let letter = from_kafka(visit.live.letters.get(Some(key), read)).await.ok()?;
    (*letter).clone()
}

fn error_block(visit: &Visit, status: &Status, same_error: Option<&FailureGroup>, letter: Option<&str>) -> Markup {
    let view = &visit.view;
    html! {
        @if let Some(error) = &status.error {
            section.panel #error {
                h2 { "Error" }
                p { code { (error.kind) } @if error.attempt > 0 { span.quiet { " in attempt " (error.attempt) } } }
                (copied(html! { pre.error { (visible(&error.message)) } }))
                (kin(view, same_error, letter))
            }
        }
    }
}

fn result(view: &View, status: &Status) -> Markup {
    html! {
        @if let Some(result) = &status.result {
            section.panel #result {
                h2 { "Result" } (json_block(result, Some(&view.below_task(&status.id, "result"))))
            }
        }
    }
}

fn values(view: &View, status: &Status, params: Result<Arc<Params>, ApiError>) -> Markup {
    html! {
        @match params {
            Ok(params) => {
                section.panel #params {
                    h2 { "Params" } (json_block(&params.params, Some(&view.below_task(&status.id, "params"))))
                }
            }
            Err(error) => {
                section.panel #params { h2 { "Params" } (unknown_value("The params", &error.document())) }
            }
        }
    }
}

fn children_block(view: &View, status: &Status, children: Result<TaskPage, ApiError>) -> Markup {
    let counts = in_order(&status.children.by_state);
    let is_deep = status.tree.total > status.children.total + 1;
    html! {
        @if status.children.total > 0 {
            section.panel #children {
                h2 {
                    "Children " span.quiet {
                        (count(status.children.total))
                        @if is_deep { ", " (counted(status.tree.total - 1, "task", "tasks")) " below in all" }
                    }
                }
                @if is_deep {
                    p.quiet { "The whole tree:" }
                    (tree_bar(&status.tree))
                    p.quiet { "The " (counted(status.children.total, "child", "children")) ":" }
                }
                (state_bar(&status.children.by_state))
                (state_counts(&counts, |state| view.search(&search_text(&[("under", &status.id), ("state", state.name())]))))
                (first_children(view, &status.id, children))
            }
        }
    }
}

fn first_children(view: &View, id: &str, mut children: Result<TaskPage, ApiError>) -> Markup {
    if let Ok(page) = &mut children {
        page.tasks.sort_by(failures_first);
    }
    html! {
        @match children {
            Ok(page) => {
                (task_table(view, "t", &page.tasks))
                @if page.next.is_some() { p { a href=(view.below_task(id, "tree")) { "All children" } } }
            }
            Err(error) => { (missing("The children", &error.document())) }
        }
    }
}

/// Failed children first, in the natural order of their ids.
fn failures_first(one: &Status, other: &Status) -> Ordering {
    let is_failed = |task: &Status| task.state.category() == Category::Failed;
    is_failed(other).cmp(&is_failed(one)).then_with(|| natural_order(&one.id, &other.id))
}

/// Last lines of the log; without lines the log is one of the empty parts.
fn log_block(view: &View, id: &str, log: &Result<LogDocument, ApiError>, starts: &[AttemptStart]) -> Markup {
    html! {
        @match log {
            Ok(log) if log.lines.is_empty() => {}
            Ok(log) => {
                section.panel #log {
                    div.head { h2 { "Log" } div.actions { (append_button(view, id)) } }
                    (last_lines(view, id, log, starts))
                }
            }
            Err(error) => { (missing("The log", &error.clone().document())) }
        }
    }
}

fn append_button(view: &View, id: &str) -> Markup {
    html! {
        @if view.may(Role::Submit) { a.button href=(view.below_task(id, "append")) data-dialog { "Append…" } }
    }
}

fn attach_button(view: &View, id: &str) -> Markup {
    html! {
        @if view.may(Role::Submit) { a.button href=(view.below_task(id, "attach")) data-dialog { "Attach…" } }
    }
}

/// Parts of the task without contents, in one row, with the actions that fill them.
fn empty_parts(
    view: &View,
    status: &Status,
    log: &Result<LogDocument, ApiError>,
    attachments: &Result<Attachments, ApiError>,
) -> Markup {
    let has_log = !log.as_ref().is_ok_and(|log| log.lines.is_empty());
    let has_attachments = !attachments.as_ref().is_ok_and(|attachments| attachments.attachments.is_empty());
    let parts = [
        ("log", "Log: no lines", has_log),
        ("attachments", "Attachments: none", has_attachments),
        ("deliveries", "Deliveries: none yet", !status.deliveries.as_ref().is_some_and(is_undelivered)),
    ];
    html! {
        @if parts.iter().any(|(_, _, has_contents)| !has_contents) {
            section.panel.empty-parts {
                @for (id, text, has_contents) in parts { @if !has_contents { span.quiet id=(id) { (text) } } }
                div.actions {
                    @if !has_log { (append_button(view, &status.id)) }
                    @if !has_attachments { (attach_button(view, &status.id)) }
                }
            }
        }
    }
}

fn is_undelivered(deliveries: &Deliveries) -> bool {
    deliveries.items.is_empty() && deliveries.checks_due.is_empty()
}

fn last_lines(view: &View, id: &str, log: &LogDocument, starts: &[AttemptStart]) -> Markup {
    html! {
        (super::log::lines(log, starts, &super::log::Reading::default()))
        @if log.total > log.lines.len() as u64 {
            p { a href=(view.below_task(id, "log")) { "All " (count(log.total)) " lines" } }
        }
    }
}

fn attached(view: &View, id: &str, attachments: &Result<Attachments, ApiError>) -> Markup {
    let listed = attachments.iter().flat_map(|attachments| &attachments.attachments);
    let rows: Vec<Markup> = listed.map(|attachment| attachment_row(view, id, attachment)).collect();
    html! {
        @if let Err(error) = attachments { (missing("The attachments", &error.clone().document())) }
        @if !rows.is_empty() {
            section.panel #attachments {
                div.head { h2 { "Attachments" } div.actions { (attach_button(view, id)) } }
                (table(&["Name", "Media type", "#Size", "Stored"], &rows))
            }
        }
    }
}

fn attachment_row(view: &View, id: &str, attachment: &AttachmentDocument) -> Markup {
    let page = format!("attachments/{}", encoded(&attachment.name));
    html! {
        tr {
            td { a href=(view.below_task(id, &page)) download=(attachment.name) { (attachment.name) } }
            td { (attachment.media) }
            td.number title=(counted(attachment.bytes.into(), "byte", "bytes")) { (bytes_text(attachment.bytes.into())) }
            td.time { (time(&attachment.at)) }
        }
    }
}

fn deliveries(view: &View, status: &Status) -> Markup {
    let Some(deliveries) = status.deliveries.as_ref().filter(|deliveries| !is_undelivered(deliveries)) else {
        return html! {};
    };
    let rows: Vec<Markup> = deliveries.items.iter().map(|item| delivery_row(view, item)).collect();
    html! {
        section.panel #deliveries {
            h2 { "Deliveries" }
            @if !rows.is_empty() {
                (table(&["Kind", "Rule", "State reported", "Outcome", "#Attempts", "Time"], &rows))
            }
            @for due in &deliveries.checks_due { p.quiet { "Check " (due.number) " is due at " (time(&due.at)) } }
        }
    }
}

fn delivery_row(view: &View, item: &Delivery) -> Markup {
    html! {
        tr {
            td { a href=(view.task(&item.id)) { (item.kind) } }
            td { (item.rule) }
            td { (pill(item.state)) }
            td { (item.outcome.name()) }
            td.number { (item.attempts) }
            td.time { (exact_time(&item.at)) }
        }
    }
}

/// Policy of the task, and the position of its record.
fn definition(visit: &Visit, status: &Status) -> Markup {
    let source = source_of(visit, status);
    html! {
        details.panel #definition {
            summary { h2 { "Definition and record" } }
            (json_block(&RawJson::of_plain(&status.fields), None))
            (facts(&[
                ("Position", Some(code(&status.position))),
                ("Record", source.as_ref().map(|(topic, partition, offset)| code(&format!("{topic}/{partition}:{offset}")))),
                ("Duplicates", (status.duplicates > 0).then(|| html! {
                    (status.duplicates) " terminal events were ignored"
                })),
                ("Interruptions", (status.interruptions > 0).then(|| html! {
                    (status.interruptions) " starts ended without an outcome"
                })),
            ]))
            @if let Some((topic, partition, offset)) = &source {
                pre {
                    code { "kcat -C -b $BROKERS -t " (topic) " -p " (partition) " -o " (offset) " -c 1 -f '%h %k %s\\n'" }
                }
            }
        }
    }
}

/// Topic, partition and offset of a task's record.
fn source_of<'a>(visit: &Visit, status: &'a Status) -> Option<(String, &'a str, &'a str)> {
    let (partition, offset) = status.record.as_deref()?.split_once(':')?;
    Some((visit.api.topology.names.tasks(status.task_type.as_deref()?), partition, offset))
}

fn lines(id: &str) -> Vec<String> {
    let quoted = quoted(id);
    vec![
        format!("kafleet status {quoted}"),
        format!("kafleet why {quoted}"),
        format!("kafleet history {quoted}"),
        curl_get(&format!("/v1/tasks/{id}")),
    ]
}
