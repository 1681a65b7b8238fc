//! `unique`: the tasks that stand for a key of unique tasks.

use clap::{Args, ValueEnum};
use kafleet_documents::UniqueKeyDocument;

use super::client::{Method, Query};
use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows};

#[derive(Debug, Args)]
pub(super) struct UniqueArgs {
    /// Type of the tasks
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Key, as it was given or found by the setting of the type
    key: String,
    /// `clear` forgets the key: the next task starts at once, and a kept one too
    action: Option<UniqueAction>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UniqueAction {
    Clear,
}

pub(super) async fn unique(args: UniqueArgs, globals: &Globals) -> Outcome {
    let (client, output) = (globals.client()?, globals.output());
    let path = ["v1", "unique", &args.task_type, &args.key];
    match args.action {
        None => {
            let key: UniqueKeyDocument = client.get(&path, &Query::new()).await?;
            output.json_or_table(&key, rows)?;
        }
        Some(UniqueAction::Clear) => {
            let key: UniqueKeyDocument = client.call(Method::DELETE, &path, None::<&()>).await?;
            output.json_or_line(&key, |key| format!("forgot the key `{}` of `{}`", key.key, key.task_type))?;
        }
    }
    Ok(Code::Ok)
}

fn rows(key: &UniqueKeyDocument) -> Rows {
    let mut rows = Rows::new(["OPEN", "KEPT", "DUE", "LAST", "LAST START", "STARTED", "KEPT ASKS", "JOINED"]);
    let open = Some(key.open.join(", ")).filter(|open| !open.is_empty());
    rows.add([
        open.into(),
        key.kept.as_ref().map(|kept| kept.id.clone()).into(),
        key.kept.as_ref().map(|kept| kept.due_at.clone()).into(),
        key.last.clone().into(),
        key.last_start.clone().into(),
        Field::Text(key.started.to_string()),
        Field::Text(key.kept_asks.to_string()),
        Field::Text(key.joined.to_string()),
    ]);
    rows
}
