//! List of tasks as the URL of its page describes it: search, order and columns.

use kafleet_documents::{ListSource, TaskColumn, TaskColumns, TaskSort};
use maud::{Markup, html};

use super::{View, query_text};

/// Columns of a list that names none. Names and tags are beside the id, and progress, worker and error share a column.
const DEFAULT_COLUMNS: &[TaskColumn] = &[
    TaskColumn::State,
    TaskColumn::Id,
    TaskColumn::Type,
    TaskColumn::Created,
    TaskColumn::Time,
    TaskColumn::Children,
    TaskColumn::Error,
];

/// Search with the order and the columns of its list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Listing {
    pub q: String,
    pub sort: TaskSort,
    /// `None`: the default ones.
    pub columns: Option<TaskColumns>,
}

impl Listing {
    /// Fields of a URL, without those that have their default.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let sort = (self.sort != TaskSort::Newest).then(|| ("sort", self.sort.name().to_owned()));
        let columns = self.columns.as_ref().map(|columns| ("columns", columns.text()));
        [("q", self.q.clone())].into_iter().chain(sort).chain(columns).collect()
    }

    /// Query of a URL, with further fields.
    pub(in super::super) fn query(&self, more: &[(&str, &str)]) -> String {
        let fields = self.fields();
        let fields = fields.iter().map(|(name, value)| (*name, value.as_str()));
        query_text(&fields.chain(more.iter().copied()).collect::<Vec<_>>())
    }

    /// Path of the page, below the base path.
    pub(in super::super) fn path(&self) -> String {
        format!("/tasks?{}", self.query(&[]))
    }

    pub(in super::super) fn url(&self, view: &View) -> String {
        view.url(&self.path())
    }

    /// URL of another search with the same order and columns.
    pub(in super::super) fn url_of(&self, view: &View, q: &str) -> String {
        Self { q: q.to_owned(), ..self.clone() }.url(view)
    }

    /// URL of the same search in another order.
    pub(in super::super) fn url_sorted(&self, view: &View, sort: TaskSort) -> String {
        Self { sort, ..self.clone() }.url(view)
    }

    /// Order and columns as hidden fields of a form.
    pub(in super::super) fn hidden_fields(&self) -> Markup {
        let fields = self.fields();
        html! {
            @for (name, value) in fields.iter().filter(|(name, _)| *name != "q") {
                input type="hidden" name=(name) value=(value);
            }
        }
    }

    /// Links that download the tasks of the search.
    pub(in super::super) fn export_links(&self, view: &View) -> Markup {
        let newest = Self { sort: TaskSort::Newest, ..self.clone() };
        let url = |format: &str| view.url(&format!("/export?{}", newest.query(&[("format", format)])));
        html! {
            span.quiet title="the newest 10,000 tasks at most" {
                "Export as " a href=(url("csv")) download { "CSV" } " or " a href=(url("jsonl")) download { "JSON lines" }
            }
        }
    }

    /// Form that chooses the columns.
    pub(in super::super) fn column_form(&self, view: &View) -> Markup {
        let shown = self.columns.as_ref().map_or(DEFAULT_COLUMNS, |columns| &columns.0);
        let sort = (self.sort != TaskSort::Newest).then(|| self.sort.name());
        html! {
            details.more #columns {
                summary { "Columns" }
                form.columns-form action=(view.url("/tasks")) {
                    input type="hidden" name="q" value=(self.q);
                    @if let Some(sort) = sort { input type="hidden" name="sort" value=(sort); }
                    @for column in TaskColumn::ALL {
                        label {
                            input type="checkbox" name="column" value=(column.name()) checked[shown.contains(&column)];
                            " " (column.name())
                        }
                    }
                    button type="submit" { "Show" }
                    @if self.columns.is_some() {
                        a.button href=(Self { columns: None, ..self.clone() }.url(view)) { "Default columns" }
                    }
                }
            }
        }
    }
}

/// Index that the tasks of a list come from.
pub(in super::super) const fn source_name(source: Option<ListSource>) -> &'static str {
    match source {
        Some(ListSource::Ids) => "the tasks of these ids",
        Some(ListSource::Tree) => "from the tree",
        Some(ListSource::States) => "from the indexes by type and state",
        Some(ListSource::Errors) => "from the indexes of failed tasks by error",
        Some(ListSource::Trees) => "from all trees",
        Some(ListSource::Roots) | None => "from the index of all roots",
    }
}

#[cfg(test)]
mod tests {
    use kafleet_config::Role;

    use super::*;

    #[test]
    fn url_has_order_and_columns_only_where_they_differ_from_the_default() {
        let view = View { base: "/fleet".into(), ..View::for_tests(Role::Read) };
        let plain = Listing { q: "tag:ci".into(), ..Listing::default() };
        assert_eq!(plain.url(&view), "/fleet/tasks?q=tag%3Aci");
        let listing = Listing { sort: TaskSort::Oldest, columns: Some("id,error".parse().unwrap()), ..plain };
        assert_eq!(listing.url_of(&view, "a"), "/fleet/tasks?q=a&sort=oldest&columns=id%2Cerror");
        assert_eq!(listing.url_sorted(&view, TaskSort::Newest), "/fleet/tasks?q=tag%3Aci&columns=id%2Cerror");
        assert_eq!(listing.query(&[("cursor", "x")]), "q=tag%3Aci&sort=oldest&columns=id%2Cerror&cursor=x");
        let fields = listing.hidden_fields().into_string();
        assert!(fields.contains("name=\"columns\"") && !fields.contains("name=\"q\""), "{fields}");
    }

    #[test]
    fn exports_have_the_columns_of_the_list_and_no_order() {
        let view = View::for_tests(Role::Read);
        let columns = Some("id,error".parse().unwrap());
        let listing = Listing { q: "state:failed".into(), sort: TaskSort::Oldest, columns };
        let links = listing.export_links(&view).into_string();
        let link = "href=\"/export?q=state%3Afailed&amp;columns=id%2Cerror&amp;format=csv\" download>CSV";
        assert!(links.contains(link), "{links}");
    }

    #[test]
    fn form_of_columns_has_those_shown_checked() {
        let view = View::for_tests(Role::Read);
        let listing = Listing { columns: Some("id,tags".parse().unwrap()), ..Listing::default() };
        let form = listing.column_form(&view).into_string();
        assert!(form.contains("value=\"tags\" checked"), "{form}");
        assert!(!form.contains("value=\"worker\" checked") && form.contains("Default columns"), "{form}");
    }
}
