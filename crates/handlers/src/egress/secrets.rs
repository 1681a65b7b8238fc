//! Secrets that tasks refer to by name: from the configuration or a file, bound to hosts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kafleet_config::SecretConfig;
use tokio::io::AsyncReadExt;

use super::policy::Pattern;

/// Maximum size of a secret file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Source of a secret.
#[derive(Clone)]
pub(crate) enum SecretSource {
    Text(String),
    File(PathBuf),
}

pub(crate) struct Secret {
    source: SecretSource,
    hosts: Vec<Pattern>,
}

impl SecretSource {
    /// Reads the secret, without trailing line breaks. A file is read on every call, so that it can be rotated.
    pub(crate) async fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                read_file(path).await.map_err(|error| format!("the file `{}` cannot be read: {error}", path.display()))
            }
        }
    }
}

async fn read_file(path: &PathBuf) -> Result<String, String> {
    let mut text = String::new();
    let file = tokio::fs::File::open(path).await.map_err(|error| error.to_string())?;
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(text.to_owned()) }
}

impl Secret {
    pub(crate) fn new(config: &SecretConfig) -> Self {
        let source = match &config.file {
            Some(path) => SecretSource::File(path.clone()),
            None => SecretSource::Text(config.value.clone().unwrap_or_default()),
        };
        Self { source, hosts: config.hosts.iter().map(|host| Pattern::new(host)).collect() }
    }

    pub(crate) fn source(&self) -> &SecretSource {
        &self.source
    }

    pub(crate) fn is_for(&self, host: &str) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches(host))
    }
}

/// A part of a text with `${name}` references to secrets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextPart<'a> {
    Plain(&'a str),
    Secret(&'a str),
}

/// Splits a text into its parts. An unterminated `${` is an error; any other `$` is literal.
pub(crate) fn parts(text: &str) -> Result<Vec<TextPart<'_>>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((plain, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else {
            return Err("`${` has no `}`; hint: `${name}` refers to a secret of `[callbacks.secrets]`".to_owned());
        };
        parts.push(TextPart::Plain(plain));
        parts.push(TextPart::Secret(name));
        rest = behind;
    }
    parts.push(TextPart::Plain(rest));
    parts.retain(|part| *part != TextPart::Plain(""));
    Ok(parts)
}

/// Replaces the references with their secrets.
pub(crate) async fn fill(text: &str, secrets: &BTreeMap<String, Secret>) -> Result<String, String> {
    let mut filled = String::new();
    for part in parts(text)? {
        match part {
            TextPart::Plain(text) => filled.push_str(text),
            TextPart::Secret(name) => {
                let secret = secrets.get(name).ok_or_else(|| format!("there is no secret `{name}`"))?;
                filled.push_str(&secret.source.read().await.map_err(|error| format!("the secret `{name}`: {error}"))?);
            }
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_split_into_secret_references() {
        use TextPart::{Plain, Secret};
        for (text, expected) in [
            ("", vec![]),
            ("plain $5 {a}", vec![Plain("plain $5 {a}")]),
            ("Bearer ${billing}", vec![Plain("Bearer "), Secret("billing")]),
            ("${a}${b}-c", vec![Secret("a"), Secret("b"), Plain("-c")]),
        ] {
            assert_eq!(parts(text), Ok(expected), "{text}");
        }
        assert!(parts("${a").is_err());
    }

    #[tokio::test]
    async fn secret_file_is_read_on_every_use() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let config =
            SecretConfig { file: Some(file.clone()), hosts: vec!["a.example".into()], ..SecretConfig::default() };
        let secrets = BTreeMap::from([("key".to_owned(), Secret::new(&config))]);
        let error = fill("x-${key}", &secrets).await.unwrap_err();
        assert!(error.contains("`key`") && error.contains("cannot be read"), "{error}");
        for text in ["one\n", "two"] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(fill("x-${key}", &secrets).await, Ok(format!("x-{}", text.trim())));
        }
        assert!(fill("${other}", &secrets).await.is_err());
    }
}
