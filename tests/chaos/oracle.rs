//! Is everything as it has to be? It knows the trees, the file of deeds and the records in Kafka, and nothing of how the fleet
//! comes to its answers.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet::model::record::state::State;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::apis::Apis;
use crate::deeds::{Cause, Deeds, Repeat};
use crate::fleet::{SCHEDULE, SCHEDULE_EVERY_S};
use crate::load::{PATIENCE, Told};
use crate::topics::Topics;
use crate::trees::{Answer, Source};

/// How long the answers may take to become right after the last tree has ended.
const SETTLE: Duration = Duration::from_secs(90);
/// Trees that are looked at at the same time.
const AT_ONCE: usize = 16;
/// The worker's window of a partition: what a lost worker may have begun that is begun again.
const WINDOW: usize = 256;

/// What was found wrong, by kind.
#[derive(Default)]
pub struct Found {
    pub lost: Vec<String>,
    pub rollups: Vec<String>,
    pub counts: Vec<String>,
}

impl Found {
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty() && self.rollups.is_empty() && self.counts.is_empty()
    }
}

pub struct Oracle<'a> {
    pub apis: &'a Apis,
    pub told: &'a [Told],
    pub probes: &'a BTreeMap<String, u32>,
}

impl Oracle<'_> {
    /// What the fleet says, once it says nothing wrong, or what is still wrong after a while. `read`: what lies in Kafka, read
    /// anew for each look, because the last task of the schedule may come late.
    pub async fn answers(&self, read: &dyn Fn() -> Topics) -> Found {
        let until = Instant::now() + SETTLE;
        loop {
            let found = self.look(beats(&read()).count()).await;
            if found.is_empty() || Instant::now() > until {
                return found;
            }
            sleep(Duration::from_secs(2)).await;
        }
    }

    async fn look(&self, beats: usize) -> Found {
        let mut found = Found::default();
        let pages = self.told.iter().map(async |told| {
            let path = format!("/v1/tasks?root={}&limit=200", told.tree.root.name);
            (told.tree.answers(), self.apis.get(&path, Instant::now() + PATIENCE).await)
        });
        let mut pages = stream::iter(pages).buffer_unordered(AT_ONCE);
        while let Some((answers, page)) = pages.next().await {
            match page {
                Ok(page) => compare(&answers, &page["tasks"], &mut found),
                Err(why) => found.lost.push(why),
            }
        }
        self.compare_counts(beats, &mut found).await;
        found
    }

    /// The counters against a count of what was published.
    async fn compare_counts(&self, beats: usize, found: &mut Found) {
        let mut expected = BTreeMap::<(String, State), usize>::new();
        for answer in self.told.iter().flat_map(|told| told.tree.answers()) {
            *expected.entry((answer.kind, answer.state)).or_default() += 1;
        }
        *expected.entry(("work".to_owned(), State::Succeeded)).or_default() += self.probes.len() + beats;
        let types = match self.apis.get("/v1/types", Instant::now() + PATIENCE).await {
            Ok(types) => types,
            Err(why) => return found.counts.push(why),
        };
        for kind in types["types"].as_array().into_iter().flatten() {
            let name = kind["type"].as_str().unwrap_or_default();
            for state in State::ALL {
                let told = kind["counts"][state.to_string()].as_u64().unwrap_or(0) as usize;
                let counted = expected.remove(&(name.to_owned(), state)).unwrap_or(0);
                if told != counted {
                    found.counts.push(format!("{name} {state}: {told} are told, {counted} were counted"));
                }
            }
        }
        found.counts.extend(
            expected
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(what, count)| format!("{} {}: nothing is told, {count} were counted", what.0, what.1)),
        );
    }
}

/// A tree against what has to come of it.
fn compare(answers: &[Answer], tasks: &Value, found: &mut Found) {
    let told: BTreeMap<&str, &Value> =
        tasks.as_array().into_iter().flatten().map(|status| (status["id"].as_str().unwrap_or_default(), status)).collect();
    for (place, answer) in answers.iter().enumerate() {
        let Some(status) = told.get(&*answer.id) else {
            found.lost.push(format!("`{}` is not known", answer.id));
            continue;
        };
        if !status["state"].as_str().is_some_and(|state| ["succeeded", "failed", "cancelled", "expired"].contains(&state)) {
            found.lost.push(format!("`{}` is {} for ever", answer.id, status["state"]));
            continue;
        }
        let is = (&status["own_state"], &status["state"], &status["run"]);
        let should = (json!(answer.own), json!(answer.state), json!(answer.run));
        if is != (&should.0, &should.1, &should.2) {
            found.rollups.push(format!("`{}` is {is:?} instead of {should:?}", answer.id));
        }
        compare_counts(answers, place, status, found);
    }
    for id in told.keys().filter(|id| !answers.iter().any(|answer| answer.id == **id)) {
        found.rollups.push(format!("`{id}` was never asked for"));
    }
}

/// What a task tells of its children and of everything below it, against a count.
fn compare_counts(answers: &[Answer], place: usize, status: &Value, found: &mut Found) {
    let answer = &answers[place];
    let mut by_state = BTreeMap::<String, u64>::new();
    for child in &answer.children {
        *by_state.entry(answers[*child].state.to_string()).or_default() += 1;
    }
    let told = &status["children"];
    let zero = |(name, count): (&String, &Value)| (count.as_u64() != Some(0)).then(|| (name.clone(), count.clone()));
    let told_by_state: serde_json::Map<String, Value> =
        told["by_state"].as_object().into_iter().flatten().filter_map(zero).collect();
    if json!(by_state) != json!(told_by_state) || told["total"] != json!(answer.children.len()) {
        found.counts.push(format!("`{}` tells {told} of its children, and has {by_state:?}", answer.id));
    }
    let below = |id: &str| id.strip_prefix(&*answer.id).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
    let all: Vec<&Answer> = answers.iter().filter(|other| below(&other.id)).collect();
    let well = all.iter().filter(|other| other.state == State::Succeeded).count();
    let tree = &status["tree"];
    let counted = json!([all.len(), 0, well, all.len() - well]);
    if json!([tree["total"], tree["pending"], tree["successful"], tree["failed"]]) != counted {
        found.counts.push(format!("`{}` tells {tree} of its tree, counted were {counted}", answer.id));
    }
}

/// What fired, and how often it should have.
#[derive(Default, Debug, serde::Serialize)]
pub struct Fired {
    pub timers: usize,
    pub continuations: usize,
    pub retries: usize,
    pub scheduled: usize,
    pub wrong: Vec<String>,
}

/// Records of tasks against what had to be published: once what a timer or an effect publishes, at least once what a
/// publisher or a parent does, and never more often than they were asked to.
pub fn fired(told: &[Told], deeds: &Deeds, topics: &Topics) -> (Fired, Vec<String>) {
    let (mut fired, mut lost) = (Fired::default(), Vec::new());
    for told in told {
        let answers = told.tree.answers();
        for answer in &answers {
            let run = if answer.source == Source::Effect { answer.run } else { 1 };
            let count = topics.count(&answer.id, run, 0);
            let parent = answer.parent.map(|parent| deeds.ends(&answers[parent].id, 1, "well"));
            let asked = parent.unwrap_or(1 + told.sent_again as usize).max(1);
            let (most, least) = match answer.source {
                Source::Nobody => (0, 0),
                Source::Publisher | Source::Parent => (asked, 1),
                Source::Timer => {
                    fired.timers += 1;
                    (asked, 1)
                }
                Source::Effect => {
                    fired.continuations += 1;
                    (1, 1)
                }
            };
            if count < least {
                lost.push(format!("`{}` has no record", answer.id));
            }
            if count > most {
                fired.wrong.push(format!("`{}` was published {count} times, asked for was {most}", answer.id));
            }
            if answer.run == 2 && answer.source != Source::Effect {
                fired.retries += 1;
                let count = topics.count(&answer.id, 2, 0);
                if count != 1 {
                    fired.wrong.push(format!("`{}` was started again {count} times", answer.id));
                }
            }
            lost.extend(missing_deed(answer, deeds));
            if answer.dead && !topics.dead.contains_key(&answer.id) {
                lost.push(format!("`{}` has no dead letter", answer.id));
            }
        }
    }
    retries_by_timer(deeds, topics, &mut fired);
    scheduled(topics, &mut fired);
    (fired, lost)
}

/// What is told as ended has to have been done.
fn missing_deed(answer: &Answer, deeds: &Deeds) -> Option<String> {
    let end = match answer.own {
        State::Succeeded => "well",
        State::Failed => "badly",
        _ => return None,
    };
    let done = deeds.ends(&answer.id, answer.run, end) > 0;
    (answer.is_run && !done).then(|| format!("`{}` was never done in run {}", answer.id, answer.run))
}

/// A retry that waited at the tracker was published as often as an attempt failed before it, at most.
fn retries_by_timer(deeds: &Deeds, topics: &Topics, fired: &mut Fired) {
    for ((id, run, used), places) in topics.tasks.iter().filter(|(key, _)| key.2 > 0) {
        fired.timers += 1;
        let failed = deeds.of(id, *run).iter().filter(|deed| deed.attempt == *used && deed.end.as_deref() == Some("again"));
        let asked = failed.count();
        if places.len() > asked {
            fired.wrong.push(format!(
                "attempt {} of `{id}` was released {} times, {asked} failed before",
                used + 1,
                places.len()
            ));
        }
    }
}

/// The ids of what the schedule has fired.
pub fn beats(topics: &Topics) -> impl Iterator<Item = &String> {
    let prefix = format!("{SCHEDULE}.");
    topics.tasks.keys().map(|(id, ..)| id).filter(move |id| id.starts_with(&prefix))
}

/// Each time of the schedule once, and none left out.
fn scheduled(topics: &Topics, fired: &mut Fired) {
    let mut times = Vec::new();
    for id in beats(topics) {
        fired.scheduled += 1;
        let time = id.split_once('.').map_or("", |(_, time)| time);
        match jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time) {
            Ok(time) => times.push(time.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second()),
            Err(why) => fired.wrong.push(format!("`{id}` names no time: {why}")),
        }
        let count = topics.count(id, 1, 0);
        if count != 1 {
            fired.wrong.push(format!("`{id}` was fired {count} times"));
        }
    }
    times.sort_unstable();
    let gaps = times.windows(2).filter(|pair| pair[1] - pair[0] != SCHEDULE_EVERY_S);
    fired
        .wrong
        .extend(gaps.map(|pair| format!("the schedule fired nothing between {} and {} (epoch seconds)", pair[0], pair[1])));
}

/// What was done again of one worker, in one partition, for one cause, is at most what it may have had in hand.
pub fn beyond_window(repeats: &[Repeat], topics: &Topics) -> Vec<String> {
    let mut counts = BTreeMap::<(&str, String, i64, &str), usize>::new();
    // A record that lies there twice is to be done twice.
    for repeat in repeats.iter().filter(|repeat| !matches!(repeat.cause, Cause::Record | Cause::Parent)) {
        let place = topics.place(&repeat.id).map(ToString::to_string).unwrap_or_default();
        let since_ms = if let Cause::Fault(_, since_ms) = repeat.cause { since_ms } else { 0 };
        *counts.entry((&repeat.first.worker, place, since_ms, repeat.cause.words())).or_default() += 1;
    }
    let beyond = counts.into_iter().filter(|(_, count)| *count > WINDOW);
    let told = |((worker, place, _, cause), count)| format!("{count} attempts of {worker} in {place} were made again: {cause}");
    beyond.map(told).collect()
}

/// Nothing that was finished is done again because a worker was stopped in order.
pub fn again_after_a_stop(repeats: &[Repeat]) -> Vec<String> {
    let all = repeats.iter().filter(|repeat| repeat.cause == Cause::Finished);
    all.map(|repeat| format!("attempt {} of run {} of `{}`, by {}", repeat.attempt, repeat.run, repeat.id, repeat.first.worker))
        .collect()
}
