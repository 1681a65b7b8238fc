//! Summary of the newest unresolved dead letters, which the pages of a while share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::recent::Recent;
use kafleet_api::service::context::{MAX_PAGE, Paging, RequestContext};
use kafleet_api::service::dead_letters;
use kafleet_documents::{DeadLetter, DeadLetterPage};
use kafleet_fleet::dead_letters::Filter;
use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::event::ErrorInfo;

/// Lifetime of a summary.
const LIFETIME: Duration = Duration::from_secs(30);

/// Number of letters summarized: a page of the API. Their records may be large.
pub(super) const MAX_SUMMARIZED: usize = MAX_PAGE;

/// Newest dead letters by type, code and error.
pub(super) struct Summary {
    pub letters: usize,
    /// There are older letters.
    pub more: bool,
    /// Groups, the largest first.
    pub groups: Vec<LetterGroup>,
    /// Newest letter of each task.
    of_tasks: BTreeMap<String, String>,
}

/// Dead letters of a type with the same code and similar errors.
pub(super) struct LetterGroup {
    pub newest: DeadLetter,
    pub count: usize,
}

/// Summaries that requests share.
pub(super) struct Summaries(Recent<Summary>);

impl Default for Summaries {
    fn default() -> Self {
        Self(Recent::new(LIFETIME, size_of_summary))
    }
}

fn size_of_summary(summary: &Summary) -> usize {
    let groups: usize = summary.groups.iter().map(|group| 512 + group.newest.error.len()).sum();
    groups + summary.of_tasks.iter().map(|(task, letter)| 64 + task.len() + letter.len()).sum::<usize>()
}

/// Summarizes the newest dead letters of all types.
pub(super) async fn summary(summaries: &Summaries, context: RequestContext) -> Result<Arc<Summary>, ApiError> {
    let page = Paging { cursor: None, limit: MAX_SUMMARIZED };
    let read = async { Ok(summarized(dead_letters::list(context, Filter::default(), page).await?)) };
    summaries.0.get(Some(String::new()), read).await
}

/// Returns the newest dead letter of a task from the last summary, without a read: navigations keep it fresh.
pub(super) fn letter_of(summaries: &Summaries, task: &str) -> Option<String> {
    summaries.0.last("")?.of_tasks.get(task).cloned()
}

fn summarized(page: DeadLetterPage) -> Summary {
    let letters = page.letters.len();
    let with_task = page.letters.iter().rev().filter_map(|letter| Some((letter.task.clone()?, letter.id.clone())));
    let of_tasks = with_task.collect();
    let mut groups: BTreeMap<(String, String, Fingerprint), LetterGroup> = BTreeMap::new();
    for letter in page.letters {
        let error = ErrorInfo { kind: letter.code.clone(), message: letter.error.clone(), attempt: 0 };
        let key = (letter.task_type.clone(), letter.code.clone(), Fingerprint::of(Some(&error)));
        // Letters are listed newest first.
        groups.entry(key).or_insert(LetterGroup { newest: letter, count: 0 }).count += 1;
    }
    let mut groups: Vec<LetterGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    Summary { letters, more: page.next.is_some(), groups, of_tasks }
}
