//! Rule of vocabulary: words that have a standard term are not used. `words.txt` lists them with the remaining uses.

use std::collections::BTreeMap;

use crate::source::{SourceFile, Violation};

/// A forbidden word, and the number of its uses that are still tolerated.
pub struct Word<'a> {
    in_code: bool,
    in_text: bool,
    pub word: &'a str,
    pub maximum: usize,
    pub term: &'a str,
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

/// Uses of each forbidden word.
pub fn uses<'a>(words: &[Word<'a>], files: &[SourceFile]) -> BTreeMap<&'a str, Vec<Violation>> {
    let known: BTreeMap<&str, &Word> = words.iter().map(|word| (word.word, word)).collect();
    let mut found: BTreeMap<&'a str, Vec<Violation>> = words.iter().map(|word| (word.word, Vec::new())).collect();
    for file in files {
        for part in parts(&file.text) {
            let (text, in_code) = match part {
                Part::Code(text) => (text, true),
                Part::Comment(text) => (text, false),
            };
            for name in identifiers(text, in_code) {
                let lower = name.to_lowercase();
                let Some(word) = known.get(if in_code { name } else { &lower }) else { continue };
                if if in_code { word.in_code } else { word.in_text } {
                    let line = file.text[..offset_in(&file.text, name)].matches('\n').count() + 1;
                    let message = format!("`{name}` has a standard term: {}", word.term);
                    found.get_mut(word.word).unwrap().push(Violation::new(&file.path, line, message));
                }
            }
        }
    }
    found
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

/// Words of the text; in comments those in backticks are names and do not count.
fn identifiers(text: &str, in_code: bool) -> impl Iterator<Item = &str> {
    let outside = text.split('`').step_by(if in_code { 1 } else { 2 });
    let words = outside.flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.filter(|word| !word.is_empty())
}

enum Part<'a> {
    Code(&'a str),
    Comment(&'a str),
}

/// Splits Rust source into code and line comments; string and character literals belong to neither.
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
        if is_comment {
            parts.push(Part::Comment(&text[at..end]));
        }
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
