//! Translates messages of the REST API into the terms of the command line.

/// Parts of messages and hints, and their replacements. Longer parts precede their prefixes.
const REPLACEMENTS: [(&str, &str); 22] = [
    ("the request has no bearer token", "the API requires a token, and none was given"),
    ("the bearer token is invalid", "the API does not know the token"),
    ("send the header `Authorization: Bearer TOKEN`", "give a valid token with --token or KAFLEET_TOKEN"),
    (
        "GET /openapi.json describes all endpoints",
        "the API may have another version than this `kafleet`: compare `kafleet --version`",
    ),
    (
        "the `allow` header lists the supported methods",
        "the API may have another version than this `kafleet`: compare `kafleet --version`",
    ),
    ("GET /v1/types shows", "`kafleet types -o json` shows"),
    ("GET /v1/types", "`kafleet types`"),
    ("GET /v1/kill-switches", "`kafleet kill-switch list`"),
    ("GET /v1/schedules", "`kafleet schedules list`"),
    ("GET /v1/views", "`kafleet views`"),
    ("query parameter `sort`", "`--sort`"),
    ("query parameter `cursor`", "`--cursor`"),
    ("neither `cron` nor `every`", "neither --cron nor --every"),
    ("`cron = \"0 3 * * *\"`", "--cron \"0 3 * * *\""),
    ("`every = \"10m\"`", "--every 10m"),
    ("`cursor`", "--cursor"),
    ("`only_failed`", "--only-failed"),
    ("`external: true`", "--external"),
    ("`atomic`", "--atomic"),
    ("`options`", "--options"),
    ("`link`", "--link"),
    ("`then` of the parent", "the parent with --then"),
];

/// Calls with a name in the path, as the parts before and after the name, and their verbs.
const CALLS: [(&str, &str, &str); 6] = [
    ("GET /v1/tasks/", "/attachments", "kafleet attachments list"),
    ("POST /v1/tasks/", "/retry", "kafleet retry"),
    ("DELETE /v1/kill-switches/", "", "kafleet kill-switch off"),
    ("PUT /v1/schedules/", "", "kafleet schedules change"),
    ("DELETE /v1/schedules/", "", "kafleet schedules delete"),
    ("DELETE /v1/views/", "", "kafleet views delete"),
];

/// Replaces a call by its verb. A placeholder such as `{name}` becomes `NAME`.
fn replace_call(text: &str, (before, after, verb): (&str, &str, &str)) -> Option<String> {
    let (start, rest) = text.split_once(before)?;
    let end = rest.find([' ', ',', ';', '"']).unwrap_or(rest.len());
    let name = rest[..end].strip_suffix(after)?;
    let placeholder = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).map(str::to_uppercase);
    Some(format!("{start}`{verb} {}`{}", placeholder.as_deref().unwrap_or(name), &rest[end..]))
}

/// Names the option behind a JSON pointer of a problem, if it was given on the command line.
pub(super) fn location(pointer: &str, mut arguments: impl Iterator<Item = String>) -> String {
    let option = format!("--{}", pointer.trim_start_matches('/').replace('_', "-"));
    let is_given = arguments.any(|argument| argument.split('=').next() == Some(&option));
    if is_given { option } else { pointer.to_owned() }
}

/// Translates a message or hint of the API.
pub(super) fn for_shell(text: &str) -> String {
    let text = CALLS.iter().fold(text.to_owned(), |text, call| replace_call(&text, *call).unwrap_or(text));
    let text = REPLACEMENTS.iter().fold(text, |text, (call, verb)| text.replace(call, verb));
    if text.starts_with("the path ends after `") {
        return "a name is empty".to_owned();
    }
    if let Some((before, _)) = text.split_once("read the task with `?after=") {
        return format!("{before}see `kafleet status`");
    }
    match text.strip_prefix("query parameter `").and_then(|rest| rest.split_once('`')) {
        Some((name, error)) => format!("`--{}`{error}", name.replace('_', "-")),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn hint_names_verbs_instead_of_calls() {
        for (text, expected) in [
            ("GET /v1/types shows the schema of `foreach`", "`kafleet types -o json` shows the schema of `foreach`"),
            ("GET /v1/types lists the existing types", "`kafleet types` lists the existing types"),
            (
                "change it with PUT /v1/schedules/nightly, or delete it first",
                "change it with `kafleet schedules change nightly`, or delete it first",
            ),
            ("delete one: DELETE /v1/kill-switches/{name}", "delete one: `kafleet kill-switch off NAME`"),
            (
                "to run the task again anyway: POST /v1/tasks/a:b/retry",
                "to run the task again anyway: `kafleet retry a:b`",
            ),
            ("GET /v1/tasks/a/attachments lists them", "`kafleet attachments list a` lists them"),
            ("query parameter `cursor`: `x` is not a cursor", "`--cursor`: `x` is not a cursor"),
            (
                "query parameter `name_like`: the compiled pattern is too large",
                "`--name-like`: the compiled pattern is too large",
            ),
            (
                "retry the failed tasks below it with `only_failed`",
                "retry the failed tasks below it with --only-failed",
            ),
            ("do not repeat it, read the task with `?after=3:9`", "do not repeat it, see `kafleet status`"),
            ("the path ends after `/v1/kill-switches/`, where a name is required", "a name is empty"),
            ("it has neither `cron` nor `every`", "it has neither --cron nor --every"),
            ("there is no task `a`", "there is no task `a`"),
        ] {
            assert_eq!(for_shell(text), expected);
        }
    }

    #[test]
    fn location_is_the_option_that_was_given() {
        let given = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>().into_iter();
        for (pointer, line, expected) in [
            ("/delay", "submit echo --delay 40d", "--delay"),
            ("/name_like", "list --name-like=x", "--name-like"),
            ("/delay", "submit - --file x", "/delay"),
            ("/params/url", "submit echo {}", "/params/url"),
        ] {
            assert_eq!(location(pointer, given(line)), expected, "{line}");
        }
    }

    /// Collects the code lines of the API, which include all messages.
    fn lines(folder: &Path, lines: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self::lines(&path, lines);
            } else if path.file_name().is_some_and(|name| name != "tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                lines.extend(code.map(|line| (path.clone(), line.to_owned())));
            }
        }
    }

    #[test]
    fn every_call_named_in_a_hint_has_a_verb() {
        let mut code = Vec::new();
        lines(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/crates/api/src")), &mut code);
        let calls = ["GET /", "PUT /", "POST /", "PATCH /", "DELETE /"];
        let names_call = |text: &str| calls.iter().any(|call| text.contains(call));
        // Labels of metrics are not messages.
        let is_label = |line: &str| line.contains("record_request(");
        let named: Vec<_> = code.iter().filter(|(_, line)| names_call(line) && !is_label(line)).collect();
        assert!(named.len() > 5, "no hints found in the API's code");
        for (path, line) in named {
            assert!(!names_call(&for_shell(line)), "{}: no verb replaces the call in: {line}", path.display());
        }
    }
}
