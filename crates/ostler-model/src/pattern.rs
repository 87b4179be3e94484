//! Names with a wild card.

use serde::{Deserialize, Serialize};

/// A pattern for names: `*` stands for any text, everything else for itself.
///
/// Each guest is held against each rule in every period, so what comes before the first `*`, which is all that most patterns have, is
/// found once, when the pattern is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Pattern {
    text: String,
    /// How many bytes come before the first `*`.
    literal: usize,
}

impl Pattern {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern stands for this text. Linear in the product of their lengths at the worst.
    #[inline]
    pub fn matches(&self, text: &str) -> bool {
        let (literal, pattern) = self.text.as_bytes().split_at(self.literal);
        // Most patterns differ from most texts in the first byte.
        if literal
            .first()
            .is_some_and(|byte| text.as_bytes().first() != Some(byte))
        {
            return false;
        }
        let Some(rest) = text.as_bytes().strip_prefix(literal) else {
            return false;
        };
        match pattern {
            [] => rest.is_empty(),
            [_] => true,
            _ => glob(pattern, rest),
        }
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Pattern {
        let literal = text.find('*').unwrap_or(text.len());
        Pattern { text, literal }
    }
}

impl From<&str> for Pattern {
    fn from(text: &str) -> Pattern {
        text.to_owned().into()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.text
    }
}

/// Where the text doesn't go on as the pattern does, the last `*` takes in one byte more. Bytes will do: `*` is ASCII and no part of another
/// character.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // What follows the last star, and how far the text goes that it stands for.
    let mut star = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, read));
            }
            Some(&byte) if byte == text[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((after, until)) = &mut star else {
                    return false;
                };
                *until += 1;
                (at, read) = (*after, *until);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Pattern;

    /// What a pattern means, said the long way.
    fn meant(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some(('*', rest)), _) => (0..=text.len()).any(|taken| meant(rest, &text[taken..])),
            (Some((wanted, rest)), Some((found, more))) => wanted == found && meant(rest, more),
            (Some(_), None) => false,
        }
    }

    proptest! {
        /// Few letters, so that patterns nearly match; one of several bytes, so that a byte is not a letter.
        #[test]
        fn patterns_mean_what_they_say(pattern in "[ab\u{e9}*]{0,7}", text in "[ab\u{e9}*]{0,9}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(
                Pattern::from(pattern.as_str()).matches(&text),
                meant(&chars(&pattern), &chars(&text))
            );
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, want) in [
            ("web", "web", true),
            ("web", "web1", false),
            ("web*", "web1", true),
            ("*web", "aweb", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(
                Pattern::from(pattern).matches(text),
                want,
                "{pattern} against {text}"
            );
        }
    }
}
