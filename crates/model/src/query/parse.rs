//! Parser of queries.

use std::ops::Range;

use super::mistake::Mistake;
use super::{MAX_QUERY_BYTES, MAX_TERMS, MAX_VALUES, Qualifier, TaskQuery, Term, Test};
use crate::similar::similar;
use crate::task::id::clip;
use crate::task::param_tags::{MAX_VALUE_CHARS, PREFIX, is_name_char, tag};

impl TaskQuery {
    /// Parses a query. Reports the first mistake.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        if text.len() > MAX_QUERY_BYTES {
            let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_QUERY_BYTES).last();
            let message = format!("the query has {} bytes; the maximum is {MAX_QUERY_BYTES}", text.len());
            return Err(Mistake::new(end.unwrap_or_default()..text.len(), message));
        }
        let mut parser = Parser { text, at: 0 };
        let mut query = Self::default();
        while parser.skip_spaces() {
            let start = parser.at;
            let (term, qualifier) = parser.term()?;
            let span = start..parser.at;
            if query.terms.len() == MAX_TERMS {
                return Err(Mistake::new(span, format!("the query has more than {MAX_TERMS} terms")));
            }
            if let Some(qualifier) = qualifier {
                query.check_repetition(&term, qualifier, span)?;
            }
            query.terms.push(term);
        }
        Ok(query)
    }

    /// Refuses a second term that excludes all tasks of the first.
    fn check_repetition(&self, term: &Term, qualifier: Qualifier, span: Range<usize>) -> Result<(), Mistake> {
        let same = |other: &&Term| !other.negated && other.test.parts().0 == Some(qualifier);
        let Some(earlier) = self.terms.iter().find(same).filter(|_| !term.negated && !qualifier.may_repeat()) else {
            return Ok(());
        };
        let name = qualifier.name();
        let mistake = Mistake::new(span, format!("`{name}` is given twice"));
        if qualifier.is_single() {
            return Err(mistake);
        }
        let values = term.to_string().replacen(&format!("{name}:"), "", 1);
        Err(mistake.hint(format!("for any of them write `{earlier},{values}`")))
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take_char(&mut self, expected: char) -> bool {
        let is_next = self.peek() == Some(expected);
        if is_next {
            self.at += expected.len_utf8();
        }
        is_next
    }

    /// Skips white space. Returns false at the end.
    fn skip_spaces(&mut self) -> bool {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.at < self.text.len()
    }

    fn term(&mut self) -> Result<(Term, Option<Qualifier>), Mistake> {
        let start = self.at;
        let negated = self.take_char('-');
        let name = self.at;
        if let Some(param) = self.param() {
            return Ok((Term { negated, test: self.param_values(&param)? }, Some(Qualifier::Tag)));
        }
        let Some(qualifier) = self.qualifier()? else {
            return Ok((Term { negated, test: Test::Word(self.word(start)?) }, None));
        };
        if negated && qualifier.is_single() {
            let message = format!("`{}` cannot be negated", qualifier.name());
            return Err(Mistake::new(start..name, message).hint("omit the `-`"));
        }
        let (spans, values) = self.values(qualifier.name())?;
        let texts: Vec<&str> = values.iter().map(String::as_str).collect();
        let test = Test::new(qualifier, &texts).map_err(|(n, fault)| {
            let span = spans.get(n).cloned().unwrap_or(name..self.at);
            Mistake { span, message: fault.message, hint: fault.hint }
        })?;
        Ok((Term { negated, test }, Some(qualifier)))
    }

    /// Reads the name of a declared param with its colon, such as `params.customer:`.
    fn param(&mut self) -> Option<String> {
        let (name, _) = self.rest().strip_prefix(PREFIX)?.split_once(':')?;
        let is_name = name.split('.').all(|segment| !segment.is_empty() && segment.chars().all(is_name_char));
        if !is_name {
            return None;
        }
        self.at += PREFIX.len() + name.len() + 1;
        Some(name.to_owned())
    }

    /// Reads the values of a declared param: tags that the tasks have.
    fn param_values(&mut self, name: &str) -> Result<Test, Mistake> {
        let (spans, values) = self.values(&format!("{PREFIX}{name}"))?;
        let tags = spans.into_iter().zip(values).map(|(span, value)| {
            tag(name, &value).ok_or_else(|| {
                Mistake::new(span, format!("values of more than {MAX_VALUE_CHARS} characters cannot be searched"))
            })
        });
        Ok(Test::Text(Qualifier::Tag, tags.collect::<Result<_, _>>()?))
    }

    /// Reads a qualifier with its colon. Texts such as `order-42:fetch` and `12:30` have none.
    fn qualifier(&mut self) -> Result<Option<Qualifier>, Mistake> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphabetic() && c != '_').unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        if name.is_empty() || !behind.starts_with(':') {
            return Ok(None);
        }
        let Some(qualifier) = Qualifier::from_name(name) else {
            return Err(self.unknown_qualifier(name));
        };
        self.at += end + 1;
        Ok(Some(qualifier))
    }

    fn unknown_qualifier(&self, name: &str) -> Mistake {
        let names = Qualifier::ALL.map(|(_, name, _)| name);
        let word = self.rest().split(char::is_whitespace).next().unwrap_or_default();
        let hint = match similar(name, names) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("write \"{}\" with quotes to search for it as a word", clip(word)),
        };
        let message = format!("`{}` is not a qualifier: use one of {}", clip(name), names.join(", "));
        Mistake::new(self.at..self.at + name.len(), message).hint(hint)
    }

    /// Reads values separated by commas, with their spans.
    fn values(&mut self, name: &str) -> Result<(Vec<Range<usize>>, Vec<String>), Mistake> {
        let (mut spans, mut values) = (Vec::new(), Vec::new());
        loop {
            let start = self.at;
            let value = self.value(|c| c == ',')?;
            let span = start..self.at;
            if value.is_empty() {
                return Err(Mistake::new(span, format!("`{name}` has an empty value")));
            }
            if values.len() == MAX_VALUES {
                let message = format!("`{name}` has more than {MAX_VALUES} values");
                return Err(Mistake::new(span, message));
            }
            spans.push(span);
            values.push(value);
            if !self.take_char(',') {
                return Ok((spans, values));
            }
        }
    }

    /// Reads a word of the term that begins at `start`.
    fn word(&mut self, start: usize) -> Result<String, Mistake> {
        let word = self.value(|_| false)?;
        if word.is_empty() {
            let hint = "write a term after `-` to exclude tasks, or \"-\" to search for it";
            return Err(Mistake::new(start..self.at, "the term is empty").hint(hint));
        }
        Ok(word)
    }

    /// Reads a quoted value, or text up to white space or the end of the value.
    fn value(&mut self, is_end: impl Fn(char) -> bool) -> Result<String, Mistake> {
        let rest = self.rest();
        if !rest.starts_with('"') {
            let end = rest.find(|c: char| c.is_whitespace() || is_end(c)).unwrap_or(rest.len());
            self.at += end;
            return Ok(rest[..end].to_owned());
        }
        let value = self.quoted()?;
        match self.peek() {
            Some(next) if !next.is_whitespace() && !is_end(next) => {
                let span = self.at..self.at + next.len_utf8();
                Err(Mistake::new(span, "text follows the closing quote")
                    .hint("write a space after the quote, or \\\" for a quote in the text"))
            }
            _ => Ok(value),
        }
    }

    /// Reads a quoted text. A backslash stands for itself unless a quote or another backslash follows.
    fn quoted(&mut self) -> Result<String, Mistake> {
        let start = self.at;
        let mut value = String::new();
        let mut chars = self.rest().char_indices().skip(1).peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.at = start + at + 1;
                    return Ok(value);
                }
                '\\' => value.push(chars.next_if(|(_, next)| matches!(next, '"' | '\\')).map_or(c, |(_, next)| next)),
                _ => value.push(c),
            }
        }
        Err(Mistake::new(start..self.text.len(), "the quote is not closed").hint("end the text with `\"`"))
    }
}
