//! Rule of vocabulary: words that have a standard term are not used. `words.txt` lists them with the remaining uses.

use std::collections::BTreeMap;

use syn::visit::Visit;

use crate::source::{SourceFile, Violation};

/// A forbidden word, and the number of its uses that are still tolerated.
pub struct Word<'a> {
    in_code: bool,
    in_text: bool,
    pub word: &'a str,
    pub maximum: usize,
    pub term: &'a str,
}

impl Word<'_> {
    fn message(&self, name: &str) -> String {
        format!("`{name}` has a standard term: {}", self.term)
    }
}

/// Parses the list: place, word, maximum and standard term, separated by spaces.
pub fn parse(list: &str) -> Vec<Word<'_>> {
    let entries = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line| {
        let [place, word, maximum, term] = fields(line).unwrap_or_else(|| panic!("words.txt: cannot parse `{line}`"));
        let maximum = maximum.parse().unwrap_or_else(|_| panic!("words.txt: `{maximum}` is not a number"));
        Word { in_code: place != "text", in_text: place != "code", word, maximum, term }
    };
    entries.map(entry).collect()
}

/// First three fields of a line and the rest.
fn fields(line: &str) -> Option<[&str; 4]> {
    let (place, rest) = line.split_once(' ')?;
    let (word, rest) = rest.trim_start().split_once(' ')?;
    let (maximum, term) = rest.trim_start().split_once(' ')?;
    Some([place, word, maximum, term])
}

/// Uses of each forbidden word: in code and comments, in the texts of the product, in names of tests, and in documents.
pub fn uses<'a>(
    words: &[Word<'a>],
    files: &[SourceFile],
    documents: &[(String, String)],
) -> BTreeMap<&'a str, Vec<Violation>> {
    let mut uses = Uses {
        words: words.iter().map(|word| (word.word, word)).collect(),
        found: words.iter().map(|word| (word.word, Vec::new())).collect(),
    };
    for file in files {
        let texts_until = end_of_product(file);
        for part in parts(&file.text) {
            match part {
                Part::Code(text) => uses.add((&file.path, &file.text), text, true),
                Part::Comment(text) => uses.add((&file.path, &file.text), text, false),
                Part::Literal(text) if offset_in(&file.text, text) < texts_until => {
                    uses.add((&file.path, &file.text), text, false);
                }
                Part::Literal(_) => {}
            }
        }
        let mut tests = TestNames::default();
        tests.visit_file(&file.syntax);
        tests.0.iter().for_each(|(name, line)| uses.add_test(&file.path, name, *line));
    }
    for (path, text) in documents {
        prose(text).into_iter().for_each(|prose| uses.add((path, text), prose, false));
    }
    uses.found
}

/// Uses of the words, while they are collected.
struct Uses<'a, 'w> {
    words: BTreeMap<&'a str, &'w Word<'a>>,
    found: BTreeMap<&'a str, Vec<Violation>>,
}

impl Uses<'_, '_> {
    /// Adds the uses in a part of a file. Names of the standard library, such as `std::cell`, are not ours.
    fn add(&mut self, (path, file): (&str, &str), part: &str, in_code: bool) {
        for name in identifiers(part, in_code) {
            let lower = name.to_lowercase();
            let Some(word) = self.words.get(if in_code { name } else { &*lower }) else { continue };
            let before = &file[..offset_in(file, name)];
            if if in_code { word.in_code && !before.ends_with("std::") } else { word.in_text } {
                let violation = Violation::new(path, before.matches('\n').count() + 1, word.message(name));
                self.found.get_mut(word.word).unwrap().push(violation);
            }
        }
    }

    fn add_test(&mut self, path: &str, name: &str, line: usize) {
        for part in name.split('_') {
            if let Some(word) = self.words.get(part).filter(|word| word.in_text) {
                self.found.get_mut(word.word).unwrap().push(Violation::new(path, line, word.message(part)));
            }
        }
    }
}

/// Names of test functions with their lines.
#[derive(Default)]
struct TestNames(Vec<(String, usize)>);

impl<'ast> Visit<'ast> for TestNames {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().segments.last().is_some_and(|segment| segment.ident == "test")
        };
        if item.attrs.iter().any(is_test) {
            self.0.push((item.sig.ident.to_string(), item.sig.ident.span().start().line));
        }
    }
}

/// Offset up to which the literals of a file are texts of the product. Those of tests are data.
fn end_of_product(file: &SourceFile) -> usize {
    let lines = if file.is_product() { file.tests_from() - 1 } else { 0 };
    file.text.split_inclusive('\n').take(lines).map(str::len).sum()
}

/// Parts of a Markdown text outside of fenced blocks.
fn prose(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut at, mut is_fenced) = (Vec::new(), 0, 0, false);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if line.trim_start().starts_with("```") {
            if !is_fenced {
                parts.push(&text[from..at]);
            }
            (from, is_fenced) = (end, !is_fenced);
        }
        at = end;
    }
    if !is_fenced {
        parts.push(&text[from..]);
    }
    parts
}

/// The list with maxima lowered to the current number of uses.
pub fn lowered(list: &str, uses: &BTreeMap<&str, Vec<Violation>>) -> String {
    let line = |line: &str| match fields(line).filter(|_| !line.starts_with('#')) {
        Some([place, word, maximum, term]) => {
            let count = uses[word].len().min(maximum.parse().unwrap_or(0));
            format!("{place:<5} {word:<16} {count} {term}\n")
        }
        None => format!("{line}\n"),
    };
    list.lines().map(line).collect()
}

fn offset_in(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Words of the text; those in backticks in comments, literals and documents are names and do not count.
fn identifiers(text: &str, in_code: bool) -> impl Iterator<Item = &str> {
    let outside = text.split('`').step_by(if in_code { 1 } else { 2 });
    let words = outside.flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.filter(|word| !word.is_empty())
}

enum Part<'a> {
    Code(&'a str),
    Comment(&'a str),
    Literal(&'a str),
}

/// Splits Rust source into code, line comments, and literals of strings and characters.
fn parts(text: &str) -> Vec<Part<'_>> {
    let bytes = text.as_bytes();
    let (mut parts, mut code_from, mut at) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        let (end, is_comment) = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => (text[at..].find('\n').map_or(text.len(), |n| at + n), true),
            b'"' => (end_of_string(bytes, at), false),
            b'r' if !is_word(bytes, at) && raw_string(&text[at..]).is_some() => {
                (at + raw_string(&text[at..]).unwrap(), false)
            }
            b'\'' if end_of_character(&text[at..]).is_some() => (at + end_of_character(&text[at..]).unwrap(), false),
            _ => {
                at += 1;
                continue;
            }
        };
        parts.push(Part::Code(&text[code_from..at]));
        parts.push(if is_comment { Part::Comment(&text[at..end]) } else { Part::Literal(&text[at..end]) });
        (at, code_from) = (end, end);
    }
    parts.push(Part::Code(&text[code_from..]));
    parts
}

/// Whether the byte continues a word, so that an `r` before a quote does not start a raw string.
fn is_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Length of a raw string at the beginning of the text.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(2 + hashes + body.find(&end)? + end.len())
}

/// Length of a character literal at the beginning of the text; a lifetime is not one.
fn end_of_character(text: &str) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    let (_, first) = characters.next()?;
    if first == '\\' {
        return Some(3 + text[3..].find('\'')?);
    }
    let (at, quote) = characters.next()?;
    (quote == '\'').then_some(at + 1)
}
