//! Changes of the source files of apps, found by polling: file notifications are missing on network and container mounts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kafleet_config::AppConfig;
use rustc_hash::FxBuildHasher;

/// Extensions of source files, of languages whose programs start from them.
const EXTENSIONS: [&str; 15] =
    ["py", "pyi", "js", "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx", "go", "rb", "php", "lua", "sh"];
/// Folders of installed or generated files. Hidden ones are left out too.
const SKIPPED: [&str; 4] = ["node_modules", "__pycache__", "target", "venv"];
/// Maximum number of files and folders, and maximum depth of folders.
const MAX_ENTRIES: usize = 10_000;
const MAX_DEPTH: usize = 8;

/// Maximum size of a file whose contents are compared. A larger one has changed when its time has.
const MAX_COMPARED_BYTES: u64 = 1 << 20;

/// Time of the last change and size of a file.
type Stamp = (Option<SystemTime>, u64);

/// Version of a file. An app may write files whenever it starts: equal contents are no change.
#[derive(Debug)]
struct Version {
    stamp: Stamp,
    /// Hash of the contents.
    contents: Option<u64>,
}

impl Version {
    fn read(path: &Path, stamp: Stamp) -> Self {
        let contents = if stamp.1 > MAX_COMPARED_BYTES { None } else { fs::read(path).ok() };
        Self { stamp, contents: contents.map(|contents| FxBuildHasher.hash_one(contents)) }
    }
}

/// Source files of apps, as of the last check.
pub(super) struct Sources {
    /// Folders that are searched, and files that a command names.
    folders: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
    /// Maximum number of files and folders that are inspected.
    max_entries: usize,
    seen: BTreeMap<PathBuf, Version>,
    is_partial: bool,
    /// First change that has not been taken.
    change: Option<PathBuf>,
}

impl Sources {
    /// Reads the folders of the apps and the files that their commands name.
    pub(super) fn of<'a>(apps: impl Iterator<Item = &'a AppConfig>) -> Self {
        let mut folders = BTreeSet::new();
        let mut files = BTreeSet::new();
        for app in apps {
            let folder = app.cwd.clone().unwrap_or_else(|| PathBuf::from("."));
            let named = app.command.iter().map(|word| folder.join(word)).filter(|path| path.is_file());
            for file in named {
                let outside = file.parent().filter(|parent| is_source(&file) && !is_within(parent, &folder));
                folders.extend(outside.map(Path::to_owned));
                files.insert(file);
            }
            folders.insert(folder);
        }
        let max_entries = MAX_ENTRIES;
        let mut sources = Self { folders, files, max_entries, seen: BTreeMap::new(), is_partial: false, change: None };
        sources.check_again();
        sources.change = None;
        sources
    }

    /// Whether there are more files than are inspected.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns whether a file is new, changed or removed since the last check.
    pub(super) fn check_again(&mut self) -> bool {
        let (stamps, is_partial) = self.scan();
        self.is_partial = is_partial;
        let gone = self.seen.keys().find(|path| !stamps.contains_key(*path)).cloned();
        let mut seen = std::mem::take(&mut self.seen);
        let mut changed = None;
        for (path, stamp) in stamps {
            let version = match seen.remove(&path) {
                Some(earlier) if earlier.stamp == stamp => earlier,
                earlier => {
                    let version = Version::read(&path, stamp);
                    let is_equal =
                        version.contents.is_some() && earlier.is_some_and(|old| old.contents == version.contents);
                    changed = changed.or_else(|| (!is_equal).then(|| path.clone()));
                    version
                }
            };
            self.seen.insert(path, version);
        }
        let changed = changed.or(gone);
        let has_changed = changed.is_some();
        self.change = self.change.take().or(changed);
        has_changed
    }

    /// Takes the first of the changes since the last call.
    pub(super) fn take_change(&mut self) -> Option<PathBuf> {
        self.change.take()
    }

    /// Returns all files, and whether there are more than are inspected. The files nearest to the top come first.
    fn scan(&self) -> (BTreeMap<PathBuf, Stamp>, bool) {
        let named = self.files.iter().filter_map(|path| Some((path.clone(), stamp(path)?)));
        let mut files: BTreeMap<PathBuf, Stamp> = named.collect();
        let mut left: VecDeque<(PathBuf, usize)> = self.folders.iter().map(|folder| (folder.clone(), 0)).collect();
        let mut entries = 0;
        while let Some((folder, depth)) = left.pop_front() {
            // A folder may have been removed, or be unreadable.
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                entries += 1;
                if entries > self.max_entries {
                    return (files, true);
                }
                let path = entry.path();
                if is_skipped(&path) {
                    continue;
                }
                // A link to a folder is not followed: it may lead to a cycle.
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    left.extend((depth < MAX_DEPTH).then_some((path, depth + 1)));
                } else if is_source(&path)
                    && let Some(stamp) = stamp(&path)
                {
                    files.insert(path, stamp);
                }
            }
        }
        (files, false)
    }
}

/// Returns the stamp of a file. `None`: the file does not exist.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok(), metadata.len()))
}

fn is_within(path: &Path, folder: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(path).starts_with(real(folder))
}

fn is_skipped(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') || SKIPPED.contains(&&*name)
}

fn is_source(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|extension| EXTENSIONS.contains(&extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(sources: &mut Sources) -> Option<PathBuf> {
        let has_changed = sources.check_again();
        let change = sources.take_change();
        assert_eq!(change.is_some(), has_changed);
        change
    }

    struct SourcesFixture(tempfile::TempDir);

    impl SourcesFixture {
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            fs::write(self.path(name), text).unwrap();
        }

        fn sources(&self, command: &[&str], cwd: &str) -> Sources {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            Sources::of([AppConfig { command, cwd: Some(self.path(cwd)), ..AppConfig::default() }].iter())
        }
    }

    #[test]
    fn changes_of_source_files_are_found_and_others_are_not() {
        let fixture = SourcesFixture(tempfile::tempdir().unwrap());
        fixture.write("tasks.py", "1");
        let mut sources = fixture.sources(&["python3", "tasks.py"], "");
        assert_eq!(changed(&mut sources), None);
        for name in ["notes.txt", ".venv/lib/a.py", "node_modules/a/b.js", "shop/__pycache__/a.py", ".#tasks.py"] {
            fixture.write(name, "1");
            assert_eq!(changed(&mut sources), None, "{name}");
        }
        fixture.write("shop/mail.py", "1");
        assert_eq!(changed(&mut sources), Some(fixture.path("shop/mail.py")));
        fixture.write("tasks.py", "22");
        assert_eq!((changed(&mut sources), changed(&mut sources)), (Some(fixture.path("tasks.py")), None));
        let file = fs::File::options().write(true).open(fixture.path("tasks.py")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(changed(&mut sources), None, "with the same contents");
        fixture.write("tasks.py", "33");
        assert_eq!(
            (changed(&mut sources), changed(&mut sources)),
            (Some(fixture.path("tasks.py")), None),
            "of the same size"
        );
        fs::remove_file(fixture.path("tasks.py")).unwrap();
        assert_eq!((changed(&mut sources), changed(&mut sources)), (Some(fixture.path("tasks.py")), None));
        fixture.write("b.py", "1");
        assert!(sources.check_again());
        fixture.write("a.py", "1");
        assert!(sources.check_again() && !sources.check_again());
        assert_eq!((sources.take_change(), sources.take_change()), (Some(fixture.path("b.py")), None), "the first one");
        assert!(!sources.is_partial());
    }

    #[test]
    fn files_that_the_command_names_are_watched_wherever_they_are() {
        let fixture = SourcesFixture(tempfile::tempdir().unwrap());
        for name in ["work/notes.txt", "bin/app", "shop/tasks.py", "other.py"] {
            fixture.write(name, "1");
        }
        let mut sources = fixture.sources(&["../bin/app", "../shop/tasks.py", "no-file"], "work");
        fixture.write("other.py", "22");
        assert_eq!(changed(&mut sources), None);
        fixture.write("bin/app", "22");
        assert_eq!(changed(&mut sources), Some(fixture.path("work/../bin/app")));
        fixture.write("shop/mail.py", "1");
        assert_eq!(changed(&mut sources), Some(fixture.path("work/../shop/mail.py")), "beside the named source file");
    }

    #[test]
    fn large_folders_are_watched_in_part() {
        let fixture = SourcesFixture(tempfile::tempdir().unwrap());
        fixture.write("tasks.py", "1");
        let deep: PathBuf = (0..=MAX_DEPTH).map(|n| format!("d{n}")).collect();
        fixture.write(deep.join("a.py").to_str().unwrap(), "1");
        let mut sources = fixture.sources(&[], "");
        assert!(sources.seen.keys().eq([&fixture.path("tasks.py")]), "{:?}", sources.seen);
        assert_eq!((changed(&mut sources), sources.is_partial()), (None, false));
        sources.max_entries = MAX_DEPTH;
        assert_eq!((changed(&mut sources), sources.is_partial()), (None, true));
        fixture.write("tasks.py", "22");
        assert_eq!(changed(&mut sources), Some(fixture.path("tasks.py")), "near the top");
    }
}
