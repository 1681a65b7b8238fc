//! Output of a running attempt, on its way to the events topic.

use kafleet_model::event::Kind;
use kafleet_model::event::log_line::LogStream;
use kafleet_model::json::RawJson;
use kafleet_model::record::attachment::Attachment;
use serde::{Deserialize, Serialize};

/// Output of a running attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Note {
    /// Progress of the attempt; the newest value replaces earlier ones.
    Progress(RawJson),
    /// Line of the task's log.
    Log(String),
    /// Line of the task's log that the attempt or its process wrote to a stream. Lines of a program of the type `exec` are none:
    /// its stderr is the log.
    Output(LogStream, String),
    /// Warning, shown until the task ends.
    Warning(String),
    /// Small value stored with the task.
    Attachment(Attachment),
}

impl Note {
    /// Returns the kind of event that publishes this output.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Progress(_) => Kind::Progress,
            Self::Log(_) | Self::Output(..) => Kind::Log,
            Self::Warning(_) => Kind::Warned,
            Self::Attachment(_) => Kind::Attached,
        }
    }
}
