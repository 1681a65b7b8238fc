//! Names of projects, made of the names of their folders.

/// Name of a project whose folder has neither a letter nor a digit of ASCII in its name.
const FALLBACK: &str = "my-app";

/// Maximum length of a name before its beginning or ending. Names of apps, and of their consumer groups `app-NAME`, have at
/// most 64 characters.
const MAX_CHARS: usize = 50;

/// Names that a package cannot have, in any of the languages.
const RESERVED: &[&[&str]] = &[
    // The app of a target on the command line.
    &["main"],
    // Packages that the templates depend on: npm and Cargo refuse a package that depends on one of its own name.
    &["kafleet", "kafleet-sdk", "pytest", "schemars", "serde", "serde-json", "tokio", "typescript", "zod"],
    // Crates of Rust, and folders that Cargo writes to.
    &["alloc", "build", "core", "deps", "examples", "incremental", "proc-macro", "std", "test"],
    // Keywords of Python.
    &[
        "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except",
        "false", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "none", "nonlocal", "not",
        "or", "pass", "raise", "return", "true", "try", "while", "with", "yield",
    ],
    // Keywords of Rust that Python does not have.
    &[
        "abstract", "become", "box", "const", "crate", "do", "dyn", "enum", "extern", "final", "fn", "gen", "impl",
        "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "self", "static",
        "struct", "super", "trait", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where",
    ],
];

/// Returns the name of the project in a folder of this name: one that is valid for a package of Python, npm and Cargo, for
/// `[apps.NAME]` in kafleet.toml, and for a compose file. It has letters and digits of ASCII, in lower case, with `-`
/// between them.
pub(super) fn project_name(folder: &str) -> String {
    let words = folder.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    name.truncate(MAX_CHARS);
    let name = name.trim_end_matches('-');
    if name.is_empty() {
        FALLBACK.to_owned()
    } else if name.starts_with(|first: char| first.is_ascii_digit()) {
        format!("app-{name}")
    } else if RESERVED.iter().any(|names| names.contains(&name)) {
        format!("{name}-app")
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_folder_becomes_valid() {
        for (folder, name) in [
            ("shop", "shop"),
            ("My Shop", "my-shop"),
            ("my_shop", "my-shop"),
            ("my--shop", "my-shop"),
            ("-shop-", "shop"),
            ("shop.v2", "shop-v2"),
            ("Shop 2026!", "shop-2026"),
            ("3d-shop", "app-3d-shop"),
            ("42", "app-42"),
            ("café", "caf"),
            ("münchen", "m-nchen"),
            ("東京 shop", "shop"),
            ("東京", "my-app"),
            ("", "my-app"),
            ("..", "my-app"),
            ("main", "main-app"),
            ("test", "test-app"),
            ("Tests", "tests"),
            ("kafleet", "kafleet-app"),
            ("serde_json", "serde-json-app"),
            ("class", "class-app"),
            ("None", "none-app"),
            ("async", "async-app"),
            ("fn", "fn-app"),
        ] {
            assert_eq!(project_name(folder), name, "{folder}");
        }
    }

    #[test]
    fn long_name_is_cut_between_its_words() {
        let word = "a".repeat(MAX_CHARS - 1);
        assert_eq!(project_name(&format!("{word} shop")), word);
        assert_eq!(project_name(&"1".repeat(200)).len(), "app-".len() + MAX_CHARS);
    }
}
