//! Nearest known word, for hints about misspelt ones.

/// Returns the most similar of the known words, if it is similar enough to be meant.
pub fn similar<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    let distances = words.into_iter().map(|candidate| (strsim::damerau_levenshtein(candidate, &word), candidate));
    distances.min().filter(|(distance, _)| *distance <= limit).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_third_of_wrong_characters_is_similar() {
        let words = ["resize", "mail", "retry"];
        for (word, found) in [("resise", Some("resize")), ("MIAL", Some("mail")), ("rtr", None), ("x", None)] {
            assert_eq!(similar(word, words), found, "{word}");
        }
    }
}
