//! Parts of pages: documents in, markup out. No store, no axum, no async.

use kafleet_config::Role;
use kafleet_model::query::quoted;
pub(super) use kafleet_model::units::number::grouped as count;
use maud::{Markup, html};

use super::zone::ReaderZone;

pub(super) mod advice;
pub(super) mod attempts;
pub(super) mod axis;
pub(super) mod bar;
pub(super) mod chart;
pub(super) mod clock;
pub(super) mod command;
pub(super) mod copy;
pub(super) mod facts;
pub(super) mod failures;
pub(super) mod form;
pub(super) mod frame;
pub(super) mod heading;
pub(super) mod histogram;
pub(super) mod json;
pub(super) mod letters;
pub(super) mod limits;
pub(super) mod listing;
pub(super) mod log_level;
pub(super) mod natural;
pub(super) mod notice;
pub(super) mod pickers;
pub(super) mod problem;
pub(super) mod progress;
pub(super) mod queue;
pub(super) mod range;
pub(super) mod runs;
pub(super) mod schema_form;
pub(super) mod search;
pub(super) mod state;
pub(super) mod state_tabs;
pub(super) mod statistics;
pub(super) mod table;
pub(super) mod task_columns;
pub(super) mod task_head;
pub(super) mod tasks;
pub(super) mod timeline;
pub(super) mod times;
pub(super) mod unique;
mod visible;
pub(super) mod words;

use times::with_times;
pub(super) use visible::{visible, without_hidden};

/// Properties of a page's reader that its contents depend on.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// `api.ui.base_path`.
    pub base: String,
    pub role: Role,
    pub read_only: bool,
    /// Zone of the times.
    pub zone: ReaderZone,
    /// Time of the rendering, epoch milliseconds. Only texts that are marked as those of a clock depend on it, and drawings
    /// that round it: everything else stays the same from one rendering to the next.
    pub now_ms: i64,
}

#[cfg(test)]
impl View {
    /// View of a reader with this role, at the epoch.
    pub(super) fn for_tests(role: Role) -> Self {
        Self { base: String::new(), role, read_only: false, zone: ReaderZone::default(), now_ms: 0 }
    }
}

impl View {
    /// Whether the reader may perform actions of this role.
    pub(super) fn may(&self, role: Role) -> bool {
        !self.read_only && self.role >= role
    }

    /// URL of a path below the base path.
    pub(super) fn url(&self, path: &str) -> String {
        match (self.base.is_empty(), path) {
            (false, "/") => self.base.clone(),
            _ => format!("{}{path}", self.base),
        }
    }

    /// URL of a path with a query.
    pub(super) fn url_with(&self, path: &str, query: &[(&str, &str)]) -> String {
        let query = query_text(query);
        if query.is_empty() { self.url(path) } else { format!("{}?{query}", self.url(path)) }
    }

    /// URL of a search for tasks.
    pub(super) fn search(&self, query: &str) -> String {
        self.url(&search_path(query))
    }

    /// URL of a task's page.
    pub(super) fn task(&self, id: &str) -> String {
        self.url(&task_path(id))
    }

    /// URL of a page below a task's page.
    pub(super) fn below_task(&self, id: &str, page: &str) -> String {
        format!("{}/{page}", self.url(&format!("/tasks/{}", encoded(id))))
    }
}

/// Path of a task's page. Browsers resolve `.` and `..` in a path, so that these ids open as a search.
pub(super) fn task_path(id: &str) -> String {
    match id {
        "." | ".." => search_path(&format!("id:{id}")),
        id => format!("/tasks/{}", encoded(id)),
    }
}

/// Path of a search for tasks.
pub(super) fn search_path(query: &str) -> String {
    format!("/tasks?{}", query_text(&[("q", query)]))
}

/// Search with these qualifiers; values are quoted if they need it. Commas separate alternatives.
pub(super) fn search_text(terms: &[(&str, &str)]) -> String {
    let term = |(name, value): &(&str, &str)| {
        let values: Vec<String> = match *name {
            "own" | "state" => value.split(',').map(str::to_owned).collect(),
            _ => vec![quoted(value)],
        };
        format!("{name}:{}", values.join(","))
    };
    terms.iter().map(term).collect::<Vec<_>>().join(" ")
}

pub(super) fn query_text(query: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish()
}

/// Text as a segment of a path.
pub(super) fn encoded(text: &str) -> String {
    let encoded: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
    // Characters of ids that need no encoding in a path.
    encoded.replace('+', "%20").replace("%3A", ":").replace("%40", "@").replace("%7E", "~")
}

/// Size in the unit that leaves at most four digits: `24.6 kB`.
pub(super) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1_000 {
        return counted(bytes, "byte", "bytes");
    }
    // What rounds to a thousand of a unit is one of the next.
    let mut size = bytes as f64 / 1_000.0;
    let mut unit = 0;
    while size >= 999.95 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1_000.0, unit + 1);
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// Number of things with their noun: `1 task`, `2 tasks`.
pub(super) fn counted(number: u64, noun: &str, plural: &str) -> String {
    format!("{} {}", count(number), if number == 1 { noun } else { plural })
}

/// Message with its parts in backticks as code, and with its times as those of the page.
pub(super) fn prose(text: &str) -> Markup {
    let text = visible(text);
    let parts: Vec<&str> = text.split('`').collect();
    // An unpaired backtick stays as it is.
    let is_paired = parts.len() % 2 == 1;
    html! {
        @if is_paired {
            @for (n, part) in parts.iter().enumerate() { @if n % 2 == 1 { code { (part) } } @else { (with_times(part)) } }
        } @else { (with_times(&text)) }
    }
}

/// Text of a value, or a dash, by which cards leave the value out.
pub(super) fn optional_text(text: Option<&str>) -> Markup {
    html! { @match text { Some(text) => { (visible(text)) } None => { span.quiet { "–" } } } }
}

/// Number of a list, in which a nought is quiet. A dash stands for a number that is not known, or that there cannot be.
pub(super) fn tally(number: u64) -> Markup {
    html! { @if number == 0 { span.quiet { "0" } } @else { (count(number)) } }
}

/// First line of a text, of at most this many characters.
pub(super) fn first_line(text: &str, most: usize) -> String {
    let line = visible(text.lines().next().unwrap_or_default());
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
pub(super) mod tests;
