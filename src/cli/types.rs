//! `types`: the task types and how many tasks each has.

use super::globals::Globals;
use super::outcome::{Code, Outcome};
use super::screen::{Field, Rows};
use crate::api::documents::{TypeDocument, Types};
use crate::model::state::{Category, State};

pub async fn types(globals: &Globals) -> Outcome {
    let screen = globals.screen();
    let types: Types = globals.client()?.get(&["v1", "types"], &Vec::new()).await?;
    if screen.is_json() {
        screen.json(&types)?
    } else {
        screen.table(rows(&types.types))?
    }
    Ok(Code::Ok)
}

fn rows(types: &[TypeDocument]) -> Rows {
    let mut rows = Rows::new(["TYPE", "TOPIC", "BACKLOG", "QUEUED", "RUNNING", "OTHER PENDING", "SUCCEEDED", "FAILED"]);
    for given in types {
        let count = |wanted: &dyn Fn(State) -> bool| {
            Field::Number(given.counts.iter().filter(|(state, _)| wanted(**state)).map(|(_, count)| count).sum())
        };
        rows.add([
            Field::Text(given.name.clone()),
            Field::from(if given.topic { "yes" } else { "no" }),
            Field::Number(given.backlog),
            count(&|state| state == State::Queued),
            count(&|state| state == State::Running),
            count(&|state| state.category() == Category::Pending && !matches!(state, State::Queued | State::Running)),
            count(&|state| state.category() == Category::Successful),
            count(&|state| state.category() == Category::Failed),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::Paint;

    #[test]
    fn every_task_is_counted_once() {
        let counts = [
            (State::Queued, 4),
            (State::Running, 2),
            (State::Retrying, 1),
            (State::WaitingForChildren, 3),
            (State::Succeeded, 100),
            (State::Cancelled, 5),
            (State::Failed, 6),
        ];
        let echo = TypeDocument { name: "echo".into(), topic: true, counts: counts.into(), backlog: 6, schema: None };
        let expected = "\
TYPE  TOPIC  BACKLOG  QUEUED  RUNNING  OTHER PENDING  SUCCEEDED  FAILED
echo  yes          6       4        2              4        100      11";
        assert_eq!(rows(&[echo]).draw(Paint(false), false), expected);
    }
}
