//! The app on the command line: a file, a module, or a command after `--`.

use std::path::{Path, PathBuf};

use clap::Args;
use kafleet_config::{AppConfig, Config};

use super::exit::{Code, Failure};
use super::output::eprint_line;

/// Name of the app that a target on the command line adds.
pub(super) const TARGET_APP: &str = "main";

#[derive(Clone, Debug, Default, Args)]
pub(super) struct TargetArgs {
    /// App to run: tasks.py, a module such as shop.tasks or shop.tasks:app, or tasks.js
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,
    /// Command of the app, in any language, after `--`
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub command: Vec<String>,
}

/// App on the command line.
#[derive(Clone, Debug)]
pub(super) struct TargetApp {
    pub section: AppConfig,
    /// The command was made for the target. A section that starts the same file may name another interpreter.
    is_derived: bool,
}

impl TargetArgs {
    /// Returns the app of the target. `None` without a target.
    pub(super) fn app(&self) -> Result<Option<TargetApp>, Failure> {
        let cwd = std::env::current_dir()
            .map_err(|error| Failure::failed(format_args!("the working directory cannot be read: {error}")))?;
        let command = match &self.target {
            Some(target) => command_of(target, &cwd)?,
            None if self.command.is_empty() => return Ok(None),
            None => self.command.clone(),
        };
        let section = AppConfig { command, cwd: Some(cwd), ..AppConfig::default() };
        Ok(Some(TargetApp { section, is_derived: self.target.is_some() }))
    }
}

/// Returns the command that runs a target.
fn command_of(target: &str, cwd: &Path) -> Result<Vec<String>, Failure> {
    let path = Path::new(target);
    let extension = path.extension().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    let is_script = ["js", "mjs", "cjs", "ts", "mts"].contains(&extension);
    let is_file = is_script || extension == "py" || target.contains('/');
    if let Some((file, object)) = target.rsplit_once(':').filter(|(file, _)| file.ends_with(".py")) {
        let module = file.trim_end_matches(".py").trim_start_matches("./").replace('/', ".");
        let failure = Failure::usage(format_args!("`{target}` names an object of a file"));
        return Err(
            failure.hint(format_args!("name the module instead, `{module}:{object}`, or the file alone, `{file}`"))
        );
    }
    if is_file && !cwd.join(path).is_file() {
        let failure = Failure::new(Code::NotFound, format_args!("`{target}` is not a file in `{}`", cwd.display()));
        return Err(failure.hint("name a Python or JavaScript file, a Python module, or a command after `--`"));
    }
    if is_script {
        // Loaded first, the SDK explains errors of the loader, such as an `enum` that Node does not run.
        let has_sdk = cwd.ancestors().any(|folder| folder.join("node_modules/kafleet").is_dir());
        let words = if has_sdk { &["node", "--import", "kafleet", target][..] } else { &["node", target] };
        return Ok(words.iter().map(|word| (*word).to_owned()).collect());
    }
    let folder = cwd.join(path);
    let folder = if is_file { folder.parent().unwrap_or(cwd) } else { cwd };
    let python = python(folder, |name| std::env::var_os(name).map(PathBuf::from));
    eprint_line(format_args!("python {python}"));
    // Without `-P`, a file in the folder would shadow the standard-library module of the same name.
    Ok([&*python, "-P", "-m", "kafleet", target].map(str::to_owned).to_vec())
}

/// Returns the Python of the active virtual environment, of `.venv` in the folder or above it, of the folder of this
/// binary, or the first in PATH.
fn python(folder: &Path, variable: impl Fn(&str) -> Option<PathBuf>) -> String {
    let beside = std::env::current_exe().ok().and_then(|file| Some(file.parent()?.join("python3")));
    let of_environments = folder.ancestors().map(|folder| folder.join(".venv/bin/python"));
    let active = variable("VIRTUAL_ENV").map(|folder| folder.join("bin/python"));
    let interpreter = active.into_iter().chain(of_environments).chain(beside).find(|file| file.is_file());
    interpreter.map_or_else(|| "python3".to_owned(), |file| file.to_string_lossy().into_owned())
}

/// Adds the app of the target on the command line. A section that starts the same program stands for a target, and keeps its
/// other settings with a command.
pub(super) fn add_target(config: &mut Config, app: TargetApp) -> Result<(), Failure> {
    let TargetApp { section: target, is_derived } = app;
    if let Some(section) = config.apps.values_mut().find(|section| starts_the_same(section, &target)) {
        if !is_derived {
            (section.command, section.cwd) = (target.command, target.cwd);
        }
        return Ok(());
    }
    if config.apps.insert(TARGET_APP.to_owned(), target).is_some() {
        let reason = format!("`[apps.{TARGET_APP}]` has the name of the app on the command line");
        return Err(Failure::usage(reason).hint("rename the section"));
    }
    Ok(())
}

/// Returns whether two commands end with the same program: `shop/tasks.py`, `shop.tasks` or `shop.tasks:app`.
pub(super) fn starts_the_same(section: &AppConfig, app: &AppConfig) -> bool {
    entry(app).is_some_and(|own| entry(section).as_ref() == Some(&own))
}

/// Returns the file of the program that a command ends with, also that of a module that `-m` loads from the folder; the word
/// itself where there is none.
fn entry(app: &AppConfig) -> Option<PathBuf> {
    let word = app.command.last()?;
    let folder = app.cwd.clone().unwrap_or_default();
    let module = word.split_once(':').map_or(word.as_str(), |(module, _)| module);
    let mut files = vec![folder.join(word)];
    if app.command.iter().any(|word| word == "-m") {
        let of_module = folder.join(module.replace('.', "/"));
        files.extend([of_module.with_extension("py"), of_module.join("__init__.py")]);
    }
    let file = files.iter().find_map(|file| std::fs::canonicalize(file).ok().filter(|file| file.is_file()));
    Some(file.unwrap_or_else(|| module.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_module_of_it_are_the_same_program() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["shop/app.py", "shop/__init__.py", "tasks.py", "tasks.js", "app.py"] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let app = |words: &str| AppConfig {
            command: words.split(' ').map(str::to_owned).collect(),
            cwd: Some(folder.path().to_owned()),
            ..AppConfig::default()
        };
        let is_same = |one: &str, other: &str| starts_the_same(&app(one), &app(other));
        for name in ["shop/app.py", "./shop/app.py", "shop.app", "shop.app:app"] {
            assert!(
                is_same("python3 -P -m kafleet shop.app", &format!("/venv/bin/python -P -m kafleet {name}")),
                "{name}"
            );
        }
        assert!(is_same("python3 -m kafleet shop", "python3 -m kafleet shop/__init__.py"));
        assert!(is_same("node tasks.js", "node --import kafleet ./tasks.js"));
        assert!(!is_same("make tasks", "python3 -m kafleet tasks.py"), "an argument of another program");
        assert!(is_same("python3 -m kafleet elsewhere.app", "python3 -m kafleet elsewhere.app:main"));
        for name in ["app.py", "tasks.py", "shop", "other.app", "shop.ap"] {
            assert!(!is_same("python3 -m kafleet shop.app", &format!("python3 -m kafleet {name}")), "{name}");
        }
    }

    #[test]
    fn python_of_the_nearest_environment_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let bin = |name: &str| {
            let bin = folder.path().join(name).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            std::fs::write(bin.join("python"), "").unwrap();
            bin.join("python").to_string_lossy().into_owned()
        };
        let below = folder.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let of_folder = bin(".venv");
        assert_eq!(python(&below, |_| None), of_folder);
        let nearer = bin("a/.venv");
        assert_eq!(python(&below, |_| None), nearer);
        let active = bin("active");
        assert_eq!(python(&below, |_| Some(folder.path().join("active"))), active);
    }
}
