//! Resident memory of programs, in bytes; 0 if a program has ended.

use std::fs;

use nix::libc;

/// Maximum processes below a program that are counted.
const MAX_PROCESSES: usize = 1_000;

/// Memory of a process.
pub fn resident_bytes(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(page_bytes())
}

/// Memory of a process, its child processes, and theirs.
pub fn tree_bytes(pid: u32) -> u64 {
    let (mut left, mut bytes, mut counted) = (vec![pid], 0_u64, 0);
    while let Some(pid) = left.pop().filter(|_| counted < MAX_PROCESSES) {
        counted += 1;
        bytes = bytes.saturating_add(resident_bytes(pid));
        left.extend(children(pid));
    }
    bytes
}

/// Child processes, which the kernel lists by the thread that has started them.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

fn page_bytes() -> u64 {
    // SAFETY: sysconf has no side effects.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_child_processes_is_counted() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 1000 & echo; wait"]).stdout(std::process::Stdio::piped());
        let mut process = shell.spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut line).unwrap();
        let resident = resident_bytes(process.id());
        assert!(resident > 0 && tree_bytes(process.id()) > resident);
        let (pid, below) = (process.id(), children(process.id()));
        below.into_iter().for_each(|pid| {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::SIGKILL).unwrap();
        });
        process.wait().unwrap();
        assert_eq!(tree_bytes(pid), 0);
    }
}
