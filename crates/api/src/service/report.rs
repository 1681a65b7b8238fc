//! `PUT /v1/tasks/{id}/state`: an external system reports the state of its task.

use kafleet_documents::{Report, ReportOutcome};
use kafleet_model::event::{ErrorInfo, Event, Payload};
use kafleet_model::record::MAX_MESSAGE_CHARS;
use kafleet_model::record::state::State;
use kafleet_model::task::TaskRunner;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;

use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::service::context::RequestContext;

/// Maximum result size in bytes of compact JSON.
const MAX_RESULT_BYTES: usize = 256 << 10;
const REPORTABLE: [State; 6] =
    [State::Queued, State::Running, State::Warning, State::WaitingForChildren, State::Succeeded, State::Failed];

pub(crate) async fn report(context: RequestContext, id: TaskId, report: Report) -> Result<ReportOutcome, ApiError> {
    check(&report)?;
    let api = &context.api;
    let task = api.reads.find(&id, None).await?;
    let runner = TaskRunner::of_record(&task.record);
    if runner == TaskRunner::Workers {
        return Err(ApiError::new(Code::NotExternal, format!("`{}` is run by a worker and takes no reports", task.id))
            .hint("only tasks created with `external: true` take reports"));
    }
    if !runner.takes_reports() {
        let reason = format!("`{}` is a bulk action, on which only the API reports", task.id);
        return Err(ApiError::new(Code::NotExternal, reason).hint("to stop it, cancel it"));
    }
    let event = Event { by: context.by.clone(), ..event_of(&task, report) };
    let position = api.writes.publish_event(event).await?;
    let (updated, ignored) = api.reads.await_outcome(&task, position, "the report").await?;
    Ok(ReportOutcome { status: context.status(&updated), ignored })
}

fn check(report: &Report) -> Result<(), ApiError> {
    if !REPORTABLE.contains(&report.state) {
        let names = REPORTABLE.map(|state| format!("`{state}`")).join(", ");
        return Err(ApiError::new(Code::BadState, format!("the state `{}` cannot be reported", report.state))
            .pointer("/state")
            .hint(format!("report one of {names}")));
    }
    if report.message.as_ref().is_some_and(|message| message.chars().count() > MAX_MESSAGE_CHARS) {
        return Err(ApiError::new(
            Code::BadField,
            format!("the message is longer than {MAX_MESSAGE_CHARS} characters"),
        )
        .pointer("/message"));
    }
    match report.result.as_ref().map(|result| result.text().len()) {
        Some(bytes) if bytes > MAX_RESULT_BYTES => {
            let reason = format!("the result has {bytes} bytes; the maximum is {MAX_RESULT_BYTES}");
            Err(ApiError::new(Code::TooLarge, reason)
                .pointer("/result")
                .hint("store the data elsewhere and report a link"))
        }
        _ => Ok(()),
    }
}

fn event_of(task: &TaskView, report: Report) -> Event {
    let error = (report.state == State::Failed).then(|| {
        let message = report.message.clone().unwrap_or_else(|| "reported as failed".into());
        Box::new(ErrorInfo::new("reported", message, 0))
    });
    let payload = Payload::Reported { state: Some(report.state), output: report.result, error };
    let event = Event::new(payload, task.id.clone(), task.record.run, now_ms());
    Event { message: report.message, ..event }
}
