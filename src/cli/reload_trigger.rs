//! Reasons to reload the configuration of a running role: SIGHUP, and with `--watch-config` a change of its file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use kafleet_config::DEFAULT_FILE;
use kafleet_runtime::blocking;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Failure;
use super::globals::Globals;

/// Interval at which the file is compared with what was read before: mounts of ConfigMaps send no file notifications.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct ReloadArgs {
    /// Reload the configuration when its file changes, not only on SIGHUP
    #[arg(long, env = "KAFLEET_WATCH_CONFIG")]
    pub watch_config: bool,
}

/// Reason to reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    Signal,
    FileChanged,
}

/// Waits for reasons to reload.
pub(super) struct Triggers {
    hangups: Signal,
    file: Option<WatchedFile>,
}

impl Triggers {
    /// Registers SIGHUP, which ends the process otherwise, and notes the contents of the file. Signals and changes are kept
    /// until [`Triggers::next`].
    pub(super) fn register(globals: &Globals, args: ReloadArgs) -> Result<Self, Failure> {
        let hangups = signal(SignalKind::hangup());
        let hangups = hangups.map_err(|error| Failure::failed(format_args!("no signal handler: {error}")))?;
        let path = globals.config.as_deref().unwrap_or_else(|| Path::new(DEFAULT_FILE));
        Ok(Self { hangups, file: args.watch_config.then(|| WatchedFile::new(path)) })
    }

    /// Returns the next reason. `None` if there will be none.
    pub(super) async fn next(&mut self) -> Option<Trigger> {
        let Some(file) = &mut self.file else { return self.hangups.recv().await.map(|()| Trigger::Signal) };
        tokio::select! {
            biased;
            hangup = self.hangups.recv() => hangup.map(|()| Trigger::Signal),
            () = file.changed() => Some(Trigger::FileChanged),
        }
    }
}

struct WatchedFile {
    path: PathBuf,
    contents: Option<Vec<u8>>,
}

impl WatchedFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), contents: std::fs::read(path).ok() }
    }

    /// Waits until the contents differ. A file that is missing for a moment, while it is replaced, has not changed.
    async fn changed(&mut self) {
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            let path = self.path.clone();
            let read = blocking(move || std::fs::read(path).ok()).await.ok().flatten();
            if read.is_some() && read != self.contents {
                self.contents = read;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn file_changes_once_per_new_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kafleet.toml");
        std::fs::write(&path, "a").unwrap();
        let globals = Globals { config: Some(path.clone()), ..Globals::default() };
        let mut triggers = Triggers::register(&globals, ReloadArgs { watch_config: true }).unwrap();
        let soon = WATCH_INTERVAL * 3;
        let is_quiet = tokio::time::timeout(soon, triggers.next()).await.is_err();
        assert!(is_quiet, "the same contents are no change");
        std::fs::remove_file(&path).unwrap();
        assert!(tokio::time::timeout(soon, triggers.next()).await.is_err(), "a missing file is no change");
        std::fs::write(&path, "b").unwrap();
        assert_eq!(tokio::time::timeout(soon, triggers.next()).await, Ok(Some(Trigger::FileChanged)));
        assert!(tokio::time::timeout(soon, triggers.next()).await.is_err());
    }
}
