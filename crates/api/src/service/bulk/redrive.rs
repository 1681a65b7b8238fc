//! Redrives of many dead letters, also with changed params.
//!
//! A step resolves its letters in transactions of their topic, and then writes the progress that counts them. The markers of
//! the letters have the number of the action: after a crash between the two, the next runner finds the letters that the
//! action has resolved, and counts them without redriving them again.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet_documents::{BulkPreview, BulkProgress, BulkRequest, BulkSample, BulkSelection, DeadLetterFilter};
use kafleet_fleet::dead_letters::{Bounds, DeadLetterId, DeadLetterRecord, Resolution};
use kafleet_model::json::RawJson;
use kafleet_model::query::MAX_VALUES;
use kafleet_model::task::id::TaskId;
use rustc_hash::FxHashSet;
use tokio::time::{Instant, timeout_at};

use super::runner::{Run, RunInterruption};
use super::spec::{BulkSpec, count_refusal, list_changed};
use super::{MAX_ERROR_CHARS, MAX_SAMPLE, MAX_TASKS, count_refused, sample_of};
use crate::http::problem::{ApiError, Code};
use crate::read::mask::Masks;
use crate::service::context::MAX_PAGE;
use crate::service::dead_letters::redriven_record::{ParamsChange, changed_letter, check_readable};
use crate::service::dead_letters::resolve::{Request, another_letter, check_run, resolve_all};
use crate::service::dead_letters::select::{
    TaskRecords, encode_cursor, error_of_run, ids_by_partition, list_letters, present_end, read_cursor, records_of,
};
use crate::service::dead_letters::{LetterQuery, check_type_exists, hidden_error, letter_id, read_letter};
use crate::state::Api;
use crate::write::validate::bad_field;

/// Dead letters of a step: those of one transaction, so that the progress is written every few seconds.
const STEP: usize = 50;
/// Records of dead letters that a preview reads at a time.
const MAX_READS: usize = 16;
/// Maximum nesting of a patch; that of params.
const MAX_PATCH_DEPTH: usize = 64;
/// Problems of letters that are resolved, or whose task has moved on or is open.
const SKIPPED: [Code; 4] = [Code::AlreadyDropped, Code::AlreadyRedriven, Code::DeadLetterSuperseded, Code::NotFinished];
/// Problems of letters that cannot be redriven.
const REFUSED: [Code; 9] = [
    Code::UnreadableDeadLetter,
    Code::TooManyRuns,
    Code::ExternalTask,
    Code::NoParams,
    Code::ParamsGone,
    Code::ParamsUnreadable,
    Code::Schema,
    Code::NotFound,
    Code::TooLarge,
];

/// Selected dead letters.
enum Letters {
    Filter(LetterQuery),
    Ids(Vec<DeadLetterId>),
}

impl Letters {
    fn of(q: Option<&str>, letters: Option<&DeadLetterFilter>, ids: &[String]) -> Result<Self, ApiError> {
        match (q, letters, ids) {
            (Some(_), ..) => Err(bad_field("q", "dead letters are selected by `letters` or `ids`".into())),
            (None, Some(_), [_, ..]) => Err(bad_field("ids", "`letters` and `ids` are mutually exclusive".into())),
            (None, Some(filter), []) => {
                LetterQuery::of(filter).map(Self::Filter).map_err(|error| error.below("/letters"))
            }
            (None, None, []) => {
                Err(bad_field("letters", "it is missing: name the dead letters by `letters` or `ids`".into()))
            }
            (None, None, ids) if ids.len() > MAX_VALUES => {
                Err(bad_field("ids", format!("there are {} ids; the maximum is {MAX_VALUES}", ids.len()))
                    .hint("select more dead letters by `letters`"))
            }
            (None, None, ids) => {
                let id = |(n, id): (usize, &String)| letter_id(id).map_err(|error| error.pointer(format!("/ids/{n}")));
                ids.iter().enumerate().map(id).collect::<Result<_, _>>().map(Self::Ids)
            }
        }
    }
}

/// Adds the dead letters to a specification.
pub(super) async fn specify(api: &Api, spec: BulkSpec, input: BulkRequest) -> Result<BulkSpec, ApiError> {
    let letters = Letters::of(input.q.as_deref(), input.letters.as_ref(), &input.ids)?;
    change_of(input.patch.as_ref())?;
    let start = match (letters, &input.letters) {
        (Letters::Filter(_), Some(filter)) => {
            check_type_exists(api, &filter.task_type).await.map_err(|error| error.pointer("/letters/type"))?;
            Some(present_end(api, &filter.task_type).await?)
        }
        _ => None,
    };
    api.reads.check_covered(None).await?;
    Ok(BulkSpec { letters: input.letters, ids: input.ids, patch: input.patch, start, ..spec })
}

/// Change of the params by a patch.
fn change_of(patch: Option<&RawJson>) -> Result<Option<ParamsChange>, ApiError> {
    match patch {
        Some(patch) if patch.slice().depth() > MAX_PATCH_DEPTH => {
            Err(bad_field("patch", format!("it is nested more than {MAX_PATCH_DEPTH} levels deep")))
        }
        patch => Ok(patch.cloned().map(ParamsChange::Merge)),
    }
}

/// Page of selected dead letters.
struct LetterPage {
    letters: Vec<DeadLetterRecord>,
    /// Ids without a dead letter, with the error.
    missing: Vec<(DeadLetterId, ApiError)>,
    records: TaskRecords,
    next: Option<Bounds>,
    scanned: u64,
}

async fn page(api: &Api, letters: &Letters, bounds: Option<Bounds>, limit: usize) -> Result<LetterPage, ApiError> {
    match letters {
        Letters::Filter(query) => {
            let (page, records) = list_letters(api, query, bounds, limit).await?;
            let scanned = page.scanned as u64;
            Ok(LetterPage { letters: page.letters, missing: Vec::new(), records, next: page.next, scanned })
        }
        Letters::Ids(ids) => page_of_ids(api, ids).await,
    }
}

async fn page_of_ids(api: &Api, ids: &[DeadLetterId]) -> Result<LetterPage, ApiError> {
    let (mut letters, mut missing) = (Vec::new(), Vec::new());
    for id in ids {
        match read_letter(api, id).await {
            Ok((letter, _)) => letters.push(letter),
            Err(error) if error.is(Code::NotFound) => missing.push((id.clone(), error)),
            Err(error) => return Err(error),
        }
    }
    let tasks = ids_by_partition(api, letters.iter().filter_map(|letter| letter.task.as_ref()));
    let records = records_of(api, tasks).await?;
    Ok(LetterPage { letters, missing, records, next: None, scanned: ids.len() as u64 })
}

/// Counts the dead letters that a redrive would resolve, for at most `time`.
pub(super) async fn preview(api: &Api, selection: &BulkSelection, time: Duration) -> Result<BulkPreview, ApiError> {
    let letters = Letters::of(selection.q.as_deref(), selection.letters.as_ref(), &selection.ids)?;
    let change = change_of(selection.patch.as_ref())?;
    if let Some(filter) = &selection.letters {
        check_type_exists(api, &filter.task_type).await.map_err(|error| error.pointer("/letters/type"))?;
    }
    let end = Instant::now() + time;
    let mut preview = LetterPreview { api, change, tasks: FxHashSet::default(), found: BulkPreview::default() };
    let mut bounds = None;
    loop {
        let reading = page(api, &letters, bounds.take(), MAX_PAGE);
        // With a part of the letters counted, the rest may take the time that is left.
        let page = match preview.found.scanned {
            0 => reading.await?,
            _ => match timeout_at(end, reading).await {
                Ok(page) => page?,
                Err(_) => break,
            },
        };
        let next = page.next.clone();
        let is_counted = preview.add(page, end).await?;
        bounds = next;
        preview.found.exact = is_counted && bounds.is_none();
        if !is_counted || bounds.is_none() || Instant::now() >= end {
            break;
        }
    }
    api.reads.check_covered(None).await?;
    Ok(preview.found)
}

/// Preview while its dead letters are counted.
struct LetterPreview<'a> {
    api: &'a Api,
    change: Option<ParamsChange>,
    /// Tasks of which a dead letter would be redriven.
    tasks: FxHashSet<TaskId>,
    found: BulkPreview,
}

impl LetterPreview<'_> {
    /// Counts the letters of a page. Returns false if the time ended first.
    async fn add(&mut self, page: LetterPage, end: Instant) -> Result<bool, ApiError> {
        let LetterPage { letters, missing, records, scanned, .. } = page;
        self.found.scanned += scanned;
        for (_, error) in missing {
            self.found.matching += 1;
            count_refused(&mut self.found, error);
        }
        let (api, change) = (self.api, self.change.clone());
        let checks: Vec<_> =
            letters.iter().map(|letter| check_letter(api, letter, &records, change.as_ref())).collect();
        let mut checks = stream::iter(checks).buffered(MAX_READS);
        for letter in &letters {
            let Ok(Some(outcome)) = timeout_at(end, checks.next()).await else { return Ok(false) };
            self.count(letter, &records, outcome)?;
        }
        Ok(true)
    }

    fn count(
        &mut self,
        letter: &DeadLetterRecord,
        records: &TaskRecords,
        outcome: Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let outcome = outcome.and_then(|()| match &letter.task {
            Some((id, _)) if !self.tasks.insert(id.clone()) => Err(another_letter(id)),
            _ => Ok(()),
        });
        match outcome {
            Ok(()) => self.add_changing(letter, records),
            Err(error) if is_any(&error, &SKIPPED) || is_any(&error, &REFUSED) => count_refused(&mut self.found, error),
            Err(error) => return Err(error),
        }
        self.found.matching += 1;
        Ok(())
    }

    fn add_changing(&mut self, letter: &DeadLetterRecord, records: &TaskRecords) {
        self.found.changing += 1;
        if self.found.sample.len() < MAX_SAMPLE {
            self.found.sample.push(letter.id.to_string());
        }
        if self.found.tasks.len() < MAX_TASKS {
            self.found.tasks.push(letter_sample(&self.api.reads.masks, letter, records));
        }
    }
}

fn letter_sample(masks: &Masks, letter: &DeadLetterRecord, records: &TaskRecords) -> BulkSample {
    let (id, run) = letter.task.as_ref().map_or((None, 0), |(id, run)| (Some(id), *run));
    let record = id.and_then(|id| records.get(id));
    let error = record.and_then(|record| error_of_run(record, run));
    let error = error.map_or_else(|| hidden_error(masks, letter), |error| error.text().into_owned());
    BulkSample {
        task_type: Some(letter.id.task_type.clone()),
        error: Some(error.chars().take(MAX_ERROR_CHARS).collect()),
        letter: Some(letter.id.to_string()),
        ..sample_of(id, record)
    }
}

/// Checks that a listed dead letter can be redriven, as far as its topic and the store show. Its record is read only to check
/// changed params.
async fn check_letter(
    api: &Api,
    letter: &DeadLetterRecord,
    records: &TaskRecords,
    change: Option<&ParamsChange>,
) -> Result<(), ApiError> {
    check_readable(letter)?;
    if let Some((id, run)) = &letter.task
        && let Some(record) = records.get(id)
    {
        check_run(id, record, *run)?;
    }
    if change.is_some() {
        let (whole, _) = read_letter(api, &letter.id).await?;
        changed_letter(api, &whole, change)?;
    }
    Ok(())
}

fn is_any(error: &ApiError, codes: &[Code]) -> bool {
    codes.iter().any(|code| error.is(*code))
}

impl Run<'_> {
    /// Redrives the next dead letters. Returns true if the action has ended.
    pub(super) async fn redrive_step(&mut self) -> Result<bool, RunInterruption> {
        let mut progress = self.progress.clone();
        let mut page = self.next_letters().await?;
        self.api.reads.check_covered(None).await?;
        for (id, error) in std::mem::take(&mut page.missing) {
            count_refusal(&mut progress, &id, error);
        }
        let is_over = self.redrive(&page, &mut progress).await?;
        progress.cursor = page.next.map(|bounds| encode_cursor(self.api, &bounds));
        self.end_step(progress, Vec::new(), is_over).await
    }

    /// Lists the next dead letters, and those that the action has resolved after its last progress.
    async fn next_letters(&mut self) -> Result<LetterPage, ApiError> {
        let mut letters = Letters::of(None, self.spec.letters.as_ref(), &self.spec.ids)?;
        match &mut letters {
            Letters::Filter(query) => query.filter.resolved_by = Some(self.number()?),
            // A transaction has letters of one type.
            Letters::Ids(ids) => ids.sort(),
        }
        let cursor = self.progress.cursor.as_ref().or(self.spec.start.as_ref());
        let bounds = cursor.map(|cursor| read_cursor(self.api, cursor)).transpose()?;
        page(self.api, &letters, bounds, STEP).await
    }

    /// Number of the action in the markers of its dead letters.
    fn number(&self) -> Result<u128, ApiError> {
        uuid::Uuid::parse_str(self.id.as_str()).map(|id| id.as_u128()).map_err(|_| ApiError::internal())
    }

    /// Redrives dead letters up to the limit. Returns true if more would be redriven.
    async fn redrive(&mut self, page: &LetterPage, progress: &mut BulkProgress) -> Result<bool, ApiError> {
        let change = change_of(self.spec.patch.as_ref())?;
        let request = Request {
            number: self.number()?,
            change: change.clone(),
            reason: self.spec.reason.clone(),
            bulk: Some(self.id.clone()),
            ..Request::new(Resolution::Redriven, self.spec.by.clone())
        };
        let mut rest = page.letters.as_slice();
        while let [first, ..] = rest {
            let room = usize::try_from(self.spec.limit.saturating_sub(progress.done)).unwrap_or(usize::MAX);
            if room == 0 {
                return self.count_rest(rest, &page.records, change.as_ref(), progress).await;
            }
            let of_type = rest.iter().take_while(|letter| letter.id.task_type == first.id.task_type).count();
            let (some, later) = rest.split_at(of_type.min(room));
            self.api.bulk.pace(some.len()).await;
            let ids = some.iter().map(|letter| letter.id.clone()).collect();
            let outcomes = resolve_all(self.api, ids, &request, &mut self.runs).await;
            for (letter, outcome) in some.iter().zip(outcomes) {
                count_outcome(progress, letter, outcome)?;
            }
            rest = later;
        }
        Ok(false)
    }

    /// Counts dead letters beyond the limit. Returns true if one of them would be redriven.
    async fn count_rest(
        &mut self,
        rest: &[DeadLetterRecord],
        records: &TaskRecords,
        change: Option<&ParamsChange>,
        progress: &mut BulkProgress,
    ) -> Result<bool, ApiError> {
        for letter in rest {
            match check_letter(self.api, letter, records, change).await {
                Ok(()) => return Ok(true),
                Err(error) => count_outcome(progress, letter, Err(error))?,
            }
        }
        Ok(false)
    }
}

fn count_outcome(
    progress: &mut BulkProgress,
    letter: &DeadLetterRecord,
    outcome: Result<(), ApiError>,
) -> Result<(), ApiError> {
    match outcome {
        Ok(()) => {
            progress.done += 1;
            list_changed(progress, letter.task.iter().map(|(id, _)| id));
        }
        Err(error) if is_any(&error, &SKIPPED) => progress.skipped += 1,
        Err(error) if is_any(&error, &REFUSED) => count_refusal(progress, &letter.id, error),
        Err(error) => return Err(error),
    }
    Ok(())
}
