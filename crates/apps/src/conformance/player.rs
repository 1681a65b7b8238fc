//! Plays one case against a new process of the app.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::process::ExitStatus;
use std::time::Duration;

use kafleet_handlers::output_tail::OutputTail;
use kafleet_handlers::process::{ConnectedProgram, OwnedProcess, RunningProgram as _};
use kafleet_handlers::process_guard::describe_status;
use kafleet_handlers::socket::SocketWriter;
use kafleet_model::task::id::clip_to;
use nix::libc;
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::CaseStep;
use super::sessions::difference;
use crate::process::AppProgram;
use crate::protocol::{self, ErrorOutcome, FromApp, MAX_LINE_BYTES};

/// Maximum time for an app to start, to answer, or to exit.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time in which an app fills its side of the socket.
const FILL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of the check whether the app has received a byte.
const BYTE_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum length of a quoted message, in characters.
const MAX_QUOTED_CHARS: usize = 300;

/// Running process, and the worker's end of its socket.
struct Player {
    process: OwnedProcess,
    output: OutputTail,
    reader: Option<pipe::Receiver>,
    writer: Option<SocketWriter>,
    received: Vec<u8>,
}

/// Plays a case. The error describes what the app does instead.
pub(super) async fn play(program: &AppProgram, steps: &[CaseStep]) -> Result<(), String> {
    let launched = program.launch(0).await.map_err(|error| format!("the app cannot be started: {error}"))?;
    let ConnectedProgram { process, output, reader, writer } = launched;
    let mut player = Player { process, output, reader: Some(reader), writer: Some(writer), received: Vec::new() };
    for step in steps {
        player.play(step).await?;
    }
    Ok(())
}

impl Player {
    async fn play(&mut self, step: &CaseStep) -> Result<(), String> {
        match step {
            CaseStep::Send(bytes) => self.send(bytes).await,
            CaseStep::SendSingly(bytes) => self.send_singly(bytes).await,
            CaseStep::Pause => {
                tokio::time::sleep(FILL_INTERVAL).await;
                Ok(())
            }
            CaseStep::Receive(message) => self.receive_message(message).await,
            CaseStep::ReceiveUnreadable(n) => self.receive_unreadable(*n).await,
            CaseStep::ReceiveAnswers(numbers) => self.receive_answers(numbers.iter().copied().collect()).await,
            CaseStep::End => {
                self.writer = None;
                Ok(())
            }
            CaseStep::Close => {
                (self.reader, self.writer) = (None, None);
                Ok(())
            }
            CaseStep::Exit(code) => self.exit(*code).await,
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let sent = match timeout(DEADLINE, writer.write_all(bytes)).await {
            Ok(sent) => sent.map_err(|error| format!("it does not read any more: {error}")),
            Err(_) => Err(format!("it has not read a message within {} s", DEADLINE.as_secs())),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(self.with_end(error).await),
        }
    }

    async fn send_singly(&mut self, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes.chunks(1) {
            self.send(byte).await?;
            let received = async {
                while self.writer.as_ref().is_some_and(|writer| unreceived(writer) > 0) {
                    tokio::time::sleep(BYTE_INTERVAL).await;
                }
            };
            let received = timeout(DEADLINE, received).await;
            received.map_err(|_| format!("it has not read a byte within {} s", DEADLINE.as_secs()))?;
        }
        Ok(())
    }

    async fn receive_message(&mut self, recorded: &Value) -> Result<(), String> {
        let line = self.receive(recorded).await?;
        let message: Value = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
        match difference(recorded, &message) {
            None => Ok(()),
            Some(difference) => Err(format!("{difference}, in `{}`", quoted(&line))),
        }
    }

    async fn receive_unreadable(&mut self, n: u64) -> Result<(), String> {
        let expected = format!("an answer to the attempt {n}");
        let line = self.receive(&expected).await?;
        let is_right = match protocol::parse(&line).map_err(|error| error.to_string())? {
            FromApp::Ok(success) => success.n == n,
            FromApp::Error(error) => error.n == n && error.outcome == ErrorOutcome::Dead && error.kind == "bad_params",
            _ => false,
        };
        let reason = || format!("`{}` instead of the outcome `dead` with the kind `bad_params`", quoted(&line));
        if is_right { Ok(()) } else { Err(reason()) }
    }

    /// Receives answers. Output of the attempts is accepted too.
    async fn receive_answers(&mut self, mut numbers: BTreeSet<u64>) -> Result<(), String> {
        while !numbers.is_empty() {
            let line = self.receive(&format_args!("answers to the attempts {numbers:?}")).await?;
            let n = match protocol::parse(&line).map_err(|error| error.to_string())? {
                FromApp::Ok(success) => success.n,
                FromApp::Error(error) => error.n,
                _ => continue,
            };
            if !numbers.remove(&n) {
                return Err(format!("an unexpected answer to the attempt {n}: `{}`", quoted(&line)));
            }
        }
        Ok(())
    }

    /// Receives a line that a worker would accept.
    async fn receive(&mut self, expected: &dyn std::fmt::Display) -> Result<Vec<u8>, String> {
        let expected = clip_to(&expected.to_string(), MAX_QUOTED_CHARS);
        let line = match timeout(DEADLINE, self.next_line()).await {
            Ok(line) => line?,
            Err(_) => return Err(format!("no message within {} s instead of `{expected}`", DEADLINE.as_secs())),
        };
        let Some(line) = line else {
            return Err(self.with_end(format!("the end of its stream instead of `{expected}`")).await);
        };
        match protocol::parse(&line) {
            Ok(_) => Ok(line),
            Err(violation) => Err(violation.to_string()),
        }
    }

    /// Returns the next line, without its line break. `None` at the end of the stream.
    async fn next_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        let mut scanned = 0;
        loop {
            if let Some(at) = self.received[scanned..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=scanned + at).collect();
                line.pop();
                return Ok(Some(line));
            }
            scanned = self.received.len();
            if scanned > MAX_LINE_BYTES {
                return Err(format!("a line of more than {MAX_LINE_BYTES} bytes"));
            }
            let Some(reader) = &mut self.reader else { return Ok(None) };
            match reader.read_buf(&mut self.received).await {
                Ok(1..) => {}
                Ok(0) if scanned > 0 => return Err(format!("a line without its end: `{}`", quoted(&self.received))),
                Ok(0) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    async fn exit(&mut self, code: Option<i32>) -> Result<(), String> {
        match timeout(DEADLINE, self.next_line()).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(line))) => return Err(format!("a further message: `{}`", quoted(&line))),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(format!("its stream has not ended within {} s", DEADLINE.as_secs())),
        }
        let Some(status) = self.status().await else {
            return Err(format!("it has not exited within {} s", DEADLINE.as_secs()));
        };
        match code {
            Some(code) if status.code() != Some(code) => {
                let how = describe_status(status);
                Err(self.with_output(format!("{how} instead of {code}")).await)
            }
            _ => Ok(()),
        }
    }

    async fn status(&mut self) -> Option<ExitStatus> {
        timeout(DEADLINE, self.process.exit()).await.ok()?.ok()
    }

    /// Adds how the process has ended to a problem.
    async fn with_end(&mut self, reason: String) -> String {
        (self.reader, self.writer) = (None, None);
        let reason = match self.status().await {
            Some(status) => format!("{reason}; {}", describe_status(status)),
            None => reason,
        };
        self.with_output(reason).await
    }

    async fn with_output(&mut self, reason: String) -> String {
        self.process.signal(Signal::SIGKILL);
        match self.output.last_lines().await {
            output if output.is_empty() => reason,
            output => format!("{reason}; last output: {output}"),
        }
    }
}

/// Returns the number of bytes that the app has not received.
fn unreceived(writer: &SocketWriter) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: the descriptor is open and the pointer valid; a failure leaves the number at 0.
    unsafe { libc::ioctl(writer.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    bytes
}

fn quoted(line: &[u8]) -> String {
    clip_to(&String::from_utf8_lossy(line), MAX_QUOTED_CHARS)
}
