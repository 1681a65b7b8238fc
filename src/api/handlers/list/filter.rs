//! Filters of the task list.

use regex::{Regex, RegexBuilder};

use crate::api::http::problem::ApiError;
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::read::consistency::TaskView;
use crate::model::error_fingerprint::ErrorFilter;
use crate::model::record::state::State;
use crate::model::task::id::{TaskId, check_type, clip};
use crate::store::Entry;

/// Maximum pattern length in bytes.
const MAX_PATTERN: usize = 512;
/// Maximum size of a compiled pattern in bytes.
const MAX_COMPILED: usize = 256 << 10;

/// Depth of the listed tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Roots,
    Any,
}

impl std::str::FromStr for Level {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "roots" => Ok(Self::Roots),
            "any" => Ok(Self::Any),
            other => Err(format!("`{}` is not a level: use `roots` or `any`", clip(other))),
        }
    }
}

pub(super) struct Filter {
    pub task_type: Option<String>,
    pub state: Option<State>,
    pub level: Level,
    tag: Option<String>,
    creator: Option<String>,
    /// Name prefix.
    name: Option<String>,
    name_like: Option<Regex>,
    error: Option<ErrorFilter>,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
}

impl Filter {
    pub(super) fn read(request: &ApiRequest) -> Result<Self, ApiError> {
        let query = &request.query;
        let text = |name| query.text(name).map(str::to_owned);
        let task_type = text("type");
        if let Some(name) = &task_type {
            check_type(name).map_err(|why| bad_parameter("type", &why))?;
        }
        let state = query.parsed::<State>("state")?;
        let (from_ms, to_ms) = query.time_range()?;
        let level = query.parsed("level")?.unwrap_or(Level::Roots);
        Ok(Self {
            task_type,
            state,
            level,
            tag: text("tag"),
            creator: text("creator"),
            name: text("name"),
            name_like: query.text("name_like").map(pattern).transpose()?,
            error: query.text("error").map(ErrorFilter::new),
            from_ms,
            to_ms,
        })
    }

    /// Returns the state to filter on, if there is an index for it.
    pub(super) fn indexed_state(&self) -> Option<State> {
        self.state.filter(|state| state.is_indexed())
    }

    /// Whether the filter restricts type or state.
    pub(super) fn filters_kind(&self) -> bool {
        self.task_type.is_some() || self.state.is_some()
    }

    pub(super) fn filters_time(&self) -> bool {
        self.from_ms.is_some() || self.to_ms.is_some()
    }

    /// Whether the filter restricts fields that no index contains, so that records must be read and compared.
    pub(super) fn filters_details(&self) -> bool {
        let texts = [&self.tag, &self.creator, &self.name];
        texts.into_iter().any(Option::is_some) || self.name_like.is_some() || self.error.is_some()
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

    pub(super) fn matches(&self, found: &TaskView) -> bool {
        let node = &found.record;
        let policy = node.definition.policy.as_deref();
        if self.level == Level::Roots && !found.id.is_root() {
            return false;
        }
        let name = || policy.and_then(|policy| policy.name.as_deref());
        self.task_type.as_deref().is_none_or(|wanted| node.task_type.as_deref() == Some(wanted))
            && self.state.is_none_or(|state| node.state == state)
            && self.from_ms.is_none_or(|from_ms| node.times.seen_ms >= from_ms)
            && self.to_ms.is_none_or(|to_ms| node.times.seen_ms < to_ms)
            && self.tag.as_ref().is_none_or(|tag| policy.is_some_and(|policy| policy.tags.contains(tag)))
            && self
                .creator
                .as_deref()
                .is_none_or(|creator| policy.and_then(|policy| policy.creator.as_deref()) == Some(creator))
            && self.name.as_deref().is_none_or(|start| name().is_some_and(|name| name.starts_with(start)))
            && self.name_like.as_ref().is_none_or(|pattern| name().is_some_and(|name| pattern.is_match(name)))
            && self
                .error
                .as_ref()
                .is_none_or(|fingerprint| node.outcome.error.as_deref().is_some_and(|error| fingerprint.matches(error)))
    }
}

/// Compiles a name pattern. Matching takes linear time, without backtracking.
fn pattern(text: &str) -> Result<Regex, ApiError> {
    let refused =
        |why: &str| bad_parameter("name_like", why).hint("the syntax is described at https://docs.rs/regex/#syntax");
    if text.len() > MAX_PATTERN {
        return Err(refused(&format!("the pattern has {} bytes; the maximum is {MAX_PATTERN}", text.len())));
    }
    let built = RegexBuilder::new(text).size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).nest_limit(32).build();
    built.map_err(|why| match why {
        regex::Error::CompiledTooBig(_) => refused("the compiled pattern is too large; use fewer repetitions"),
        why => refused(&format!("`{}` is not a regular expression: {}", clip(text), last_line(&why.to_string()))),
    })
}

/// Returns the explanation of a regex error, without the picture of the pattern above it.
fn last_line(text: &str) -> &str {
    let line = text.lines().last().unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_patterns_are_rejected_with_an_explanation() {
        assert!(pattern(r"^nightly (build|test) \d+$").unwrap().is_match("nightly test 12"));
        for (bad, why) in [
            ("(", "unclosed group"),
            ("a{1000}{1000}{1000}", "compiled pattern is too large"),
            (&"x".repeat(513), "513 bytes"),
            (&"(".repeat(40), "not a regular expression"),
        ] {
            let error = format!("{:?}", pattern(bad).unwrap_err());
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
