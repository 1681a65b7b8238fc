//! Flags that every verb accepts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::client::Client;
use super::dev;
use super::exit::Failure;
use super::output::Output;

/// URL of the API without any setting.
const DEFAULT_API: &str = "http://127.0.0.1:8080";

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(super) struct Globals {
    /// Configuration file [default: ./kafleet.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE", env = "KAFLEET_CONFIG")]
    pub config: Option<PathBuf>,

    /// Kafka bootstrap servers, for roles and setup verbs; overrides the configuration
    #[arg(long, global = true, value_name = "HOST:PORT,…", env = "KAFLEET_BROKERS")]
    pub brokers: Option<String>,

    /// Redis URL, for `tracker`, `api` and `doctor`; overrides the configuration
    #[arg(long, global = true, value_name = "URL", env = "KAFLEET_REDIS", hide_env_values = true)]
    pub redis: Option<String>,

    /// Postgres URL of the outbox, for `outbox`, `topics` and `doctor`; overrides the configuration
    #[arg(long, global = true, value_name = "URL", env = "KAFLEET_POSTGRES", hide_env_values = true)]
    pub postgres: Option<String>,

    /// Prefix of all topics and Redis keys; overrides the configuration
    #[arg(long, global = true, value_name = "NAME", env = "KAFLEET_PREFIX")]
    pub prefix: Option<String>,

    /// URL of the API, for client verbs [default: that of `kafleet dev` in this folder, or http://127.0.0.1:8080]
    #[arg(long, global = true, value_name = "URL", env = "KAFLEET_API")]
    pub api: Option<String>,

    /// Bearer token for the API
    #[arg(long, global = true, value_name = "TOKEN", env = "KAFLEET_TOKEN", hide_env_values = true)]
    pub token: Option<String>,

    /// Output format: a table for people, or JSON
    #[arg(short = 'o', long = "output", global = true, value_enum, default_value_t = Format::Table)]
    pub format: Format,

    /// Colours; `auto`: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, default_value_t = Colors::Auto, value_name = "WHEN")]
    pub color: Colors,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    #[default]
    Table,
    Json,
    /// A diagram (`tree` only)
    Mermaid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Colors {
    #[default]
    Auto,
    Always,
    Never,
}

impl Globals {
    pub(super) fn output(&self) -> Output {
        Output::stdout(self.format, self.color)
    }

    pub(super) fn client(&self) -> Result<Client, Failure> {
        let of_folder = || dev::url_in(&std::env::current_dir().ok()?);
        let api = self.api.clone().or_else(of_folder);
        Client::new(api.as_deref().unwrap_or(DEFAULT_API), self.token.as_deref())
    }
}
