//! Tables whose rows are cards in narrow boxes, and links between pages of a list.

use maud::{Markup, PreEscaped, html};

use super::{View, count};

/// Rows of a page of types, workers or schedules.
const PAGE: usize = 200;
/// Parts between `<` of a column without a value, after that of its `td`.
const NOTHING: [&str; 2] = ["span class=\"quiet\">–", "/span>"];

/// Table with a heading row. Columns of numbers begin with `#`, which is not shown; what follows a `|` is the tooltip of the
/// heading, such as the span of time of its numbers. In a narrow box each row is a card without headings, whose values have
/// the names of their columns.
pub(in super::super) fn table(columns: &[&str], rows: &[Markup]) -> Markup {
    markup(columns, rows, "cards")
}

/// Table with many columns of numbers, closer together.
pub(in super::super) fn dense_table(columns: &[&str], rows: &[Markup]) -> Markup {
    markup(columns, rows, "cards dense")
}

fn markup(columns: &[&str], rows: &[Markup], class: &str) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="table" {
            table class=(class) {
                thead { tr { @for column in columns {
                    @let (column, title) = titled(column);
                    @match column.strip_prefix('#') {
                        Some(name) => { th.number scope="col" title=[title] { (name) } }
                        None if column.is_empty() => { th.action scope="col" { "Actions" } }
                        None => { th scope="col" title=[title] { (column) } }
                    }
                } } }
                tbody { @for row in rows { (labelled(columns, row)) } }
            }
        }
    }
}

/// Row whose values name their columns. A row has no `<` but those of its tags, as texts are escaped.
fn labelled(columns: &[&str], row: &Markup) -> Markup {
    let parts: Vec<&str> = row.0.split('<').collect();
    let mut out = String::with_capacity(row.0.len() + 32 * columns.len());
    // A table within a value has columns of its own.
    let mut depth = 0_usize;
    let mut names = columns.iter().map(|column| titled(column).0.trim_start_matches('#'));
    for (n, part) in parts.iter().enumerate() {
        out.push_str(if n > 0 { "<" } else { "" });
        match tag_of(part) {
            "table" => depth += 1,
            "/table" => depth = depth.saturating_sub(1),
            tag @ ("td" | "th") if depth == 0 => {
                out.push_str(tag);
                out.push_str(&label_of(names.next().unwrap_or_default(), &parts[n + 1..]));
                out.push_str(&part[tag.len()..]);
                continue;
            }
            _ => {}
        }
        out.push_str(part);
    }
    PreEscaped(out)
}

/// Name of the tag at the beginning of a text, with the `/` of its end.
fn tag_of(part: &str) -> &str {
    part.split(|c: char| c.is_whitespace() || c == '>').next().unwrap_or_default()
}

/// Attributes of a `td`: its column, and whether it has no value.
fn label_of(name: &str, contents: &[&str]) -> String {
    let is_empty = contents.starts_with(&NOTHING) && contents.get(2).is_some_and(|end| end.starts_with("/td"));
    let name = html! { (name) }.into_string();
    let label = if name.is_empty() { name } else { format!(" data-label=\"{name}\"") };
    if is_empty { format!("{label} data-none") } else { label }
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
    links(first.map(|first| (first, "← first")), next.map(|next| (next, "more →")), note)
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

    /// Links to the pages before and after this one, of a list with those in trouble first.
    pub(in super::super) fn pager(&self, view: &View, path: &str, noun: &str) -> Markup {
        self.pager_of(view, path, &[], noun, "those in trouble first")
    }

    /// Links to the pages before and after this one. `query`: parameters that the pages share; `order`: that of the list.
    pub(in super::super) fn pager_of(
        &self,
        view: &View,
        path: &str,
        query: &[(&str, &str)],
        noun: &str,
        order: &str,
    ) -> Markup {
        let url = |number: usize| {
            let number = number.to_string();
            let page = [("page", number.as_str())];
            view.url_with(path, &query.iter().copied().chain(page).collect::<Vec<_>>())
        };
        let first = (self.number - 1) * PAGE;
        html! {
            @if self.total > PAGE {
                nav.pager aria-label="pages" {
                    @if self.number > 1 { a rel="prev" href=(url(self.number - 1)) { "← previous" } }
                    @if first + self.items.len() < self.total { a rel="next" href=(url(self.number + 1)) { "next →" } }
                    span.quiet {
                        (noun) " " (count(first + 1)) " to " (count(first + self.items.len())) " of " (count(self.total))
                        ", " (order)
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
        assert!(drawn.contains("<th class=\"action\" scope=\"col\">Actions</th>"), "{drawn}");
    }

    #[test]
    fn values_name_their_columns_for_cards() {
        let inner = html! { table { tr { td { "1" } th { "2" } } } };
        let row = html! {
            tr { th scope="row" { "<td>" } td.number { (count(7)) } td { (inner) } td.time { span.quiet { "–" } } td.action {} }
        };
        let drawn = table(&["Type|now", "#Open", "Messages", "Last", ""], &[row]).into_string();
        let body = drawn.split_once("<tbody>").unwrap().1;
        assert_eq!(
            body.split_once("</tbody>").unwrap().0,
            "<tr><th data-label=\"Type\" scope=\"row\">&lt;td&gt;</th><td data-label=\"Open\" class=\"number\">7</td>\
             <td data-label=\"Messages\"><table><tr><td>1</td><th>2</th></tr></table></td>\
             <td data-label=\"Last\" data-none class=\"time\"><span class=\"quiet\">–</span></td><td class=\"action\"></td></tr>"
        );
    }

    #[test]
    fn pages_of_a_list_keep_its_filter() {
        let page = PagedList::new((0..450).collect(), 2);
        let view = View::for_tests(kafleet_config::Role::Read);
        let links = page.pager_of(&view, "/types", &[("sort", "open")], "types", "most open tasks first").into_string();
        assert!(links.contains("href=\"/types?sort=open&amp;page=3\""), "{links}");
        assert!(links.contains("types 201 to 400 of 450, most open tasks first"), "{links}");
    }

    #[test]
    fn pages_of_a_list_have_have_all_items_once() {
        let page = |number| {
            let page = PagedList::new((0..450).collect(), number);
            (page.items.first().copied(), page.items.len())
        };
        assert_eq!([page(0), page(1)], [(Some(0), 200); 2]);
        assert_eq!([page(2), page(3), page(99)], [(Some(200), 200), (Some(400), 50), (Some(400), 50)]);
        assert_eq!(PagedList::new(Vec::<u8>::new(), 1).items.len(), 0);
    }
}
