//! Outcome of a verb: an exit code, or a failure with a message and a hint.

use std::fmt::Display;
use std::io;

use kafleet_runtime::error_text::split_hint;

/// Exit codes, part of the command line's contract (docs/cli.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    Ok = 0,
    /// The verb ran, with a negative result: a task failed, a check found errors, a line was refused.
    Failed = 1,
    /// Invalid arguments, configuration or tasks.
    Usage = 2,
    /// Unknown task, type or file.
    NotFound = 3,
    /// The API, Kafka or Redis does not answer, or temporarily refuses requests.
    Unavailable = 4,
    /// The time given with `--wait` or `--timeout` has passed.
    TimedOut = 5,
    /// The token is missing, unknown, or lacks the role for this request.
    Denied = 6,
}

/// Failure of a verb: exit code, message and hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub code: Code,
    /// Lower case, no full stop. Empty for a closed stdout, which needs no message.
    pub message: String,
    pub hint: Option<String>,
}

pub(super) type Outcome = Result<Code, Failure>;

impl Failure {
    pub(super) fn new(code: Code, message: impl Display) -> Self {
        Self { code, message: message.to_string(), hint: None }
    }

    pub(super) fn failed(message: impl Display) -> Self {
        Self::new(Code::Failed, message)
    }

    pub(super) fn usage(message: impl Display) -> Self {
        Self::new(Code::Usage, message)
    }

    pub(super) fn unavailable(message: impl Display) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// Creates a failure from a message that may contain a hint.
    pub(super) fn of_text(code: Code, text: &str) -> Self {
        let (message, hint) = split_hint(text);
        let failure = Self::new(code, message);
        hint.into_iter().fold(failure, Self::hint)
    }

    pub(super) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Text for stderr.
    pub(super) fn text(&self) -> String {
        if self.message.is_empty() {
            return String::new();
        }
        let hint = self.hint.as_ref().map(|hint| format!("\nhint: {hint}\n")).unwrap_or_default();
        format!("error: {}\n{hint}", self.message)
    }
}

impl From<io::Error> for Failure {
    /// Treats a closed stdout (`| head`) as success.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Code::Ok, ""),
            _ => Self::failed(format_args!("cannot write the output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_is_on_its_own_line() {
        let failure = Failure::usage("`x` is not an id").hint("write an id");
        assert_eq!(failure.text(), "error: `x` is not an id\n\nhint: write an id\n");
        assert_eq!(Failure::usage("`x` is not an id").text(), "error: `x` is not an id\n");
    }

    #[test]
    fn closed_pipe_is_silent_success() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.code, failure.text().as_str()), (Code::Ok, ""));
        assert_eq!(Failure::from(io::Error::other("disk full")).code, Code::Failed);
    }
}
