//! Search language of tasks, such as `type:resize,thumb state:failed -tag:test "build main"`: queries as values, parsed
//! from text and printed as text. Pure: the list service of the API chooses the index and compares the records.

use std::fmt;

use crate::record::state::State;
use crate::task::id::TaskId;
use crate::task::param_tags::{self, PREFIX};
use crate::units::duration::Millis;
use crate::units::time::time_text;

mod completion;
mod mistake;
mod parse;
mod qualifier;
#[cfg(test)]
mod tests;
mod values;

pub use completion::Completion;
pub use mistake::Mistake;
pub use qualifier::Qualifier;
pub use values::{Fault, pattern};

/// Maximum length of a query, in bytes.
pub const MAX_QUERY_BYTES: usize = 8 << 10;
/// Maximum number of terms of a query.
pub(crate) const MAX_TERMS: usize = 32;
/// Maximum number of values of a term.
pub const MAX_VALUES: usize = 100;

/// Search for tasks that fulfil all terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskQuery {
    pub terms: Vec<Term>,
}

/// Condition on a task, or its negation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub negated: bool,
    pub test: Test,
}

/// Condition on a task. Of several values, one must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// Texts of the fields `type`, `tag`, `creator`, `name`, `name_like`, `error`, `worker` or `schedule`.
    Text(Qualifier, Vec<String>),
    State(Vec<State>),
    Own(Vec<State>),
    Id(Vec<TaskId>),
    /// Tasks with their descendants.
    Under(Vec<TaskId>),
    Is(Vec<Condition>),
    Level(TreeLevel),
    From(QueryTime),
    To(QueryTime),
    /// Beginning of the id of a task, or a part of its name.
    Word(String),
}

/// Value of `is`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Open,
    Ended,
    /// Ended without success.
    Failed,
    Root,
}

impl Condition {
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Open, "open"), (Self::Ended, "ended"), (Self::Failed, "failed"), (Self::Root, "root")];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Depth of the listed tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeLevel {
    Roots,
    Any,
}

impl TreeLevel {
    pub const ALL: [(Self, &'static str); 2] = [(Self::Roots, "roots"), (Self::Any, "any")];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl TaskQuery {
    /// Level of the tasks that the query finds: the one that it names, or its default. The default is roots, which are
    /// what was submitted. Queries about ids, trees, types, errors and workers concern all tasks, and so do those that
    /// exclude roots: most of their tasks are below others.
    pub fn level(&self) -> TreeLevel {
        self.named_level().unwrap_or_else(|| self.default_level())
    }

    /// Level that a term names.
    pub fn named_level(&self) -> Option<TreeLevel> {
        self.terms.iter().find_map(|term| match term.test {
            Test::Level(level) => Some(level),
            _ => None,
        })
    }

    fn default_level(&self) -> TreeLevel {
        let concerns_all = self.terms.iter().any(|term| match &term.test {
            Test::Id(_) | Test::Under(_) => !term.negated,
            Test::Text(Qualifier::Type | Qualifier::Error | Qualifier::Worker, _) => !term.negated,
            Test::Is(conditions) => term.negated && conditions.contains(&Condition::Root),
            _ => false,
        });
        if concerns_all { TreeLevel::Any } else { TreeLevel::Roots }
    }

    /// Limits the query to tasks of a level, which it names only if that is not its default.
    #[must_use]
    pub fn at_level(mut self, level: TreeLevel) -> Self {
        self.terms.retain(|term| !matches!(term.test, Test::Level(_)));
        if self.default_level() != level {
            self.terms.push(Term { negated: false, test: Test::Level(level) });
        }
        self
    }
}

/// Start or end of a time range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryTime {
    /// Epoch milliseconds.
    At(i64),
    Ago(Millis),
}

impl QueryTime {
    pub fn resolve(self, now_ms: i64) -> i64 {
        match self {
            Self::At(at_ms) => at_ms,
            Self::Ago(age) => now_ms.saturating_sub(age.as_i64()),
        }
    }
}

impl fmt::Display for QueryTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at_ms) => f.write_str(&time_text(*at_ms)),
            Self::Ago(age) => age.fmt(f),
        }
    }
}

impl Test {
    /// Returns the name of the declared param that all values are of, and the values: of tags such as `params.customer=Ada`.
    pub fn param(&self) -> Option<(String, Vec<String>)> {
        let Self::Text(Qualifier::Tag, tags) = self else { return None };
        let (name, _) = param_tags::parts(tags.first()?)?;
        let value_of = |tag: &String| {
            let (_, value) = param_tags::parts(tag).filter(|(other, _)| *other == name)?;
            // Another spelling is not that of a task, and would be read as this one.
            (param_tags::tag(name, &value).as_ref() == Some(tag)).then_some(value)
        };
        Some((name.to_owned(), tags.iter().map(value_of).collect::<Option<_>>()?))
    }

    /// Returns the qualifier and the values as texts. A word has no qualifier.
    fn parts(&self) -> (Option<Qualifier>, Vec<String>) {
        let states = |states: &[State]| states.iter().map(|state| state.name().to_owned()).collect();
        let ids = |ids: &[TaskId]| ids.iter().map(TaskId::to_string).collect();
        match self {
            Self::Text(qualifier, values) => (Some(*qualifier), values.clone()),
            Self::State(of) => (Some(Qualifier::State), states(of)),
            Self::Own(of) => (Some(Qualifier::Own), states(of)),
            Self::Id(of) => (Some(Qualifier::Id), ids(of)),
            Self::Under(of) => (Some(Qualifier::Under), ids(of)),
            Self::Is(of) => (Some(Qualifier::Is), of.iter().map(|condition| condition.name().to_owned()).collect()),
            Self::Level(level) => (Some(Qualifier::Level), vec![level.name().to_owned()]),
            Self::From(time) => (Some(Qualifier::From), vec![time.to_string()]),
            Self::To(time) => (Some(Qualifier::To), vec![time.to_string()]),
            Self::Word(word) => (None, vec![word.clone()]),
        }
    }
}

/// Prints the query so that it parses to the same value.
impl fmt::Display for TaskQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, term) in self.terms.iter().enumerate() {
            if n > 0 {
                f.write_str(" ")?;
            }
            term.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (qualifier, mut values) = self.test.parts();
        if self.negated {
            f.write_str("-")?;
        }
        if let Some((name, of_param)) = self.test.param() {
            write!(f, "{PREFIX}{name}:")?;
            values = of_param;
        } else if let Some(qualifier) = qualifier {
            write!(f, "{}:", qualifier.name())?;
        }
        for (n, value) in values.iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            f.write_str(&quoted_if_needed(value, qualifier.is_none()))?;
        }
        Ok(())
    }
}

/// Quotes a value of a term if it needs quotes.
pub fn quoted(value: &str) -> String {
    quoted_if_needed(value, false)
}

/// Quotes a value unless it consists of characters without a meaning in the language. Words have more of the latter.
fn quoted_if_needed(value: &str, is_word: bool) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._~@/+#=-".contains(c) || (c == ':' && !is_word);
    let is_negation = is_word && value.starts_with('-');
    if !value.is_empty() && !is_negation && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
}
