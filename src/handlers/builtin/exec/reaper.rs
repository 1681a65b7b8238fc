//! Programs die with their worker, also when the worker is killed with SIGKILL.
//!
//! Each worker process has one guard: a process forked before the first program starts, which holds the reading end of a
//! pipe. Only the worker holds the writing end, so that the kernel tells the guard of the worker's death, whatever its
//! kind; the guard then kills the process groups it was told of. A program tells of itself between fork and exec, so that
//! there is no moment in which it runs and the guard does not know it.
//!
//! `PR_SET_PDEATHSIG` would not do: it reaches no grandchildren, and it fires when the *thread* that started the program
//! ends, which for a pool's thread can be at any time.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};
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

/// Programs of one worker at once. Bounds the guard's table.
const CAPACITY: usize = 1 << 15;

/// A slot of the guard's table, and the process group in it; 0 empties the slot. Far below PIPE_BUF, so written whole.
type Message = [i32; 2];

static ROSTER: Mutex<Roster> = Mutex::new(Roster { guard: None, groups: Vec::new(), free: Vec::new() });

/// The worker's side: what the guard knows, and who it is.
struct Roster {
    guard: Option<Guard>,
    /// By slot; 0 where no program is known.
    groups: Vec<i32>,
    free: Vec<usize>,
}

struct Guard {
    pid: Pid,
    pipe: Arc<PipeWriter>,
}

/// A place in the table, given back when dropped.
struct Slot(usize);

/// A running program's process group: killed whole when dropped.
pub struct Group {
    leader: Pid,
    over: AtomicBool,
    _slot: Slot,
}

/// Starts the guard, if there is none. Early is better: it keeps the memory that the worker has at that time.
pub fn start() -> io::Result<()> {
    ROSTER.lock().pipe().map(drop)
}

/// Starts a program as the leader of its own process group, known to the guard. Blocks for the time of a fork and exec.
pub fn spawn(mut command: Command) -> io::Result<(Child, Group)> {
    let (slot, pipe) = ROSTER.lock().reserve()?;
    let (number, fd) = (slot.0 as i32, pipe.as_raw_fd());
    command.process_group(0);
    // SAFETY: getpid(2) and write(2) are async-signal-safe, and `pipe` stays open until after the spawn.
    unsafe { command.pre_exec(move || tell(fd, [number, libc::getpid()])) };
    let child = command.spawn()?;
    let leader = Pid::from_raw(child.id().and_then(|id| i32::try_from(id).ok()).ok_or(Errno::ESRCH)?);
    ROSTER.lock().settle(slot.0, leader, &pipe);
    Ok((child, Group { leader, over: AtomicBool::new(false), _slot: slot }))
}

impl Group {
    /// To the whole group. Nothing happens where it has ended.
    pub fn signal(&self, signal: Signal) {
        if !self.over.load(Ordering::Relaxed) {
            let _ = killpg(self.leader, signal);
        }
    }

    /// The leader has ended: kills what it leaves behind. After that the number may belong to others.
    pub fn finish(&self) {
        self.signal(Signal::SIGKILL);
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        ROSTER.lock().forget(self.0);
    }
}

impl Roster {
    fn reserve(&mut self) -> io::Result<(Slot, Arc<PipeWriter>)> {
        let pipe = self.pipe()?;
        if let Some(slot) = self.free.pop() {
            return Ok((Slot(slot), pipe));
        }
        if self.groups.len() == CAPACITY {
            return Err(io::Error::other(format!("{CAPACITY} programs are running, which is the most that one worker may have")));
        }
        self.groups.push(0);
        Ok((Slot(self.groups.len() - 1), pipe))
    }

    /// Notes a program that has started. If the guard was replaced meanwhile, the new one is told.
    fn settle(&mut self, slot: usize, leader: Pid, told: &Arc<PipeWriter>) {
        self.groups[slot] = leader.as_raw();
        if !self.guard.as_ref().is_some_and(|guard| Arc::ptr_eq(&guard.pipe, told)) {
            self.tell([slot as i32, leader.as_raw()]);
        }
    }

    fn forget(&mut self, slot: usize) {
        self.groups[slot] = 0;
        self.free.push(slot);
        self.tell([slot as i32, 0]);
    }

    /// A guard that cannot be told is replaced by one that begins with what is known now.
    fn tell(&mut self, message: Message) {
        let told = self.guard.as_ref().map(|guard| tell(guard.pipe.as_raw_fd(), message));
        if !matches!(told, Some(Ok(())))
            && let Err(why) = self.replace()
        {
            tracing::warn!("programs would outlive a crash of this worker: no guard process could be started: {why}");
        }
    }

    /// The pipe to a guard that is alive.
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
            // Before its pipe is closed, lest it takes that for the worker's death.
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
        // A guard that is stopped must not stop the worker: a full pipe is an error, which gets it replaced.
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut table = groups.to_vec();
        table.resize(CAPACITY, 0);
        // The guard keeps all signals blocked: neither the worker's handlers nor a Ctrl-C are for it.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        // SAFETY: the child makes async-signal-safe calls only, and never returns.
        let forked = match unsafe { fork() } {
            Ok(ForkResult::Child) => watch(&reader, &mut table),
            Ok(ForkResult::Parent { child }) => Ok(child),
            Err(why) => Err(why),
        };
        mask.thread_set_mask()?;
        Ok(Self { pid: forked?, pipe: Arc::new(writer) })
    }
}

/// Async-signal-safe: called between fork and exec too.
fn tell(pipe: RawFd, message: Message) -> io::Result<()> {
    // SAFETY: the buffer is valid for its size; a bad descriptor is an error, not undefined behaviour.
    let written = unsafe { libc::write(pipe, message.as_ptr().cast(), size_of::<Message>()) };
    if written == size_of::<Message>() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The guard's whole life. In a forked copy of a process with threads: no allocation, no lock, no panic.
fn watch(pipe: &PipeReader, groups: &mut [i32]) -> ! {
    let pipe = pipe.as_raw_fd();
    // SAFETY: plain system calls on this process alone.
    unsafe { libc::setsid() };
    name_process();
    close_all_but(pipe);
    let mut messages: [Message; 256] = [[0; 2]; 256];
    loop {
        // SAFETY: the buffer is valid for its size, and any bytes are a valid `Message`.
        let got = unsafe { libc::read(pipe, messages.as_mut_ptr().cast(), size_of_val(&messages)) };
        if got < 0 && Errno::last() == Errno::EINTR {
            continue;
        }
        if got <= 0 {
            break;
        }
        for [slot, group] in messages.iter().take(got.unsigned_abs() / size_of::<Message>()) {
            if let Some(known) = groups.get_mut(*slot as usize) {
                *known = *group;
            }
        }
    }
    for group in groups.iter().filter(|group| **group > 1) {
        // SAFETY: kill(2) has no memory effects.
        unsafe { libc::kill(group.wrapping_neg(), libc::SIGKILL) };
    }
    // SAFETY: ends the process without running anything of the worker's.
    unsafe { libc::_exit(0) }
}

/// What `ps` and `top` show.
fn name_process() {
    #[cfg(target_os = "linux")]
    // SAFETY: the name is a C string of at most 16 bytes.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"kafleet-guard".as_ptr())
    };
}

/// The worker's sockets and files must not stay open because its guard has them.
fn close_all_but(kept: RawFd) {
    let kept = kept.unsigned_abs();
    close_range(kept.wrapping_add(1), u32::MAX);
    if kept > 0 {
        close_range(0, kept.wrapping_sub(1));
    }
}

fn close_range(first: u32, last: u32) {
    #[cfg(target_os = "linux")]
    // SAFETY: closes descriptors of this process, none of which is used any more.
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
