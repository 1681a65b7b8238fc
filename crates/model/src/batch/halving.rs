//! Calls that have failed as a whole: each half runs on its own, down to one item, so that only the failure of a single item
//! counts for it.

/// Divides the items of a failed call. The first half is the larger one if their number is odd.
pub fn halves<T>(mut items: Vec<T>) -> [Vec<T>; 2] {
    let second = items.split_off(items.len().div_ceil(2));
    [items, second]
}

/// Failure of a call as a whole, as far as the decision about its items needs it.
#[derive(Clone, Copy, Debug)]
pub struct FailedCall {
    /// Number of items that still count.
    pub items: usize,
    /// The setting `split` of the type.
    pub split: bool,
    /// The failure blames something outside of the items: the service behind the type, which would refuse each half too.
    pub is_of_service: bool,
}

impl FailedCall {
    /// Returns whether the halves of the items run again. Otherwise the failure is that of each item.
    pub fn is_halved(self) -> bool {
        self.items > 1 && self.split && !self.is_of_service
    }
}
