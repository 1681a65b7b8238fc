//! Rules of the code: sizes, streams, purity of the model, wake-ups, clocks, files without a module, doc comments.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use syn::visit::{self, Visit};

use crate::source::{SourceFile, Violation, is_of_product, within_package};

pub const MAX_FILE_LINES: usize = 500;
pub const MAX_FUNCTION_LINES: usize = 60;
pub const MAX_FIELDS: usize = 20;
pub const MAX_METHODS: usize = 25;
/// A type with more is listed in `allowed.txt` with its reason.
pub const USUAL_FIELDS: usize = 17;
pub const USUAL_METHODS: usize = 21;

/// The file that makes all streams of events, with the headers that keep proxies from buffering.
const STREAMS: &str = "crates/api/src/service/watch.rs";

/// Paths of IO, clock and concurrency of the standard library, which no manifest keeps out.
const IMPURE: &str = r"\bstd::(fs|net|env|thread|process)\b|\b(SystemTime|Instant)::now|\basync\s+(fn|move)\b";

/// First words of doc comments that do not name their subject.
const VAGUE_BEGINNINGS: &[&str] =
    &["What", "How", "Where", "Who", "Whoever", "So", "Whose", "That", "Those", "One", "As", "If", "Whatever"];

pub fn long_files(files: &[SourceFile]) -> Vec<Violation> {
    let lines = |file: &SourceFile| file.text.lines().count();
    let long = files.iter().filter(|file| lines(file) > MAX_FILE_LINES);
    long.map(|file| {
        Violation::new(&file.path, 1, format!("{} lines; at most {MAX_FILE_LINES}: split the file", lines(file)))
    })
    .collect()
}

pub fn long_functions(files: &[SourceFile]) -> Vec<Violation> {
    struct Functions<'a>(&'a str, Vec<Violation>);
    impl Functions<'_> {
        fn check(&mut self, name: &syn::Ident, body: &syn::Block) {
            let (first, last) = (body.brace_token.span.open().start().line, body.brace_token.span.close().end().line);
            let lines = last - first + 1;
            if lines > MAX_FUNCTION_LINES {
                self.1.push(Violation::new(
                    self.0,
                    first,
                    format!("`{name}` has {lines} lines; at most {MAX_FUNCTION_LINES}: split it"),
                ));
            }
        }
    }
    impl<'ast> Visit<'ast> for Functions<'_> {
        fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
            self.check(&item.sig.ident, &item.block);
            visit::visit_item_fn(self, item);
        }
        fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
            self.check(&item.sig.ident, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }
    let of_file = |file: &SourceFile| {
        let mut found = Functions(&file.path, Vec::new());
        found.visit_file(&file.syntax);
        found.1
    };
    files.iter().flat_map(of_file).collect()
}

/// Structs with too many fields, and types with too many methods in their inherent `impl` blocks, at their definitions.
pub fn large_types(files: &[SourceFile]) -> Vec<Violation> {
    types_above(files, MAX_FIELDS, MAX_METHODS)
}

/// Types so large that they need a reason.
pub fn types_near_the_limit(files: &[SourceFile]) -> Vec<Violation> {
    types_above(files, USUAL_FIELDS, USUAL_METHODS)
}

/// Types of a file with their sizes, and findings about fields.
struct TypeSizes<'a> {
    path: &'a str,
    max_fields: usize,
    found: Vec<Violation>,
    defined: Vec<(String, usize)>,
    methods: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for TypeSizes<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.defined.push((item.ident.to_string(), item.ident.span().start().line));
        let fields = item.fields.len();
        if fields > self.max_fields {
            let max_fields = self.max_fields;
            let message =
                format!("`{}` has {fields} fields; at most {max_fields}: group what belongs together", item.ident);
            self.found.push(Violation::new(self.path, item.ident.span().start().line, message));
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.defined.push((item.ident.to_string(), item.ident.span().start().line));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none()
            && let syn::Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            let methods = item.items.iter().filter(|item| matches!(item, syn::ImplItem::Fn(_))).count();
            self.methods.push((last.ident.to_string(), methods));
        }
        visit::visit_item_impl(self, item);
    }
}

fn types_above(files: &[SourceFile], max_fields: usize, max_methods: usize) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut definitions: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    let mut blocks = Vec::new();
    for file in files {
        let mut types =
            TypeSizes { path: &file.path, max_fields, found: Vec::new(), defined: Vec::new(), methods: Vec::new() };
        types.visit_file(&file.syntax);
        found.append(&mut types.found);
        for (name, line) in types.defined {
            definitions.entry(name).or_default().push((file.path.clone(), line));
        }
        blocks.extend(types.methods.into_iter().map(|(name, methods)| (file.path.as_str(), name, methods)));
    }
    let mut totals: BTreeMap<(&(String, usize), String), usize> = BTreeMap::new();
    for (path, name, methods) in blocks {
        let Some(definition) = definitions.get(&name).and_then(|all| nearest(all, path)) else { continue };
        *totals.entry((definition, name)).or_default() += methods;
    }
    for (((path, line), name), methods) in totals {
        if methods > max_methods {
            found.push(Violation::new(
                path,
                *line,
                format!("`{name}` has {methods} methods; at most {max_methods}: split it"),
            ));
        }
    }
    found
}

/// The definition whose path has the longest beginning in common with an `impl` block of the same name.
fn nearest<'a>(definitions: &'a [(String, usize)], path: &str) -> Option<&'a (String, usize)> {
    let common = |other: &str| other.split('/').zip(path.split('/')).take_while(|(a, b)| a == b).count();
    definitions.iter().rev().max_by_key(|(other, _)| common(other))
}

/// Streams of server-sent events that another file makes.
pub fn other_streams(files: &[SourceFile]) -> Vec<Violation> {
    let stream = Regex::new(r"\baxum::response::sse\b").unwrap();
    let code = files.iter().filter(|file| is_of_product(&file.path) && file.path != STREAMS);
    code.flat_map(|file| matches(file, &stream, |text| format!("`{text}` may be named in {STREAMS} only"))).collect()
}

pub fn impure_model(files: &[SourceFile]) -> Vec<Violation> {
    let impure = Regex::new(IMPURE).unwrap();
    let model = files.iter().filter(|file| file.path.starts_with("crates/model/src/") && !file.is_test());
    model
        .flat_map(|file| matches(file, &impure, |text| format!("`{text}` may not be used in the model, which is pure")))
        .collect()
}

/// Programs started without the environment that withholds secrets. Tests start programs of their own.
pub fn programs_with_secrets(files: &[SourceFile]) -> Vec<Violation> {
    const HOMES: [&str; 2] = ["crates/handlers/src/program_env.rs", "crates/bench/"];
    let start = Regex::new(r"\bCommand::new\(").unwrap();
    let is_home = |file: &SourceFile| HOMES.iter().any(|home| file.path.starts_with(home));
    let code = files.iter().filter(|file| file.is_product() && !is_home(file));
    let message = "`Command::new` starts a program with the worker's secrets, use `ProgramEnv::command`";
    let found = |file: &SourceFile| {
        let tests_from = file.tests_from();
        matches(file, &start, |_| message.to_owned()).into_iter().filter(move |violation| violation.line <= tests_from)
    };
    code.flat_map(found).collect()
}

/// Tokio's `watch` wakes waiting tasks in random order.
pub fn random_wake_ups(files: &[SourceFile]) -> Vec<Violation> {
    let watch = Regex::new(r"\btokio::sync::(\{[^}]*\b)?watch\b").unwrap();
    let code = files.iter().filter(|file| is_of_product(&file.path));
    let message = "`tokio::sync::watch` makes runs of a simulation differ, use `kafleet_runtime::watch`";
    code.flat_map(|file| matches(file, &watch, |_| message.to_owned())).collect()
}

/// Reads of the machine's clock, which may be wrong: `runtime::now_ms` is the brokers' time. The crate `runtime` has the
/// only read, and heartbeats report it.
pub fn wrong_clocks(files: &[SourceFile]) -> Vec<Violation> {
    const ALLOWED: &[&str] =
        &["crates/runtime/", "crates/worker/src/heartbeat.rs", "crates/broker/src/memory/", "crates/bench/"];
    let clock = Regex::new(r"\b(SystemTime|Timestamp|Zoned)::now|\blocal_ms\b").unwrap();
    let is_checked = |file: &&SourceFile| file.is_product() && !ALLOWED.iter().any(|path| file.path.starts_with(path));
    let message = |text: &str| format!("`{text}` is the clock of this machine, use `kafleet_runtime::now_ms`");
    files.iter().filter(is_checked).flat_map(|file| matches(file, &clock, message)).collect()
}

/// Matches outside of comments.
fn matches(file: &SourceFile, pattern: &Regex, message: impl Fn(&str) -> String) -> Vec<Violation> {
    let code = file.text.lines().zip(1..).map(|(text, line)| (text.split("//").next().unwrap_or_default(), line));
    let found = code.filter_map(|(text, line)| Some((pattern.find(text)?.as_str().trim(), line)));
    found.map(|(text, line)| Violation::new(&file.path, line, message(text))).collect()
}

/// Files without a `mod` declaration, which are not compiled.
pub fn dead_files(files: &[SourceFile]) -> Vec<Violation> {
    struct Modules<'a>(&'a str, BTreeSet<String>);
    impl<'ast> Visit<'ast> for Modules<'_> {
        fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
            if item.content.is_some() {
                return;
            }
            let own = item.attrs.iter().find_map(|attribute| {
                let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
                let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &pair.value else { return None };
                pair.path.is_ident("path").then(|| path.value())
            });
            let parent = std::path::Path::new(self.0);
            let folder = parent.parent().unwrap().to_string_lossy().into_owned();
            let stem = parent.file_stem().unwrap().to_string_lossy().into_owned();
            let base = if ["mod", "lib", "main"].contains(&&*stem) || is_crate_root(self.0) {
                folder.clone()
            } else {
                format!("{folder}/{stem}")
            };
            match own {
                Some(path) => {
                    self.1.insert(normalised(&format!("{folder}/{path}")));
                }
                None => {
                    self.1.insert(format!("{base}/{}.rs", item.ident));
                    self.1.insert(format!("{base}/{}/mod.rs", item.ident));
                }
            }
        }
    }
    let mut declared = BTreeSet::new();
    for file in files {
        let mut modules = Modules(&file.path, BTreeSet::new());
        modules.visit_file(&file.syntax);
        declared.append(&mut modules.1);
    }
    let dead = files.iter().filter(|file| !is_crate_root(&file.path) && !declared.contains(&file.path));
    dead.map(|file| Violation::new(&file.path, 1, "no `mod` declares this file: it is never compiled")).collect()
}

/// Whether a file is the root of a crate: `src/lib.rs`, `src/main.rs`, and examples and tests (`NAME.rs`,
/// `NAME/main.rs`).
fn is_crate_root(path: &str) -> bool {
    let parts: Vec<&str> = within_package(path).split('/').collect();
    matches!(
        parts[..],
        ["src", "lib.rs" | "main.rs"] | ["examples" | "tests", _] | ["examples" | "tests", _, "main.rs"]
    )
}

fn normalised(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Doc comments that begin with a question word.
pub fn vague_doc_comments(files: &[SourceFile]) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in files {
        let mut inside = false;
        for (text, line) in file.text.lines().zip(1..) {
            let doc = text.trim_start().strip_prefix("///").or_else(|| text.trim_start().strip_prefix("//!"));
            let first = doc.filter(|_| !inside).and_then(|doc| doc.split_whitespace().next());
            if let Some(word) = first.filter(|word| VAGUE_BEGINNINGS.contains(word)) {
                found.push(Violation::new(
                    &file.path,
                    line,
                    format!("a doc comment begins with `{word}`: name the thing with a noun or a verb"),
                ));
            }
            inside = doc.is_some();
        }
    }
    found
}
