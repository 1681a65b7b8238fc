//! Conditions under which a field is omitted from JSON.

/// Returns whether a value is the default of its type.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns whether a flag is set.
pub fn is_true(flag: &bool) -> bool {
    *flag
}
