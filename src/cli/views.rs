//! `views`: named views of tasks.

use clap::{Args, Subcommand};
use kafleet_documents::{SetView, TaskColumns, TaskSort, ViewDocument, Views};
use kafleet_model::role::Role;

use super::client::{Client, Method, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::list::check_query;
use super::output::{Field, Output, Rows};

#[derive(Debug, Args)]
pub(super) struct ViewsArgs {
    #[command(subcommand)]
    verb: Option<ViewsVerb>,
}

#[derive(Debug, Subcommand)]
enum ViewsVerb {
    /// List the views
    List,
    /// Create or replace a view
    Set(SetArgs),
    /// Delete a view
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Name: a-z, 0-9 and -, at most 40 characters
    name: String,
    /// Search, such as 'type:resize state:failed from:24h'
    #[arg(value_name = "QUERY", default_value = "", hide_default_value = true)]
    query: String,
    /// Order: newest, oldest or longest
    #[arg(long, value_name = "ORDER", default_value = "newest")]
    sort: TaskSort,
    /// Columns, such as id,state,error [default: the usual ones]
    #[arg(long, value_name = "COLUMNS")]
    columns: Option<TaskColumns>,
    /// Description for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Lowest role that sees the view
    #[arg(long, value_parser = ["read", "submit", "operate", "admin"], default_value = "read")]
    role: String,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    /// Name of the view
    name: String,
}

pub(super) async fn views(args: ViewsArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    match args.verb.unwrap_or(ViewsVerb::List) {
        ViewsVerb::List => {
            let views: Views = client.get(&["v1", "views"], &Query::new()).await?;
            output.json_or_list(&views, |views| rows(&views.views), "no view; `kafleet views set NAME QUERY` saves one")
        }
        ViewsVerb::Set(args) => set(&client, &output, args).await,
        ViewsVerb::Delete(DeleteArgs { name }) => {
            let path = ["v1", "views", &name];
            let deleted: ViewDocument = client.call(Method::DELETE, &path, None::<&()>).await?;
            output.json_or_line(&deleted, |view| format!("deleted the view `{}`", view.name))
        }
    }?;
    Ok(Code::Ok)
}

async fn set(client: &Client, output: &Output, args: SetArgs) -> Result<(), Failure> {
    let SetArgs { name, query, sort, columns, description, role } = args;
    check_query(&query)?;
    let role = Role::ALL.into_iter().find(|known| known.name() == role).unwrap_or_default();
    let columns = columns.map(|columns| columns.0).unwrap_or_default();
    let view = SetView { q: query, sort, columns, description, role };
    let saved: ViewDocument = client.call(Method::PUT, &["v1", "views", &name], Some(&view)).await?;
    output.json_or_table(&saved, |saved| rows(std::slice::from_ref(saved)))
}

/// Reads a view.
pub(super) async fn read(client: &Client, name: &str) -> Result<ViewDocument, Failure> {
    client.get(&["v1", "views", name], &Query::new()).await
}

fn rows(views: &[ViewDocument]) -> Rows {
    let mut rows = Rows::new(["NAME", "QUERY", "SORT", "COLUMNS", "ROLE", "BY", "DESCRIPTION"]);
    for view in views {
        let columns = TaskColumns(view.columns.clone()).text();
        rows.add([
            Field::Text(view.name.clone()),
            Some(view.q.clone()).filter(|q| !q.is_empty()).into(),
            view.sort.name().into(),
            Some(columns).filter(|columns| !columns.is_empty()).into(),
            view.role.name().into(),
            view.by.clone().into(),
            view.description.clone().into(),
        ]);
    }
    rows
}
