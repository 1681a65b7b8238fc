//! `kill`: switches that keep tasks from being started.

use clap::{Args, Subcommand};

use super::client::Method;
use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows};
use crate::api::documents::{KillDocument, Kills, SetKill};

#[derive(Debug, Subcommand)]
pub enum KillVerb {
    /// Tasks with this tag, or whose ids begin so, are cancelled instead of started
    On(OnArgs),
    /// Take a switch off
    Off(OffArgs),
    /// Show the switches that are on
    List,
}

#[derive(Debug, Args)]
pub struct OnArgs {
    /// A tag, or how ids begin
    pub name: String,
    /// Only tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// What people read beside it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct OffArgs {
    /// The name it was given
    pub name: String,
}

pub async fn kill(verb: KillVerb, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    let kills = match verb {
        KillVerb::On(OnArgs { name, task_type, reason }) => {
            let body = SetKill { task_type, reason };
            vec![client.call::<KillDocument>(Method::PUT, &["v1", "kill", &name], Some(&body)).await?]
        }
        KillVerb::Off(OffArgs { name }) => {
            vec![client.call::<KillDocument>(Method::DELETE, &["v1", "kill", &name], None::<&()>).await?]
        }
        KillVerb::List => client.get::<Kills>(&["v1", "kill"], &Vec::new()).await?.kills,
    };
    show(&screen, kills)?;
    Ok(Code::Ok)
}

fn show(screen: &Output, kills: Vec<KillDocument>) -> Result<(), super::exit::Failure> {
    if screen.is_json() {
        return screen.json(&kills);
    }
    let mut rows = Rows::new(["NAME", "TYPE", "SINCE", "REASON"]);
    for kill in kills {
        rows.add([Field::Text(kill.name), kill.task_type.into(), Field::Text(kill.since), kill.reason.into()]);
    }
    screen.list(rows, "no kill switch is on; `kafleet kill on TAG` sets one")
}
