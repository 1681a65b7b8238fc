//! Tables that scroll inside their box, and links between pages of a list.

use maud::{Markup, html};

/// Table with a heading row. Columns of numbers begin with `#`, which is not shown.
pub(in super::super) fn table(columns: &[&str], rows: &[Markup]) -> Markup {
    markup(columns, rows, false)
}

/// Table whose rows are cards on narrow screens: without headings, its `message` on a line of its own.
pub(in super::super) fn cards(columns: &[&str], rows: &[Markup]) -> Markup {
    markup(columns, rows, true)
}

fn markup(columns: &[&str], rows: &[Markup], are_cards: bool) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="table" {
            table.cards[are_cards] {
                thead { tr { @for column in columns {
                    @match column.strip_prefix('#') {
                        Some(name) => { th.number scope="col" { (name) } }
                        None if column.is_empty() => { th scope="col" { span.hidden { "Actions" } } }
                        None => { th scope="col" { (column) } }
                    }
                } } }
                tbody { @for row in rows { (row) } }
            }
        }
    }
}

/// Links to the first and the next page.
pub(in super::super) fn pager(first: Option<&str>, next: Option<&str>, note: &str) -> Markup {
    html! {
        @if first.is_some() || next.is_some() || !note.is_empty() {
            nav.pager aria-label="pages" {
                @if let Some(first) = first { a href=(first) { "← newest" } }
                @if let Some(next) = next { a rel="next" href=(next) { "older →" } }
                @if !note.is_empty() { span.quiet { (note) } }
            }
        }
    }
}
