//! Order of names in which numbers count as such: `s7`, `s8`, `s10`.

use std::cmp::Ordering;

/// Compares two names by their digits as numbers, and by the rest as text.
pub(in super::super) fn natural_order(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one, other);
    while !one.is_empty() && !other.is_empty() {
        let ((a, rest_of_one), (b, rest_of_other)) = (first_part(one), first_part(other));
        let order = match (is_number(a), is_number(b)) {
            (true, true) => by_value(a, b),
            _ => a.cmp(b),
        };
        if order.is_ne() {
            return order;
        }
        (one, other) = (rest_of_one, rest_of_other);
    }
    one.cmp(other)
}

fn is_number(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_digit())
}

/// Compares two numbers of any length.
fn by_value(one: &str, other: &str) -> Ordering {
    let (a, b) = (one.trim_start_matches('0'), other.trim_start_matches('0'));
    (a.len(), a, one.len()).cmp(&(b.len(), b, other.len()))
}

/// Splits off the first digits, or the text up to the next digit.
fn first_part(text: &str) -> (&str, &str) {
    let is_digit = is_number(text);
    text.split_at(text.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_such() {
        let mut names = ["s10", "s7", "b", "s", "s8x", "s08", "s8", "a2b10", "a2b9", "99999999999999999999", "3"];
        names.sort_by(|one, other| natural_order(one, other));
        assert_eq!(names, ["3", "99999999999999999999", "a2b9", "a2b10", "b", "s", "s7", "s8", "s8x", "s08", "s10"]);
    }
}
