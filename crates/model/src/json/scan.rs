//! Scanner over JSON text that a parser has accepted already.

use std::borrow::Cow;

use super::defect::SURROGATE;

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// `{` or `[`.
    Open,
    /// `}` or `]`.
    Close,
    Comma,
    Colon,
    /// String with its quotes.
    Text,
    Number,
    /// `true`, `false` or `null`.
    Word,
}

/// Piece of JSON text without white space around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub kind: TokenKind,
    pub text: &'a str,
}

impl Token<'_> {
    pub(super) fn opens_object(&self) -> bool {
        self.text == "{"
    }
}

/// Iterator over the tokens of a valid text. Takes linear time and no memory.
#[derive(Clone, Debug)]
pub(super) struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Reads a whole value, with everything in it. Returns `None` at a closing bracket and at the end.
    pub(super) fn value(&mut self) -> Option<&'a str> {
        let first = self.next()?;
        let start = self.at - first.text.len();
        match first.kind {
            TokenKind::Text | TokenKind::Number | TokenKind::Word => return Some(first.text),
            TokenKind::Open => {}
            TokenKind::Close | TokenKind::Comma | TokenKind::Colon => return None,
        }
        let mut open = 1_usize;
        while open > 0 {
            match self.next()?.kind {
                TokenKind::Open => open += 1,
                TokenKind::Close => open -= 1,
                _ => {}
            }
        }
        self.text.get(start..self.at)
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    #[inline]
    fn next(&mut self) -> Option<Token<'a>> {
        let bytes = self.text.as_bytes();
        let mut start = self.at;
        while matches!(bytes.get(start)?, b' ' | b'\n' | b'\r' | b'\t') {
            start += 1;
        }
        let (kind, end) = match bytes[start] {
            b'{' | b'[' => (TokenKind::Open, start + 1),
            b'}' | b']' => (TokenKind::Close, start + 1),
            b',' => (TokenKind::Comma, start + 1),
            b':' => (TokenKind::Colon, start + 1),
            b'"' => (TokenKind::Text, end_of_string(bytes, start + 1).0),
            b'-' | b'0'..=b'9' => (TokenKind::Number, end_of_scalar(bytes, start + 1)),
            _ => (TokenKind::Word, end_of_scalar(bytes, start + 1)),
        };
        self.at = end;
        Some(Token { kind, text: self.text.get(start..end)? })
    }
}

/// Decodes a string in quotes.
pub(super) fn decoded(quoted: &str) -> Result<Cow<'_, str>, &'static str> {
    unescaped(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default())
}

/// Decodes the content of a string.
pub(super) fn unescaped(content: &str) -> Result<Cow<'_, str>, &'static str> {
    if !content.contains('\\') {
        return Ok(content.into());
    }
    serde_json::from_str(&format!("\"{content}\"")).map(Cow::Owned).map_err(|_| SURROGATE)
}

const LOW_BITS: u64 = u64::from_le_bytes([1; 8]);
const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);

/// Marks the bytes of a word that are equal to `byte`; exact for the first one.
const fn marks(word: u64, byte: u8) -> u64 {
    let difference = word ^ (LOW_BITS * byte as u64);
    difference.wrapping_sub(LOW_BITS) & !difference & HIGH_BITS
}

/// Offset behind the quote that ends a string, whose content begins at `at`, and whether the string has escapes. Looks
/// at eight bytes at a time.
#[inline]
pub(super) fn end_of_string(bytes: &[u8], mut at: usize) -> (usize, bool) {
    let mut has_escapes = false;
    loop {
        while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
            let word = u64::from_le_bytes(*chunk);
            let marked = marks(word, b'"') | marks(word, b'\\');
            if marked != 0 {
                at += marked.trailing_zeros() as usize / 8;
                break;
            }
            at += 8;
        }
        match bytes.get(at) {
            Some(b'"') => return (at + 1, has_escapes),
            Some(b'\\') => {
                has_escapes = true;
                at += 2;
            }
            Some(_) => at += 1,
            None => return (bytes.len(), has_escapes),
        }
    }
}

#[inline]
pub(super) fn end_of_scalar(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b'0'..=b'9' | b'a'..=b'z' | b'E' | b'+' | b'-' | b'.')) {
        at += 1;
    }
    at
}
