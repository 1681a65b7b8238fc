//! Tables that scroll inside their box, and links between pages of a list.

use maud::{Markup, html};

use super::{View, count};

/// Rows of a page of types, workers or schedules.
const PAGE: usize = 200;

/// Table with a heading row. Columns of numbers begin with `#`, which is not shown; what follows a `|` is the tooltip of the
/// heading, such as the span of time of its numbers.
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
                    @let (column, title) = titled(column);
                    @match column.strip_prefix('#') {
                        Some(name) => { th.number scope="col" title=[title] { (name) } }
                        None if column.is_empty() => { th scope="col" { "Actions" } }
                        None => { th scope="col" title=[title] { (column) } }
                    }
                } } }
                tbody { @for row in rows { (row) } }
            }
        }
    }
}

/// Heading and its tooltip.
fn titled(column: &str) -> (&str, Option<&str>) {
    column.split_once('|').map_or((column, None), |(column, title)| (column, Some(title)))
}

/// Links to the first and the next page of a list with the newest first.
pub(in super::super) fn pager(first: Option<&str>, next: Option<&str>, note: &str) -> Markup {
    links(first.map(|first| (first, "← newest")), next.map(|next| (next, "older →")), note)
}

/// Pager of a search that stopped before the end of the list.
pub(in super::super) fn pager_of_search(first: Option<&str>, next: Option<&str>) -> Markup {
    links(first.map(|first| (first, "← newest")), next.map(|next| (next, "Search on")), "for up to 10 s")
}

/// Pager of a list in the order of creation.
pub(in super::super) fn pager_of_oldest(first: Option<&str>, next: Option<&str>, note: &str) -> Markup {
    links(first.map(|first| (first, "← first")), next.map(|next| (next, "next →")), note)
}

fn links(first: Option<(&str, &str)>, next: Option<(&str, &str)>, note: &str) -> Markup {
    html! {
        @if first.is_some() || next.is_some() || !note.is_empty() {
            nav.pager aria-label="pages" {
                @if let Some((url, text)) = first { a href=(url) { (text) } }
                @if let Some((url, text)) = next { a rel="next" href=(url) { (text) } }
                @if !note.is_empty() { span.quiet { (note) } }
            }
        }
    }
}

/// Page of a list that is sorted as a whole.
pub(in super::super) struct PagedList<T> {
    pub items: Vec<T>,
    /// Number of items of all pages.
    pub total: usize,
    /// Number of the page, from 1.
    number: usize,
}

impl<T> PagedList<T> {
    /// Returns the page of this number, or the last one if there are fewer.
    pub(in super::super) fn new(mut all: Vec<T>, number: usize) -> Self {
        let total = all.len();
        let number = number.clamp(1, total.div_ceil(PAGE).max(1));
        let mut items = all.split_off((number - 1) * PAGE);
        items.truncate(PAGE);
        Self { items, total, number }
    }

    /// Links to the pages before and after this one.
    pub(in super::super) fn pager(&self, view: &View, path: &str, noun: &str) -> Markup {
        let url = |number: usize| view.url_with(path, &[("page", &number.to_string())]);
        let first = (self.number - 1) * PAGE;
        html! {
            @if self.total > PAGE {
                nav.pager aria-label="pages" {
                    @if self.number > 1 { a rel="prev" href=(url(self.number - 1)) { "← previous" } }
                    @if first + self.items.len() < self.total { a rel="next" href=(url(self.number + 1)) { "next →" } }
                    span.quiet {
                        (noun) " " (count(first + 1)) " to " (count(first + self.items.len())) " of " (count(self.total))
                        ", those in trouble first"
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_tooltips_and_columns_of_actions_a_name() {
        let drawn = table(&["Type", "#Failed/min|last full minute", ""], &[]).into_string();
        assert!(
            drawn.contains("<th class=\"number\" scope=\"col\" title=\"last full minute\">Failed/min</th>"),
            "{drawn}"
        );
        assert!(drawn.contains("<th scope=\"col\">Actions</th>"), "{drawn}");
    }

    #[test]
    fn pages_of_a_list_have_all_items_once() {
        let page = |number| {
            let page = PagedList::new((0..450).collect(), number);
            (page.items.first().copied(), page.items.len())
        };
        assert_eq!([page(0), page(1)], [(Some(0), 200); 2]);
        assert_eq!([page(2), page(3), page(99)], [(Some(200), 200), (Some(400), 50), (Some(400), 50)]);
        assert_eq!(PagedList::new(Vec::<u8>::new(), 1).items.len(), 0);
    }
}
