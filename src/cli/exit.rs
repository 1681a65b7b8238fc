//! What a verb ends with: an exit code, and where something went wrong a message with a hint.

use std::fmt::Display;
use std::io;

/// Exit codes. They are part of the command line's contract (docs/cli.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    /// It ran, and the answer is no: a task failed, a check found errors, a line was refused.
    Failed = 1,
    /// What was typed, configured or submitted is wrong.
    Usage = 2,
    /// There is no such task, type or file.
    NotFound = 3,
    /// The api, Kafka or Redis does not answer, or refuses for now.
    Unavailable = 4,
    /// The time given for waiting is over.
    TimedOut = 5,
    /// The token is missing, unknown, or not allowed to do this.
    Denied = 6,
}

/// Why a verb did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    /// Lower case, no full stop. Empty: there is nobody to tell (the reader of stdout has gone).
    pub message: String,
    pub hint: Option<String>,
}

pub type Outcome = Result<Code, Failure>;

impl Failure {
    pub fn new(code: Code, message: impl Display) -> Self {
        Self { code, message: message.to_string(), hint: None }
    }

    pub fn failed(message: impl Display) -> Self {
        Self::new(Code::Failed, message)
    }

    pub fn usage(message: impl Display) -> Self {
        Self::new(Code::Usage, message)
    }

    pub fn unavailable(message: impl Display) -> Self {
        Self::new(Code::Unavailable, message)
    }

    pub fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// What is written to stderr.
    pub fn text(&self) -> String {
        if self.message.is_empty() {
            return String::new();
        }
        let hint = self.hint.as_ref().map(|hint| format!("\nhint: {hint}\n")).unwrap_or_default();
        format!("error: {}\n{hint}", self.message)
    }
}

impl From<io::Error> for Failure {
    /// A reader that closes stdout (`| head`) has what it wanted: that is no error.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Code::Ok, ""),
            _ => Self::failed(format_args!("cannot write the output: {error}")),
        }
    }
}

/// The innermost reason of an error: what a person needs from a chain of wrappers.
pub fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_stands_on_its_own_line() {
        let failure = Failure::usage("`x` is no id").hint("write an id");
        assert_eq!(failure.text(), "error: `x` is no id\n\nhint: write an id\n");
        assert_eq!(Failure::usage("`x` is no id").text(), "error: `x` is no id\n");
    }

    #[test]
    fn a_closed_pipe_is_silent_success() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.code, failure.text().as_str()), (Code::Ok, ""));
        assert_eq!(Failure::from(io::Error::other("disk full")).code, Code::Failed);
    }
}
