//! `init`: writes a new project with tasks, tests and settings.
//!
//! `templates` has the files of each language, `name` derives the name of the project from its folder; both are pure. This
//! file checks that no file of the project exists, and writes all of them or none.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

mod name;
mod templates;

use super::exit::{Code, Failure, Outcome};
use super::output::Output;
use name::project_name;
use templates::{Language, ProjectFile};

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Language of the tasks
    #[arg(value_enum)]
    language: Language,
    /// Folder of the project, which is created if it does not exist [default: the current folder]
    folder: Option<PathBuf>,
}

/// New project, as `-o json` shows it.
#[derive(Debug, Serialize)]
struct NewProject {
    name: String,
    language: Language,
    /// Folder as it was named; `.` for the current one.
    folder: PathBuf,
    /// Paths below the folder.
    files: Vec<&'static str>,
    /// First two commands, for a shell in the current folder.
    next: Vec<String>,
}

/// Writes a new project.
pub(super) fn init(args: &InitArgs, output: &Output) -> Outcome {
    // The current folder is an empty path, so that messages name `README.md` instead of `./README.md`.
    let named = args.folder.clone().filter(|folder| folder.as_path() != Path::new("."));
    let folder = named.unwrap_or_default();
    let name = project_name(&name_of(&folder));
    let files = args.language.files(&name);
    refuse_existing(&folder, &files)?;
    write_all(&folder, &files)?;
    let project = NewProject {
        name,
        language: args.language,
        files: files.iter().map(|file| file.path).collect(),
        next: next_commands(args.language, &folder),
        folder: if is_current(&folder) { PathBuf::from(".") } else { folder },
    };
    output.json_or_line(&project, summary)?;
    Ok(Code::Ok)
}

fn is_current(folder: &Path) -> bool {
    folder.as_os_str().is_empty()
}

/// Returns the name of a folder that need not exist. Of `.` and `..` it is that of the folder that they name.
fn name_of(folder: &Path) -> String {
    let existing = || fs::canonicalize(Path::new(".").join(folder)).ok();
    let name = folder.file_name().map(ToOwned::to_owned);
    let name = name.or_else(|| existing()?.file_name().map(ToOwned::to_owned));
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Refuses a folder that has one of the files.
fn refuse_existing(folder: &Path, files: &[ProjectFile]) -> Result<(), Failure> {
    let mut existing = Vec::new();
    for file in files {
        let path = folder.join(file.path);
        match fs::symlink_metadata(&path) {
            Ok(_) => existing.push(format!("`{}`", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unwritable(&path, &error)),
        }
    }
    if existing.is_empty() {
        return Ok(());
    }
    let verb = if existing.len() == 1 { "exists" } else { "exist" };
    Err(Failure::failed(format_args!("nothing was written: {} {verb} already", existing.join(", ")))
        .hint("name a new folder, or move these files and merge them afterwards"))
}

/// Writes all files. After an error, those that were written before it are removed.
fn write_all(folder: &Path, files: &[ProjectFile]) -> Result<(), Failure> {
    for (written, file) in files.iter().enumerate() {
        let path = folder.join(file.path);
        if let Err(error) = write_new(&path, &file.text) {
            for file in &files[..written] {
                let _ = fs::remove_file(folder.join(file.path));
            }
            return Err(unwritable(&path, &error));
        }
    }
    Ok(())
}

/// Writes a file that does not exist, with its folder. An incomplete one is removed.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let written = File::create_new(path)?.write_all(text.as_bytes());
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format_args!("`{}` cannot be written: {error}", path.display()))
        .hint("no file was written; name another folder, or correct the reason")
}

/// Returns the first two commands, in the current folder.
fn next_commands(language: Language, folder: &Path) -> Vec<String> {
    let [first, second] = language.first_commands();
    let first = if is_current(folder) { first.to_owned() } else { format!("cd {} && {first}", quoted(folder)) };
    vec![first, second.to_owned()]
}

/// Returns a path as a word of a shell.
fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if path.chars().all(is_plain) && !path.starts_with('-') {
        return path.into_owned();
    }
    // An option of `cd` otherwise.
    let folder = if path.starts_with('-') { format!("./{path}") } else { path.into_owned() };
    format!("'{}'", folder.replace('\'', r"'\''"))
}

fn summary(project: &NewProject) -> String {
    let files = project.files.iter().map(|path| match project.folder.as_path() {
        folder if folder == Path::new(".") => format!("  {path}\n"),
        folder => format!("  {}\n", folder.join(path).display()),
    });
    let commands = project.next.iter().map(|command| format!("  {command}\n"));
    format!(
        "the project `{}` has these files:\n{}\nnext, with a checkout of kafleet (README.md has all commands):\n{}",
        project.name,
        files.collect::<String>(),
        commands.collect::<String>().trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_that_of_the_named_folder() {
        assert_eq!(name_of(Path::new("shop")), "shop");
        assert_eq!(name_of(Path::new("some/where/shop/")), "shop");
        let current = std::env::current_dir().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!([name_of(Path::new("")), name_of(Path::new("."))], [current.as_str(); 2]);
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("shop/tests")).unwrap();
        assert_eq!(name_of(&folder.path().join("shop/tests/..")), "shop");
        assert_eq!(name_of(Path::new("/")), "");
    }

    #[test]
    fn files_before_an_error_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = |path| ProjectFile { path, text: "text".into() };
        fs::write(folder.path().join("b"), "own").unwrap();
        let error = write_all(folder.path(), &[file("a"), file("b"), file("c")]).unwrap_err();
        assert!(error.message.contains("/b` cannot be written: "), "{error:?}");
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["b"]);
        assert_eq!(fs::read_to_string(folder.path().join("b")).unwrap(), "own");
    }

    #[test]
    fn folders_are_words_of_a_shell() {
        for (folder, word) in [
            ("shop", "shop"),
            ("/srv/my-shop_2", "/srv/my-shop_2"),
            ("My Shop", "'My Shop'"),
            ("Ada's", r"'Ada'\''s'"),
            ("-P", "'./-P'"),
        ] {
            assert_eq!(quoted(Path::new(folder)), word);
        }
        let python = next_commands(Language::Python, Path::new("My Shop"));
        assert!(python[0].starts_with("cd 'My Shop' && python3 -m venv"), "{python:?}");
        assert_eq!(next_commands(Language::Rust, Path::new("")), Language::Rust.first_commands());
    }
}
