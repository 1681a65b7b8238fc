//! Colour of a fleet in the web UI, which must differ enough from the background in both themes.

use std::fmt;

/// Colours with a name.
const NAMED: [(&str, Colour); 9] = [
    ("blue", Colour([0x24, 0x72, 0xc8])),
    ("green", Colour([0x2b, 0x8a, 0x3e])),
    ("grey", Colour([0x73, 0x7b, 0x85])),
    ("orange", Colour([0xc2, 0x57, 0x1a])),
    ("pink", Colour([0xcf, 0x3f, 0x8c])),
    ("purple", Colour([0x8e, 0x5b, 0xd0])),
    ("red", Colour([0xd1, 0x34, 0x38])),
    ("teal", Colour([0x0f, 0x86, 0x8c])),
    ("yellow", Colour([0xa0, 0x74, 0x00])),
];
/// Backgrounds of the header in the light and in the dark theme.
pub const HEADER_COLOURS: [Colour; 2] = [Colour([0xf6, 0xf7, 0xf9]), Colour([0x1c, 0x20, 0x24])];
/// Minimum contrast of what is no text (WCAG 1.4.11).
const MIN_CONTRAST: f64 = 3.0;

/// Colour in sRGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub [u8; 3]);

impl Colour {
    /// Parses the name of a colour or `#rrggbb`. The error is the form that is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let named = NAMED.iter().find(|(name, _)| *name == text).map(|(_, colour)| *colour);
        let colour = named.or_else(|| Self::of_digits(text.strip_prefix('#')?)).ok_or_else(|| {
            let names: Vec<String> = NAMED.iter().map(|(name, _)| format!("`{name}`")).collect();
            format!("a colour: {}, or `#rrggbb`", names.join(", "))
        })?;
        if HEADER_COLOURS.into_iter().all(|behind| colour.contrast(behind) >= MIN_CONTRAST) {
            return Ok(colour);
        }
        let change = if colour.luminance() > 0.2 { "darker" } else { "lighter" };
        Err(format!("a colour with a contrast of 3 to 1 in the light and in the dark theme: a {change} one has it"))
    }

    fn of_digits(digits: &str) -> Option<Self> {
        let is_hex = digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let [_, red, green, blue] = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?.to_be_bytes();
        Some(Self([red, green, blue]))
    }

    /// Contrast of two colours as WCAG defines it, from 1 to 21.
    fn contrast(self, other: Self) -> f64 {
        let (a, b) = (self.luminance(), other.luminance());
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    fn luminance(self) -> f64 {
        let [red, green, blue] = self.0.map(|part| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.0;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_colours_have_contrast_in_both_themes() {
        for (name, colour) in NAMED {
            assert_eq!(Colour::parse(name), Ok(colour));
            assert_eq!(Colour::parse(&colour.to_string()), Ok(colour), "{name}");
        }
    }

    #[test]
    fn colour_without_contrast_is_refused() {
        for (text, expected) in [
            ("#ffff00", "a darker one"),
            ("#000080", "a lighter one"),
            ("mauve", "`blue`, `green`"),
            ("#12", "or `#rrggbb`"),
            ("#+12345", "or `#rrggbb`"),
        ] {
            let error = Colour::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
