//! Ways of a value out of a fleet.

use std::future::Future;
use std::pin::Pin;

use kafleet::model::json::RawJson;

use super::ways_in::{Location, run_cli};
use crate::fleet::in_process::{Fleet, eventually};

/// Form in which a way shows a value.
pub enum ShownText {
    /// Exactly the value.
    Value(String),
    /// A text that contains the value, without white space.
    Page(String),
}

type Reading<'a> = Pin<Box<dyn Future<Output = ShownText> + 'a>>;

pub struct WayOut {
    /// Name in the documentation.
    pub name: &'static str,
    /// Reads the value at a location, once it is there.
    pub read: for<'a> fn(&'a Fleet, &'a Location) -> Reading<'a>,
}

/// The first one can read all locations.
pub const WAYS_OUT: &[WayOut] = &[
    WayOut { name: "API", read: |fleet, location| Box::pin(api(fleet, location)) },
    WayOut { name: "`kafleet params`, `kafleet status`", read: |fleet, location| Box::pin(cli_text(fleet, location)) },
    WayOut { name: "the same with `-o json`", read: |fleet, location| Box::pin(cli_document(fleet, location)) },
    WayOut { name: "page of the task", read: |fleet, location| Box::pin(page(fleet, location)) },
];

async fn api(fleet: &Fleet, location: &Location) -> ShownText {
    let (path, pointer) = match location {
        Location::Params(id) => (format!("/v1/tasks/{id}/params"), "/params"),
        Location::Status(id, pointer) => (format!("/v1/tasks/{id}"), *pointer),
        Location::Document(path, pointer) => (path.clone(), *pointer),
        Location::Text(text) => return ShownText::Value(text.clone()),
    };
    let subject = format!("a value at {path} {pointer}");
    let value = eventually(&subject, || async {
        let (status, text) = fleet.response(&path).await;
        value_at(&text, pointer).filter(|_| status == 200)
    });
    ShownText::Value(value.await)
}

/// Value at a pointer, unless it is null.
pub fn value_at(document: &str, pointer: &str) -> Option<String> {
    let document = RawJson::parse(document.as_bytes()).ok()?;
    let value = document.slice().at(pointer).filter(|value| value.text() != "null")?;
    Some(value.text().to_owned())
}

/// Verb, task and pointer into the document of the verb.
fn command(location: &Location) -> (&'static str, &str, &'static str) {
    match location {
        Location::Params(id) => ("params", id, "/params"),
        Location::Status(id, pointer) => ("status", id, pointer),
        Location::Document(..) | Location::Text(_) => panic!("the command line does not show {location:?}"),
    }
}

async fn cli_text(fleet: &Fleet, location: &Location) -> ShownText {
    let (verb, id, _) = command(location);
    ShownText::Page(run_cli(fleet, &[verb, id], None).await.unwrap().split_whitespace().collect())
}

async fn cli_document(fleet: &Fleet, location: &Location) -> ShownText {
    let (verb, id, pointer) = command(location);
    let document = run_cli(fleet, &[verb, id, "-o", "json"], None).await.unwrap();
    ShownText::Value(value_at(&document, pointer).unwrap_or(document))
}

/// Blocks of JSON on the page of a task.
async fn page(fleet: &Fleet, location: &Location) -> ShownText {
    let (_, html) = fleet.response(&format!("/tasks/{}", command(location).1)).await;
    let blocks = html.split("<div class=\"json\"").skip(1).filter_map(|block| block.split_once('>'));
    let blocks = blocks.map(|(_, block)| block.split("<button").next().unwrap_or_default());
    let without_tags = |block: &str| -> String {
        block.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
    };
    let text: String = blocks.map(without_tags).collect::<Vec<_>>().join("\n").split_whitespace().collect();
    ShownText::Page(text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}
