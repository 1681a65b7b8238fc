//! Rules of the code's structure: circles of files, and the modules that users see.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::source::{SourceFile, Violation, is_for_tests};

/// Largest circle of files that use each other.
pub const MAX_CIRCLE: usize = 5;

type Path = Vec<String>;

/// Modules of all crates, each below the name of its crate, with what they use, and the names that they re-export.
struct Modules<'a> {
    files: BTreeMap<Path, &'a SourceFile>,
    /// Used paths by module, relative ones resolved.
    uses: BTreeMap<Path, BTreeSet<Path>>,
    /// Target of a re-exported name.
    exports: BTreeMap<(Path, String), Path>,
}

/// Circles of more than [`MAX_CIRCLE`] files within a folder of the product, without its `mod.rs` or `lib.rs`: these start their
/// children and define what they share. Tests and re-exports do not count.
pub fn circles(files: &[SourceFile]) -> Vec<Violation> {
    let modules = Modules::of(files);
    let mut edges = modules.edges();
    let is_root = |module: &Path| ["/mod.rs", "/lib.rs"].iter().any(|name| modules.files[module].path.ends_with(name));
    edges.retain(|module, _| !is_root(module));
    edges.values_mut().for_each(|used| used.retain(|module| !is_root(module)));
    modules.circles(&edges)
}

/// Circles of a folder with its `mod.rs` and `lib.rs`: such a circle is one unit, whose parts cannot be read or moved alone.
pub fn folder_circles(files: &[SourceFile]) -> Vec<Violation> {
    let modules = Modules::of(files);
    modules.circles(&modules.edges())
}

/// Modules that can be reached from a module, with itself if it is part of a circle.
fn reachable<'a>(from: &Path, edges: &'a BTreeMap<Path, BTreeSet<Path>>) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Path> = edges[from].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(&edges[module]);
        }
    }
    reached
}

impl<'a> Modules<'a> {
    fn of(files: &'a [SourceFile]) -> Self {
        let code = files.iter().filter(|file| file.is_product());
        let files: BTreeMap<Path, &SourceFile> = code.map(|file| (module_of(&file.path), file)).collect();
        let (mut uses, mut exports) = (BTreeMap::new(), BTreeMap::new());
        for (module, file) in &files {
            let mut paths = Paths::default();
            paths.visit_file(&file.syntax);
            let root = crate_of(module, file);
            let absolute = |path: &Path| absolute(root, module, path, &files);
            uses.insert(module.clone(), paths.used.iter().filter_map(absolute).collect());
            for (name, path) in &paths.exported {
                exports.extend(absolute(path).map(|target| ((module.clone(), name.clone()), target)));
            }
        }
        Self { files, uses, exports }
    }

    fn circles(&self, edges: &BTreeMap<Path, BTreeSet<Path>>) -> Vec<Violation> {
        let reached: BTreeMap<&Path, BTreeSet<&Path>> =
            edges.keys().map(|module| (module, reachable(module, edges))).collect();
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for (module, reaches) in &reached {
            let circle: Vec<&Path> =
                reaches.iter().filter(|other| reached[**other].contains(*module)).copied().collect();
            if circle.len() > MAX_CIRCLE && seen.insert(circle[0]) {
                let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
                let message = format!("circle of {} files; at most {MAX_CIRCLE}: {}", circle.len(), names.join(", "));
                found.push(Violation::new(&self.files[circle[0]].path, 1, message));
            }
        }
        found
    }

    /// Used modules of the same folder, by module.
    fn edges(&self) -> BTreeMap<Path, BTreeSet<Path>> {
        let used = |module: &Path, uses: &BTreeSet<Path>| {
            let targets = uses.iter().map(|path| self.definition(path));
            targets.filter(|target| target != module && target.first() == module.first()).collect()
        };
        self.uses.iter().map(|(module, uses)| (module.clone(), used(module, uses))).collect()
    }

    /// Module that defines the item of a path.
    fn definition(&self, path: &Path) -> Path {
        let mut path = path.clone();
        for _ in 0..path.len() + 8 {
            let depth =
                (0..=path.len()).rev().find(|depth| self.files.contains_key(&path[..*depth])).unwrap_or_default();
            let (module, item) = path.split_at(depth);
            let exported = item.first().and_then(|name| self.exports.get(&(module.to_vec(), name.clone())));
            match exported {
                Some(target) => path = [target.as_slice(), &item[1..]].concat(),
                None => return module.to_vec(),
            }
        }
        path
    }
}

fn module_of(path: &str) -> Path {
    let parts = path.trim_end_matches(".rs").split('/').map(str::to_owned);
    parts.filter(|part| !["crates", "src", "mod", "lib"].contains(&&**part)).collect()
}

/// Path of the root of a module's crate. The modules of the root package are at the top.
fn crate_of<'a>(module: &'a [String], file: &SourceFile) -> &'a [String] {
    if file.path.starts_with("crates/") { &module[..1] } else { &[] }
}

/// Path below the names of the crates. `None` for other crates and for names in scope, whose `use` counts.
fn absolute(root: &[String], module: &[String], path: &[String], files: &BTreeMap<Path, &SourceFile>) -> Option<Path> {
    let mut base = match path.first()?.as_str() {
        "crate" => root.to_vec(),
        "self" => module.to_vec(),
        "super" => module[..module.len().checked_sub(1)?].to_vec(),
        first => {
            let child = [module, &[first.to_owned()]].concat();
            return files.contains_key(&child).then(|| [module, path].concat());
        }
    };
    let mut rest = &path[1..];
    while rest.first().is_some_and(|part| part == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    base.extend(rest.iter().filter(|part| *part != "self").cloned());
    Some(base)
}

/// Paths in a file without its tests.
#[derive(Default)]
struct Paths {
    used: BTreeSet<Path>,
    exported: Vec<(String, Path)>,
}

impl Paths {
    fn add_use(&mut self, before: &Path, tree: &syn::UseTree, exports: bool) {
        let with = |name: &syn::Ident| [before.as_slice(), &[name.to_string()]].concat();
        let (name, path) = match tree {
            syn::UseTree::Path(path) => return self.add_use(&with(&path.ident), &path.tree, exports),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_use(before, tree, exports));
            }
            syn::UseTree::Glob(_) => (String::new(), before.clone()),
            syn::UseTree::Name(name) => (name.ident.to_string(), with(&name.ident)),
            syn::UseTree::Rename(rename) => (rename.rename.to_string(), with(&rename.ident)),
        };
        if exports {
            self.exported.push((name, path));
        } else {
            self.used.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.add_use(&Vec::new(), &item.tree, !matches!(item.vis, syn::Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.used.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// Modules that the documentation of the crates for Rust users shows, by the root of the crate.
const DOCUMENTED_MODULES: &[(&str, &[&str])] = &[
    ("crates/client/src/lib.rs", &[]),
    ("crates/config/src/lib.rs", &[]),
    (
        "crates/handlers/src/lib.rs",
        &["batch", "context", "hooks", "layer", "permit", "service", "task_labels", "testing"],
    ),
    ("crates/model/src/lib.rs", &["json", "task", "units"]),
];

/// Other public modules of these crates. What only crates need is hidden from the documentation.
pub fn shown_modules(files: &[SourceFile]) -> Vec<Violation> {
    let is_hidden = |item: &syn::ItemMod| item.attrs.iter().any(|attribute| is_doc_hidden(&attribute.meta));
    let mut found = Vec::new();
    for file in files {
        let Some((_, documented)) = DOCUMENTED_MODULES.iter().find(|(root, _)| *root == file.path) else { continue };
        for item in &file.syntax.items {
            let syn::Item::Mod(item) = item else { continue };
            let is_public = matches!(item.vis, syn::Visibility::Public(_));
            if is_public && !is_hidden(item) && !documented.iter().any(|name| item.ident == name) {
                let message = format!("`{}` is shown to Rust users: make it private, or `#[doc(hidden)]`", item.ident);
                found.push(Violation::new(&file.path, item.ident.span().start().line, message));
            }
        }
    }
    found
}

fn is_doc_hidden(attribute: &syn::Meta) -> bool {
    matches!(attribute, syn::Meta::List(list) if list.path.is_ident("doc") && list.tokens.to_string() == "hidden")
}
