//! Process of an app: start, supervision and end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Fuse};
use kafleet_handlers::context::Restart;
use kafleet_handlers::output_tail::{OutputTail, quote};
use kafleet_handlers::process::{ConnectedProgram, EXIT_DEADLINE, RunningProgram};
use kafleet_handlers::process_guard::describe_status;
use kafleet_handlers::program_env::ProgramEnv;
use kafleet_runtime::now_ms;
use nix::sys::signal::Signal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::capacity::Capacity;
use super::crash_output::without_hidden_frames;
use super::declaration::Declaration;
use super::launch::{Launcher, SimulatedProcess};
use super::loaded_files::LoadedFiles;
use super::protocol::Welcome;
use super::session::{Cause, DeclarationReceiver, Session, SessionEvent, StreamEndReason};

/// Time after which a process counts as lasting: the app is not to blame for its end.
pub const LASTING_AFTER: Duration = Duration::from_secs(1);
/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Time to exit after the end of the stream, and again after SIGTERM.
const EXIT_GRACE: Duration = Duration::from_secs(5);
/// Maximum length of the line that gives the reason of a failed start, in characters.
const MAX_REASON_CHARS: usize = 500;
/// Maximum time to read the rest of the stream after the exit: a program started by the app may keep it open.
const REST_DEADLINE: Duration = Duration::from_millis(50);

/// Program of an app.
#[derive(Clone, Debug)]
pub struct AppProgram {
    /// Name of the app.
    pub name: String,
    /// Program and arguments; no shell.
    pub command: Vec<String>,
    pub cwd: PathBuf,
    pub env: ProgramEnv,
    /// Time until the app is ready.
    pub start_timeout: Duration,
    /// Types to use. `None`: all declared ones.
    pub types: Option<Vec<String>>,
    /// Slots of a process. `None`: as declared.
    pub slots: Option<u32>,
    /// Tasks of some type run in order: a late attempt must not run beside the next one.
    pub has_order: bool,
    /// Source files that the processes have loaded.
    pub files: LoadedFiles,
    /// Blocked processes are not killed: a debugger may have stopped them.
    pub may_block: bool,
    /// Starts the processes in a simulation. `None`: the operating system does.
    pub launcher: Option<Arc<dyn Launcher>>,
}

/// Running process. Dropping it kills its process group.
pub struct AppProcess {
    app: String,
    session: Session,
    program: Box<dyn RunningProgram>,
    /// `None` in a simulation.
    output: Option<OutputTail>,
    driver: Fuse<BoxFuture<'static, StreamEndReason>>,
    events: mpsc::UnboundedReceiver<SessionEvent>,
    capacity: Capacity,
    responsive: bool,
    has_order: bool,
    may_block: bool,
    /// The event loop was blocked at the last ping.
    is_blocked: bool,
    /// Time since which the process serves.
    since: Instant,
}

/// Request to a process.
#[derive(Debug)]
pub enum ProcessRequest {
    /// End the stream; the running attempts may finish.
    Stop,
    /// Kill the process, for this reason. Its attempts run again.
    Kill(String),
    /// Kill the process because of its memory, as described.
    OutOfMemory(String),
}

/// End of a process.
#[derive(Debug)]
pub struct ProcessEnd {
    pub cause: Cause,
    /// The worker has requested the end of the process.
    pub is_expected: bool,
    /// Description of the end, with the last output.
    pub message: String,
}

/// Reason why a process is not ready.
#[derive(Debug, thiserror::Error)]
#[error("the app `{app}` {reason}")]
pub struct StartError {
    pub app: String,
    pub reason: String,
}

impl ProcessEnd {
    /// Reason as a label of metrics.
    pub fn reason(&self) -> &'static str {
        match &self.cause {
            _ if self.is_expected => "replaced",
            Cause::Crashed | Cause::CrashedEarly | Cause::Unread => "crashed",
            Cause::OutOfMemory => "memory",
            Cause::Garbled => "garbled",
            Cause::Killed(_) => "killed",
        }
    }
}

impl AppProgram {
    /// Starts a process, number `number` of the app, and waits for its declaration.
    ///
    /// # Errors
    /// The process cannot be started, ends, or declares something invalid.
    pub async fn start(&self, number: u32, welcome: &Welcome) -> Result<(AppProcess, Declaration), StartError> {
        let failed = |reason: String| StartError { app: self.name.clone(), reason };
        let (mut process, mut declared) = self.spawn(number, welcome).await.map_err(|reason| {
            let program = self.command.first().map(String::as_str).unwrap_or_default();
            failed(format!("cannot be started: `{program}`: {reason}; hint: started in `{}`", self.cwd.display()))
        })?;
        let answer = tokio::select! {
            biased;
            Ok(answer) = &mut declared => Some(answer),
            end = &mut process.driver => match (end, declared.try_recv()) {
                (StreamEndReason::Violated(violation), _) => {
                    return Err(failed(format!("violates the app protocol: {violation}")));
                }
                // Sent together with the end of the stream.
                (_, Ok(Err(reason))) => Some(Err(reason)),
                _ => None,
            },
            () = tokio::time::sleep(self.start_timeout) => {
                let seconds = self.start_timeout.as_secs_f32();
                return Err(failed(format!("was not ready within {seconds} s; hint: raise `start_timeout`")));
            }
        };
        let ready = match answer {
            Some(Ok(ready)) => ready,
            Some(Err(reason)) => return Err(failed(format!("cannot serve: {reason}"))),
            None => return Err(failed(process.describe_failed_start(&self.cwd).await)),
        };
        process.capacity = Capacity { slots: self.slots.unwrap_or(ready.slots), threads: ready.threads };
        process.responsive = ready.responsive;
        let declaration = Declaration::read(ready, self.types.as_deref());
        let declaration = declaration.map_err(|problems| failed(format!("is refused: {}", problems.join("; "))))?;
        Ok((process, declaration))
    }

    async fn spawn(&self, number: u32, welcome: &Welcome) -> io::Result<(AppProcess, DeclarationReceiver)> {
        if let Some(simulated) = &self.launcher {
            let SimulatedProcess { program, reader, writer } = simulated.launch(number);
            return Ok(self.connect(program, None, reader, writer, welcome));
        }
        let ConnectedProgram { process, output, reader, writer } = self.launch(number).await?;
        Ok(self.connect(Box::new(process), Some(output), reader, writer, welcome))
    }

    /// Opens the session with a process that has been started.
    fn connect<R, W>(
        &self,
        program: Box<dyn RunningProgram>,
        output: Option<OutputTail>,
        reader: R,
        writer: W,
        welcome: &Welcome,
    ) -> (AppProcess, DeclarationReceiver)
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, events) = mpsc::unbounded_channel();
        let (session, declared, driver) = Session::open(reader, writer, welcome, sender, self.files.clone());
        if let Some(output) = &output {
            session.set_output(output.lines());
        }
        let process = AppProcess {
            app: self.name.clone(),
            session,
            program,
            output,
            driver: in_own_task(driver).boxed().fuse(),
            events,
            capacity: Capacity::shared(1),
            responsive: false,
            has_order: self.has_order,
            may_block: self.may_block,
            is_blocked: false,
            since: Instant::now(),
        };
        (process, declared)
    }
}

impl AppProcess {
    /// Session of the process, to which attempts are sent.
    pub fn session(&self) -> &Session {
        &self.session
    }

    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Sets whether tasks of some type run in order.
    pub fn set_order(&mut self, has_order: bool) {
        self.has_order = has_order;
    }

    /// Attempts that the process runs at once.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Supervises the process to its end, and ends its attempts. `on_event` is called when the process has to be replaced:
    /// it accepts no more attempts then.
    pub async fn run(
        mut self,
        mut requests: mpsc::UnboundedReceiver<ProcessRequest>,
        on_event: impl Fn(SessionEvent) + Send,
    ) -> ProcessEnd {
        self.since = Instant::now();
        let mut pings = tokio::time::interval_at(self.since + PING_INTERVAL, PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => {
                    let restart = self.restart_after(&event);
                    self.session.refuse_attempts();
                    on_event(event);
                    if let Some(restart) = restart {
                        break self.kill_for_overrun(restart).await;
                    }
                }
                request = requests.recv() => {
                    let (cause, error) = match request {
                        Some(ProcessRequest::Kill(error)) => (Cause::Killed(Restart::Shared), error),
                        Some(ProcessRequest::OutOfMemory(error)) => (Cause::OutOfMemory, error),
                        // The channel is closed once the pool has been dropped.
                        Some(ProcessRequest::Stop) | None => break self.stop().await,
                    };
                    self.session.refuse_attempts();
                    // Otherwise attempts would be sent to it again and again until it has ended.
                    on_event(SessionEvent::Ended);
                    break self.kill(cause, error).await;
                }
                end = &mut self.driver => {
                    on_event(SessionEvent::Ended);
                    break self.stream_ended(end).await;
                }
                _ = self.program.exit() => {
                    let end = timeout(REST_DEADLINE, &mut self.driver).await.unwrap_or(StreamEndReason::Closed);
                    self.session.refuse_attempts();
                    on_event(SessionEvent::Ended);
                    break self.stream_ended(end).await;
                }
                () = news(self.output.as_ref()) => self.session.log_output(),
                _ = pings.tick(), if self.responsive => {
                    self.report_blocked();
                    // The attempt that did not stop keeps the others from ending.
                    if self.is_blocked && !self.may_block && self.session.stuck() > 0 {
                        break self.kill_for_overrun(Restart::Alone).await;
                    }
                    self.session.ping(now_ms());
                }
            }
        };
        self.session.fail_attempts(&end.cause, &end.message);
        end
    }

    /// Returns how other attempts are repeated, if the process has to be killed because of an attempt that does not
    /// stop.
    fn restart_after(&self, event: &SessionEvent) -> Option<Restart> {
        match event {
            SessionEvent::Retired(_) | SessionEvent::Ended => None,
            SessionEvent::Overrun if self.may_block => None,
            SessionEvent::Overrun if self.capacity.total() == 1 || self.has_order => Some(Restart::Shared),
            // Any of the attempts may block the app.
            SessionEvent::Overrun if !self.responsive || self.session.blocked_for().is_some() => Some(Restart::Alone),
            // Killed later if it turns out to be blocked.
            SessionEvent::Overrun => None,
        }
    }

    /// Logs when the event loop of the app is found blocked, once each time.
    fn report_blocked(&mut self) {
        let blocked_for = self.session.blocked_for();
        let was_blocked = std::mem::replace(&mut self.is_blocked, blocked_for.is_some());
        if let Some(silence) = blocked_for.filter(|_| !was_blocked) {
            let (app, pid, seconds) = (self.app.as_str(), self.pid(), silence.as_secs());
            let hint = "run blocking calls and computations in threads, or in types of their own with one slot";
            tracing::warn!(app, pid, seconds, hint, "the event loop of a process of an app is blocked");
        }
    }

    async fn kill_for_overrun(&mut self, restart: Restart) -> ProcessEnd {
        let reason = "the process was killed: another attempt did not stop in time".to_owned();
        self.kill(Cause::Killed(restart), reason).await
    }

    async fn stream_ended(&mut self, end: StreamEndReason) -> ProcessEnd {
        if let StreamEndReason::Violated(violation) = end {
            let reason = format!("the app violates the protocol: {violation}");
            return self.kill(Cause::Garbled, reason).await;
        }
        let is_unread = self.capacity.total() == 1 && self.session.is_attempt_unread(&end);
        let cause = match is_unread {
            true => Cause::Unread,
            false if self.since.elapsed() < LASTING_AFTER => Cause::CrashedEarly,
            false => Cause::Crashed,
        };
        let message = format!("the process of the app ended: {}", self.describe_end().await);
        ProcessEnd { cause, is_expected: false, message }
    }

    async fn kill(&mut self, cause: Cause, message: String) -> ProcessEnd {
        self.program.signal(Signal::SIGKILL);
        self.program.exit_in_time().await;
        ProcessEnd { cause, is_expected: false, message }
    }

    /// Ends the stream and waits for the exit; then SIGTERM, then SIGKILL. Running attempts are still answered meanwhile.
    async fn stop(&mut self) -> ProcessEnd {
        self.session.close();
        let status = match timeout(EXIT_GRACE, self.program.exit()).await {
            Ok(status) => status.ok(),
            Err(_) => {
                let stopped = timeout(EXIT_GRACE + EXIT_DEADLINE, self.program.stop(EXIT_GRACE)).await;
                stopped.ok().and_then(Result::ok)
            }
        };
        let _ = timeout(REST_DEADLINE, &mut self.driver).await;
        let how = status.map_or_else(|| "it was killed".to_owned(), describe_status);
        let message = format!("the worker ended the process: {how}");
        ProcessEnd { cause: Cause::Killed(Restart::Shared), is_expected: true, message }
    }

    /// Describes the end with the last output. A process that has closed its stream and does not exit is killed.
    async fn describe_end(&mut self) -> String {
        let status = self.program.exit_in_time().await;
        let how = status.map_or_else(|| "it closed its socket".to_owned(), describe_status);
        match quote(&without_hidden_frames(&self.last_output().await)) {
            lines if lines.is_empty() => format!("{how}, without output"),
            lines => format!("{how}; last output: {lines}"),
        }
    }

    /// Last output of a process that has ended.
    async fn last_output(&mut self) -> String {
        match &mut self.output {
            Some(output) => output.text().await,
            None => String::new(),
        }
    }

    async fn describe_failed_start(&mut self, cwd: &std::path::Path) -> String {
        let status = self.program.exit_in_time().await;
        let code = status.and_then(|status| status.code());
        let how = match code {
            Some(code) => format!("exit code {code}"),
            None => status.map_or_else(|| "it closed its socket".to_owned(), describe_status),
        };
        let output = self.last_output().await;
        let reason: String = reason_line(&output).unwrap_or_default().chars().take(MAX_REASON_CHARS).collect();
        let hint = start_hint(code, &reason, cwd).map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        let separator = if reason.is_empty() { "" } else { ": " };
        let location = location_line(&output).map(|location| format!(" ({location})")).unwrap_or_default();
        format!("ended before it was ready: {how}{separator}{reason}{location}{hint}")
    }
}

/// Waits until the process has written something.
async fn news(output: Option<&OutputTail>) {
    match output {
        Some(output) => output.lines().news().await,
        None => std::future::pending().await,
    }
}

/// Runs the driver in a task of its own, so that a message of the app wakes nothing else. The task ends when the returned
/// future is dropped.
fn in_own_task(
    driver: impl Future<Output = StreamEndReason> + Send + 'static,
) -> impl Future<Output = StreamEndReason> {
    let task = AbortOnDropHandle::new(kafleet_runtime::spawn(driver));
    // After a panic nothing is read any more.
    async { task.await.unwrap_or(StreamEndReason::Closed) }
}

/// Remedy for a process that ended before it was ready, with this exit code and last line of output.
fn start_hint(code: Option<i32>, reason: &str, cwd: &std::path::Path) -> Option<String> {
    const MISSING: [&str; 4] = ["No module named", "Cannot find", "No such file", "not found"];
    if MISSING.iter().any(|words| reason.contains(words)) {
        return Some(format!("started in `{}`; set `cwd`", cwd.display()));
    }
    // A file that only declares tasks ends without an error.
    (code == Some(0)).then(|| "it must serve its tasks: run a Python file with `python -m kafleet FILE`".to_owned())
}

/// Returns the line of the output that names the error: the last one, not counting the details that Node appends.
fn reason_line(output: &str) -> Option<&str> {
    let is_detail = |line: &&str| line.is_empty() || line.starts_with([' ', '{', '}']) || line.starts_with("Node.js v");
    output.lines().rev().find(|line| !is_detail(line)).or_else(|| output.lines().last())
}

/// Line of the output in which Node names the file and line of an error, above the source text.
fn location_line(output: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_location = |line: &&str| {
        line.starts_with("file:///") && line.rsplit_once(':').is_some_and(|(_, number)| is_number(number))
    };
    output.lines().rev().find(is_location)
}

#[cfg(test)]
mod tests {
    use super::{location_line, reason_line, start_hint};

    #[test]
    fn reason_of_a_failed_start_is_the_line_with_the_error() {
        let node = "node:internal/modules/package_json_reader:266\n  throw new ERR_MODULE_NOT_FOUND(name);\n        ^\n\n\
            Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'kafleet' imported from /t.ts\n    at load (loader:1:2) {\n  \
            code: 'ERR_MODULE_NOT_FOUND'\n}\n\nNode.js v24.21.0";
        let expected = "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'kafleet' imported from /t.ts";
        assert_eq!(reason_line(node), Some(expected));
        let python =
            "Traceback (most recent call last):\n  File \"t.py\", line 1\nModuleNotFoundError: No module named 'numpy'";
        assert_eq!(reason_line(python), Some("ModuleNotFoundError: No module named 'numpy'"));
        assert_eq!(reason_line("{}"), Some("{}"), "a detail is better than nothing");
        assert_eq!(reason_line(""), None);
    }

    #[test]
    fn location_of_a_syntax_error_is_the_line_above_the_source_text() {
        let node = "node:internal/modules/run_main:107\n    ^\n\nfile:///srv/tasks.ts:4\n\nconst x = ;\n          ^\n\n\
            SyntaxError [ERR_INVALID_TYPESCRIPT_SYNTAX]: Expression expected\n    at parse (node:internal/x:1:2)\n\n\
            Node.js v24.21.0";
        assert_eq!(location_line(node), Some("file:///srv/tasks.ts:4"));
        assert_eq!(location_line("Error: x\nfile:///srv/tasks.ts"), None);
    }

    #[test]
    fn hint_of_a_failed_start_fits_its_reason() {
        let hint = |code, reason| start_hint(code, reason, "/srv".as_ref());
        let folder = "started in `/srv`; set `cwd`";
        assert_eq!(hint(Some(1), "ModuleNotFoundError: No module named 'numpy'").as_deref(), Some(folder));
        assert_eq!(
            hint(Some(2), "python3: can't open file 'x.py': No such file or directory").as_deref(),
            Some(folder)
        );
        assert_eq!(hint(Some(1), "SyntaxError: invalid syntax"), None);
        assert!(hint(Some(0), "").is_some_and(|hint| hint.contains("python -m kafleet")));
        assert_eq!(hint(None, ""), None);
    }
}
