//! Changes of the files that `dev` runs: kafleet.toml, and the source files of apps. They are found by polling, because file
//! notifications are missing on network and container mounts.
//!
//! Of an app that names the files that it has loaded, only these count. Of another one, and after code that could not be
//! started, all source files of its folder count, because it is not known which of them it would load. A compiled program
//! changes when its own file does: its source files need a build first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::hash::BuildHasher;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use kafleet_apps::loaded_files::LoadedFiles;
use kafleet_apps::pool::AppPool;
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

    fn is_equal(&self, other: &Self) -> bool {
        self.contents.is_some() && self.contents == other.contents
    }
}

/// Beginnings of the names of programs that run source files. An environment may hold a copy of one in the app's folder.
const INTERPRETERS: [&str; 11] = ["python", "pypy", "node", "deno", "bun", "tsx", "ruby", "php", "lua", "java", "uv"];
/// First bytes of compiled programs: ELF, and Mach-O of one or several processors.
const PROGRAM_HEADS: [[u8; 4]; 3] = [*b"\x7fELF", *b"\xcf\xfa\xed\xfe", *b"\xca\xfe\xba\xbe"];

/// Files of an app.
struct AppSources {
    name: String,
    /// Folders whose source files count unless the app names its files. Empty for a compiled program.
    folders: BTreeSet<PathBuf>,
    /// Files that the command names.
    named: BTreeSet<PathBuf>,
    /// Files that the running code has loaded. `None`: the newest code could not be started.
    loaded: Option<LoadedFiles>,
}

impl AppSources {
    fn of(name: &str, app: &AppConfig) -> Self {
        let folder = real(&app.cwd.clone().unwrap_or_else(|| PathBuf::from(".")));
        let words = app.command.iter().map(|word| folder.join(word));
        let named: BTreeSet<PathBuf> = words.filter(|path| path.is_file()).map(|path| real(&path)).collect();
        let mut folders = BTreeSet::new();
        let program = app.command.first().map(|word| real(&folder.join(word)));
        if !program.is_some_and(|program| program.starts_with(&folder) && is_compiled(&program)) {
            let scripts = named.iter().filter(|file| is_source(file));
            folders.extend(
                scripts
                    .filter_map(|file| file.parent())
                    .filter(|parent| !parent.starts_with(&folder))
                    .map(Path::to_owned),
            );
            folders.insert(folder);
        }
        Self { name: name.to_owned(), folders, named, loaded: None }
    }

    /// Files outside the folders that are inspected too.
    fn further_files(&self) -> Vec<PathBuf> {
        let loaded = self.loaded.as_ref().map(LoadedFiles::paths).unwrap_or_default();
        self.named.iter().cloned().chain(loaded).collect()
    }

    /// Whether a change of the file is one of the app.
    fn has(&self, path: &Path) -> bool {
        self.named.contains(path)
            || match self.loaded.as_ref().filter(|loaded| !loaded.is_empty()) {
                // An app names a folder if it loads all files in it.
                Some(loaded) => loaded.contains(path) || path.parent().is_some_and(|folder| loaded.contains(folder)),
                None => self.folders.iter().any(|folder| path.starts_with(folder)),
            }
    }
}

/// Files that `dev` runs, and how they were when the running code was started.
pub(super) struct Sources {
    apps: Vec<AppSources>,
    /// kafleet.toml, whether it exists or not.
    config: PathBuf,
    /// Maximum number of files and folders that are inspected.
    max_entries: usize,
    /// Files as of the last check.
    seen: BTreeMap<PathBuf, Version>,
    /// Files that differ from `seen` since the code was started, and did not count so far: the app may load them later, or
    /// may have loaded them without having named them yet.
    uncounted: BTreeSet<PathBuf>,
    is_partial: bool,
    /// First change that has not been taken.
    change: Option<PathBuf>,
}

impl Sources {
    /// Reads the configuration file, the folders of the apps and the files that their commands name.
    pub(super) fn of<'a>(config: &Path, apps: impl Iterator<Item = (&'a String, &'a AppConfig)>) -> Self {
        let apps = apps.map(|(name, app)| AppSources::of(name, app)).collect();
        let (config, max_entries) = (real(config), MAX_ENTRIES);
        let (seen, uncounted) = (BTreeMap::new(), BTreeSet::new());
        let mut sources = Self { apps, config, max_entries, seen, uncounted, is_partial: false, change: None };
        sources.check_again();
        sources.change = None;
        sources.uncounted.clear();
        sources
    }

    /// Whether there are more files than are inspected.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// The configuration file.
    pub(super) fn config(&self) -> &Path {
        &self.config
    }

    /// New code is about to be started: it loads the files as they are now.
    pub(super) fn starting(&mut self) {
        self.check_again();
        self.uncounted.clear();
    }

    /// The apps have been started: from now on the files that they load count.
    pub(super) fn started(&mut self, pools: &[Arc<AppPool>]) {
        for app in &mut self.apps {
            app.loaded = pools.iter().find(|pool| pool.name() == app.name).map(|pool| pool.files().clone());
        }
    }

    /// The newest code could not be started: any source file may hold the mistake.
    pub(super) fn failed(&mut self) {
        self.apps.iter_mut().for_each(|app| app.loaded = None);
    }

    /// Returns whether a file that counts has changed, is removed or is new since the last check.
    pub(super) fn check_again(&mut self) -> bool {
        let (stamps, is_partial) = self.scan();
        self.is_partial = is_partial;
        let mut seen = std::mem::take(&mut self.seen);
        let gone: Vec<PathBuf> = seen.keys().filter(|path| !stamps.contains_key(*path)).cloned().collect();
        self.uncounted.extend(gone);
        for (path, stamp) in stamps {
            let version = match seen.remove(&path) {
                Some(earlier) if earlier.stamp == stamp => earlier,
                earlier => {
                    let version = Version::read(&path, stamp);
                    let is_change = match earlier {
                        Some(earlier) => !version.is_equal(&earlier),
                        None => self.may_be_new(&path),
                    };
                    self.uncounted.extend(is_change.then(|| path.clone()));
                    version
                }
            };
            self.seen.insert(path, version);
        }
        let counted: BTreeSet<PathBuf> = self.uncounted.iter().filter(|path| self.counts(path)).cloned().collect();
        self.uncounted.retain(|path| !counted.contains(path));
        let has_changed = !counted.is_empty();
        self.change = self.change.take().or(counted.into_iter().next());
        has_changed
    }

    /// Takes the first of the changes since the last call.
    pub(super) fn take_change(&mut self) -> Option<PathBuf> {
        self.change.take()
    }

    fn counts(&self, path: &Path) -> bool {
        path == self.config || self.apps.iter().any(|app| app.has(path))
    }

    /// Whether a file that is seen for the first time has just been written. One outside the folders is seen when it has been
    /// loaded.
    fn may_be_new(&self, path: &Path) -> bool {
        path == self.config || self.apps.iter().flat_map(|app| &app.folders).any(|folder| path.starts_with(folder))
    }

    /// Returns all files, and whether there are more than are inspected. The files nearest to the top come first.
    fn scan(&self) -> (BTreeMap<PathBuf, Stamp>, bool) {
        let further = self.apps.iter().flat_map(AppSources::further_files).chain([self.config.clone()]);
        let mut files: BTreeMap<PathBuf, Stamp> =
            further.filter_map(|path| Some((path.clone(), stamp(&path)?))).collect();
        let folders: BTreeSet<&PathBuf> = self.apps.iter().flat_map(|app| &app.folders).collect();
        let mut left: VecDeque<(PathBuf, usize)> = folders.into_iter().map(|folder| (folder.clone(), 0)).collect();
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

/// Returns the stamp of a file. `None`: there is no file.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((metadata.modified().ok(), metadata.len()))
}

/// Returns the absolute path without links. Of a file that does not exist, its folder may still be resolved.
fn real(path: &Path) -> PathBuf {
    let of_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
    };
    fs::canonicalize(path).ok().or_else(of_folder).unwrap_or_else(|| path.to_owned())
}

/// Whether a program is the app itself, and not the interpreter of its source files.
fn is_compiled(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    if INTERPRETERS.iter().any(|interpreter| name.starts_with(interpreter)) {
        return false;
    }
    let mut head = [0; 4];
    let read = fs::File::open(program).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && PROGRAM_HEADS.contains(&head)
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
            fs::canonicalize(self.0.path()).unwrap().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            fs::write(self.path(name), text).unwrap();
        }

        fn sources(&self, command: &[&str], cwd: &str) -> Sources {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            let app = AppConfig { command, cwd: Some(self.path(cwd)), ..AppConfig::default() };
            Sources::of(&self.path("kafleet.toml"), [(&"main".to_owned(), &app)].into_iter())
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
        assert_eq!(changed(&mut sources), Some(fixture.path("bin/app")));
        fixture.write("shop/mail.py", "1");
        assert_eq!(changed(&mut sources), Some(fixture.path("shop/mail.py")), "beside the named source file");
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

    #[test]
    fn only_files_that_the_app_has_loaded_count() {
        let fixture = SourcesFixture(tempfile::tempdir().unwrap());
        for name in ["app/tasks.py", "app/tests.py", "lib/money.py"] {
            fixture.write(name, "1");
        }
        let mut sources = fixture.sources(&["python3", "-m", "tasks"], "app");
        let loaded = LoadedFiles::default();
        sources.apps[0].loaded = Some(loaded.clone());
        fixture.write("app/tests.py", "22");
        assert!(changed(&mut sources).is_some(), "the app has not named its files yet");
        loaded.add(vec![fixture.path("app/tasks.py"), fixture.path("lib/money.py")]);
        assert_eq!(changed(&mut sources), None, "a loaded file outside the folder is seen for the first time");
        fixture.write("app/tests.py", "333");
        assert_eq!(changed(&mut sources), None);
        fixture.write("lib/money.py", "22");
        assert_eq!(changed(&mut sources), Some(fixture.path("lib/money.py")));
        fixture.write("app/new.py", "1");
        sources.starting();
        loaded.add(vec![fixture.path("app/new.py")]);
        assert_eq!(changed(&mut sources), None, "loaded as it was at the start");
        fixture.write("app/late.py", "1");
        assert_eq!(changed(&mut sources), None);
        fixture.write("app/jobs/a.py", "1");
        assert_eq!(changed(&mut sources), None);
        loaded.add(vec![fixture.path("app/jobs")]);
        assert_eq!(changed(&mut sources), Some(fixture.path("app/jobs/a.py")), "the app loads the whole folder");
        loaded.add(vec![fixture.path("app/late.py")]);
        assert_eq!(
            changed(&mut sources),
            Some(fixture.path("app/late.py")),
            "it may have been loaded as it was before"
        );
        sources.failed();
        fixture.write("app/other.py", "1");
        assert_eq!(changed(&mut sources), Some(fixture.path("app/other.py")), "it may have been missing");
    }

    #[test]
    fn source_files_of_a_compiled_program_do_not_count() {
        let fixture = SourcesFixture(tempfile::tempdir().unwrap());
        fixture.write("main.go", "1");
        fixture.write("bin/app", "\x7fELF 1");
        let mut sources = fixture.sources(&["./bin/app"], "");
        fixture.write("main.go", "22");
        assert_eq!(changed(&mut sources), None, "it has not been built yet");
        fixture.write("bin/app", "\x7fELF 22");
        assert_eq!(changed(&mut sources), Some(fixture.path("bin/app")));
        fixture.write("env/bin/python3", "\x7fELF 1");
        let mut sources = fixture.sources(&["env/bin/python3", "-m", "tasks"], "");
        fixture.write("tasks.py", "1");
        assert_eq!(changed(&mut sources), Some(fixture.path("tasks.py")), "beside a copy of the interpreter");
        let mut sources = fixture.sources(&["go", "run", "."], "");
        fixture.write("main.go", "333");
        assert_eq!(changed(&mut sources), Some(fixture.path("main.go")), "it is built at each start");
    }

    #[test]
    fn configuration_counts_whether_it_exists_or_not() {
        let fixture = SourcesFixture(tempfile::tempdir().unwrap());
        let mut sources = fixture.sources(&[], "");
        for text in ["", "# 1"] {
            fixture.write("kafleet.toml", text);
            assert_eq!(changed(&mut sources), Some(fixture.path("kafleet.toml")), "{text:?}");
        }
        assert_eq!(changed(&mut sources), None);
    }
}
