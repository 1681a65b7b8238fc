//! Numbers in their text form.

use std::fmt::Display;

/// Whole number with thousands separators, such as `12,345`.
pub fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let starts_group = |n: usize| n > 0 && (digits.len() - n).is_multiple_of(3);
    let groups = digits.chars().enumerate().map(|(n, digit)| (starts_group(n), digit));
    groups.flat_map(|(is_start, digit)| is_start.then_some(',').into_iter().chain([digit])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_three_digits() {
        assert_eq!([0, 999, 1_000, 12_345, 1_234_567].map(grouped), ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
