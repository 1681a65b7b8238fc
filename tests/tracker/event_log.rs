//! Generated event logs, including events out of order, duplicates and events of old runs. Deterministic per seed.

use kafleet::model::event::{Announcement, AttemptFailure, Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::{OnFailure, Policy, Position, Rules};

pub fn id(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

pub fn event(kind: Kind, task: &str) -> Event {
    Event::new(kind, id(task), 1, 1_700_000_000_000)
}

pub fn submitted(task: &str) -> Event {
    with_policy(task, None)
}

fn with_policy(task: &str, policy: Option<Policy>) -> Event {
    let mut event = event(Kind::Submitted, task);
    let task_type = if task.contains(':') { "child" } else { "root" };
    event.task = Some(Box::new(Announcement {
        task_type: task_type.into(),
        created_at_ms: 1_700_000_000_000,
        position: Some(Position { partition: 0, offset: 1 }),
        hash: Some("h".into()),
        policy: policy.map(Box::new),
        asof: None,
        trace: None,
    }));
    event
}

pub fn succeeded(task: &str) -> Event {
    let mut event = event(Kind::Succeeded, task);
    let output = RawJson::parse(b"{\"ok\":true}").ok();
    event.payload = Payload::Succeeded { started_at_ms: None, output };
    event
}

/// Generates about 30 events per tree.
pub fn event_log(seed: u64, trees: usize) -> Vec<Event> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut open: Vec<Vec<Event>> = Vec::new();
    let mut interleaved = Vec::new();
    for tree in 0..trees {
        let mut events = tree_log(&mut random, &format!("s{seed}-{tree}"));
        events.reverse();
        open.push(events);
        while open.len() > 50 || (tree + 1 == trees && !open.is_empty()) {
            let chosen = random.usize(..open.len());
            match open[chosen].pop() {
                Some(event) => interleaved.push(event),
                None => drop(open.swap_remove(chosen)),
            }
        }
    }
    interleaved
}

fn tree_log(random: &mut fastrand::Rng, root: &str) -> Vec<Event> {
    let mut tasks = vec![root.to_owned()];
    for child in 0..random.usize(0..4) {
        tasks.push(format!("{root}:c{child}"));
        tasks.extend((0..random.usize(0..3)).map(|n| format!("{root}:c{child}:g{n}")));
    }
    let mut events: Vec<Event> = Vec::new();
    for task in &tasks {
        events.extend(task_log(random, task));
    }
    // Swap neighbours: a child may be announced before its parent, an end before its start.
    for n in 1..events.len() {
        if random.u8(..) < 80 {
            events.swap(n - 1, n);
        }
    }
    for _ in 0..2 {
        let again = events[random.usize(..events.len())].clone();
        events.insert(random.usize(..events.len()), again);
    }
    events
}

fn task_log(random: &mut fastrand::Rng, task: &str) -> Vec<Event> {
    let ignore = random.u8(..) < 40;
    let policy = ignore.then(|| Policy { on_failure: OnFailure::Ignore, tags: vec!["t".into()], ..Policy::default() });
    let mut events = vec![with_policy(task, policy)];
    match random.u8(..10) {
        0 => return external(task),
        1 => events.push(event(Kind::Warned, task)),
        2 => events.extend([log(task, random.usize(1..5)), event(Kind::Progress, task)]),
        _ => {}
    }
    for attempt in 1..=random.u32(1..3) {
        let mut start = event(Kind::Started, task);
        (start.attempt, start.worker) = (attempt, Some("w-1".into()));
        events.push(start);
    }
    let mut again = succeeded(task);
    again.run = 2;
    events.extend(match random.u8(..10) {
        0 | 1 => vec![failed(task)],
        2 => vec![retrying(task), succeeded(task)],
        3 => vec![event(Kind::Cancelled, task)],
        4 => vec![failed(task), again, succeeded(task)],
        5 => vec![],
        _ => vec![succeeded(task)],
    });
    events
}

fn failed(task: &str) -> Event {
    let payload = Payload::Failed(AttemptFailure::new("error", "broken", 1));
    Event { payload, ..event(Kind::Failed, task) }
}

fn retrying(task: &str) -> Event {
    let failure = AttemptFailure::new("error", "broken", 1);
    Event {
        payload: Payload::Retrying { failure, due_ms: None, record: None, waits: 0 },
        ..event(Kind::Retrying, task)
    }
}

fn log(task: &str, lines: usize) -> Event {
    let mut event = event(Kind::Log, task);
    event.payload = Payload::log((0..lines).map(|n| format!("line {n}")).collect());
    event
}

fn external(task: &str) -> Vec<Event> {
    let rules = Rules { external: true, ..Rules::default() };
    let mut events = vec![with_policy(task, Some(Policy { rules, ..Policy::default() }))];
    for state in [State::Running, State::Failed, State::WaitingForChildren] {
        let mut report = event(Kind::Reported, task);
        report.payload = Payload::Reported { state: Some(state), output: None, error: None };
        events.push(report);
    }
    events
}
