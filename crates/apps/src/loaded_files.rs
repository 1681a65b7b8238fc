//! Source files that the processes of an app have loaded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of files that are kept. Of an app with more, some are unknown.
const MAX_FILES: usize = 20_000;

/// Files of all processes of an app. Cheap to clone; clones share the files.
#[derive(Clone, Debug, Default)]
pub struct LoadedFiles(Arc<Mutex<BTreeSet<PathBuf>>>);

impl LoadedFiles {
    /// Adds files of a process.
    pub fn add(&self, paths: Vec<PathBuf>) {
        let mut files = self.0.lock();
        let left = MAX_FILES.saturating_sub(files.len());
        files.extend(paths.into_iter().take(left));
    }

    /// Whether no process has named its files.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub fn contains(&self, path: &Path) -> bool {
        self.0.lock().contains(path)
    }

    /// Returns the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.lock().iter().cloned().collect()
    }
}
