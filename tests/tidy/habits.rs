//! Rules of habits: an unknown position is no number, tests wait for conditions, and their faults are in the test kit.

use syn::visit::{self, Visit};

use crate::source::{SourceFile, TEST_KIT, Violation, is_for_tests};

/// Tests whose sleeps are not waits: the clock of the simulation is simulated, the chaos test lasts a time of load and faults,
/// and these rules have planted ones.
const OWN_TIME: &[&str] = &["tests/simulation/", "tests/chaos/", "tests/tidy/"];

/// Faults that follow from the seed of a scenario.
const OWN_DOUBLES: &str = "tests/simulation/";

/// Traits of the broker and the store.
const BACKENDS: &[&str] =
    &["Broker", "Consumer", "Producer", "TransactionalProducer", "Store", "PartitionWriter", "Inspect"];

/// Fields of literals that state an unknown position or offset as -1.
pub fn numbered_unknowns(files: &[SourceFile]) -> Vec<Violation> {
    struct Literals<'a>(&'a str, Vec<Violation>);
    impl<'ast> Visit<'ast> for Literals<'_> {
        fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
            if let syn::Member::Named(name) = &field.member
                && is_place(&name.to_string())
                && is_minus_one(&field.expr)
            {
                let message = format!("`{name}` is unknown: make it an `Option`, or use a type without it");
                self.1.push(Violation::new(self.0, name.span().start().line, message));
            }
            visit::visit_field_value(self, field);
        }
    }
    let of_file = |file: &SourceFile| {
        let mut found = Literals(&file.path, Vec::new());
        found.visit_file(&file.syntax);
        found.1
    };
    files.iter().flat_map(of_file).collect()
}

fn is_place(name: &str) -> bool {
    ["position", "offset"].iter().any(|noun| name == *noun || name.ends_with(&format!("_{noun}")))
}

fn is_minus_one(value: &syn::Expr) -> bool {
    let syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) = value else { return false };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) = &**expr else { return false };
    number.base10_digits() == "1"
}

/// Sleeps of tests outside of the test kit, without a comment above or behind that says what they are.
pub fn bare_sleeps(files: &[SourceFile]) -> Vec<Violation> {
    let sleep = regex::Regex::new(r"(^|[^.\w])sleep(_until)?\(").unwrap();
    let has_own_time = |file: &SourceFile| OWN_TIME.iter().any(|folder| file.path.starts_with(folder));
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.path.starts_with(TEST_KIT) && !has_own_time(file)) {
        let from = file.tests_from();
        let mut above = "";
        for (text, line) in file.text.lines().zip(1..) {
            let is_sleep = line >= from && sleep.is_match(text) && !text.trim_start().starts_with("//");
            if is_sleep && !text.contains(" // ") && !above.trim_start().starts_with("//") {
                let message =
                    "`sleep` in a test: wait with `eventually`, or say in the line above why the time is fixed";
                found.push(Violation::new(&file.path, line, message));
            }
            above = text;
        }
    }
    found
}

/// Implementations of the broker and the store in tests, outside of the test kit.
pub fn doubles(files: &[SourceFile]) -> Vec<Violation> {
    struct Doubles<'a> {
        path: &'a str,
        is_test: bool,
        found: Vec<Violation>,
    }
    impl<'ast> Visit<'ast> for Doubles<'_> {
        fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
            let before = self.is_test;
            self.is_test |= is_for_tests(&item.attrs);
            visit::visit_item_mod(self, item);
            self.is_test = before;
        }

        fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
            let implemented = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            let name = implemented.map(|segment| segment.ident.to_string()).unwrap_or_default();
            if self.is_test && BACKENDS.contains(&&*name) {
                let message = format!("`{name}` is implemented by a test: use `FaultRules` of {TEST_KIT}src/faults");
                self.found.push(Violation::new(self.path, item.impl_token.span.start().line, message));
            }
            visit::visit_item_impl(self, item);
        }
    }
    let is_checked = |file: &&SourceFile| !file.path.starts_with(TEST_KIT) && !file.path.starts_with(OWN_DOUBLES);
    let of_file = |file: &SourceFile| {
        let mut doubles = Doubles { path: &file.path, is_test: file.is_test(), found: Vec::new() };
        doubles.visit_file(&file.syntax);
        doubles.found
    };
    files.iter().filter(is_checked).flat_map(of_file).collect()
}
