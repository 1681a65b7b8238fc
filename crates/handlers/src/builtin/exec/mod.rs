//! `exec`: runs a program per attempt. The params are JSON on its stdin, the result is JSON on its stdout, lines on
//! its stderr are progress and log, and the exit code is the outcome. No shell is involved.
//!
//! The process group of a program never outlives its attempt: see [`crate::process`].

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use kafleet_model::json::RawJson;
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::stderr_protocol::{Contexts, Stderr, Stdout};
use super::Section;
use crate::batch::run_one;
use crate::failure::excerpt;
use crate::process::{OwnedProcess, RunningProgram as _};
use crate::process_guard::{self, describe_status};
use crate::program_env::ProgramEnv;
use crate::{
    Answer, AnswerFuture, BatchContext, BatchFuture, Capabilities, Context, Failure, Handler, InChild, Item,
    ParamsError, TypeRegistration,
};

mod batch;
mod stderr_protocol;

pub use stderr_protocol::{MAX_LINE_BYTES, MAX_LINES};

/// EX_TEMPFAIL of sysexits.h: the exit code that requests a retry, unless the type configures others.
pub const RETRY_EXIT_CODE: i32 = 75;

/// Time for reading the rest of stdout and stderr after the program's group is dead. Only a process that left the
/// group can keep them open that long.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// A program and its execution settings.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path, or a name looked up in `PATH`.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub env: ProgramEnv,
    pub cwd: PathBuf,
    pub retry_exit_codes: Vec<i32>,
    /// Exit codes after which the task waits.
    pub wait_exit_codes: Vec<i32>,
    /// Maximum bytes of stdout.
    pub max_output: usize,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// Runs a [`Program`] per attempt, or per call with several tasks.
pub struct Exec {
    program: Arc<Program>,
    /// The program gets tasks and answers them line by line.
    takes_batches: bool,
}

impl Exec {
    pub fn new(program: Program) -> Self {
        Self { program: Arc::new(program), takes_batches: false }
    }

    /// Lets the program take several tasks in one run, also for a single task.
    pub fn with_batches(self) -> Self {
        Self { takes_batches: true, ..self }
    }

    /// Creates the type of a configuration section.
    pub(super) fn from_section(section: &mut Section<'_>) -> Option<TypeRegistration> {
        let takes_batches = section.config.batch.is_some();
        program(section).map(|program| TypeRegistration::new(Self { takes_batches, ..Self::new(program) }))
    }
}

fn program(section: &mut Section<'_>) -> Option<Program> {
    let Some((program, arguments)) = section.config.command.split_first().filter(|(program, _)| !program.is_empty())
    else {
        section.problem("command", "missing; hint: a program and its arguments, such as [\"python3\", \"count.py\"]");
        return None;
    };
    // A name without a slash is looked up in PATH; a path is relative to kafleet.toml, independent of the working
    // directory.
    let program = if program.contains('/') { section.path(Path::new(program)) } else { PathBuf::from(program) };
    Some(Program {
        program,
        arguments: arguments.to_vec(),
        env: ProgramEnv { variables: section.config.variables(), withheld: section.env.withheld.clone() },
        cwd: section.path(section.config.cwd.as_deref().unwrap_or(Path::new("."))),
        retry_exit_codes: section.config.retry_exit_codes.clone().unwrap_or_else(|| vec![RETRY_EXIT_CODE]),
        wait_exit_codes: section.config.wait_exit_codes.clone(),
        max_output: section.max_output(),
        grace: Duration::from(section.env.worker.grace),
    })
}

impl Handler for Exec {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let (program, params) = (self.program.clone(), params.clone());
        if self.takes_batches {
            return Ok(Box::pin(run_one(
                params,
                cx,
                |items, call| async move { program.run_batch(items, call).await },
            )));
        }
        Ok(Box::pin(async move { program.run(params, cx).await }))
    }

    fn run_batch(&self, items: Vec<Item<RawJson>>, cx: BatchContext) -> BatchFuture {
        let program = self.program.clone();
        Box::pin(async move { program.run_batch(items, cx).await })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { in_child: InChild::Never, takes_batches: self.takes_batches, ..Capabilities::default() }
    }

    fn prepare(&self) -> Result<(), String> {
        process_guard::start().map_err(|error| format!("cannot start the guard process for programs: {error}"))
    }
}

/// Text for the stdin of a program, and limits of its run.
struct ProgramInput<'a> {
    text: String,
    /// Maximum bytes of stdout.
    max_output: usize,
    /// Stops the program.
    stop: &'a CancellationToken,
}

/// Program that has ended.
struct ProgramEnd {
    status: ExitStatus,
    output: Stdout,
    errors: Stderr,
}

impl Program {
    async fn run(&self, params: RawJson, cx: Context) -> Answer {
        let input = ProgramInput { text: params.text().to_owned(), max_output: self.max_output, stop: cx.cancelled() };
        let ProgramEnd { status, output, errors } =
            self.execute(self.command_of_attempt(&cx), input, &Contexts::One(&cx)).await?;
        if output.too_large {
            return Err(self.too_large());
        }
        self.outcome(status, &errors, cx.is_cancelled())?;
        result(&output.bytes)
    }

    /// Runs the program to its end. Its lines on stderr go to the contexts.
    async fn execute(
        &self,
        command: Command,
        input: ProgramInput<'_>,
        contexts: &Contexts<'_>,
    ) -> Result<ProgramEnd, Failure> {
        let mut process = self.launch(command).await?;
        let mut output = Stdout::default();
        let mut errors = Stderr::default();
        let Some((stdin, stdout, stderr)) = process.take_pipes() else {
            return Err(Failure::retry("the program was started without pipes"));
        };
        let group = process.group();
        let status = {
            let read_stdout = async {
                output.read(stdout, input.max_output).await;
                if output.too_large {
                    group.signal(Signal::SIGKILL);
                }
            };
            let pipes = pin!(async {
                tokio::join!(write_input(stdin, &input.text), read_stdout, errors.read(stderr, contexts))
            });
            match select(pin!(self.end(&mut process, input.stop)), pipes).await {
                Either::Left((status, pipes)) => {
                    let _ = timeout(OUTPUT_GRACE, pipes).await;
                    status
                }
                Either::Right((_, end)) => end.await,
            }
        };
        let status =
            status.map_err(|error| Failure::retry(format!("the exit status of the program is unknown: {error}")))?;
        Ok(ProgramEnd { status, output, errors })
    }

    async fn launch(&self, command: Command) -> Result<OwnedProcess, Failure> {
        OwnedProcess::start(command).await.map_err(|error| {
            let message = format!("cannot start the program `{}`: {error}", self.program.display());
            Failure::retry(message).of_kind("not_started")
        })
    }

    fn command(&self, task_type: &str) -> Command {
        let mut command = self.env.command(&self.program);
        command.args(&self.arguments).current_dir(&self.cwd);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The worker's own trace context is not the task's.
        command.env_remove("TRACEPARENT").env_remove("TRACESTATE");
        command.env("KAFLEET_TYPE", task_type);
        command
    }

    fn command_of_attempt(&self, cx: &Context) -> Command {
        let mut command = self.command(cx.task_type());
        command.env("KAFLEET_TASK_ID", cx.id.as_str());
        command.env("KAFLEET_ATTEMPT", cx.number.to_string()).env("KAFLEET_RUN", cx.run.to_string());
        command.env("KAFLEET_IDEMPOTENCY_KEY", cx.idempotency_key());
        if let Some(trace) = &cx.trace {
            command.env("TRACEPARENT", &trace.parent);
            command.envs(trace.state.as_ref().map(|state| ("TRACESTATE", state)));
        }
        command
    }

    /// Waits for the program, and stops it on cancellation.
    async fn end(&self, process: &mut OwnedProcess, stop: &CancellationToken) -> io::Result<ExitStatus> {
        tokio::select! {
            status = process.exit() => status,
            () = stop.cancelled() => process.stop(self.grace).await,
        }
    }

    fn too_large(&self) -> Failure {
        let message =
            format!("the result has more than {} bytes; hint: store it elsewhere and return a link", self.max_output);
        Failure::fail(message).of_kind("result_too_large")
    }

    /// Returns the failure that an exit status stands for, if it is one.
    fn outcome(&self, status: ExitStatus, stderr: &Stderr, is_cancelled: bool) -> Result<(), Failure> {
        match status.code() {
            Some(0) => Ok(()),
            _ if is_cancelled => Err(Failure::cancelled()),
            Some(code) if self.wait_exit_codes.contains(&code) => {
                Err(Failure::wait(None, ending(&format!("exit code {code}"), stderr)).of_kind("exit_code"))
            }
            Some(code) if self.retry_exit_codes.contains(&code) => {
                Err(Failure::retry(ending(&format!("exit code {code}"), stderr)).of_kind("exit_code"))
            }
            Some(code) => Err(Failure::fail(ending(&format!("exit code {code}"), stderr)).of_kind("exit_code")),
            None => Err(Failure::retry(ending(&describe_status(status), stderr)).of_kind("signal")),
        }
    }
}

/// Writes the input and closes stdin. Programs need not read it.
async fn write_input(mut stdin: ChildStdin, text: &str) {
    if stdin.write_all(text.as_bytes()).await.is_ok() {
        let _ = stdin.shutdown().await;
    }
}

fn result(stdout: &[u8]) -> Answer {
    if stdout.trim_ascii().is_empty() {
        return Ok(RawJson::null());
    }
    RawJson::parse(stdout).map_err(|error| {
        let message = format!("the program's output is not JSON ({error}); it begins with `{}`", excerpt(stdout, 100));
        Failure::fail(message).of_kind("bad_output")
    })
}

fn ending(how: &str, stderr: &Stderr) -> String {
    match stderr.tail() {
        lines if lines.is_empty() => format!("{how}, and nothing on stderr"),
        lines => format!("{how}: {lines}"),
    }
}
