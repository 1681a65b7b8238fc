//! The flags that every verb takes, and what they mean.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::client::Client;
use super::exit::Failure;
use super::output::Output;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Configuration file [default: ./kafleet.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE", env = "KAFLEET_CONFIG")]
    pub config: Option<PathBuf>,

    /// Kafka's addresses, for roles and set-up; wins over the configuration
    #[arg(long, global = true, value_name = "HOST:PORT,…", env = "KAFLEET_BROKERS")]
    pub brokers: Option<String>,

    /// Redis, for tracker, api and doctor; wins over the configuration
    #[arg(long, global = true, value_name = "URL", env = "KAFLEET_REDIS", hide_env_values = true)]
    pub redis: Option<String>,

    /// What every topic and Redis key begins with; wins over the configuration
    #[arg(long, global = true, value_name = "NAME", env = "KAFLEET_PREFIX")]
    pub prefix: Option<String>,

    /// The api that client verbs talk to
    #[arg(long, global = true, value_name = "URL", env = "KAFLEET_API", default_value = "http://127.0.0.1:8080")]
    pub api: String,

    /// Bearer token for the api
    #[arg(long, global = true, value_name = "TOKEN", env = "KAFLEET_TOKEN", hide_env_values = true)]
    pub token: Option<String>,

    /// Print for people, or for programs
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,

    /// Colours; `auto` is only on a terminal and without NO_COLOR
    #[arg(long, global = true, value_enum, default_value_t = Colors::Auto, value_name = "WHEN")]
    pub color: Colors,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
    /// A picture (`tree` only)
    Mermaid,
    /// A picture (`tree` only)
    Dot,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colors {
    #[default]
    Auto,
    Always,
    Never,
}

impl Globals {
    pub fn screen(&self) -> Output {
        Output::stdout(self.output, self.color)
    }

    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(&self.api, self.token.as_deref())
    }
}
