//! Texts without what could hide, move or disguise a part of them: terminal escape codes, control characters, overrides of
//! the text direction, and characters without a width.

use std::iter::Peekable;
use std::str::Chars;

use maud::{Markup, PreEscaped};

/// Stands for a character without a width: two names that differ only in one would look equal.
const PLACEHOLDER: char = '␣';

const ESCAPE: char = '\u{1b}';
const BELL: char = '\u{7}';
/// Ends a string sequence, as one character.
const TERMINATOR: char = '\u{9c}';

/// Text as pages show it.
pub(in super::super) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in stripped(text, |c| c == '\n').chars() {
        out.push(if has_no_width(c, out.chars().next_back()) { PLACEHOLDER } else { c });
    }
    out
}

/// Markup without the characters that could disguise a text. Sequences end with the text that contains them: a text in
/// markup has neither angle brackets nor quotes.
pub(in super::super) fn without_hidden(markup: Markup) -> Markup {
    if !markup.0.contains(is_hidden) {
        return markup;
    }
    PreEscaped(stripped(&markup.0, |c| matches!(c, '\n' | '<' | '>' | '"')))
}

/// Removes escape codes and hidden characters. `is_end`: ends a sequence that is not complete.
fn stripped(text: &str, is_end: impl Fn(char) -> bool + Copy) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            ESCAPE => skip_escape(&mut rest, is_end),
            '\u{9b}' => skip_control(&mut rest, is_end),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_string(&mut rest, is_end),
            c if is_hidden(c) => {}
            c => out.push(c),
        }
    }
    out
}

/// Skips the rest of a sequence that begins with an escape character.
fn skip_escape(rest: &mut Peekable<Chars<'_>>, is_end: impl Fn(char) -> bool + Copy) {
    match rest.next_if(|c| !is_end(*c) && ('0'..='~').contains(c)) {
        Some('[') => skip_control(rest, is_end),
        Some('P' | 'X' | ']' | '^' | '_') => skip_string(rest, is_end),
        Some(_) => {}
        None => skip_intermediate(rest, is_end),
    }
}

/// Skips the parameters and the final byte of a control sequence, such as a colour.
fn skip_control(rest: &mut Peekable<Chars<'_>>, is_end: impl Fn(char) -> bool + Copy) {
    while rest.next_if(|c| !is_end(*c) && (' '..='?').contains(c)).is_some() {}
    rest.next_if(|c| !is_end(*c) && ('@'..='~').contains(c));
}

/// Skips an escape sequence with intermediate bytes, such as the choice of a character set.
fn skip_intermediate(rest: &mut Peekable<Chars<'_>>, is_end: impl Fn(char) -> bool + Copy) {
    let mut has_intermediate = false;
    while rest.next_if(|c| !is_end(*c) && (' '..='/').contains(c)).is_some() {
        has_intermediate = true;
    }
    if has_intermediate {
        rest.next_if(|c| !is_end(*c) && ('0'..='~').contains(c));
    }
}

/// Skips the text of a string sequence, such as the target of a link or the title of a window, with its end.
fn skip_string(rest: &mut Peekable<Chars<'_>>, is_end: impl Fn(char) -> bool + Copy) {
    while let Some(c) = rest.next_if(|c| !is_end(*c)) {
        match c {
            BELL | TERMINATOR => return,
            ESCAPE => {
                // Any other sequence ends the string as well.
                if rest.next_if_eq(&'\\').is_none() {
                    skip_escape(rest, is_end);
                }
                return;
            }
            _ => {}
        }
    }
}

/// Whether a character could hide or reorder what is around it: control characters, overrides of the text direction.
fn is_hidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character is invisible after the character before it. Joiners belong to emoji and to some scripts.
fn has_no_width(c: char, before: Option<char>) -> bool {
    match c {
        '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' => true,
        '\u{200c}' | '\u{200d}' => before.is_none_or(|before| before.is_ascii() || before == PLACEHOLDER),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escape_codes_are_removed_as_a_whole() {
        for (text, shown) in [
            ("\u{1b}[1;31mred\u{1b}[0m \u{7}x\u{202e}evil", "red xevil"),
            ("\u{1b}[31mred \u{1b}[0m \u{1b}]8;;http://evil\u{1b}\\link\u{1b}]8;;\u{1b}\\", "red  link"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]0;title", ""),
            ("\u{1b}]0;title\nnext line", "\nnext line"),
            ("\u{1b}]0;title\u{1b}[31mred", "red"),
            ("\u{1b}[31", ""),
            ("\u{1b}[31ä", "ä"),
            ("\u{1b}[\nline", "\nline"),
            ("\u{1b}cafter a reset", "after a reset"),
            ("\u{1b}7saved\u{1b}8", "saved"),
            ("\u{1b}(Bset", "set"),
            ("\u{1b}Pq#0~\u{1b}\\sixel", "sixel"),
            ("\u{1b}", ""),
            ("\u{1b}\u{1b}[mx", "x"),
            ("\u{9b}31mred\u{9b}0m", "red"),
            ("\u{9d}8;;http://evil\u{9c}link", "link"),
            ("\u{90}data\u{9c}\u{9e}private\u{1b}\\x", "x"),
            ("\u{84}\u{9c}x", "x"),
            ("two\tcolumns\nand lines\r", "two\tcolumns\nand lines"),
        ] {
            assert_eq!(visible(text), shown, "{text:?}");
        }
    }

    #[test]
    fn characters_without_a_width_are_marked() {
        for (text, shown) in [
            ("or\u{200b}der", "or␣der"),
            ("\u{feff}order\u{2060}\u{ad}", "␣order␣␣"),
            ("a\u{200d}b", "a␣b"),
            ("\u{200c}a", "␣a"),
            ("👩\u{200d}👧", "👩\u{200d}👧"),
            ("می\u{200c}خواهم", "می\u{200c}خواهم"),
        ] {
            assert_eq!(visible(text), shown, "{text:?}");
        }
    }

    #[test]
    fn sequence_in_markup_ends_with_its_text() {
        let markup = PreEscaped("<b title=\"\u{1b}]8;;x\">\u{1b}]0;y</b>\u{9b}<i>z</i>\u{202e}".to_owned());
        assert_eq!(without_hidden(markup).into_string(), "<b title=\"\"></b><i>z</i>");
    }

    proptest! {
        #[test]
        fn shown_text_has_no_control_characters_and_stays_as_it_is(
            text in "([ -~äé\n\t👩]|\\PC|[\u{0}-\u{1f}\u{7f}-\u{9f}\u{200b}-\u{200f}\u{202a}-\u{202e}]|\u{1b}[\\[\\]P]){0,60}"
        ) {
            let shown = visible(&text);
            prop_assert!(!shown.contains(is_hidden), "{shown:?}");
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
            prop_assert_eq!(visible(&shown), shown);
        }
    }
}
