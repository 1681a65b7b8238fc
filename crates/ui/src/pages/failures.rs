//! Failed tasks, grouped by type and kind of error, with the messages of each kind.

use std::collections::BTreeMap;

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_parameter;
use kafleet_api::service::context::{After, MAX_PAGE, PAGE};
use kafleet_api::service::statistics::{FailuresBy, FailuresQuery, FailuresSort};
use kafleet_api::service::{statistics, types};
use kafleet_documents::{FailureGroup, Failures};
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;
use maud::{Markup, Render, html};

use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::failures::{
    COLUMNS, Messages, ROOT_COLUMNS, group_row, kind_of, kind_row, root_row, uncounted_letters,
};
use crate::parts::form::{Input, filter_buttons};
use crate::parts::notice::empty;
use crate::parts::table::table;
use crate::parts::{View, count, counted, first_line, query_text};
use crate::visit::{Body, PageAnswer, Visit, stored};

/// Messages listed below a kind.
const LISTED_MESSAGES: usize = 10;
/// Ranges that are offered; `all` stands for all retained tasks.
const RANGES: [&str; 4] = ["1h", "24h", "7d", "all"];
/// Parameters of the page, with the same names as those of the API.
const PARAMETERS: [&str; 7] = ["type", "kind", "by", "since", "sort", "text", WITH_LETTERS];
/// Parameter that leaves out errors without dead letters.
const WITH_LETTERS: &str = "with_dead_letters";

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let query = query_of(visit)?;
    let failures = stored(statistics::failures(visit.context(), query.clone(), After::default())).await?;
    let messages = match query.by {
        FailuresBy::Kind if failures.groups.iter().any(|group| group.messages > Some(1)) => {
            let query = FailuresQuery { by: FailuresBy::Message, limit: MAX_PAGE, ..query.clone() };
            stored(statistics::failures(visit.context(), query, After::default())).await?.groups
        }
        _ => Vec::new(),
    };
    let page = FailuresPage { visit, query: &query, failures: &failures };
    let main = html! {
        h1 { "Failures" }
        (page.scope())
        (filter(visit).await)
        (page.choices())
        @if failures.groups.is_empty() {
            (empty(page.nothing(), &[]))
        } @else {
            section.panel { (page.listed(&messages)) }
        }
        (page.other_letters())
        p.quiet { "Attempts that failed and are retried are counted on the page of their type." }
        (commands(&page.lines()))
    };
    Ok(Body::new("Failures", main).into())
}

fn query_of(visit: &Visit) -> Result<FailuresQuery, ApiError> {
    let fields = &visit.query;
    let refused = |name: &'static str| move |error: String| bad_parameter(name, &error);
    let since = fields.get("since").filter(|since| *since != "all");
    let since = since.map(Millis::parse).transpose().map_err(refused("since"))?;
    let by: Option<FailuresBy> = fields.get("by").map(str::parse).transpose().map_err(refused("by"))?;
    let (kind, text) = (fields.get("kind").map(str::to_owned), fields.get("text").map(str::to_owned));
    // Texts are searched in messages, not in kinds alone.
    let narrowed = if kind.is_some() || text.is_some() { FailuresBy::Message } else { FailuresBy::Kind };
    Ok(FailuresQuery {
        task_type: fields.type_name("type")?.map(str::to_owned),
        kind,
        by: by.unwrap_or(narrowed),
        since_ms: since.map(|since| now_ms().saturating_sub(since.as_i64())),
        sort: fields
            .get("sort")
            .map(str::parse::<FailuresSort>)
            .transpose()
            .map_err(refused("sort"))?
            .unwrap_or_default(),
        text,
        with_dead_letters: fields.get(WITH_LETTERS) == Some("true"),
        limit: PAGE,
    })
}

/// Answer of a query, and the visit that asked for it.
struct FailuresPage<'a> {
    visit: &'a Visit,
    query: &'a FailuresQuery,
    failures: &'a Failures,
}

impl FailuresPage<'_> {
    const fn view(&self) -> &View {
        &self.visit.view
    }

    /// Description of the counted tasks.
    fn scope(&self) -> Markup {
        html! {
            p.quiet {
                @if self.query.by == FailuresBy::Root {
                    "Tasks that are failed or expired now, by the type of the root of their tree: what makes trees fail. Of the \
                     50 most frequent kinds of errors, the newest tasks are read, 5,000 in all."
                } @else {
                    "Tasks that are failed or expired now, by type and error. Parents that failed only through a task below them \
                     are left out: a retry of that task heals them. A time counts the tasks that ended in it."
                }
            }
        }
    }

    /// URL of this page with another value of a parameter; empty: without it.
    fn url(&self, name: &str, value: &str) -> String {
        let mut fields = self.visit.query.select(&PARAMETERS);
        fields.retain(|(field, _)| field != name);
        fields.extend((!value.is_empty()).then(|| (name.to_owned(), value.to_owned())));
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.view().url_with("/failures", &fields)
    }

    fn choices(&self) -> Markup {
        let sorts = [("count", "most tasks"), ("last", "newest task"), ("first", "newest error")];
        let groups = [("", "by error"), ("root", "by root")];
        html! {
            @if self.query.by != FailuresBy::Root { (uncounted_letters(self.failures)) }
            div.head.choices {
                (self.choice("since", "range", "all", &RANGES.map(|range| (range, range))))
                (self.choice(WITH_LETTERS, "dead letters", "", &[("", "all errors"), ("true", "with dead letters")]))
                (self.choice("by", "groups", "", &groups))
                @if self.query.by != FailuresBy::Root { (self.choice("sort", "order", "count", &sorts)) }
            }
        }
    }

    fn choice(&self, name: &str, label: &str, default: &str, values: &[(&str, &str)]) -> Markup {
        let chosen = self.visit.query.get(name).unwrap_or(default);
        html! {
            nav.ranges aria-label=(label) {
                @for (value, text) in values {
                    a href=(self.url(name, if *value == default { "" } else { value }))
                        aria-current=[(*value == chosen).then_some("page")] { (text) }
                }
            }
        }
    }

    /// Words for the range of the counts.
    fn range(&self) -> String {
        match self.visit.query.get("since").filter(|since| *since != "all") {
            Some("1h") => " in the last hour".to_owned(),
            Some("24h") => " in the last 24 hours".to_owned(),
            Some(since) => format!(" in the last {}", first_line(since, 20)),
            None => String::new(),
        }
    }

    fn listed(&self, messages: &[FailureGroup]) -> Markup {
        html! {
            (self.summary())
            @match self.query.by {
                FailuresBy::Root => { (table(ROOT_COLUMNS, &self.rows(root_row))) }
                FailuresBy::Kind => { (table(COLUMNS, &self.kind_rows(messages))) }
                FailuresBy::Message => { (table(COLUMNS, &self.rows(group_row))) }
            }
        }
    }

    fn summary(&self) -> Markup {
        let Failures { groups, errors, at_least, .. } = self.failures;
        let tasks: u64 = groups.iter().map(|group| group.count).sum();
        let noun = if self.query.by == FailuresBy::Message {
            ["error", "errors"]
        } else {
            ["kind of error", "kinds of errors"]
        };
        let is_cut = *errors > groups.len() as u64;
        html! {
            p {
                strong { @if *at_least || is_cut { "at least " } (count(tasks)) }
                @if tasks == 1 { " task" } @else { " tasks" } (self.range())
                @if self.query.by != FailuresBy::Root {
                    ", " strong { (count(errors)) } " " (if *errors == 1 { noun[0] } else { noun[1] })
                    @if let Some(kind) = &self.query.kind { " of the kind " code { (first_line(kind, 60)) } }
                }
                @if is_cut { "; the first " (groups.len()) " are listed" }
                @if self.failures.dead_letters_at_least { "; dead letters are counted among the newest 5,000" }
            }
        }
    }

    /// Dead letters that no error of the list has.
    fn other_letters(&self) -> Markup {
        let number = self.failures.other_dead_letters.unwrap_or_default();
        let mut filter = vec![("without_failure", "true")];
        filter.extend(self.query.task_type.as_deref().map(|name| ("type", name)));
        html! {
            p.quiet {
                @if number > 0 {
                    a href=(self.view().url_with("/dead-letters", &filter)) { (counted(number, "dead letter", "dead letters")) }
                    @if number == 1 { " belongs" } @else { " belong" }
                    " to no failed task: records that are not tasks, and tasks that are no longer retained. "
                }
                a href=(self.view().url("/dead-letters")) { "All dead letters" }
            }
        }
    }

    fn rows(&self, row: impl Fn(&View, &FailureGroup, bool) -> Markup) -> Vec<Markup> {
        self.failures.groups.iter().map(|group| row(self.view(), group, self.failures.at_least)).collect()
    }

    fn kind_rows(&self, messages: &[FailureGroup]) -> Vec<Markup> {
        let mut of_kind: BTreeMap<(&str, String), Vec<&FailureGroup>> = BTreeMap::new();
        for message in messages {
            of_kind.entry((&message.task_type, kind_of(message))).or_default().push(message);
        }
        self.rows(|view, group, at_least| {
            let mut listed = of_kind.get(&(group.task_type.as_str(), group.error.clone())).cloned().unwrap_or_default();
            listed.truncate(LISTED_MESSAGES);
            let kind = group.kind.as_deref().unwrap_or_default();
            let since = self.visit.query.get("since").unwrap_or("all");
            let mut all = vec![("type", group.task_type.as_str()), ("kind", kind), ("since", since)];
            all.extend(self.query.with_dead_letters.then_some((WITH_LETTERS, "true")));
            let (at_least_messages, all) = (self.failures.messages_at_least, view.url_with("/failures", &all));
            kind_row(view, group, at_least, &Messages { listed, at_least: at_least_messages, all })
        })
    }

    fn nothing(&self) -> &'static str {
        match (self.query.since_ms, &self.query.kind, &self.query.text) {
            _ if self.query.with_dead_letters && self.failures.other_dead_letters.is_none() => {
                "Which errors have dead letters is not known."
            }
            _ if self.query.with_dead_letters => "No error has an unresolved dead letter here.",
            (None, None, None) if self.query.task_type.is_none() => "No retained task has failed.",
            (None, None, None) => "No retained task of this type has failed.",
            (Some(_), None, None) => "No retained task has failed in this time.",
            _ => "No error matches these filters.",
        }
    }

    fn lines(&self) -> [String; 2] {
        let mut fields = self.visit.query.select(&PARAMETERS);
        fields.retain(|(name, value)| (name.as_str(), value.as_str()) != ("since", "all") && name != "by");
        match self.query.by {
            FailuresBy::Message => {}
            FailuresBy::Kind => fields.push(("by".to_owned(), "kind".to_owned())),
            FailuresBy::Root => fields.push(("by".to_owned(), "root".to_owned())),
        }
        let option = |(name, value): &(String, String)| match name.as_str() {
            WITH_LETTERS => " --with-dead-letters".to_owned(),
            name => format!(" --{name} {}", quoted(value)),
        };
        let options: String = fields.iter().map(option).collect();
        let pairs: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let query = if pairs.is_empty() { String::new() } else { format!("?{}", query_text(&pairs)) };
        [format!("kafleet failures{options}"), curl_get(&format!("/v1/failures{query}"))]
    }
}

async fn filter(visit: &Visit) -> Markup {
    let listed = stored(types::type_list(&visit.api)).await.map(|listed| listed.types).unwrap_or_default();
    let names: Vec<String> = listed.into_iter().map(|listed| listed.name).collect();
    let fields = &visit.query;
    let is_filtered = ["type", "kind", "text"].iter().any(|name| fields.is_set(name));
    html! {
        form.filters action=(visit.view.url("/failures")) role="search" aria-label="Filters" {
            (Input::new("type", "Type", fields.get("type")).suggestions(&names).render())
            (Input::new("text", "Text", fields.get("text")).hint("kind, message or worker").render())
            @for (name, value) in fields.select(&["kind", "by", "since", "sort", WITH_LETTERS]) {
                input type="hidden" name=(name) value=(value);
            }
            (filter_buttons(is_filtered.then(|| visit.view.url("/failures")).as_deref()))
        }
    }
}
