//! Checks whether an app of any language follows the protocol: recorded sessions and faults are played against it.
//!
//! Each case has a process of its own, started like by a worker. A case that needs a type or a property which the app
//! does not declare is skipped.

mod cases;
mod player;
mod sessions;

use std::collections::BTreeSet;

use futures::StreamExt;
use serde::Serialize;
use serde_json::Value;

use self::player::play;
use super::process::{AppProgram, StartError};
use super::protocol::{Limits, VERSION, Welcome};

/// Maximum cases that are played at the same time.
const MAX_CONCURRENT: usize = 8;

/// Session to play, with the rule that it checks.
#[derive(Clone)]
struct Case {
    name: String,
    /// Rule of the protocol, for people.
    rule: String,
    /// Types that the app has to declare.
    types: Vec<String>,
    needs: Needs,
    steps: Vec<CaseStep>,
}

/// Property of an app that a case needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// The app reads the socket while attempts run.
    Responsive,
    /// The app runs several attempts at once.
    Slots,
    /// The app cannot start.
    Broken,
}

/// Part of a session.
#[derive(Clone)]
enum CaseStep {
    /// Writes these bytes at once.
    Send(Vec<u8>),
    /// Writes these bytes one by one; each when the app has received the one before.
    SendSingly(Vec<u8>),
    /// Reads nothing until the app has had time to fill the socket.
    Pause,
    /// Receives this message next.
    Receive(Value),
    /// Receives `dead` with the kind `bad_params` for this attempt, or a result if the app can read the params.
    ReceiveUnreadable(u64),
    /// Receives answers to these attempts, in any order.
    ReceiveAnswers(Vec<u64>),
    /// Ends the worker's stream.
    End,
    /// Closes the socket, as a worker that has died.
    Close,
    /// Waits for the end of the app's stream and of its process, with this exit code. `None`: any.
    Exit(Option<i32>),
}

/// Result of a case.
#[derive(Debug, Serialize)]
pub struct CaseReport {
    pub case: String,
    /// Rule of the protocol that the case checks.
    pub rule: String,
    #[serde(flatten)]
    pub result: CaseResult,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", content = "reason", rename_all = "snake_case")]
pub enum CaseResult {
    Passed,
    /// The app departs from the protocol, as described.
    Failed(String),
    /// The app does not declare what the case needs.
    Skipped(String),
}

/// Properties that the app declares.
struct Properties {
    types: BTreeSet<String>,
    is_responsive: bool,
}

/// Plays all cases against an app.
///
/// # Errors
/// The app cannot be started, or declares something invalid.
pub async fn run(program: &AppProgram) -> Result<Vec<CaseReport>, StartError> {
    let (process, declaration) = program.start(0, &welcome(None)).await?;
    drop(process);
    let properties =
        Properties { types: declaration.types.into_keys().collect(), is_responsive: declaration.responsive };
    let concurrent = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_CONCURRENT);
    let reports = futures::stream::iter(all_cases()).map(|case| report(program, &properties, case));
    Ok(reports.buffered(concurrent).collect().await)
}

fn all_cases() -> Vec<Case> {
    let recorded = sessions::recorded();
    let in_single_bytes: Vec<Case> = recorded.iter().filter_map(sessions::in_single_bytes).collect();
    recorded.into_iter().chain(in_single_bytes).chain(cases::faults()).collect()
}

async fn report(program: &AppProgram, properties: &Properties, case: Case) -> CaseReport {
    let result = result(program, properties, &case).await;
    CaseReport { case: case.name, rule: case.rule, result }
}

async fn result(program: &AppProgram, properties: &Properties, case: &Case) -> CaseResult {
    if let Some(error) = properties.missing(case) {
        return CaseResult::Skipped(error);
    }
    if case.needs == Needs::Slots {
        match slots_of(program, &case.types).await {
            Err(error) => return CaseResult::Failed(error.to_string()),
            Ok(slots) if slots < 2 => return CaseResult::Skipped("the app has one slot for these types".to_owned()),
            Ok(_) => {}
        }
    }
    match play(program, &case.steps).await {
        Ok(()) => CaseResult::Passed,
        Err(error) => CaseResult::Failed(error),
    }
}

/// Slots of a process that serves these types alone, which may differ from those of one that serves all.
async fn slots_of(program: &AppProgram, types: &[String]) -> Result<u32, StartError> {
    let (process, declaration) = program.start(0, &welcome(Some(types))).await?;
    drop(process);
    Ok(declaration.capacity.slots)
}

impl Properties {
    /// Returns the reason why a case cannot be played.
    fn missing(&self, case: &Case) -> Option<String> {
        if let Some(name) = case.types.iter().find(|name| !self.types.contains(*name)) {
            return Some(format!("the app does not declare `{name}`"));
        }
        match case.needs {
            Needs::Responsive if !self.is_responsive => Some("the app is not `responsive`".to_owned()),
            Needs::Broken => Some("the case needs an app that cannot start".to_owned()),
            _ => None,
        }
    }
}

/// Returns the first message of a worker. `types`: types to declare.
fn welcome(types: Option<&[String]>) -> Welcome {
    Welcome {
        protocol: VERSION,
        app: "shop".to_owned(),
        worker: "app-test".to_owned(),
        version: env!("CARGO_PKG_VERSION"),
        types: types.map(<[String]>::to_vec),
        slots: None,
        grace_ms: 5_000,
        limits: Limits::new(1 << 20, 256 << 10),
        dev: false,
    }
}
