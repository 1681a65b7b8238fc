//! Rules of names: a type is named with a noun that few others bear, and an identifier says which reason or thing it is.

use std::collections::BTreeMap;

use proc_macro2::{Spacing, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::source::{SourceFile, Violation, is_for_tests};

/// Most types of the product with one name.
pub const MAX_NAMESAKES: usize = 3;

/// Participles without the ending of one. Those that are nouns, too (`Cut`, `Put`, `Read`, `Run`, `Set`), are left out.
const IRREGULAR: &[&str] = &[
    "Begun", "Bound", "Bought", "Brought", "Built", "Caught", "Done", "Fed", "Felt", "Found", "Gone", "Held", "Kept",
    "Known", "Laid", "Left", "Lost", "Made", "Met", "Paid", "Said", "Sent", "Shown", "Sold", "Spent", "Stuck", "Told",
    "Torn", "Won", "Worn",
];

/// Words that end as participles do, and are none.
const NOUNS: &[&str] = &[
    "Bed", "Children", "Dozen", "Feed", "Garden", "Hundred", "Need", "Open", "Screen", "Seed", "Speed", "Ten",
    "Thread", "Token", "When", "Yen",
];

/// Types named with a participle alone, such as `Logged`, which does not say what was logged.
pub fn participles(files: &[SourceFile]) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in files {
        let types = Types::of(file, true).into_iter().filter(|defined| is_participle(&defined.name));
        found.extend(types.map(|TypeName { name, line, .. }| {
            Violation::new(&file.path, line, format!("`{name}` is no noun: say what it is, as in `{name}Event`"))
        }));
    }
    found
}

fn is_participle(name: &str) -> bool {
    let is_one_word = !name.chars().skip(1).any(char::is_uppercase);
    let has_ending = name.ends_with("ed") || name.ends_with("en");
    is_one_word && (has_ending && !NOUNS.contains(&name) || IRREGULAR.contains(&name))
}

/// Types of the product whose name more than [`MAX_NAMESAKES`] of them bear, private ones included.
pub fn namesakes(files: &[SourceFile]) -> Vec<Violation> {
    let message =
        |name: &str, count| format!("`{name}` is the name of {count} types; at most {MAX_NAMESAKES}: qualify it");
    same_names(files, |_| true, MAX_NAMESAKES, message)
}

/// Public types of the product with the name of another one.
pub fn shared_names(files: &[SourceFile]) -> Vec<Violation> {
    same_names(files, |defined| defined.is_public, 1, |name, _| format!("another public type is named `{name}`, too"))
}

/// Definitions of types of the product whose name more than `most` of the chosen ones bear.
fn same_names(
    files: &[SourceFile],
    is_chosen: impl Fn(&TypeName) -> bool,
    most: usize,
    message: impl Fn(&str, usize) -> String,
) -> Vec<Violation> {
    let mut types: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        for defined in Types::of(file, false).into_iter().filter(&is_chosen) {
            types.entry(defined.name).or_default().push((&file.path, defined.line));
        }
    }
    let frequent = types.iter().filter(|(_, definitions)| definitions.len() > most);
    let violations = frequent.flat_map(|(name, definitions)| {
        definitions.iter().map(|(path, line)| Violation::new(path, *line, message(name, definitions.len())))
    });
    violations.collect()
}

struct TypeName {
    name: String,
    line: usize,
    is_public: bool,
}

/// Types that a file defines.
struct Types {
    defined: Vec<TypeName>,
    with_tests: bool,
}

impl Types {
    fn of(file: &SourceFile, with_tests: bool) -> Vec<TypeName> {
        let mut types = Self { defined: Vec::new(), with_tests };
        types.visit_file(&file.syntax);
        types.defined
    }

    fn add(&mut self, name: &syn::Ident, visibility: &syn::Visibility) {
        let is_public = matches!(visibility, syn::Visibility::Public(_));
        self.defined.push(TypeName { name: name.to_string(), line: name.span().start().line, is_public });
    }
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if self.with_tests || !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(&item.ident, &item.vis);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident, &item.vis);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add(&item.ident, &item.vis);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add(&item.ident, &item.vis);
    }
}

/// Variables, parameters, fields and functions named `what` or `why`: the name is the noun of the thing. The command `why`
/// is the subject of some modules, and of the functions that call it.
pub fn question_words(files: &[SourceFile]) -> Vec<Violation> {
    let of_file = |file: &SourceFile| {
        let mut names = QuestionWords { allows_why: is_of_command(&file.path), lines: Vec::new() };
        names.visit_file(&file.syntax);
        names.lines.dedup();
        let violation = |(name, line)| {
            Violation::new(
                &file.path,
                line,
                format!("`{name}` says nothing: `error`, `reason`, `subject` or another noun"),
            )
        };
        names.lines.into_iter().map(violation).collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// Whether the subject of a file is the command `why`.
fn is_of_command(path: &str) -> bool {
    path.split('/').any(|part| part.trim_end_matches(".rs").split('_').any(|word| word == "why"))
}

struct QuestionWords {
    allows_why: bool,
    lines: Vec<(String, usize)>,
}

impl QuestionWords {
    fn check(&mut self, name: &proc_macro2::Ident) {
        let text = name.to_string();
        if text == "what" || text == "why" && !self.allows_why {
            self.lines.push((text, name.span().start().line));
        }
    }

    /// Checks the names in the arguments of a macro. Parts of a path and calls of a method belong to what they name.
    fn check_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_mark = |at: Option<usize>, mark: char, spacing: Option<Spacing>| {
            let Some(TokenTree::Punct(punct)) = at.and_then(|at| tokens.get(at)) else { return false };
            punct.as_char() == mark && spacing.is_none_or(|spacing| punct.spacing() == spacing)
        };
        let mut names = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.check_tokens(group.stream()),
                TokenTree::Ident(name) => {
                    let before = at.checked_sub(1);
                    let is_in_path = is_mark(before, ':', None)
                        && is_mark(at.checked_sub(2), ':', Some(Spacing::Joint))
                        || is_mark(Some(at + 1), ':', Some(Spacing::Joint));
                    if !is_in_path && !is_mark(before, '.', None) {
                        names.push(name.clone());
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        names.iter().for_each(|name| self.check(name));
    }
}

impl<'ast> Visit<'ast> for QuestionWords {
    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.check(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        field.ident.iter().for_each(|name| self.check(name));
        visit::visit_field(self, field);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.check(&signature.ident);
        visit::visit_signature(self, signature);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.check_tokens(item.tokens.clone());
    }
}
