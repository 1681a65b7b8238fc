//! Values on their way through a fleet: each way in gives each value on with all its digits, or refuses it with a reason.
//!
//! A new way in is one line of [`ways_in::WAYS`], a new way out one of [`ways_out::WAYS_OUT`], each with one of the tables in
//! `docs/wire.md`.

mod outside;
mod relay;
mod ways_in;
mod ways_out;

use futures::stream::{self, StreamExt};
use kafleet::handlers::builtin::callback;

use crate::fleet::in_process::Fleet;
use crate::fleet::notifications::callbacks;
use ways_in::{Location, WAYS, WayIn};
use ways_out::{ShownText, WAYS_OUT};

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

/// Ways in whose values are read by all ways out: one for each place of a task. Others are read from the API only.
const SHOWN_EVERYWHERE: [&str; 4] =
    ["`POST /v1/tasks`: params", "`POST /v1/tasks`: options", "result of a handler", "progress of a handler"];

/// Ways that are checked at the same time: each starts programs, and an API refuses requests while its tracker is behind.
const CONCURRENT_WAYS: usize = 6;

async fn values_are_exact_or_refused(mut fleet: Fleet) {
    fleet.add_type(relay::TYPE, relay::registered()).await;
    fleet.add_type(callback::TYPE, callbacks()).await;
    outside::add_types(&mut fleet).await;
    fleet.start_worker();
    let checked = WAYS.iter().enumerate().map(|(index, way)| wrong_values(&fleet, index, way));
    let wrong: Vec<_> = stream::iter(checked).buffer_unordered(CONCURRENT_WAYS).collect().await;
    let wrong: Vec<_> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    fleet.stop().await;
}

/// Values that a way changes, or does not refuse.
async fn wrong_values(fleet: &Fleet, index: usize, way: &WayIn) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut report = |name: &str, error: String| wrong.push(format!("{}, {name}: {error}", way.name));
    for (number, (name, text)) in EXACT.iter().enumerate() {
        match (way.send)(fleet, &format!("in{index}-{number}"), text).await {
            Ok(location) => {
                differences(fleet, way, &location, text)
                    .await
                    .into_iter()
                    .for_each(|difference| report(name, difference));
            }
            Err(error) => report(name, format!("refused: {error}")),
        }
    }
    for (number, (name, text, reasons)) in REFUSED.iter().enumerate() {
        match (way.send)(fleet, &format!("in{index}-r{number}"), text).await {
            Err(error) if reasons.iter().any(|reason| error.contains(reason)) => {}
            outcome => report(name, format!("not refused for this reason: {outcome:?}")),
        }
    }
    wrong
}

/// Ways out that show another value.
async fn differences(fleet: &Fleet, way: &WayIn, location: &Location, text: &str) -> Vec<String> {
    let ways = if SHOWN_EVERYWHERE.contains(&way.name) { WAYS_OUT } else { &WAYS_OUT[..1] };
    let mut wrong_values = Vec::new();
    for way in ways {
        match (way.read)(fleet, location).await {
            ShownText::Value(shown) if shown == text => {}
            ShownText::Page(shown) if shown.contains(text) => {}
            ShownText::Value(shown) | ShownText::Page(shown) => {
                wrong_values.push(format!("{} shows {shown}", way.name));
            }
        }
    }
    wrong_values
}

/// The tables of the documentation have a line for each way and each value.
#[test]
fn documented_matrix_is_that_of_the_tests() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/wire.md")).unwrap();
    let ways = WAYS.iter().map(|way| way.name).chain(WAYS_OUT.iter().map(|way| way.name));
    let names = ways.chain(EXACT.iter().map(|one| one.0)).chain(REFUSED.iter().map(|one| one.0));
    let missing: Vec<&str> = names.filter(|name| !text.contains(&format!("\n| {name} |"))).collect();
    assert!(missing.is_empty(), "docs/wire.md has no line for {missing:?}");
}
