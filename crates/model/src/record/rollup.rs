//! Rollup of children's states into the state of their parent.
//!
//! A parent does not know its children, only how many of them are in each state ([`RunCounts`], by the run of the
//! parent that created them). A child that changes is subtracted with its old contribution ([`uncount`]) and added with
//! the new one ([`count`]), so an event costs the same below a parent of two children and of 100,000. [`combine`]
//! derives the state that people see from the own state and these counts. Continuations are counted apart from the
//! other children, because they start when those have ended.
//!
//! Invariant: every [`RollupInput`] that is subtracted was added before, with equal values. A debug assertion finds
//! violations; in production the counts saturate at zero, and the state of the parent is wrong until its partition is
//! projected again.
//!
//! Read next: `crates/model/src/projection/fold.rs`, whose `propagate` carries a change up to the root.

use serde::{Deserialize, Serialize};

use super::state::{Category, State};

/// Number of tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts(pub [u64; State::COUNT]);

impl Counts {
    pub fn get(&self, state: State) -> u64 {
        self.0[state.index()]
    }

    pub fn add(&mut self, state: State, number: u64) {
        self.0[state.index()] += number;
    }

    /// Subtracts a number added before. An underflow would be a defect of the projection; it saturates at zero.
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

/// Counts of the descendants reached through the direct children of one run. A new run of the parent drops the groups
/// of older runs: those children are superseded and do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounts {
    pub run: u32,
    /// These children are continuations: they do not decide whether other continuations start, and `max_failed` does
    /// not apply to them.
    pub then: bool,
    pub children: Counts,
    /// Failed children whose failure does not affect the parent.
    pub ignored: Counts,
    /// Children and all their descendants.
    pub tree: Counts,
    /// Tasks among them that a retry of failed tasks restarts.
    pub restartable: u64,
}

/// Contribution of a task to its parent's rollup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollupInput {
    pub run: u32,
    /// The task is a continuation of its parent.
    pub then: bool,
    pub state: State,
    /// The task's failure does not affect its parent.
    pub ignored: bool,
    /// All descendants.
    pub tree: Counts,
    /// Tasks restarted by a retry of failed tasks: this task and its descendants.
    pub restartable: u64,
}

/// Sums of children, ignored failures and all descendants over the groups that count.
pub fn children_of(below: &[RunCounts]) -> (Counts, Counts, Counts) {
    let mut sums = (Counts::default(), Counts::default(), Counts::default());
    for group in below {
        sums.0.add_all(&group.children);
        sums.1.add_all(&group.ignored);
        sums.2.add_all(&group.tree);
    }
    sums
}

/// Adds a child to its parent's groups, unless it is superseded (its run is lower than the parent's).
pub fn count(below: &mut Vec<RunCounts>, parent_run: u32, child: &RollupInput) {
    if child.run < parent_run {
        return;
    }
    let index = match below.iter().position(|group| group.run == child.run && group.then == child.then) {
        Some(index) => index,
        None => {
            below.push(RunCounts { run: child.run, then: child.then, ..RunCounts::default() });
            below.len() - 1
        }
    };
    let group = &mut below[index];
    group.children.add(child.state, 1);
    group.tree.add(child.state, 1);
    group.tree.add_all(&child.tree);
    group.restartable += child.restartable;
    if child.ignored && child.state.category() == Category::Failed {
        group.ignored.add(child.state, 1);
    }
}

/// Subtracts a child that [`count`] added.
pub fn uncount(below: &mut Vec<RunCounts>, parent_run: u32, child: &RollupInput) {
    if child.run < parent_run {
        return;
    }
    let Some(index) = below.iter().position(|group| group.run == child.run && group.then == child.then) else {
        debug_assert!(false, "a child is subtracted that was never counted");
        return;
    };
    let group = &mut below[index];
    group.children.sub(child.state, 1);
    group.tree.sub(child.state, 1);
    group.tree.sub_all(&child.tree);
    debug_assert!(group.restartable >= child.restartable, "count of restartable tasks would become negative");
    group.restartable = group.restartable.saturating_sub(child.restartable);
    if child.ignored && child.state.category() == Category::Failed {
        group.ignored.sub(child.state, 1);
    }
    if group.children.total() == 0 {
        below.swap_remove(index);
    }
}

/// Combines a task's own state with its children's.
///
/// Own state pending: the own state, whatever the children's states are. Own state terminal and a child pending:
/// waiting for children. Otherwise the worst of own and children, in the order succeeded < cancelled < expired <
/// failed; failed children are ignored while there are at most `tolerated`.
pub fn combine(own: State, below: &[RunCounts], tolerated: u32) -> State {
    if !own.is_terminal() || below.is_empty() {
        return own;
    }
    let continuations = below.iter().any(|group| group.then);
    match settled_state(own, below, tolerated) {
        State::WaitingForChildren => State::WaitingForChildren,
        // None of the continuations may fail.
        ended if continuations => ended_with(ended, below, true, 0),
        ended => ended,
    }
}

/// State without the continuations, which decides whether continuations are due.
pub fn settled_state(own: State, below: &[RunCounts], tolerated: u32) -> State {
    if own.is_terminal() { ended_with(own, below, false, tolerated) } else { own }
}

/// Terminal state of a task by its continuations (`then`) or by its other children.
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

/// Counts of failed, cancelled and expired children whose failure affects the parent.
fn lost(below: &[RunCounts], then: bool) -> Counts {
    let mut lost = Counts::default();
    for group in below.iter().filter(|group| group.then == then) {
        for state in [State::Failed, State::Expired, State::Cancelled] {
            lost.add(state, group.children.get(state).saturating_sub(group.ignored.get(state)));
        }
    }
    lost
}

/// Returns true if more children failed than are tolerated, so that the task cannot succeed. Cancelled children alone
/// do not suffice, because cancelling them was deliberate.
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
    fn states_combine_by_the_table() {
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
    fn tolerated_failures_do_not_fail_the_parent() {
        use State::*;
        let children = [(Failed, false), (Failed, true), (Cancelled, false), (Succeeded, false)];
        let states = [0, 1, 2, 9].map(|tolerated| combine(Succeeded, &below(&children), tolerated));
        assert_eq!(states, [Failed, Failed, Succeeded, Succeeded]);
        assert_eq!(combine(Failed, &below(&children), 9), Failed, "the task's own failure is never tolerated");
        assert_eq!([0, 1, 2].map(|tolerated| is_lost(&below(&children), tolerated)), [true, true, false]);
        assert!(!is_lost(&below(&[(Cancelled, false)]), 0), "a cancelled child alone does not fail the task");
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
