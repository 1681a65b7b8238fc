//! Output to stdout: a table for people or JSON for programs, with colours on terminals only.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use kafleet_model::record::state::State;
use owo_colors::{AnsiColors, OwoColorize};
use serde::Serialize;

use super::exit::Failure;
use super::globals::{Colors, Format};

/// Destination and format of data.
#[derive(Clone, Copy)]
pub(super) struct Output {
    pub format: Format,
    pub paint: Paint,
    /// Whether stdout is a terminal.
    pub terminal: bool,
}

impl Output {
    pub(super) fn stdout(format: Format, colors: Colors) -> Self {
        let terminal = io::stdout().is_terminal();
        Self { format, paint: Paint(colored(colors, terminal, |name| std::env::var(name).ok())), terminal }
    }

    pub(super) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Writes text and a newline.
    pub(super) fn line(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    }

    /// Writes an indented JSON document.
    pub(super) fn json(&self, document: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(document).map_err(Failure::failed)?;
        self.line(&text)
    }

    /// Writes a JSON document on one line, as part of a stream.
    pub(super) fn json_line(&self, document: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(document).map_err(Failure::failed)?;
        self.line(&text)
    }

    /// Writes a list. Without rows stdout stays empty and the message `empty` goes to stderr.
    pub(super) fn list(&self, rows: Rows, empty: impl std::fmt::Display) -> Result<(), Failure> {
        if rows.rows.is_empty() {
            eprint_line(empty);
            return Ok(());
        }
        self.table(rows)
    }

    pub(super) fn table(&self, rows: Rows) -> Result<(), Failure> {
        self.line(&rows.draw(self.paint, self.terminal))
    }

    /// Writes a document as JSON, or its text.
    pub(super) fn json_or_line<D: Serialize>(
        &self,
        document: &D,
        text: impl FnOnce(&D) -> String,
    ) -> Result<(), Failure> {
        if self.is_json() { self.json(document) } else { self.line(&text(document)) }
    }

    /// Writes a document as JSON, or its rows as a table.
    pub(super) fn json_or_table<D: Serialize>(
        &self,
        document: &D,
        rows: impl FnOnce(&D) -> Rows,
    ) -> Result<(), Failure> {
        if self.is_json() { self.json(document) } else { self.table(rows(document)) }
    }

    /// Writes a document as JSON, or its rows as [`Self::list`] does.
    pub(super) fn json_or_list<D: Serialize>(
        &self,
        document: &D,
        rows: impl FnOnce(&D) -> Rows,
        empty: impl std::fmt::Display,
    ) -> Result<(), Failure> {
        if self.is_json() { self.json(document) } else { self.list(rows(document), empty) }
    }

    /// Names the command that follows a task, if stdout is a terminal.
    pub(super) fn hint_to_follow(&self, task: &str) {
        if self.terminal {
            eprint_line(format_args!("follow it with `kafleet watch {task}`"));
        }
    }
}

/// Returns whether to use colours. `NO_COLOR` counts if it is set and not empty (no-color.org).
fn colored(colors: Colors, terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    match colors {
        Colors::Always => true,
        Colors::Never => false,
        Colors::Auto => {
            let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
            let dumb = variable("TERM").is_some_and(|value| value == "dumb");
            terminal && !refused && !dumb
        }
    }
}

/// Text styling; `Paint(false)` leaves text plain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint(pub bool);

impl Paint {
    pub(super) fn state(self, state: State) -> String {
        self.paint_as(state, state.name())
    }

    /// Returns text in the colour of a state.
    pub(super) fn paint_as(self, state: State, text: &str) -> String {
        match (self.0, hue(state)) {
            (true, Some(hue)) => text.color(hue).to_string(),
            _ => text.to_owned(),
        }
    }

    pub(super) fn dim(self, text: &str) -> String {
        if self.0 { text.dimmed().to_string() } else { text.to_owned() }
    }

    pub(super) fn bold(self, text: &str) -> String {
        if self.0 { text.bold().to_string() } else { text.to_owned() }
    }
}

fn hue(state: State) -> Option<AnsiColors> {
    match state {
        State::Succeeded => Some(AnsiColors::Green),
        State::Failed | State::Expired => Some(AnsiColors::Red),
        State::Retrying | State::Cancelling | State::Cancelled | State::Warning => Some(AnsiColors::Yellow),
        State::Running | State::WaitingForChildren => Some(AnsiColors::Cyan),
        State::Expected | State::Scheduled | State::Queued => None,
    }
}

fn cell_color(hue: AnsiColors) -> Color {
    match hue {
        AnsiColors::Green => Color::DarkGreen,
        AnsiColors::Red => Color::DarkRed,
        AnsiColors::Yellow => Color::DarkYellow,
        _ => Color::DarkCyan,
    }
}

/// Header and rows of a table.
pub(super) struct Rows {
    header: Vec<&'static str>,
    rows: Vec<Vec<Field>>,
}

/// Content of a table field.
pub(super) enum Field {
    Text(String),
    Number(u64),
    State(State),
    Empty,
}

impl From<Option<String>> for Field {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Empty, Self::Text)
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Rows {
    pub(super) fn new(header: impl Into<Vec<&'static str>>) -> Self {
        Self { header: header.into(), rows: Vec::new() }
    }

    pub(super) fn add(&mut self, row: impl Into<Vec<Field>>) {
        self.rows.push(row.into());
    }

    /// Renders the table: fitted to the width of a terminal, otherwise with lines of any length.
    pub(super) fn draw(&self, paint: Paint, terminal: bool) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let fit = if terminal { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        table.set_content_arrangement(fit);
        if paint.0 {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(self.header.iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
        for row in &self.rows {
            table.add_row(row.iter().map(table_cell));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }
}

fn table_cell(field: &Field) -> Cell {
    match field {
        Field::Text(text) => Cell::new(one_line(text)),
        Field::Number(number) => Cell::new(number).set_alignment(CellAlignment::Right),
        Field::State(state) => match hue(*state) {
            Some(hue) => Cell::new(state.name()).fg(cell_color(hue)),
            None => Cell::new(state.name()),
        },
        Field::Empty => Cell::new("-"),
    }
}

/// Replaces control characters by spaces, so that foreign text can neither move the cursor nor break the line.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Warns that a list or count lacks tasks of these events partitions.
pub(super) fn eprint_incomplete(partitions: &[u32]) {
    if !partitions.is_empty() {
        let listed: Vec<String> = partitions.iter().map(u32::to_string).collect();
        eprint_line(format_args!(
            "incomplete: the store has lost data of events partitions {}, or no tracker projects them; see `/readyz` of the \
             trackers",
            listed.join(", ")
        ));
    }
}

/// Writes a message to stderr, ignoring errors.
pub(super) fn eprint_line(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_used_on_terminals_that_allow_them() {
        let none = |_: &str| None;
        assert!(colored(Colors::Auto, true, none));
        assert!(!colored(Colors::Auto, false, none));
        assert!(!colored(Colors::Auto, true, |name| (name == "NO_COLOR").then(|| "1".into())));
        assert!(colored(Colors::Auto, true, |name| (name == "NO_COLOR").then(String::new)));
        assert!(!colored(Colors::Auto, true, |name| (name == "TERM").then(|| "dumb".into())));
        assert!(colored(Colors::Always, false, none));
        assert!(!colored(Colors::Never, true, none));
    }

    #[test]
    fn table_has_aligned_columns() {
        let mut rows = Rows::new(["TYPE", "STATE", "COUNT"]);
        rows.add([Field::from("echo"), Field::State(State::Succeeded), Field::Number(7)]);
        rows.add([Field::from("evil\u{1b}[2J\nname"), Field::Empty, Field::Number(12_000)]);
        let expected = "\
TYPE           STATE      COUNT
echo           succeeded      7
evil [2J name  -          12000";
        assert_eq!(rows.draw(Paint(false), false), expected);
    }
}
