//! Rules of the documents: link targets and named metrics exist.

use std::collections::BTreeSet;

use regex::Regex;

use crate::source::{SourceFile, Violation, is_of_product, root};

/// Links of Markdown files to files and headings that do not exist. Links to other sites are not followed.
pub fn broken_links(documents: &[(String, String)]) -> Vec<Violation> {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut found = Vec::new();
    for (path, text) in documents {
        for (content, line) in text.lines().zip(1..) {
            for target in
                link.captures_iter(content).filter_map(|found| found.get(1).or(found.get(2))).map(|name| name.as_str())
            {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                if let Some(message) = broken(path, text, target) {
                    found.push(Violation::new(path, line, format!("`{target}` {message}")));
                }
            }
        }
    }
    found
}

fn broken(path: &str, text: &str, target: &str) -> Option<&'static str> {
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let other;
    let text = if file.is_empty() {
        text
    } else {
        let target = root().join(path).parent()?.join(file);
        if !target.exists() {
            return Some("is not a file");
        }
        if heading.is_none() || target.extension().is_none_or(|extension| extension != "md") {
            return None;
        }
        other = std::fs::read_to_string(target).unwrap();
        &other
    };
    match heading {
        Some(heading) if !anchors(text).contains(heading) => Some("is not a heading"),
        _ => None,
    }
}

/// Anchors of the headings of a Markdown text, as web hosts make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut code = false;
    for line in text.lines() {
        code ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !code) else { continue };
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept: String = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect();
        let anchor = kept.replace(' ', "-");
        let mut unique = anchor.clone();
        let mut n = 1;
        while seen.contains(&unique) {
            unique = format!("{anchor}-{n}");
            n += 1;
        }
        seen.insert(unique);
    }
    seen
}

/// Metrics and headers (`kafleet_…`) named in documents and charts that are neither string literals of the source nor created by
/// its SQL. A name before `::` is a crate.
pub fn unknown_names(
    documents: &[(String, String)],
    sources: &[SourceFile],
    sql: &[(String, String)],
) -> Vec<Violation> {
    let name = Regex::new(r"\bkafleet_[a-z_]+[a-z]\b").unwrap();
    let literal = Regex::new("\"(kafleet_[a-z_]+)\"|CREATE [A-Z ]+ (kafleet_[a-z_]+)").unwrap();
    let names_in = |text| {
        let found = literal.captures_iter(text).filter_map(|found| found.get(1).or(found.get(2)));
        found.map(|name| name.as_str()).collect::<Vec<&str>>()
    };
    let product = sources.iter().filter(|file| is_of_product(&file.path)).map(|file| &*file.text);
    let known: BTreeSet<&str> = product.chain(sql.iter().map(|(_, text)| &**text)).flat_map(names_in).collect();
    let suffixes = ["_bucket", "_sum", "_count"];
    let exists = |metric: &str| {
        known.contains(metric)
            || suffixes.iter().any(|suffix| metric.strip_suffix(suffix).is_some_and(|metric| known.contains(metric)))
    };
    let mut found = Vec::new();
    for (path, text) in documents {
        for (content, line) in text.lines().zip(1..) {
            let names = name.find_iter(content).filter(|found| !content[found.end()..].starts_with("::"));
            let unknown = names.map(|found| found.as_str()).filter(|metric| !exists(metric));
            found.extend(unknown.map(|metric| {
                Violation::new(path, line, format!("`{metric}` is neither a metric nor a header of the source"))
            }));
        }
    }
    found
}

/// Types and their members (`Type::member`) named in the text of manuals that the code does not have. Examples in fenced blocks
/// are code of other programs.
pub fn unknown_members(manuals: &[(String, String)], code: &[SourceFile]) -> Vec<Violation> {
    let definition = Regex::new(r"\b(?:struct|enum|trait|type) (\w+)").unwrap();
    let word = Regex::new(r"\w+").unwrap();
    let types_of = |file: &SourceFile| -> Vec<String> {
        definition.captures_iter(&file.text).map(|found| found[1].to_owned()).collect()
    };
    let types: BTreeSet<String> = code.iter().flat_map(types_of).collect();
    let words: BTreeSet<&str> =
        code.iter().flat_map(|file| word.find_iter(&file.text)).map(|found| found.as_str()).collect();
    let member = Regex::new(r"\b([A-Z]\w*[a-z]\w*)::(\w+)").unwrap();
    let mut found = Vec::new();
    for (path, text) in manuals {
        let mut is_fenced = false;
        for (content, line) in text.lines().zip(1..) {
            is_fenced ^= content.trim_start().starts_with("```");
            let named = member.captures_iter(content).filter(|_| !is_fenced);
            let unknown = named.filter(|name| !types.contains(&name[1]) || !words.contains(&name[2]));
            found.extend(unknown.map(|name| Violation::new(path, line, format!("`{}` is not in the code", &name[0]))));
        }
    }
    found
}
