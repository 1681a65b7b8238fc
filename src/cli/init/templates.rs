//! Files of new projects: one table of templates for each language.

use clap::ValueEnum;
use serde::Serialize;

/// Language of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Language {
    Python,
    // Not `type-script`.
    #[value(name = "typescript")]
    TypeScript,
    Rust,
}

/// File of a new project.
#[derive(Debug)]
pub(super) struct ProjectFile {
    /// Path below the folder of the project.
    pub path: &'static str,
    pub text: String,
}

/// Path of a file in the project, and its template.
type Template = (&'static str, &'static str);

// The templates of `.gitignore` and `Cargo.toml` have other names: under their own they would count for this repository.

const PYTHON: &[Template] = &[
    ("README.md", include_str!("templates/python/README.md")),
    (".gitignore", include_str!("templates/python/gitignore")),
    ("compose.yml", include_str!("templates/shared/compose.yml")),
    ("kafleet.toml", include_str!("templates/python/kafleet.toml")),
    ("pyproject.toml", include_str!("templates/python/pyproject.toml")),
    ("tasks.py", include_str!("templates/python/tasks.py")),
    ("tests/test_tasks.py", include_str!("templates/python/tests/test_tasks.py")),
];

const TYPESCRIPT: &[Template] = &[
    ("README.md", include_str!("templates/typescript/README.md")),
    (".gitignore", include_str!("templates/typescript/gitignore")),
    ("compose.yml", include_str!("templates/shared/compose.yml")),
    ("kafleet.toml", include_str!("templates/typescript/kafleet.toml")),
    ("package.json", include_str!("templates/typescript/package.json")),
    ("tsconfig.json", include_str!("templates/typescript/tsconfig.json")),
    ("tasks.ts", include_str!("templates/typescript/tasks.ts")),
    ("tasks.test.ts", include_str!("templates/typescript/tasks.test.ts")),
];

const RUST: &[Template] = &[
    ("README.md", include_str!("templates/rust/README.md")),
    (".gitignore", include_str!("templates/rust/gitignore")),
    ("compose.yml", include_str!("templates/shared/compose.yml")),
    ("kafleet.toml", include_str!("templates/rust/kafleet.toml")),
    ("Cargo.toml", include_str!("templates/rust/manifest.toml")),
    ("src/main.rs", include_str!("templates/rust/src/main.rs")),
];

impl Language {
    /// Returns the files of a project with this name. `{{name}}` in a template is the name, `{{version}}` that of this
    /// program, which the SDKs have too.
    pub(super) fn files(self, name: &str) -> Vec<ProjectFile> {
        let templates = match self {
            Self::Python => PYTHON,
            Self::TypeScript => TYPESCRIPT,
            Self::Rust => RUST,
        };
        let filled = |text: &str| text.replace("{{name}}", name).replace("{{version}}", env!("CARGO_PKG_VERSION"));
        templates.iter().map(|&(path, text)| ProjectFile { path, text: filled(text) }).collect()
    }

    /// Returns the first two commands in the folder of a new project.
    pub(super) const fn first_commands(self) -> [&'static str; 2] {
        match self {
            Self::Python => [
                "python3 -m venv .venv && .venv/bin/pip install PATH_OF_THE_CHECKOUT/target/wheels/kafleet*.whl pytest",
                ".venv/bin/kafleet dev tasks.py",
            ],
            Self::TypeScript => {
                ["npm install PATH_OF_THE_CHECKOUT/target/packages/kafleet-*.tgz", "npx kafleet dev tasks.ts"]
            }
            Self::Rust => ["cargo add kafleet --path PATH_OF_THE_CHECKOUT", "cargo run -- dev --no-sample"],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn placeholders_of_all_templates_are_filled() {
        for language in Language::value_variants() {
            let files = language.files("my-shop");
            let paths: BTreeSet<&str> = files.iter().map(|file| file.path).collect();
            assert_eq!(paths.len(), files.len(), "{language:?}");
            for ProjectFile { path, text } in &files {
                assert!(!text.contains("{{") && text.ends_with('\n'), "{language:?}: {path}");
            }
            let named = files.iter().filter(|file| file.text.contains("my-shop"));
            assert!(named.count() >= 3, "{language:?}");
        }
    }

    #[test]
    fn settings_of_the_templates_are_toml_and_json() {
        for language in Language::value_variants() {
            for ProjectFile { path, text } in language.files("my-shop") {
                if path.ends_with(".toml") {
                    let parsed = toml::from_str::<toml::Table>(&text);
                    assert!(parsed.is_ok(), "{language:?}: {path}: {parsed:?}");
                } else if path.ends_with(".json") {
                    let parsed = serde_json::from_str::<serde_json::Value>(&text);
                    assert!(parsed.is_ok(), "{language:?}: {path}: {parsed:?}");
                }
            }
        }
    }
}
