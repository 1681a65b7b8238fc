//! The script of the pages: one file of all modules in `assets/app`, which a page loads with one request.
//!
//! Each module becomes a function of its own, which returns what it exports. Names that a module does not export stay its
//! own; what it exports must not be assigned again, because importing modules receive the values.

use std::fmt::Write;
use std::sync::LazyLock;

/// Name and text of a module.
type Module = (&'static str, &'static str);

macro_rules! modules {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("assets/app/", $name, ".js")))),*] };
}

/// Modules of the script. Each is below those that it imports.
static MODULES: &[Module] = modules![
    "page"
    "main"
    "morph"
    "live"
    "dialogs"
    "copy"
    "selection"
    "inputs"
    "neighbours"
    "keys"
    "times"
];

/// Text of the script.
pub(super) static SCRIPT: LazyLock<String> = LazyLock::new(|| script(MODULES));

fn script(modules: &[Module]) -> String {
    let mut text = String::new();
    for (name, module) in modules {
        write_module(&mut text, name, module);
    }
    let names: Vec<String> = modules.iter().map(|(name, _)| format!("${name}")).collect();
    text.push_str(&format!("$main.run([{}]);\n", names.join(", ")));
    text
}

/// Writes a module as a function that returns its exports.
fn write_module(text: &mut String, name: &str, module: &str) {
    let mut exports = Vec::new();
    // Writing to a text does not fail.
    let _ = writeln!(text, "const ${name} = (() => {{");
    let mut lines = module.lines();
    while let Some(line) = lines.next() {
        if is_comment(line) {
            let is_open = |line: &&str| !line.ends_with("*/");
            if line.trim_start().starts_with("/*") && is_open(&line) {
                lines.by_ref().take_while(is_open).for_each(drop);
            }
        } else if let Some(import) = line.strip_prefix("import ") {
            let _ = writeln!(text, "{}", import_of(import).unwrap_or_else(|| line.to_owned()));
        } else if let Some(declaration) = line.strip_prefix("export ") {
            exports.extend(declared_name(declaration));
            let _ = writeln!(text, "{declaration}");
        } else if !line.is_empty() {
            let _ = writeln!(text, "{line}");
        }
    }
    let _ = writeln!(text, "return {{ {} }};\n}})();", exports.join(", "));
}

/// Whether a line is a comment, or the first one of a block of comments.
fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("/*") && (line.ends_with("*/") || !line.contains("*/"))
}

/// Declaration of the names in `{ a, b as c } from "./name.js";`.
fn import_of(import: &str) -> Option<String> {
    let (names, from) = import.split_once(" from ")?;
    let module = from.strip_prefix("\"./")?.strip_suffix(".js\";")?;
    Some(format!("const {} = ${module};", names.replace(" as ", ": ")))
}

/// Name of a function, a class or a constant.
fn declared_name(declaration: &str) -> Option<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
    let mut words = declaration.split(|c| !is_of_name(c)).filter(|word| !word.is_empty());
    words.find(|word| !matches!(*word, "async" | "function" | "class" | "const"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn module_becomes_a_function_that_returns_its_exports() {
        let module = "// @ts-check\n/** One\n * comment. */\nimport { a, b as c } from \"./page.js\";\n\nlet n = /** @type {any} */ (1);\n\
            /** Text. */\nexport async function start() {\n  // Reason.\n  n += a + c;\n}\nexport const K = 1;\n";
        let script = script(&[("keys", module)]);
        assert_eq!(
            script,
            "const $keys = (() => {\nconst { a, b: c } = $page;\nlet n = /** @type {any} */ (1);\n\
             async function start() {\n  n += a + c;\n}\nconst K = 1;\nreturn { start, K };\n})();\n$main.run([$keys]);\n"
        );
    }

    #[test]
    fn every_module_is_listed_below_those_that_it_imports() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/assets/app");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let listed: Vec<String> = MODULES.iter().map(|(name, _)| format!("{name}.js")).collect();
        assert_eq!(files.collect::<BTreeSet<_>>(), listed.iter().cloned().collect());
        for (n, (name, text)) in MODULES.iter().enumerate() {
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let imported = line.strip_prefix("import { ").and_then(|line| line.split_once(" } from \"./"));
                let imported = imported.and_then(|(_, file)| file.strip_suffix("\";"));
                let is_above = imported.is_some_and(|file| listed[..n].iter().any(|name| name == file));
                assert!(is_above, "{name}: `{line}` is no import of a module above it on one line");
            }
            assert!(
                !text.contains("\nexport let ") && !text.contains("\nexport {"),
                "{name}: exports are declarations"
            );
        }
    }

    #[test]
    fn script_stays_small() {
        let is_code = |line: &&str| {
            !line.is_empty() && !is_comment(line) && !line.starts_with(['*', '/']) && !line.starts_with("import ")
        };
        let lines = |text: &str| text.lines().map(str::trim).filter(is_code).count();
        for (name, text) in MODULES {
            assert!(text.lines().count() <= 250, "{name}: {} lines", text.lines().count());
        }
        let total: usize = MODULES.iter().map(|(_, text)| lines(text)).sum();
        assert!(total <= 500, "{total} lines without comments and imports");
    }
}
