//! Translates messages of the REST API into the terms of the command line.

/// Parts of messages and hints, and their replacements. Longer parts precede their prefixes.
const REPLACEMENTS: [(&str, &str); 23] = [
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
    ("GET /v1/tasks/{id}/attachments", "`kafleet attachments list ID`"),
    ("POST /v1/tasks/{id}/retry", "`kafleet retry ID`"),
    ("GET /v1/types", "`kafleet types -o json`"),
    ("DELETE /v1/kill/{name}", "`kafleet kill-switch off NAME`"),
    ("GET /v1/kill", "`kafleet kill-switch list`"),
    ("PUT /v1/schedules/{id}", "`kafleet schedules change ID`"),
    ("DELETE /v1/schedules/{id}", "`kafleet schedules delete ID`"),
    ("GET /v1/schedules", "`kafleet schedules list`"),
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

/// Translates a message or hint of the API.
pub(super) fn for_shell(text: &str) -> String {
    let text = REPLACEMENTS.iter().fold(text.to_owned(), |text, (call, verb)| text.replace(call, verb));
    if text.starts_with("the path ends after `") {
        return "a name is empty".to_owned();
    }
    if let Some((before, _)) = text.split_once("read the task with `?after=") {
        return format!("{before}see `kafleet status`");
    }
    match text.strip_prefix("query parameter `").and_then(|rest| rest.split_once('`')) {
        Some((name, why)) => format!("`--{}`{why}", name.replace('_', "-")),
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
            (
                "change it with PUT /v1/schedules/{id}, or delete it first",
                "change it with `kafleet schedules change ID`, or delete it first",
            ),
            (
                "query parameter `name_like`: the compiled pattern is too large",
                "`--name-like`: the compiled pattern is too large",
            ),
            (
                "retry the failed tasks below it with `only_failed`",
                "retry the failed tasks below it with --only-failed",
            ),
            ("do not repeat it, read the task with `?after=3:9`", "do not repeat it, see `kafleet status`"),
            ("the path ends after `/v1/kill/`, where a name is required", "a name is empty"),
            ("it has neither `cron` nor `every`", "it has neither --cron nor --every"),
            ("there is no task `a`", "there is no task `a`"),
        ] {
            assert_eq!(for_shell(text), expected);
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
        lines(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/api")), &mut code);
        let calls = ["GET /", "PUT /", "POST /", "PATCH /", "DELETE /"];
        let names_call = |text: &str| calls.iter().any(|call| text.contains(call));
        let named: Vec<_> = code.iter().filter(|(_, line)| names_call(line)).collect();
        assert!(named.len() > 5, "no hints found in the API's code");
        for (path, line) in named {
            assert!(!names_call(&for_shell(line)), "{}: no verb replaces the call in: {line}", path.display());
        }
    }
}
