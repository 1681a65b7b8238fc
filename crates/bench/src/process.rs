//! Child process of a benchmark, with its resource usage.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;

/// Environment variable with the role of a child process, as JSON.
pub(super) const ROLE: &str = "KAFLEET_BENCH_ROLE";

pub(super) struct Process {
    child: Child,
    name: &'static str,
}

/// Resource usage of a process, from /proc.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessUsage {
    pub cpu: Duration,
    pub peak_bytes: u64,
    pub resident_bytes: u64,
}

/// CPU time of a process so far; zero if it has ended.
pub(super) fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Of the fields after the program name in brackets, the 12th and 13th are user and system time.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|n| fields.get(*n)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

impl Process {
    /// Starts this program in a role.
    pub(super) fn start(name: &'static str, role: &impl Serialize) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("cannot find this program's executable")?;
        let child = Command::new(binary)
            .args(["bench", "child-role"])
            .env(ROLE, serde_json::to_string(role)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start the {name} process"))?;
        Ok(Self { child, name })
    }

    /// CPU time so far, and current and peak resident memory.
    pub(super) fn cost(&self) -> ProcessUsage {
        let pid = self.child.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
            line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        ProcessUsage { cpu: cpu_of(pid), peak_bytes: kib("VmHWM:") * 1024, resident_bytes: kib("VmRSS:") * 1024 }
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id())).map_or(0, Iterator::count)
    }

    /// Number of established TCP connections.
    pub(super) fn connections(&self) -> usize {
        let pid = self.child.id();
        let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")));
        let lines = tables.iter().flatten().flat_map(|table| table.lines());
        // The fourth field is the state, the tenth the inode.
        let established = lines.filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (*fields.get(3)? == "01").then(|| format!("socket:[{}]", fields.get(9).copied().unwrap_or_default()))
        });
        let established: BTreeSet<String> = established.collect();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.filter(|link| link.to_str().is_some_and(|link| established.contains(link))).count()
    }

    /// Returns an error if the process has failed.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) if !status.success() => bail!("the {} process has ended: {status}", self.name),
            _ => Ok(()),
        }
    }

    /// Stops the process and waits for it.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        // The process may already have ended.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(45);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                bail!("the {} process does not stop", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Errors mean that the process has ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
