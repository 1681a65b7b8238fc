//! Selection and order of a list of types.

use clap::{Args, ValueEnum};
use kafleet_documents::{FlowDocument, TypeDocument};
use kafleet_model::record::state::{Category, State};

/// Types of a list, and their order.
#[derive(Debug, Default, Args)]
pub(super) struct ListedTypes {
    /// Only types with all of these words in their name, description or app, in any case
    #[arg(long, value_name = "WORDS")]
    pub text: Option<String>,
    /// Order: name; backlog, failed (unsuccessful tasks), in or out (attempts a minute), most first [default: name]
    #[arg(long, value_name = "ORDER")]
    pub sort: Option<TypesSort>,
}

/// Order of a list of types. Those of the same number are by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum TypesSort {
    #[default]
    Name,
    Backlog,
    Failed,
    In,
    Out,
}

impl ListedTypes {
    /// Types with the words, in the order.
    pub(super) fn select(&self, mut types: Vec<TypeDocument>) -> Vec<TypeDocument> {
        let text = self.text.as_deref().unwrap_or_default().to_lowercase();
        let has_word = |document: &TypeDocument, word: &str| {
            let texts = [Some(&document.name), document.doc.as_ref(), document.app.as_ref()];
            texts.into_iter().flatten().any(|part| part.to_lowercase().contains(word))
        };
        types.retain(|document| text.split_whitespace().all(|word| has_word(document, word)));
        let sort = self.sort.unwrap_or_default();
        types.sort_by(|a, b| sort.number(b).total_cmp(&sort.number(a)).then_with(|| a.name.cmp(&b.name)));
        types
    }
}

impl TypesSort {
    /// Number of a type by which it comes before those with smaller ones.
    fn number(self, document: &TypeDocument) -> f64 {
        let of_flow = |number: fn(&FlowDocument) -> f64| document.flow.as_ref().map_or(0.0, number);
        match self {
            Self::Name => 0.0,
            Self::Backlog => document.backlog as f64,
            Self::Failed => tasks_in(document, |state| state.category() == Category::Failed) as f64,
            Self::In => of_flow(|flow| flow.in_per_min),
            Self::Out => of_flow(|flow| flow.out_per_min),
        }
    }
}

/// Number of tasks in some states.
pub(super) fn tasks_in(document: &TypeDocument, is_counted: impl Fn(State) -> bool) -> u64 {
    document.counts.iter().filter(|(state, _)| is_counted(**state)).map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn types() -> Vec<TypeDocument> {
        let flow = |per_min: f64| json!({"in_per_min": per_min, "out_per_min": 9.0 - per_min, "backlog": 0, "verdict": "steady", "since": ""});
        let documents = json!([
            {"type": "charge", "topic": true, "counts": {"failed": 1}, "backlog": 0, "app": "shop", "flow": flow(2.0)},
            {"type": "mail", "topic": true, "counts": {"failed": 7, "queued": 9}, "backlog": 9, "doc": "Writes to a customer"},
            {"type": "pack", "topic": true, "counts": {"queued": 5}, "backlog": 5, "app": "Shop", "flow": flow(3.0)},
        ]);
        serde_json::from_value(documents).unwrap()
    }

    #[test]
    fn types_are_selected_by_words_and_sorted() {
        let names = |text: Option<&str>, sort: Option<TypesSort>| {
            let listed = ListedTypes { text: text.map(str::to_owned), sort };
            listed.select(types()).into_iter().map(|document| document.name).collect::<Vec<_>>()
        };
        assert_eq!(names(None, None), ["charge", "mail", "pack"]);
        for (sort, expected) in [
            (TypesSort::Backlog, ["mail", "pack", "charge"]),
            (TypesSort::Failed, ["mail", "charge", "pack"]),
            (TypesSort::In, ["pack", "charge", "mail"]),
            (TypesSort::Out, ["charge", "pack", "mail"]),
        ] {
            assert_eq!(names(None, Some(sort)), expected, "{sort:?}");
        }
        assert_eq!(names(Some("SHOP"), None), ["charge", "pack"]);
        assert_eq!(names(Some("shop  pa"), Some(TypesSort::In)), ["pack"]);
        assert_eq!(names(Some("customer mail"), None), ["mail"]);
        assert!(names(Some("shop mail"), None).is_empty());
    }
}
