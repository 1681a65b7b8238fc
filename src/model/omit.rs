//! Conditions under which a field is omitted from JSON.

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(crate) fn is_true(flag: &bool) -> bool {
    *flag
}
