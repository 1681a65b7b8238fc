//! Canonical form of numbers: the exact decimal value, in the notation of ECMAScript and RFC 8785.

use std::borrow::Cow;

use super::defect::EXPONENT;

/// Maximum number of digits of an exponent.
pub(super) const MAX_EXPONENT_DIGITS: usize = 9;
/// Integers below 10 to the power of this are written without an exponent.
const MAX_PLAIN_DIGITS: i64 = 21;
/// Fractions below 1 have fewer zeros behind the point than this, or an exponent.
const MAX_LEADING_ZEROS: i64 = 6;

/// Checks the exponent of a number.
pub(super) fn check_number(number: &str) -> Result<(), &'static str> {
    parts(number).map(drop)
}

/// Parts of a number: whole digits, digits of the fraction, and the exponent.
fn parts(number: &str) -> Result<(&str, &str, i64), &'static str> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let digits = exponent.trim_start_matches(['+', '-']);
    if digits.len() > MAX_EXPONENT_DIGITS {
        return Err(EXPONENT);
    }
    let size: i64 = digits.parse().map_err(|_| EXPONENT)?;
    let exponent = if exponent.starts_with('-') { -size } else { size };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    Ok((integer, fraction, exponent))
}

/// Returns whether a float keeps the value of a decimal number, such as `+1.5` or `1e3`.
pub fn is_exact_float(number: &str) -> bool {
    let Ok(float) = number.parse::<f64>() else { return false };
    let same = |shortest: &str| {
        let given = canonical_number(number.strip_prefix('+').unwrap_or(number));
        given.is_ok_and(|given| canonical_number(shortest).is_ok_and(|shortest| shortest == given))
    };
    float.is_finite() && same(&format!("{float:e}"))
}

/// Returns whether an integer is its own canonical form.
fn is_canonical(number: &str) -> bool {
    number.len() <= MAX_PLAIN_DIGITS as usize && number != "-0" && !number.contains(['.', 'e', 'E'])
}

/// Canonical form of a number.
pub(super) fn canonical_number(number: &str) -> Result<Cow<'_, str>, &'static str> {
    if is_canonical(number) {
        return Ok(number.into());
    }
    let (unsigned, is_negative) = number.strip_prefix('-').map_or((number, false), |rest| (rest, true));
    let (integer, fraction, exponent) = parts(unsigned)?;
    let all: String = [integer, fraction].concat();
    let significant = all.trim_start_matches('0');
    let leading = all.len() - significant.len();
    let digits = significant.trim_end_matches('0');
    if digits.is_empty() {
        return Ok("0".into());
    }
    let mut out = String::with_capacity(digits.len() + 8);
    if is_negative {
        out.push('-');
    }
    // The value is 0.DIGITS times 10 to the power of `point`.
    push_digits(&mut out, digits, integer.len() as i64 + exponent - leading as i64);
    Ok(out.into())
}

fn push_digits(out: &mut String, digits: &str, point: i64) {
    let count = digits.len() as i64;
    let zeros = |number: i64| std::iter::repeat_n('0', usize::try_from(number).unwrap_or_default());
    if (count..=MAX_PLAIN_DIGITS).contains(&point) {
        out.push_str(digits);
        out.extend(zeros(point - count));
    } else if (1..=MAX_PLAIN_DIGITS).contains(&point) {
        let (integer, fraction) = digits.split_at(usize::try_from(point).unwrap_or_default());
        out.extend([integer, ".", fraction]);
    } else if point <= 0 && point > -MAX_LEADING_ZEROS {
        out.push_str("0.");
        out.extend(zeros(-point));
        out.push_str(digits);
    } else {
        let (first, rest) = digits.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            out.extend([".", rest]);
        }
        out.push_str(if point > 0 { "e+" } else { "e-" });
        out.push_str(itoa::Buffer::new().format((point - 1).unsigned_abs()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(number: &str) -> String {
        canonical_number(number).unwrap().into_owned()
    }

    #[test]
    fn numbers_are_written_by_their_exact_value() {
        for (number, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0e7", "0"),
            ("1.0", "1"),
            ("1e0", "1"),
            ("1e2", "100"),
            ("100e-2", "1"),
            ("0.10", "0.1"),
            ("-12.50", "-12.5"),
            ("0.1234567890123456789", "0.1234567890123456789"),
            ("12345678901234567.89", "12345678901234567.89"),
            ("618970019642690137449562111", "6.18970019642690137449562111e+26"),
            ("100000000000000000000", "100000000000000000000"),
            ("-999999999999999999999", "-999999999999999999999"),
            ("1000000000000000000000", "1e+21"),
            ("1e400", "1e+400"),
            ("1E-400", "1e-400"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("0.00000012", "1.2e-7"),
            ("1e999999999", "1e+999999999"),
        ] {
            assert_eq!(canonical(number), expected, "{number}");
        }
        let long = "7".repeat(5_000);
        assert_eq!(canonical(&long), format!("7.{}e+4999", "7".repeat(4_999)));
    }

    #[test]
    fn floats_keep_at_most_17_digits() {
        let exact = ["0.1", "+1.50", "1e3", "-0.0", "9007199254740992.0", "1e22"];
        let inexact = ["0.1234567890123456789", "9007199254740993.0", "1e400", "inf", "nan"];
        assert!(exact.iter().all(|number| is_exact_float(number)));
        assert!(!inexact.iter().any(|number| is_exact_float(number)));
    }

    #[test]
    fn exponent_of_ten_digits_is_refused() {
        assert_eq!(check_number("1e1000000000"), Err(EXPONENT));
        assert_eq!(canonical_number("0e-1000000000"), Err(EXPONENT));
    }

    proptest! {
        /// Rust prints the shortest digits that give a float back, and so does ECMAScript.
        #[test]
        fn value_survives_and_form_is_stable(number in any::<f64>().prop_filter("finite", |number| number.is_finite())) {
            for text in [format!("{number}"), format!("{number:e}")] {
                let canonical = canonical(&text);
                prop_assert_eq!(canonical.parse::<f64>().unwrap(), number);
                prop_assert_eq!(canonical_number(&canonical).unwrap(), canonical.as_str());
            }
        }

        #[test]
        fn shifted_point_is_the_same_number(digits in "[1-9][0-9]{0,40}", shift in 0_usize..60) {
            let zeros = "0".repeat(shift);
            prop_assert_eq!(canonical(&format!("{digits}{zeros}")), canonical(&format!("{digits}e{shift}")));
            prop_assert_eq!(canonical(&format!("0.{zeros}{digits}")), canonical(&format!("0.{digits}e-{shift}")));
        }
    }
}
