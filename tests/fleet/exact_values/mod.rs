//! Values on their way through a fleet: each way in gives each value on with all its digits, or refuses it with a reason.
//!
//! A new way in is one line of [`ways_in::WAYS`], and one of the table in `docs/wire.md`. A new way out is one line of
//! [`WAYS_OUT`].

mod relay;
mod ways_in;

use std::future::Future;
use std::pin::Pin;

use kafleet::model::json::RawJson;

use crate::fleet::in_process::{Fleet, wait_until};
use ways_in::{Location, WAYS, WayIn};

cases!(values_are_exact_or_refused);

/// Values with a short name, as users write them.
const EXACT: &[(&str, &str)] = &[
    ("2^89-1", "618970019642690137449562111"),
    ("9007199254740993", "9007199254740993"),
    ("0.1234567890123456789", "0.1234567890123456789"),
    ("0.10", "0.10"),
    ("1e2", "1e2"),
    ("-0", "-0"),
    ("1e400", "1e400"),
    ("NUL", r#""a\u0000b""#),
    ("order of names", r#"{"b":[1.0,{}],"a":"\u00e9"}"#),
];

/// Values that are refused, with texts of which the refusal has one.
const REFUSED: &[(&str, &str, &[&str])] = &[
    ("doubled name", r#"{"x":1,"a":[{"b":1,"b":2}]}"#, &["the name `b` occurs twice"]),
    ("doubled name, escaped", r#"{"a":1,"\u0061":2}"#, &["the name `a` occurs twice"]),
    ("lone surrogate", r#"["\ud800"]"#, &["half a surrogate pair"]),
    ("exponent of 10 digits", "1e9999999999", &["exponent"]),
    ("byte order mark", "\u{feff}1", &["byte order mark", "expected value"]),
];

/// Text of a value at a location, once it is there.
type Reading<'a> = Pin<Box<dyn Future<Output = String> + 'a>>;

/// Ways out with their names. `None`: the way does not show values of this location.
const WAYS_OUT: &[(&str, for<'a> fn(&'a Fleet, &'a Location) -> Option<Reading<'a>>)] =
    &[("API", |fleet, location| Some(Box::pin(api(fleet, location))))];

async fn api(fleet: &Fleet, location: &Location) -> String {
    let address = location.address();
    let (path, pointer) = address.split_once('#').unwrap();
    wait_until(&format!("a value at {address}"), || async {
        let (status, text) = fleet.response(path).await;
        let document = RawJson::parse(text.as_bytes()).ok().filter(|_| status == 200)?;
        let value = document.slice().at(pointer).filter(|value| value.text() != "null")?;
        Some(value.text().to_owned())
    })
    .await
}

async fn values_are_exact_or_refused(mut fleet: Fleet) {
    fleet.add_type(relay::TYPE, relay::registered()).await;
    fleet.start_worker();
    let checked = WAYS.iter().enumerate().map(|(index, way)| wrong_values(&fleet, index, way));
    let wrong: Vec<_> = futures::future::join_all(checked).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    fleet.stop().await;
}

/// Values that a way changes, or does not refuse.
async fn wrong_values(fleet: &Fleet, index: usize, way: &WayIn) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut report = |name: &str, why: String| wrong.push(format!("{}, {name}: {why}", way.name));
    for (number, (name, text)) in EXACT.iter().enumerate() {
        match (way.send)(fleet, &format!("in{index}-{number}"), text).await {
            Ok(location) => differences(fleet, &location, text).await.into_iter().for_each(|found| report(name, found)),
            Err(why) => report(name, format!("refused: {why}")),
        }
    }
    for (number, (name, text, reasons)) in REFUSED.iter().enumerate() {
        match (way.send)(fleet, &format!("in{index}-r{number}"), text).await {
            Err(why) if reasons.iter().any(|reason| why.contains(reason)) => {}
            outcome => report(name, format!("not refused for this reason: {outcome:?}")),
        }
    }
    wrong
}

/// Ways out that show another value.
async fn differences(fleet: &Fleet, location: &Location, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, read) in WAYS_OUT {
        let Some(reading) = read(fleet, location) else { continue };
        let shown = reading.await;
        if shown != text {
            found.push(format!("{name} shows {shown}"));
        }
    }
    found
}

/// The table of the documentation has a line for each way in and each value.
#[test]
fn documented_matrix_is_that_of_the_tests() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/wire.md")).unwrap();
    let names =
        WAYS.iter().map(|way| way.name).chain(EXACT.iter().map(|one| one.0)).chain(REFUSED.iter().map(|one| one.0));
    let missing: Vec<&str> = names.filter(|name| !text.contains(&format!("\n| {name} |"))).collect();
    assert!(missing.is_empty(), "docs/wire.md has no line for {missing:?}");
}
