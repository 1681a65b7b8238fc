//! Trees with a known answer: random shapes, and what has to come of each, worked out from the shape alone.

use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::tasks::{End, Twig, Work};

/// What is done to a tree while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Story {
    Plain,
    /// It is cancelled once all of it is there.
    Cancelled,
    /// What failed is started again once it has ended.
    Healed,
}

/// How a tree is published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Api,
    /// With kafleet's library.
    Library,
    /// As any Kafka client would.
    Bare,
}

#[derive(Clone, Debug)]
pub struct Tree {
    pub root: Twig,
    pub story: Story,
    pub way: Way,
    /// A continuation that is told all results follows it.
    pub join: bool,
}

/// Where the record of a task comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// Whoever published the tree.
    Publisher,
    /// The worker that ran its parent.
    Parent,
    /// A timer.
    Timer,
    /// Its time never comes.
    Nobody,
    /// An effect of the fold.
    Effect,
}

/// What has to come of a task.
#[derive(Clone, Debug)]
pub struct Answer {
    pub id: String,
    pub kind: String,
    pub own: State,
    pub state: State,
    pub run: u32,
    pub source: Source,
    pub parent: Option<usize>,
    pub children: Vec<usize>,
    /// It leaves a dead letter.
    pub dead: bool,
    /// It may be seen at work: it is not cancelled before that.
    pub is_run: bool,
    ignored: bool,
}

/// So much later that it is never.
const NEVER_MS: u64 = 3_600_000;

impl Tree {
    pub fn random(rng: &mut fastrand::Rng, id: String) -> Self {
        let story = match rng.u32(..100) {
            0..12 => Story::Cancelled,
            12..24 => Story::Healed,
            _ => Story::Plain,
        };
        let mut root = match story {
            Story::Cancelled => held(rng),
            _ => grow(rng, 3, story == Story::Healed),
        };
        root.name = id;
        let way = *rng.choice(&[Way::Api, Way::Api, Way::Library, Way::Bare]).unwrap();
        let join = way != Way::Bare && story != Story::Cancelled && root.kind == "work" && rng.u32(..100) < 30;
        if way != Way::Bare && rng.u32(..100) < 20 {
            root.later_ms = rng.u64(500..5_000);
        }
        Self { root, story, way, join }
    }

    /// The continuations, as the api and the library take them.
    pub fn then(&self) -> Value {
        let on = if self.story == Story::Healed { "succeeded" } else { "ended" };
        let results = self.root.work.children.len();
        match self.join {
            true => json!([{"type": "join", "on": on, "with_results": true, "params": {"results": results}}]),
            false => json!([]),
        }
    }

    /// What has to come of every task, parents first.
    pub fn answers(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.add(&self.root, None, &mut answers);
        let joins = self.join && (self.story == Story::Plain || roll_up(&answers, 0) == State::Succeeded);
        if joins {
            let mut answer = Answer::new("join", format!("{}:then", answers[0].id), State::Succeeded, Source::Effect);
            (answer.parent, answer.run) = (Some(0), answers[0].run);
            answers.push(answer);
            let place = answers.len() - 1;
            answers[0].children.push(place);
        }
        for place in (0..answers.len()).rev() {
            answers[place].state = roll_up(&answers, place);
        }
        answers
    }

    fn add(&self, twig: &Twig, parent: Option<usize>, answers: &mut Vec<Answer>) {
        let id = parent.map_or(twig.name.clone(), |parent| format!("{}:{}", answers[parent].id, twig.name));
        let is_healed = self.story == Story::Healed && matches!(twig.work.end, End::FirstBadly);
        let own = match twig.work.end {
            End::Well if twig.later_ms < NEVER_MS => State::Succeeded,
            End::Well | End::Never => State::Cancelled,
            End::FirstBadly if is_healed => State::Succeeded,
            End::FirstBadly | End::Badly | End::Dead => State::Failed,
        };
        let source = match (twig.later_ms, parent) {
            (NEVER_MS.., _) => Source::Nobody,
            (1.., _) => Source::Timer,
            (0, None) => Source::Publisher,
            (0, Some(_)) => Source::Parent,
        };
        let mut answer = Answer::new(&twig.kind, id, own, source);
        (answer.parent, answer.ignored, answer.run) = (parent, twig.ignored, 1 + u32::from(is_healed));
        (answer.dead, answer.is_run) = (twig.work.end == End::Dead, own != State::Cancelled);
        answers.push(answer);
        let place = answers.len() - 1;
        if let Some(parent) = parent {
            answers[parent].children.push(place);
        }
        for child in &twig.work.children {
            self.add(child, Some(place), answers);
        }
    }
}

impl Answer {
    pub fn new(kind: &str, id: String, own: State, source: Source) -> Self {
        let (parent, children, dead, is_run, ignored) = (None, Vec::new(), false, true, false);
        Self { id, kind: kind.to_owned(), own, state: own, run: 1, source, parent, children, dead, is_run, ignored }
    }
}

/// The worst of its own end and its children's.
fn roll_up(answers: &[Answer], place: usize) -> State {
    let order = [State::Succeeded, State::Cancelled, State::Expired, State::Failed];
    let rank = |state: State| order.iter().position(|other| *other == state).unwrap();
    let answer = &answers[place];
    let children = answer.children.iter().filter(|child| !answers[**child].ignored).map(|child| roll_up(answers, *child));
    children.chain([answer.own]).max_by_key(|state| rank(*state)).unwrap()
}

/// A root whose children do not end by themselves.
fn held(rng: &mut fastrand::Rng) -> Twig {
    let child = |n: u32, rng: &mut fastrand::Rng| {
        let (end, later_ms) = if rng.bool() { (End::Never, 0) } else { (End::Well, NEVER_MS) };
        let work = Work { end, ..Work::default() };
        Twig { name: format!("c{n}"), kind: "work".into(), ignored: false, later_ms, work }
    };
    let children = (0..rng.u32(1..4)).map(|n| child(n, rng)).collect();
    Twig { kind: "work".into(), work: Work { children, ..Work::default() }, ..Twig::default() }
}

fn grow(rng: &mut fastrand::Rng, depth: u32, heals: bool) -> Twig {
    let width = if depth == 0 { 0 } else { rng.u32(0..=depth + 1) };
    let is_leaf = width == 0;
    let kind = match rng.u32(..100) {
        0..12 if is_leaf => "program",
        12..30 => "keyed",
        _ => "work",
    };
    let mut work = Work { takes_ms: rng.u64(..40), ..Work::default() };
    if rng.u32(..100) < 20 {
        work.failures = rng.u32(1..3);
        // Longer than what a worker waits for by itself.
        work.pause_ms = if kind == "work" && rng.bool() { rng.u64(1_000..2_500) } else { 0 };
    }
    if is_leaf && kind != "program" && rng.u32(..100) < 12 {
        work.end = match heals {
            true => End::FirstBadly,
            false => *rng.choice(&[End::Badly, End::Dead]).unwrap(),
        };
    }
    let child = |n: u32, rng: &mut fastrand::Rng| Twig { name: format!("c{n}"), ..grow(rng, depth - 1, heals) };
    work.children = (0..width).map(|n| child(n, rng)).collect();
    let later_ms = if depth < 3 && rng.u32(..100) < 8 { rng.u64(500..4_000) } else { 0 };
    let ignored = work.end != End::Well && rng.u32(..100) < 40;
    Twig { name: String::new(), kind: kind.into(), ignored, later_ms, work }
}
