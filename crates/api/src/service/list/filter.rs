//! Filter of the task list: a query, in the form in which records are compared and the index is chosen.

use kafleet_model::error_fingerprint::ErrorFilter;
use kafleet_model::query::{Condition, Qualifier, TaskQuery, Term, Test, TreeLevel, pattern};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::{Category, State};
use kafleet_model::task::id::TaskId;
use kafleet_store::Entry;
use regex::Regex;

use crate::http::problem::ApiError;
use crate::http::request::bad_parameter;
use crate::read::consistency::TaskView;

/// Compiled query. The conditions that may select an index are separate from those that need the records.
pub(super) struct Filter {
    /// Types, one of which must match; empty for all.
    pub types: Vec<String>,
    /// States, one of which must match; empty for all.
    pub states: Vec<State>,
    /// Ids, one of which must match; empty for all.
    pub ids: Vec<TaskId>,
    pub under: Option<TaskId>,
    /// Errors, one of which must match, each given as one word: a name, a kind, or a short message. Empty for all, and if
    /// an error is given as a longer text.
    pub errors: Vec<ErrorFilter>,
    pub level: TreeLevel,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
    details: Vec<Detail>,
}

/// Condition that no index contains, so that records must be read and compared.
struct Detail {
    negated: bool,
    matcher: Matcher,
}

enum Matcher {
    Texts(Qualifier, Vec<String>),
    Patterns(Vec<Regex>),
    Errors(Vec<ErrorFilter>),
    States(Vec<State>),
    Own(Vec<State>),
    Ids(Vec<TaskId>),
    Under(Vec<TaskId>),
    Is(Vec<Condition>),
    /// Beginning of the id, or a part of the name in any case.
    Word {
        id: String,
        part: String,
    },
}

impl Filter {
    /// Compiles a query. Ages in it count back from `now_ms`.
    pub(super) fn new(query: TaskQuery, now_ms: i64) -> Result<Self, ApiError> {
        let mut filter = Self {
            types: Vec::new(),
            states: Vec::new(),
            ids: Vec::new(),
            under: None,
            errors: Vec::new(),
            level: query.level(),
            from_ms: None,
            to_ms: None,
            details: Vec::new(),
        };
        for term in query.terms {
            filter.add(term, now_ms)?;
        }
        if filter.from_ms.zip(filter.to_ms).is_some_and(|(from_ms, to_ms)| from_ms > to_ms) {
            return Err(bad_parameter("from", "it must not be later than `to`"));
        }
        Ok(filter)
    }

    /// Creates the filter of a query for tasks of any level, unless the query names one.
    pub(super) fn of_any_level(query: TaskQuery, now_ms: i64) -> Result<Self, ApiError> {
        let level = query.named_level().unwrap_or(TreeLevel::Any);
        Ok(Self { level, ..Self::new(query, now_ms)? })
    }

    fn add(&mut self, Term { negated, test }: Term, now_ms: i64) -> Result<(), ApiError> {
        let details = &mut self.details;
        let mut add = |matcher| details.push(Detail { negated, matcher });
        match test {
            Test::Text(Qualifier::Type, types) if !negated => self.types = unique(types),
            Test::State(states) if !negated => self.states = unique(states),
            Test::Id(ids) if !negated => self.ids = unique(ids),
            Test::Under(tops) if !negated && tops.len() == 1 => self.under = tops.into_iter().next(),
            // [`TaskQuery::level`] has read it.
            Test::Level(_) => {}
            Test::From(time) => self.from_ms = Some(time.resolve(now_ms)),
            Test::To(time) => self.to_ms = Some(time.resolve(now_ms)),
            Test::Text(Qualifier::NameLike, patterns) => {
                let compiled = patterns.iter().map(|text| pattern(text)).collect::<Result<_, _>>();
                add(Matcher::Patterns(compiled.map_err(|fault| bad_parameter("name_like", &fault.message))?));
            }
            Test::Text(Qualifier::Error, errors) => {
                let filters: Vec<ErrorFilter> = errors.iter().map(|text| ErrorFilter::new(text)).collect();
                let are_words = filters.iter().all(|filter| filter.fingerprints(&[]).is_some());
                if are_words && !negated {
                    self.errors.extend(filters.iter().cloned());
                }
                add(Matcher::Errors(filters));
            }
            Test::Text(qualifier, values) => add(Matcher::Texts(qualifier, values)),
            Test::State(states) => add(Matcher::States(states)),
            Test::Own(states) => add(Matcher::Own(states)),
            Test::Id(ids) => add(Matcher::Ids(ids)),
            Test::Under(tops) => add(Matcher::Under(tops)),
            Test::Is(conditions) => add(Matcher::Is(conditions)),
            Test::Word(word) => add(Matcher::Word { part: word.to_lowercase(), id: word }),
        }
        Ok(())
    }

    /// Returns true if all states to filter on have an index.
    pub(super) fn has_indexed_states(&self) -> bool {
        !self.states.is_empty() && self.states.iter().all(|state| state.is_indexed())
    }

    /// Whether the indexes of failed tasks by error contain all matches: tasks whose own state is failed or expired.
    pub(super) fn has_indexed_errors(&self) -> bool {
        let is_failed = |state: &State| matches!(state, State::Failed | State::Expired);
        let fails = |detail: &Detail| match &detail.matcher {
            Matcher::Own(states) => !detail.negated && states.iter().all(is_failed),
            _ => false,
        };
        !self.types.is_empty() && !self.errors.is_empty() && self.details.iter().any(fails)
    }

    /// Whether the tasks that match are in an index or in a part of one that is read to its end.
    pub(super) fn is_narrow(&self) -> bool {
        let is_bounded = self.from_ms.is_some() || self.under.is_some() || !self.ids.is_empty();
        is_bounded || self.has_indexed_states() || self.has_indexed_errors()
    }

    /// Whether the filter restricts type or state.
    pub(super) fn filters_kind(&self) -> bool {
        !self.types.is_empty() || !self.states.is_empty()
    }

    pub(super) fn filters_time(&self) -> bool {
        self.from_ms.is_some() || self.to_ms.is_some()
    }

    pub(super) fn filters_details(&self) -> bool {
        !self.details.is_empty()
    }

    /// Whether the counters by type and state know the number of tasks that match. They do not contain tasks whose
    /// type is not known yet.
    pub(super) fn is_counted(&self) -> bool {
        let is_other = self.filters_details() || self.filters_time() || self.under.is_some() || !self.ids.is_empty();
        self.level == TreeLevel::Any && !is_other && (!self.types.is_empty() || self.has_indexed_states())
    }

    /// Whether the filter selects tasks of this type and state, level and other conditions aside.
    pub(super) fn selects(&self, task_type: &str, state: State) -> bool {
        (self.types.is_empty() || self.types.iter().any(|name| name == task_type))
            && (self.states.is_empty() || self.states.contains(&state))
    }

    /// Returns the start position in an index sorted newest first: the cursor or the end of the time range, whichever
    /// is older. `None`: the newest entry.
    pub(super) fn start(&self, cursor: Option<Entry>) -> Option<Entry> {
        // No id sorts before `-`, so this position follows every entry at or after that time.
        let end = self.to_ms.and_then(|to_ms| Some(Entry { seen_ms: to_ms, id: TaskId::parse("-").ok()? }));
        match (cursor, end) {
            (Some(cursor), Some(end)) => Some(cursor.min(end)),
            (cursor, end) => cursor.or(end),
        }
    }

    /// Whether an entry is older than the start of the time range.
    pub(super) fn is_before(&self, entry: &Entry) -> bool {
        self.from_ms.is_some_and(|from_ms| entry.seen_ms < from_ms)
    }

    pub(super) fn matches(&self, task: &TaskView) -> bool {
        let record = &task.record;
        let seen_ms = record.times.seen_ms;
        (self.level == TreeLevel::Any || task.id.is_root())
            && (self.states.is_empty() || self.states.contains(&record.state))
            && (self.types.is_empty() || self.types.iter().any(|name| text_matches(Qualifier::Type, name, record)))
            && (self.ids.is_empty() || self.ids.contains(&task.id))
            && self.under.as_ref().is_none_or(|top| task.id.is_within(top.as_str()))
            && self.from_ms.is_none_or(|from_ms| seen_ms >= from_ms)
            && self.to_ms.is_none_or(|to_ms| seen_ms < to_ms)
            && self.details.iter().all(|detail| detail.matcher.matches(&task.id, record) != detail.negated)
    }
}

fn unique<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    let mut unique = Vec::with_capacity(values.len());
    for value in values {
        if !unique.contains(&value) {
            unique.push(value);
        }
    }
    unique
}

impl Matcher {
    fn matches(&self, id: &TaskId, record: &TaskRecord) -> bool {
        match self {
            Self::Texts(qualifier, values) => values.iter().any(|value| text_matches(*qualifier, value, record)),
            Self::Patterns(patterns) => {
                name(record).is_some_and(|name| patterns.iter().any(|pattern| pattern.is_match(name)))
            }
            Self::Errors(errors) => {
                let error = record.outcome.error.as_deref();
                errors.iter().any(|filter| filter.matches(error))
            }
            Self::States(states) => states.contains(&record.state),
            Self::Own(states) => states.contains(&record.own),
            Self::Ids(ids) => ids.contains(id),
            Self::Under(tops) => tops.iter().any(|top| id.is_within(top.as_str())),
            Self::Is(conditions) => conditions.iter().any(|condition| is(*condition, id, record)),
            Self::Word { id: beginning, part } => {
                id.as_str().starts_with(beginning.as_str())
                    || name(record).is_some_and(|name| name.to_lowercase().contains(part))
            }
        }
    }
}

fn is(condition: Condition, id: &TaskId, record: &TaskRecord) -> bool {
    match condition {
        Condition::Open => !record.state.is_terminal(),
        Condition::Ended => record.state.is_terminal(),
        Condition::Failed => record.state.category() == Category::Failed,
        Condition::Root => id.is_root(),
    }
}

fn name(record: &TaskRecord) -> Option<&str> {
    record.definition.policy.as_deref()?.name.as_deref()
}

/// Compares a text with a field. Patterns and errors are compiled instead.
fn text_matches(qualifier: Qualifier, value: &str, record: &TaskRecord) -> bool {
    let policy = record.definition.policy.as_deref();
    match qualifier {
        Qualifier::Type => record.task_type.as_deref() == Some(value),
        Qualifier::Worker => record.worker.as_deref() == Some(value),
        Qualifier::Name => name(record).is_some_and(|name| name.starts_with(value)),
        Qualifier::Tag => policy.is_some_and(|policy| policy.tags.iter().any(|tag| tag == value)),
        Qualifier::Creator => policy.and_then(|policy| policy.creator.as_deref()) == Some(value),
        Qualifier::Schedule => {
            let options = policy.and_then(|policy| policy.rules.options.as_ref());
            options.and_then(|options| options.slice().member("schedule")?.string()).as_deref() == Some(value)
        }
        _ => false,
    }
}
