//! Priorities of tasks, and the classes that share the slots of a type.

/// Priority of a task. A type may give each a share of its slots; without such a setting all tasks are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Below all others, such as bulk work.
    Low,
    /// Of tasks that name none.
    #[default]
    Normal,
    /// Above all others, such as work for which a person waits.
    High,
}

impl Priority {
    /// All priorities, the lowest first.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// Position in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Tasks that share slots as one: those of a priority and a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskClass {
    /// Priority of the tasks.
    pub priority: Priority,
    /// Hash of the tenant's name; 0 for types without tenants.
    pub tenant: u64,
}
