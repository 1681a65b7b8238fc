//! Suggestions for unfinished searches: qualifiers, types and states with the number of their tasks, and values of the
//! newest root tasks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_documents::{Suggestion, Suggestions, TextSpan};
use kafleet_model::query::{Completion, Condition, Qualifier, TreeLevel, quoted};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::task::param_tags::{PREFIX, parts};
use kafleet_store::Index;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::merge::Merge;
use super::reads::Reads;
use crate::http::problem::ApiError;

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 10;
/// Number of root tasks whose values are suggested.
const SAMPLED_TASKS: usize = 1_000;
/// Age at which the values are read again.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Maximum number of distinct values of a field.
const MAX_VALUES: usize = 1_000;

/// Values by qualifier, with the number of tasks that have them, the commonest first.
type Values = BTreeMap<&'static str, Vec<(String, u64)>>;

/// Values of the newest root tasks, read at most once a minute.
#[derive(Default)]
pub struct RecentValues(Mutex<Option<(Instant, Arc<Values>)>>);

impl RecentValues {
    async fn get(&self, reads: &Reads) -> Result<Arc<Values>, ApiError> {
        let mut cached = self.0.lock().await;
        if let Some((read_at, values)) = &*cached
            && read_at.elapsed() < MAX_AGE
        {
            return Ok(values.clone());
        }
        let values = Arc::new(read_values(reads).await?);
        *cached = Some((Instant::now(), values.clone()));
        Ok(values)
    }
}

/// Names that are suggested without tasks too.
pub struct DeclaredNames {
    pub types: Vec<String>,
    /// Declared params of all types, such as `order.id`.
    pub params: BTreeSet<String>,
}

/// Completes the text before the character `at`.
pub async fn suggest(
    reads: &Reads,
    recent: &RecentValues,
    declared: DeclaredNames,
    text: &str,
    at: usize,
) -> Result<Suggestions, ApiError> {
    let completion = Completion::of(text, at);
    let prefix = completion.prefix.to_lowercase();
    let mut suggestions = match completion.qualifier {
        None => qualifiers(&declared.params),
        Some(Qualifier::Type) => types(reads, declared.types).await?,
        Some(qualifier) => match &completion.param {
            Some(param) => param_values(&*recent.get(reads).await?, param),
            None => values(reads, recent, qualifier).await?,
        },
    };
    suggestions.retain(|suggestion| suggestion.text.trim_start_matches('"').to_lowercase().starts_with(&prefix));
    suggestions.truncate(MAX_SUGGESTIONS);
    let replace = TextSpan { start: completion.chars.start, end: completion.chars.end };
    Ok(Suggestions { replace, suggestions, incomplete: reads.incomplete().await? })
}

fn qualifiers(params: &BTreeSet<String>) -> Vec<Suggestion> {
    let suggestion = |(_, name, description): (_, &str, &str)| Suggestion {
        text: format!("{name}:"),
        description: Some(description.to_owned()),
        tasks: None,
    };
    let of_params = params.iter().map(|name| Suggestion {
        text: format!("{PREFIX}{name}:"),
        description: Some("declared param".to_owned()),
        tasks: None,
    });
    Qualifier::ALL.into_iter().map(suggestion).chain(of_params).collect()
}

/// Values of a declared param.
fn param_values(recent: &Values, param: &str) -> Vec<Suggestion> {
    let tags = recent.get(Qualifier::Tag.name()).into_iter().flatten();
    let of_param = tags.filter_map(|(tag, tasks)| Some((parts(tag).filter(|(name, _)| *name == param)?.1, tasks)));
    of_param.map(|(text, tasks)| value(&text, Some(*tasks))).collect()
}

async fn values(reads: &Reads, recent: &RecentValues, qualifier: Qualifier) -> Result<Vec<Suggestion>, ApiError> {
    let fixed = |names: &[&str]| names.iter().map(|name| value(name, None)).collect();
    Ok(match qualifier {
        Qualifier::State | Qualifier::Own => {
            let mut counts: BTreeMap<State, u64> = State::ALL.into_iter().map(|state| (state, 0)).collect();
            for (state, count) in reads.counts().await?.into_values().flatten() {
                *counts.entry(state).or_default() += count;
            }
            let with_counts = qualifier == Qualifier::State;
            counts.iter().map(|(state, count)| value(state.name(), with_counts.then_some(*count))).collect()
        }
        Qualifier::Is => fixed(&Condition::ALL.map(|(_, name)| name)),
        Qualifier::Level => fixed(&TreeLevel::ALL.map(|(_, name)| name)),
        Qualifier::From | Qualifier::To => fixed(&["10m", "1h", "24h", "7d"]),
        Qualifier::Tag | Qualifier::Creator | Qualifier::Worker | Qualifier::Schedule => {
            let recent = recent.get(reads).await?;
            let listed = recent.get(qualifier.name()).into_iter().flatten();
            listed.map(|(text, tasks)| value(text, Some(*tasks))).collect()
        }
        Qualifier::Type
        | Qualifier::Name
        | Qualifier::NameLike
        | Qualifier::Id
        | Qualifier::Under
        | Qualifier::Error => Vec::new(),
    })
}

fn value(text: &str, tasks: Option<u64>) -> Suggestion {
    Suggestion { text: quoted(text), description: None, tasks }
}

async fn types(reads: &Reads, declared: Vec<String>) -> Result<Vec<Suggestion>, ApiError> {
    let mut counts: BTreeMap<String, u64> = declared.into_iter().map(|name| (name, 0)).collect();
    counts.extend(reads.counts().await?.into_iter().map(|(name, of)| (name, of.values().sum::<u64>())));
    Ok(commonest(counts.into_iter()).iter().map(|(text, tasks)| value(text, Some(*tasks))).collect())
}

/// Sorts by number of tasks, then by name.
fn commonest(values: impl Iterator<Item = (String, u64)>) -> Vec<(String, u64)> {
    let mut values: Vec<(String, u64)> = values.collect();
    values.sort_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
    values.truncate(MAX_VALUES);
    values
}

pub async fn read_values(reads: &Reads) -> Result<Values, ApiError> {
    let mut counts: BTreeMap<&'static str, BTreeMap<String, u64>> = BTreeMap::new();
    let tasks = Merge::new(reads, vec![Index::Roots], None, SAMPLED_TASKS).next(SAMPLED_TASKS).await?;
    for task in tasks.iter().filter_map(|(_, task)| task.as_ref()) {
        for (qualifier, text) in values_of(&task.record) {
            *counts.entry(qualifier.name()).or_default().entry(text.into_owned()).or_default() += 1;
        }
    }
    Ok(counts.into_iter().map(|(name, counts)| (name, commonest(counts.into_iter()))).collect())
}

fn values_of(record: &TaskRecord) -> impl Iterator<Item = (Qualifier, Cow<'_, str>)> {
    let policy = record.definition.policy.as_deref();
    let options = policy.and_then(|policy| policy.rules.options.as_ref());
    let tags = policy.map(|policy| policy.tags.as_slice()).unwrap_or_default();
    let single = [
        (Qualifier::Creator, policy.and_then(|policy| policy.creator.as_deref()).map(Cow::Borrowed)),
        (Qualifier::Worker, record.worker.as_deref().map(Cow::Borrowed)),
        (Qualifier::Schedule, options.and_then(|options| options.slice().member("schedule")?.string())),
    ];
    let single = single.into_iter().filter_map(|(qualifier, text)| Some((qualifier, text?)));
    single.chain(tags.iter().map(|tag| (Qualifier::Tag, Cow::Borrowed(tag.as_str()))))
}
