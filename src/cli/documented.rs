//! Commands of the documents: each parses, and the runbook has a heading for each alert and each part of `/readyz`.

use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;
use kafleet_runtime::PARTS;
use kafleet_telemetry::alerts::ALERTS;

use super::Cli;

/// Values for placeholders that must have a form.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("TIME", "2026-01-01T00:00:00Z"),
    ("OFFSET", "42"),
    ("DURATION", "1h"),
    ("LETTER", "echo:0:1"),
    ("NAME", "name"),
    ("TYPE", "resize"),
    ("APP", "pics"),
    ("JSON", "{}"),
];

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// Command of a document.
#[derive(Debug)]
struct DocumentedCommand {
    line: usize,
    words: Vec<String>,
    /// Mentioned in a sentence, where arguments may be left out.
    is_inline: bool,
}

/// Commands in code spans, and in code blocks after `$`.
fn commands(text: &str) -> Vec<DocumentedCommand> {
    let mut commands = Vec::new();
    let mut is_block = false;
    let mut lines = text.lines().zip(1..);
    while let Some((content, line)) = lines.next() {
        is_block ^= content.trim_start().starts_with("```");
        if !is_block {
            let spans = content
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|span| span.starts_with("kafleet ") && !span.contains("VERB"));
            commands.extend(spans.map(|span| DocumentedCommand { line, words: words(span), is_inline: true }));
            continue;
        }
        let Some(command) = content.strip_prefix("$ kafleet ") else { continue };
        let mut command = format!("kafleet {command}");
        while command.ends_with('\\') {
            command.pop();
            command += lines.next().map_or("", |(next, _)| next);
        }
        commands.push(DocumentedCommand { line, words: words(&command), is_inline: false });
    }
    commands
}

/// Words of a command, as a shell splits them, up to a redirection, a pipe or a comment.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for c in command.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            None if c == ' ' => words.extend(word.take()),
            None if word.is_none() && "|<>#&;\\".contains(c) => break,
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words.iter().map(|word| with_values(word)).collect()
}

fn with_values(word: &str) -> String {
    PLACEHOLDERS.iter().fold(word.to_owned(), |word, (name, value)| word.replace(name, value))
}

/// Returns the reason why a command is wrong. A verb that is only named in a sentence needs no arguments.
fn mistake(command: &DocumentedCommand) -> Option<String> {
    let error = Cli::try_parse_from(&command.words).err()?;
    if command.is_inline && command.words.last().is_some_and(|word| word.starts_with("--")) {
        // An option that is named without its value.
        let complete = DocumentedCommand { words: [&command.words[..], &["1".to_owned()]].concat(), ..*command };
        return mistake(&complete);
    }
    let is_name = command.words.iter().all(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
    let is_incomplete = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let is_right = is_help || command.is_inline && is_name && is_incomplete;
    (!is_right).then(|| format!("line {}: {:?}: {error}", command.line, command.words))
}

#[test]
fn commands_of_documents_parse() {
    let (mut mistakes, mut count) = (Vec::new(), 0);
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".md") {
            continue;
        }
        let commands = commands(&document(&name));
        mistakes.extend(commands.iter().filter_map(mistake).map(|mistake| format!("{name}: {mistake}")));
        count += commands.len();
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert!(count > 200, "only {count} commands were found");
}

#[test]
fn wrong_commands_are_found() {
    let text = "`kafleet types`, `kafleet status`, `kafleet tpyes` and `kafleet types circuit TYPE shut`\n\
                ```console\n$ kafleet status\n$ kafleet list 'state:failed' \\\n    --limit 0 # none\n```\n";
    let wrong: Vec<bool> = commands(text).iter().map(|command| mistake(command).is_some()).collect();
    assert_eq!(wrong, [false, false, true, true, true, true]);
}

#[test]
fn runbook_has_a_heading_for_each_alert_and_each_part_that_is_not_ready() {
    let text = document("runbook.md");
    let headings: Vec<String> = text.lines().filter_map(|line| line.strip_prefix("### ")).map(plain).collect();
    let expected = ALERTS.iter().map(|alert| alert.name).chain(PARTS.iter().copied()).map(plain);
    let missing: Vec<String> = expected.filter(|name| !headings.contains(name)).collect();
    assert_eq!(missing, [""; 0]);
    let sections = text.split("\n### ").skip(1);
    let incomplete: Vec<&str> = sections
        .filter(|section| !["Meaning: ", "Look at ", "Do: "].iter().all(|part| section.contains(part)))
        .map(|section| section.lines().next().unwrap_or_default())
        .collect();
    assert_eq!(incomplete, [""; 0]);
}

fn plain(heading: &str) -> String {
    heading.replace('`', "")
}
