//! Rust files with their syntax trees, and documents of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders with Rust code.
const CODE: &[&str] = &["src", "crates", "tests", "examples"];

/// The crate with what tests share, which is no part of the product.
pub const TEST_KIT: &str = "crates/testkit/";

/// A Rust file with its path relative to the repository's root, `/`-separated.
pub struct SourceFile {
    pub path: String,
    pub text: String,
    pub syntax: syn::File,
}

impl SourceFile {
    pub fn new(path: &str, text: &str) -> Self {
        let syntax = syn::parse_file(text).unwrap_or_else(|error| panic!("{path} is not Rust: {error}"));
        Self { path: path.to_owned(), text: text.to_owned(), syntax }
    }

    /// Whether the file contains only tests: below `tests/`, in the test kit, or a test module of the product.
    pub fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.starts_with(TEST_KIT)
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
    }

    /// Whether the file is code of the product. A file may end with its tests.
    pub fn is_product(&self) -> bool {
        is_of_product(&self.path) && !self.is_test()
    }

    /// Line from which the file contains only tests.
    pub fn tests_from(&self) -> usize {
        if self.is_test() {
            return 1;
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let is_begin = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].contains('{');
        lines.windows(2).position(is_begin).map_or(usize::MAX, |index| index + 1)
    }
}

/// Whether a path is below `src/` of the root package or of a crate of the product. The tests beside the code are included.
pub fn is_of_product(path: &str) -> bool {
    within_package(path).starts_with("src/") && !path.starts_with(TEST_KIT)
}

/// Path within the package: the root's, or one in `crates/`.
pub fn within_package(path: &str) -> &str {
    let member = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
    member.map_or(path, |(_, rest)| rest)
}

/// Whether an item is compiled for tests only.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    })
}

/// Finding with its location and message.
#[derive(Clone, Debug)]
pub struct Violation {
    pub path: String,
    pub line: usize,
    pub message: String,
}

impl Violation {
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All Rust files of the repository, sorted by path.
pub fn rust_files() -> Vec<SourceFile> {
    let folders: Vec<&str> = CODE.iter().copied().filter(|folder| root().join(folder).exists()).collect();
    let mut files: Vec<SourceFile> =
        texts(&folders, "rs").iter().map(|(path, text)| SourceFile::new(path, text)).collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Path and text of the files with an extension in the folders; `.` is the root without its subfolders.
pub fn texts(folders: &[&str], extension: &str) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for folder in folders {
        collect(&root().join(folder), *folder != ".", extension, &mut paths);
    }
    let relative =
        |path: &Path| path.strip_prefix(root()).unwrap_or(path).to_string_lossy().trim_start_matches("./").to_owned();
    paths.iter().map(|path| (relative(path), fs::read_to_string(path).unwrap())).collect()
}

fn collect(folder: &Path, deep: bool, extension: &str, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if deep {
                collect(&path, deep, extension, paths);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            paths.push(path);
        }
    }
}
