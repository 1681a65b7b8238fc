//! How the states of children become the state of their parent.

use serde::{Deserialize, Serialize};

use super::state::{Category, State};

/// Tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts(pub [u64; State::COUNT]);

impl Counts {
    pub fn get(&self, state: State) -> u64 {
        self.0[state.index()]
    }

    pub fn add(&mut self, state: State, number: u64) {
        self.0[state.index()] += number;
    }

    /// Takes off what was added before; an underflow would be a defect of the fold, and stays visible as zero.
    pub fn sub(&mut self, state: State, number: u64) {
        let count = &mut self.0[state.index()];
        debug_assert!(*count >= number, "count of {state} would become negative");
        *count = count.saturating_sub(number);
    }

    pub fn add_all(&mut self, other: &Counts) {
        State::ALL.into_iter().for_each(|state| self.add(state, other.get(state)));
    }

    pub fn sub_all(&mut self, other: &Counts) {
        State::ALL.into_iter().for_each(|state| self.sub(state, other.get(state)));
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub fn in_category(&self, category: Category) -> u64 {
        State::ALL.into_iter().filter(|state| state.category() == category).map(|state| self.get(state)).sum()
    }
}

/// What lies below a task, through those direct children that have this run. A parent that is started anew drops the
/// groups below its new run: those children are superseded and do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounts {
    pub run: u32,
    /// These children are continuations, not what the task's end waits for.
    pub then: bool,
    pub children: Counts,
    /// Of the children: failed ones that do not matter to the parent.
    pub ignored: Counts,
    /// The children and everything below them.
    pub tree: Counts,
    /// Of these, the tasks that a retry of what failed starts again.
    pub restartable: u64,
}

/// What a task contributes to its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollupInput {
    pub run: u32,
    /// It is a continuation of its parent.
    pub then: bool,
    pub state: State,
    /// Its failure does not matter to the parent.
    pub ignored: bool,
    /// Everything below it.
    pub tree: Counts,
    /// The tasks that a retry of what failed starts again: it and those below it.
    pub restartable: u64,
}

/// Sums over the groups that count for a parent in this run.
pub fn children_of(below: &[RunCounts]) -> (Counts, Counts, Counts) {
    let mut sums = (Counts::default(), Counts::default(), Counts::default());
    for group in below {
        sums.0.add_all(&group.children);
        sums.1.add_all(&group.ignored);
        sums.2.add_all(&group.tree);
    }
    sums
}

/// Adds a child to its parent's groups, unless it is superseded (its run is below the parent's).
pub fn count(below: &mut Vec<RunCounts>, parent_run: u32, child: &RollupInput) {
    if child.run < parent_run {
        return;
    }
    let place = match below.iter().position(|group| group.run == child.run && group.then == child.then) {
        Some(place) => place,
        None => {
            below.push(RunCounts { run: child.run, then: child.then, ..RunCounts::default() });
            below.len() - 1
        }
    };
    let group = &mut below[place];
    group.children.add(child.state, 1);
    group.tree.add(child.state, 1);
    group.tree.add_all(&child.tree);
    group.restartable += child.restartable;
    if child.ignored && child.state.category() == Category::Failed {
        group.ignored.add(child.state, 1);
    }
}

/// Takes off what [`count`] added.
pub fn uncount(below: &mut Vec<RunCounts>, parent_run: u32, child: &RollupInput) {
    if child.run < parent_run {
        return;
    }
    let Some(place) = below.iter().position(|group| group.run == child.run && group.then == child.then) else {
        debug_assert!(false, "a child is taken off that was never counted");
        return;
    };
    let group = &mut below[place];
    group.children.sub(child.state, 1);
    group.tree.sub(child.state, 1);
    group.tree.sub_all(&child.tree);
    debug_assert!(group.restartable >= child.restartable, "count of restartable tasks would become negative");
    group.restartable = group.restartable.saturating_sub(child.restartable);
    if child.ignored && child.state.category() == Category::Failed {
        group.ignored.sub(child.state, 1);
    }
    if group.children.total() == 0 {
        below.swap_remove(place);
    }
}

/// The state of a task from its own state and its children's.
///
/// Own pending: own, whatever the children are. Own done and a child pending: waiting for children. Otherwise the worst
/// of own and children, in the order succeeded < cancelled < expired < failed; children that failed do not matter while
/// they are at most `tolerated`.
pub fn combine(own: State, below: &[RunCounts], tolerated: u32) -> State {
    if !own.is_terminal() || below.is_empty() {
        return own;
    }
    let thens = below.iter().any(|group| group.then);
    match settled(own, below, tolerated) {
        State::WaitingForChildren => State::WaitingForChildren,
        // None of them is one that may fail.
        ended if thens => ended_with(ended, below, true, 0),
        ended => ended,
    }
}

/// The same without its continuations: what their turn is judged on.
pub fn settled(own: State, below: &[RunCounts], tolerated: u32) -> State {
    if own.is_terminal() { ended_with(own, below, false, tolerated) } else { own }
}

/// With the children that are continuations, or with the others.
fn ended_with(own: State, below: &[RunCounts], then: bool, tolerated: u32) -> State {
    if below.iter().any(|group| group.then == then && group.children.in_category(Category::Pending) > 0) {
        return State::WaitingForChildren;
    }
    let lost = lost(below, then);
    if lost.total() <= u64::from(tolerated) {
        return own;
    }
    let worst = [State::Failed, State::Expired, State::Cancelled].into_iter().find(|&state| lost.get(state) > 0);
    own.max(worst.unwrap_or(State::Succeeded))
}

/// The children that failed, were cancelled or expired, and whose failure matters.
fn lost(below: &[RunCounts], then: bool) -> Counts {
    let mut lost = Counts::default();
    for group in below.iter().filter(|group| group.then == then) {
        for state in [State::Failed, State::Expired, State::Cancelled] {
            lost.add(state, group.children.get(state).saturating_sub(group.ignored.get(state)));
        }
    }
    lost
}

/// More children have failed than are tolerated, not counting what somebody only cancelled: the task cannot succeed.
pub fn is_lost(below: &[RunCounts], tolerated: u32) -> bool {
    let lost = lost(below, false);
    lost.total() > u64::from(tolerated) && lost.total() > lost.get(State::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(states: &[(State, bool)]) -> Vec<RunCounts> {
        let mut groups = Vec::new();
        for &(state, ignored) in states {
            let standing = RollupInput { run: 1, then: false, state, ignored, tree: Counts::default(), restartable: 0 };
            count(&mut groups, 1, &standing);
        }
        groups
    }

    #[test]
    fn the_state_table() {
        use State::*;
        for (own, children, state) in [
            (Succeeded, vec![], Succeeded),
            (Running, vec![(Failed, false)], Running),
            (Queued, vec![(Running, false)], Queued),
            (Succeeded, vec![(Running, false), (Failed, false)], WaitingForChildren),
            (Failed, vec![(Queued, false)], WaitingForChildren),
            (Failed, vec![(Succeeded, false)], Failed),
            (Succeeded, vec![(Succeeded, false), (Failed, false)], Failed),
            (Succeeded, vec![(Cancelled, false), (Expired, false)], Expired),
            (Succeeded, vec![(Cancelled, false)], Cancelled),
            (Cancelled, vec![(Succeeded, false)], Cancelled),
            (Succeeded, vec![(Failed, true)], Succeeded),
            (Succeeded, vec![(Failed, true), (Cancelled, false)], Cancelled),
            (Succeeded, vec![(Failed, true), (Failed, false)], Failed),
            (Succeeded, vec![(Expected, false)], WaitingForChildren),
        ] {
            assert_eq!(combine(own, &below(&children), 0), state, "own {own}, children {children:?}");
        }
    }

    #[test]
    fn some_children_may_fail() {
        use State::*;
        let children = [(Failed, false), (Failed, true), (Cancelled, false), (Succeeded, false)];
        let states = [0, 1, 2, 9].map(|tolerated| combine(Succeeded, &below(&children), tolerated));
        assert_eq!(states, [Failed, Failed, Succeeded, Succeeded]);
        assert_eq!(combine(Failed, &below(&children), 9), Failed, "the task's own failure is another matter");
        assert_eq!([0, 1, 2].map(|tolerated| is_lost(&below(&children), tolerated)), [true, true, false]);
        assert!(!is_lost(&below(&[(Cancelled, false)]), 0), "somebody has decided that");
    }

    #[test]
    fn superseded_children_do_not_count() {
        let tree = Counts::default();
        let old = RollupInput { run: 1, then: false, state: State::Failed, ignored: false, tree, restartable: 1 };
        let mut groups = Vec::new();
        count(&mut groups, 2, &old);
        assert!(groups.is_empty());
        count(&mut groups, 1, &old);
        uncount(&mut groups, 1, &old);
        assert!(groups.is_empty());
    }
}
