//! `exec`: a program is the task type. Params are JSON on its stdin, the result is JSON on its stdout, lines on its stderr
//! are progress and log, and its exit code says how it went. No shell is involved.
//!
//! A program leads a process group of its own, which never outlives the attempt: it is killed whole when the program has
//! ended, when the attempt is dropped, and by the guard when the worker dies.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use self::reaper::Group;
use self::stderr_protocol::{Heard, Output};
use crate::handlers::failure::excerpt;
use crate::handlers::{Answer, AnswerFuture, Context, Failure, Handler, ParamsError};
use crate::model::json::RawJson;

pub(crate) mod reaper;
mod stderr_protocol;

pub use stderr_protocol::{MAX_LINE_BYTES, MAX_LINES};

/// EX_TEMPFAIL of sysexits.h: the exit code that asks for another attempt, unless the type names others.
pub const RETRY_EXIT_CODE: i32 = 75;

/// How long stdout and stderr are still read after the program's group is dead. Only something that left the group can
/// hold them open that long.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A program, and how it is run.
#[derive(Clone, Debug)]
pub struct Program {
    /// A path, or a name to be found in `PATH`.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Added to the worker's environment.
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    pub retry_exit_codes: Vec<i32>,
    /// Bytes of stdout.
    pub max_output: usize,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// Runs a [`Program`] per attempt.
pub struct Exec(Arc<Program>);

impl Exec {
    pub fn new(program: Program) -> Self {
        Self(Arc::new(program))
    }
}

impl Handler for Exec {
    fn start(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let (program, params) = (self.0.clone(), params.clone());
        Ok(Box::pin(async move { program.run(params, cx).await }))
    }

    fn name_in_child<'a>(&'a self, _: &'a str) -> Option<&'a str> {
        None
    }

    fn prepare(&self) -> Result<(), String> {
        reaper::start().map_err(|why| format!("no guard process for programs could be started: {why}"))
    }
}

impl Program {
    async fn run(&self, params: RawJson, cx: Context) -> Answer {
        let (mut child, group) = self.launch(&cx).await?;
        let (mut output, mut heard) = (Output::default(), Heard::default());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(Failure::retry("the program was started without its pipes"));
        };
        let status = {
            let listen = async {
                output.read(stdout, self.max_output).await;
                if output.too_large {
                    group.signal(Signal::SIGKILL);
                }
            };
            let talk = pin!(async { tokio::join!(feed(stdin, &params), listen, heard.read(stderr, &cx)) });
            match select(pin!(self.end(&mut child, &group, &cx)), talk).await {
                Either::Left((status, talk)) => {
                    let _ = timeout(LAST_WORDS, talk).await;
                    status
                }
                Either::Right((_, end)) => end.await,
            }
        };
        let status = status.map_err(|why| Failure::retry(format!("the end of the program is unknown: {why}")))?;
        self.judge(status, &output, &heard, &cx)
    }

    /// On the blocking pool: forking a large process takes milliseconds.
    async fn launch(&self, cx: &Context) -> Result<(Child, Group), Failure> {
        let command = self.command(cx);
        let told = |why: &dyn std::fmt::Display| {
            let told = format!("the program `{}` could not be started: {why}", self.program.display());
            Failure::retry(told).of_kind("not_started")
        };
        let launched = tokio::task::spawn_blocking(|| reaper::spawn(command)).await.map_err(|why| told(&why))?;
        launched.map_err(|why| told(&why))
    }

    fn command(&self, cx: &Context) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.cwd);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The worker's own trace is not the task's.
        command.env_remove("TRACEPARENT").env_remove("TRACESTATE").envs(&self.env);
        command.env("KAFLEET_TASK_ID", cx.id.as_str()).env("KAFLEET_TYPE", cx.task_type());
        command.env("KAFLEET_ATTEMPT", cx.number.to_string()).env("KAFLEET_RUN", cx.run.to_string());
        command.env("KAFLEET_IDEMPOTENCY_KEY", cx.idempotency_key());
        if let Some(trace) = &cx.trace {
            command.env("TRACEPARENT", &trace.parent);
            command.envs(trace.state.as_ref().map(|state| ("TRACESTATE", state)));
        }
        command
    }

    /// Waits for the program, or stops it when told to, and kills what it leaves behind.
    async fn end(&self, child: &mut Child, group: &Group, cx: &Context) -> io::Result<ExitStatus> {
        let status = tokio::select! {
            status = child.wait() => status,
            () = cx.cancelled().cancelled() => self.stop(child, group).await,
        };
        group.finish();
        status
    }

    async fn stop(&self, child: &mut Child, group: &Group) -> io::Result<ExitStatus> {
        group.signal(Signal::SIGTERM);
        if let Ok(status) = timeout(self.grace, child.wait()).await {
            return status;
        }
        group.signal(Signal::SIGKILL);
        child.wait().await
    }

    fn judge(&self, status: ExitStatus, output: &Output, heard: &Heard, cx: &Context) -> Answer {
        if output.too_large {
            let told =
                format!("the result has more than {} bytes; hint: store it elsewhere and answer with a link", self.max_output);
            return Err(Failure::fail(told).of_kind("result_too_large"));
        }
        match status.code() {
            Some(0) => result(&output.bytes),
            _ if cx.is_cancelled() => Err(Failure::cancelled()),
            Some(code) if self.retry_exit_codes.contains(&code) => {
                Err(Failure::retry(ending(&format!("exit code {code}"), heard)).of_kind("exit_code"))
            }
            Some(code) => Err(Failure::fail(ending(&format!("exit code {code}"), heard)).of_kind("exit_code")),
            None => Err(Failure::retry(ending(&format!("ended by {}", signal_name(status)), heard)).of_kind("signal")),
        }
    }
}

/// Writes the params and closes. A program need not read them.
async fn feed(mut stdin: ChildStdin, params: &RawJson) {
    if stdin.write_all(params.text().as_bytes()).await.is_ok() {
        let _ = stdin.shutdown().await;
    }
}

fn result(stdout: &[u8]) -> Answer {
    if stdout.trim_ascii().is_empty() {
        return Ok(RawJson::null());
    }
    RawJson::parse(stdout).map_err(|why| {
        let told = format!("the program's output is not JSON ({why}); it begins with `{}`", excerpt(stdout, 100));
        Failure::fail(told).of_kind("bad_output")
    })
}

fn ending(how: &str, heard: &Heard) -> String {
    match heard.last_words() {
        words if words.is_empty() => format!("{how}, and nothing on stderr"),
        words => format!("{how}: {words}"),
    }
}

fn signal_name(status: ExitStatus) -> String {
    match status.signal().map(|number| (number, Signal::try_from(number))) {
        Some((_, Ok(signal))) => signal.to_string(),
        Some((number, Err(_))) => format!("signal {number}"),
        None => "an unknown signal".to_owned(),
    }
}
