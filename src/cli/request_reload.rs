//! `reload`: makes the roles in this container or on this machine read their configuration again. The id of their process
//! is not needed, and in a pod with a shared process namespace it is not 1.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kafleet_worker::child::ARGV0;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::exit::{Code, Failure, Outcome};
use super::output::eprint_line;

/// Sends SIGHUP to all other processes of this program that handle it, which only roles do.
pub(super) fn reload() -> Outcome {
    let own_exe = fs::metadata("/proc/self/exe");
    let own_exe =
        own_exe.map_err(|error| Failure::failed(format_args!("`/proc` cannot be read: {error}")).hint(BY_HAND))?;
    let is_own_program = |process: &Path| {
        fs::metadata(process.join("exe")).is_ok_and(|exe| (exe.dev(), exe.ino()) == (own_exe.dev(), own_exe.ino()))
    };
    let mut reloaded = 0;
    for pid in other_processes()? {
        let process = Path::new("/proc").join(pid.to_string());
        if is_own_program(&process) && is_role(&process) && kill(pid, Signal::SIGHUP).is_ok() {
            eprint_line(format_args!("process {pid} reloads its configuration; its log has the outcome"));
            reloaded += 1;
        }
    }
    if reloaded > 0 {
        return Ok(Code::Ok);
    }
    Err(Failure::new(Code::NotFound, "no role of this program runs here")
        .hint("run it where the role runs, such as `kubectl exec POD -- kafleet reload`, as the same user"))
}

const BY_HAND: &str = "send the signal yourself: `kill -HUP PID`";

fn other_processes() -> Result<Vec<Pid>, Failure> {
    let entries = fs::read_dir("/proc");
    let entries =
        entries.map_err(|error| Failure::failed(format_args!("`/proc` cannot be read: {error}")).hint(BY_HAND))?;
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw);
    Ok(entries.flatten().filter_map(pid).filter(|pid| *pid != Pid::this()).collect())
}

/// Whether a process of this program handles SIGHUP, which would end it otherwise. The child processes of a worker and its
/// guard, which blocks all signals, do not.
fn is_role(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
    };
    let hangup = 1 << (Signal::SIGHUP as u64 - 1);
    let is_child = fs::read(process.join("cmdline")).is_ok_and(|words| words.starts_with(ARGV0.as_bytes()));
    !is_child && mask("SigCgt:") & !mask("SigBlk:") & hangup != 0
}
