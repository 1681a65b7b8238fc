//! Environment variables of programs, as the sections of types and apps configure them.

use std::collections::BTreeMap;
use std::fmt;

/// Environment variables that a section gives to its programs.
#[derive(Clone, PartialEq, Eq)]
pub struct ProgramVariables {
    /// Variables in addition to the inherited ones, over which they have precedence.
    pub own: BTreeMap<String, String>,
    /// Whether the worker's variables are inherited.
    pub inherit: bool,
}

impl ProgramVariables {
    /// Whether a section sets nothing.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for ProgramVariables {
    fn default() -> Self {
        Self { own: BTreeMap::new(), inherit: true }
    }
}

/// Shows no values, which may be secrets.
impl fmt::Debug for ProgramVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramVariables")
            .field("own", &self.own.keys().collect::<Vec<_>>())
            .field("inherit", &self.inherit)
            .finish()
    }
}
