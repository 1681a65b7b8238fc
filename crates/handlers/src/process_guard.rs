//! Kills programs when their worker dies, even by SIGKILL.
//!
//! Each worker process has one guard: a process forked before the first program starts, which holds the read end of a
//! pipe. Only the worker holds the write end, so that any death of the worker closes the pipe; the guard then kills
//! the registered process groups. A program registers itself between fork and exec, so that it never runs
//! unregistered.
//!
//! `PR_SET_PDEATHSIG` is not sufficient: it does not reach grandchildren, and it fires when the *thread* that started
//! the program ends, which for a pool thread can be at any time.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use parking_lot::Mutex;
use tokio::process::{Child, Command};

/// Maximum concurrent programs of a worker; the size of the guard's table.
const MAX_PROGRAMS: usize = 1 << 15;

/// A slot of the guard's table and its process group; 0 clears the slot. Far below PIPE_BUF, so writes are atomic.
type SlotUpdate = [i32; 2];

static GUARD_TABLE: Mutex<GuardTable> = Mutex::new(GuardTable { guard: None, groups: Vec::new(), free: Vec::new() });

/// The worker's side: the guard process and the registered groups.
struct GuardTable {
    guard: Option<Guard>,
    /// Process group per slot; 0 if free.
    groups: Vec<i32>,
    free: Vec<usize>,
}

struct Guard {
    pid: Pid,
    pipe: Arc<PipeWriter>,
}

/// A slot in the table, freed when dropped.
struct TableSlot(usize);

/// The process group of a running program, killed when dropped.
pub(crate) struct ProcessGroup {
    leader: Pid,
    ended: AtomicBool,
    _slot: TableSlot,
}

/// Starts the guard if there is none. Call this early: the guard is forked, and keeps a copy of the worker's memory
/// as of the fork.
pub fn start() -> io::Result<()> {
    GUARD_TABLE.lock().pipe().map(drop)
}

/// Starts a program as the leader of its own process group, registered with the guard. Blocks for a fork and exec.
pub(crate) fn spawn(mut command: Command) -> io::Result<(Child, ProcessGroup)> {
    let (slot, pipe) = GUARD_TABLE.lock().reserve()?;
    let (number, fd) = (slot.0 as i32, pipe.as_raw_fd());
    command.process_group(0);
    // SAFETY: getpid(2) and write(2) are async-signal-safe, and `pipe` stays open until after the spawn.
    unsafe { command.pre_exec(move || write_message(fd, [number, libc::getpid()])) };
    let child = command.spawn()?;
    let leader = Pid::from_raw(child.id().and_then(|id| i32::try_from(id).ok()).ok_or(Errno::ESRCH)?);
    GUARD_TABLE.lock().register(slot.0, leader, &pipe);
    Ok((child, ProcessGroup { leader, ended: AtomicBool::new(false), _slot: slot }))
}

impl ProcessGroup {
    /// Signals the whole group, unless it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.ended.load(Ordering::Relaxed) {
            let _ = killpg(self.leader, signal);
        }
    }

    /// Kills the rest of the group after the leader has ended. Afterwards the process group id may be reused by
    /// others.
    pub(crate) fn finish(&self) {
        self.signal(Signal::SIGKILL);
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

impl Drop for TableSlot {
    fn drop(&mut self) {
        GUARD_TABLE.lock().unregister(self.0);
    }
}

impl GuardTable {
    fn reserve(&mut self) -> io::Result<(TableSlot, Arc<PipeWriter>)> {
        let pipe = self.pipe()?;
        if let Some(slot) = self.free.pop() {
            return Ok((TableSlot(slot), pipe));
        }
        if self.groups.len() == MAX_PROGRAMS {
            return Err(io::Error::other(format!("{MAX_PROGRAMS} programs are running, the maximum for one worker")));
        }
        self.groups.push(0);
        Ok((TableSlot(self.groups.len() - 1), pipe))
    }

    /// Records a started program. If the guard was replaced in the meantime, registers the program with the new one.
    fn register(&mut self, slot: usize, leader: Pid, used: &Arc<PipeWriter>) {
        self.groups[slot] = leader.as_raw();
        if !self.guard.as_ref().is_some_and(|guard| Arc::ptr_eq(&guard.pipe, used)) {
            self.send([slot as i32, leader.as_raw()]);
        }
    }

    fn unregister(&mut self, slot: usize) {
        self.groups[slot] = 0;
        self.free.push(slot);
        self.send([slot as i32, 0]);
    }

    /// Sends a message to the guard. A guard that cannot be reached is replaced by one that starts with the current
    /// table.
    fn send(&mut self, message: SlotUpdate) {
        let sent = self.guard.as_ref().map(|guard| write_message(guard.pipe.as_raw_fd(), message));
        if !matches!(sent, Some(Ok(())))
            && let Err(error) = self.replace()
        {
            tracing::warn!("cannot start the guard process: programs would outlive a crash of this worker: {error}");
        }
    }

    /// Returns the pipe to a live guard.
    fn pipe(&mut self) -> io::Result<Arc<PipeWriter>> {
        if let Some(guard) = &self.guard
            && matches!(waitpid(guard.pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
        {
            return Ok(guard.pipe.clone());
        }
        self.replace()
    }

    fn replace(&mut self) -> io::Result<Arc<PipeWriter>> {
        if let Some(old) = self.guard.take() {
            // Kill it before its pipe closes, which it would treat as the worker's death.
            if matches!(waitpid(old.pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
                let _ = kill(old.pid, Signal::SIGKILL);
                let _ = waitpid(old.pid, None);
            }
        }
        let guard = Guard::fork(&self.groups)?;
        let pipe = guard.pipe.clone();
        self.guard = Some(guard);
        Ok(pipe)
    }
}

impl Guard {
    fn fork(groups: &[i32]) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // A stopped guard must not block the worker: writing to a full pipe fails, and the guard is replaced.
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut table = groups.to_vec();
        table.resize(MAX_PROGRAMS, 0);
        // The guard keeps all signals blocked: it must ignore the worker's handlers and Ctrl-C.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        // SAFETY: the child makes async-signal-safe calls only, and never returns.
        let forked = match unsafe { fork() } {
            Ok(ForkResult::Child) => run_guard(&reader, &mut table),
            Ok(ForkResult::Parent { child }) => Ok(child),
            Err(error) => Err(error),
        };
        mask.thread_set_mask()?;
        Ok(Self { pid: forked?, pipe: Arc::new(writer) })
    }
}

/// Describes the end of a process for people.
pub fn describe_status(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(number), _) => match Signal::try_from(number) {
            Ok(signal) => format!("ended by {signal}"),
            Err(_) => format!("ended by signal {number}"),
        },
        (None, Some(code)) => format!("it exited with code {code}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// Sends a message. Async-signal-safe: also called between fork and exec.
fn write_message(pipe: RawFd, message: SlotUpdate) -> io::Result<()> {
    // SAFETY: the buffer is valid for its size; a bad descriptor is an error, not undefined behaviour.
    let written = unsafe { libc::write(pipe, message.as_ptr().cast(), size_of::<SlotUpdate>()) };
    if written == size_of::<SlotUpdate>() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs the guard. As a forked copy of a multi-threaded process it must not allocate, lock or panic.
fn run_guard(pipe: &PipeReader, groups: &mut [i32]) -> ! {
    let pipe = pipe.as_raw_fd();
    // SAFETY: plain system calls on this process alone.
    unsafe { libc::setsid() };
    name_process();
    close_all_but(pipe);
    let mut messages: [SlotUpdate; 256] = [[0; 2]; 256];
    loop {
        // SAFETY: the buffer is valid for its size, and any bytes are a valid `SlotUpdate`.
        let received = unsafe { libc::read(pipe, messages.as_mut_ptr().cast(), size_of_val(&messages)) };
        if received < 0 && Errno::last() == Errno::EINTR {
            continue;
        }
        if received <= 0 {
            break;
        }
        for [slot, group] in messages.iter().take(received.unsigned_abs() / size_of::<SlotUpdate>()) {
            if let Some(entry) = groups.get_mut(*slot as usize) {
                *entry = *group;
            }
        }
    }
    for group in groups.iter().filter(|group| **group > 1) {
        // SAFETY: kill(2) has no memory effects.
        unsafe { libc::kill(group.wrapping_neg(), libc::SIGKILL) };
    }
    // SAFETY: ends the process without running any code of the worker.
    unsafe { libc::_exit(0) }
}

/// Sets the name shown by `ps` and `top`.
fn name_process() {
    #[cfg(target_os = "linux")]
    // SAFETY: the name is a C string of at most 16 bytes.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"kafleet-guard".as_ptr())
    };
}

/// Closes inherited descriptors: the worker's sockets and files must not stay open because of the guard.
fn close_all_but(open_fd: RawFd) {
    let open_fd = open_fd.unsigned_abs();
    close_range(open_fd.wrapping_add(1), u32::MAX);
    if open_fd > 0 {
        close_range(0, open_fd.wrapping_sub(1));
    }
}

fn close_range(first: u32, last: u32) {
    #[cfg(target_os = "linux")]
    // SAFETY: closes unused descriptors of this process.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // SAFETY: as above.
    let most = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for fd in first..=last.min(u32::try_from(most).unwrap_or(1 << 16)) {
        // SAFETY: as above.
        unsafe { libc::close(fd as RawFd) };
    }
}
