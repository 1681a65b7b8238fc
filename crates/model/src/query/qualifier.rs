//! Qualifiers of the search language.

/// Field that a term compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qualifier {
    Type,
    State,
    Own,
    Tag,
    Creator,
    Name,
    NameLike,
    Id,
    Under,
    Level,
    Error,
    Worker,
    Schedule,
    From,
    To,
    Is,
}

impl Qualifier {
    /// All qualifiers in the order of the enum, with their names and descriptions.
    pub const ALL: [(Self, &'static str, &'static str); 16] = [
        (Self::Type, "type", "task type"),
        (Self::State, "state", "state, combined with the children's"),
        (Self::Own, "own", "state of the task itself"),
        (Self::Tag, "tag", "tag; repeated: all of them"),
        (Self::Creator, "creator", "creator"),
        (Self::Name, "name", "beginning of the name"),
        (Self::NameLike, "name_like", "regular expression that matches in the name"),
        (Self::Id, "id", "task id"),
        (Self::Under, "under", "task with its descendants"),
        (Self::Level, "level", "roots, or any for tasks of all levels"),
        (Self::Error, "error", "error kind, or a similar message"),
        (Self::Worker, "worker", "worker of the last attempt"),
        (Self::Schedule, "schedule", "schedule that created the task"),
        (Self::From, "from", "first seen at or after this time, or at most this long ago"),
        (Self::To, "to", "first seen before this time, or longer ago"),
        (Self::Is, "is", "open, ended, failed or root"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, candidate, _)| *candidate == name).map(|(qualifier, ..)| qualifier)
    }

    /// Whether a term takes one value only and cannot be negated.
    pub(crate) fn is_single(self) -> bool {
        matches!(self, Self::Level | Self::From | Self::To)
    }

    /// Whether a second term of this qualifier can match tasks that match the first.
    pub(crate) fn may_repeat(self) -> bool {
        matches!(self, Self::Tag | Self::NameLike | Self::Error | Self::Is)
    }
}
