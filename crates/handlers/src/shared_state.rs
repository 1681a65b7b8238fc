//! Application state shared by all handlers of a process.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::hooks::Hooks;

/// Application state, keyed by type, and the hooks of the application.
#[derive(Clone, Default)]
pub struct SharedState {
    values: Arc<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    /// Hooks of the application.
    #[doc(hidden)]
    pub hooks: Hooks,
}

impl SharedState {
    /// Returns the value of a type; `None` if there is none.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.values.get(&TypeId::of::<T>()).cloned().and_then(|state| state.downcast().ok())
    }

    /// Adds a value, which replaces an earlier one of its type.
    pub(super) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        Arc::make_mut(&mut self.values).insert(TypeId::of::<T>(), Arc::new(value));
    }
}
