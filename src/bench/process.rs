//! A role in a process of its own, and what it cost.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The environment variable that makes this binary a benchmark's role: its arguments as JSON.
pub const ROLE: &str = "KAFLEET_BENCH_ROLE";

pub struct Process {
    child: Child,
    name: &'static str,
}

/// What a process used, from /proc.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub cpu: Duration,
    pub peak_bytes: u64,
    pub resident_bytes: u64,
}

/// CPU time of a process so far; none of one that is gone.
pub fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The fields behind the program's name in brackets: user and system time are the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|n| fields.get(*n)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

impl Process {
    pub fn start(name: &'static str, role: &super::child_role::ChildRole) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("this program's own file cannot be found")?;
        let child = Command::new(binary)
            .args(["bench", "role"])
            .env(ROLE, serde_json::to_string(role)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("the {name} process cannot be started"))?;
        Ok(Self { child, name })
    }

    /// CPU time so far, and resident memory, now and at its highest.
    pub fn cost(&self) -> Cost {
        let pid = self.child.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
            line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        Cost { cpu: cpu_of(pid), peak_bytes: kib("VmHWM:") * 1024, resident_bytes: kib("VmRSS:") * 1024 }
    }

    /// An error when it has ended by itself and badly.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) if !status.success() => bail!("the {} process has ended: {status}", self.name),
            _ => Ok(()),
        }
    }

    /// Asks it to stop and waits.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        // It may have ended by itself.
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
            // An error here means that it is gone.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
