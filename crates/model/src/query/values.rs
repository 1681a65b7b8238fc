//! Values of query terms.

use regex::{Regex, RegexBuilder};

use super::{Condition, Qualifier, QueryTime, Test, TreeLevel};
use crate::record::state::State;
use crate::similar::similar;
use crate::task::id::{TaskId, check_type, clip};
use crate::task::parse_time;
use crate::units::duration::Millis;

/// Maximum length of a pattern, in bytes.
const MAX_PATTERN: usize = 512;
/// Maximum size of a compiled pattern, in bytes.
const MAX_COMPILED: usize = 256 << 10;

/// Reason why a value is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub message: String,
    pub hint: Option<String>,
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self { message, hint: None }
    }
}

impl Test {
    /// Builds the test of a qualifier. An error has the index of the refused value.
    pub fn new(qualifier: Qualifier, values: &[&str]) -> Result<Self, (usize, Fault)> {
        Ok(match qualifier {
            Qualifier::Type => Self::Text(qualifier, texts(values, |text| Ok(check_type(text)?))?),
            Qualifier::NameLike => Self::Text(qualifier, texts(values, |text| pattern(text).map(drop))?),
            Qualifier::Tag
            | Qualifier::Creator
            | Qualifier::Name
            | Qualifier::Error
            | Qualifier::Worker
            | Qualifier::Schedule => Self::Text(qualifier, texts(values, |_| Ok(()))?),
            Qualifier::State => Self::State(each(values, state)?),
            Qualifier::Own => Self::Own(each(values, state)?),
            Qualifier::Id => Self::Id(each(values, id)?),
            Qualifier::Under => Self::Under(each(values, id)?),
            Qualifier::Is => Self::Is(each(values, |text| named(text, "a condition", &Condition::ALL))?),
            Qualifier::Level => Self::Level(only(values, |text| named(text, "a level", &TreeLevel::ALL))?),
            Qualifier::From => Self::From(only(values, time)?),
            Qualifier::To => Self::To(only(values, time)?),
        })
    }
}

fn each<T>(values: &[&str], read: impl Fn(&str) -> Result<T, Fault>) -> Result<Vec<T>, (usize, Fault)> {
    values.iter().enumerate().map(|(n, value)| read(value).map_err(|fault| (n, fault))).collect()
}

fn texts(values: &[&str], check: impl Fn(&str) -> Result<(), Fault>) -> Result<Vec<String>, (usize, Fault)> {
    each(values, |text| check(text).map(|()| text.to_owned()))
}

fn only<T>(values: &[&str], read: impl Fn(&str) -> Result<T, Fault>) -> Result<T, (usize, Fault)> {
    match values {
        [value] => read(value).map_err(|fault| (0, fault)),
        _ => Err((1, "only one value is possible here".to_owned().into())),
    }
}

fn state(text: &str) -> Result<State, Fault> {
    let suggestion = similar(text, State::ALL.iter().map(|state| state.name()));
    let hint = suggestion.map(|name| format!("did you mean `{name}`?"));
    text.parse().map_err(|message| Fault { message, hint })
}

fn id(text: &str) -> Result<TaskId, Fault> {
    TaskId::parse(text).map_err(|error| error.to_string().into())
}

fn named<T: Copy>(text: &str, kind: &str, choices: &[(T, &str)]) -> Result<T, Fault> {
    if let Some((value, _)) = choices.iter().find(|(_, name)| *name == text) {
        return Ok(*value);
    }
    let names: Vec<String> = choices.iter().map(|(_, name)| format!("`{name}`")).collect();
    let (last, others) = names.split_last().map(|(last, others)| (last.as_str(), others)).unwrap_or_default();
    let message = format!("`{}` is not {kind}: use {} or {last}", clip(text), others.join(", "));
    let suggestion = similar(text, choices.iter().map(|(_, name)| *name));
    Err(Fault { message, hint: suggestion.map(|name| format!("did you mean `{name}`?")) })
}

fn time(text: &str) -> Result<QueryTime, Fault> {
    if let Some(age) = Millis::parse_age(text) {
        return Ok(QueryTime::Ago(age));
    }
    let hint = Some("or give an age, such as 2h".to_owned());
    parse_time(text).map(QueryTime::At).map_err(|message| Fault { message, hint })
}

/// Compiles a name pattern. Matching takes linear time, without backtracking.
pub fn pattern(text: &str) -> Result<Regex, Fault> {
    let refused = |message: String| Fault {
        message,
        hint: Some("the syntax is described at https://docs.rs/regex/#syntax".to_owned()),
    };
    if text.len() > MAX_PATTERN {
        return Err(refused(format!("the pattern has {} bytes; the maximum is {MAX_PATTERN}", text.len())));
    }
    let built = RegexBuilder::new(text).size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).nest_limit(32).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            refused("the compiled pattern is too large; use fewer repetitions".to_owned())
        }
        error => refused(format!("`{}` is not a regular expression: {}", clip(text), last_line(&error.to_string()))),
    })
}

/// Returns the explanation of a regex error, without the picture of the pattern above it.
fn last_line(text: &str) -> &str {
    let line = text.lines().last().unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line)
}
