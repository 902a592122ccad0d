//! Tables of a plan: every value with its place, every unknown key refused.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{PlanError, suggestion};

/// A value and its bytes in the text.
pub(super) type Placed<T> = (T, Range<usize>);

/// A table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'t> {
    pub(super) text: &'t str,
    table: &'t DeTable<'t>,
}

impl<'t> Section<'t> {
    /// The whole text.
    pub(super) fn new(text: &'t str, table: &'t DeTable<'t>) -> Self {
        Self { text, table }
    }

    pub(super) fn error(&self, span: &Range<usize>, message: impl Into<String>) -> PlanError {
        PlanError::at(self.text, span, message)
    }

    /// Fails at a key that is none of these.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), PlanError> {
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let hint = suggestion(name, known);
                return Err(self.error(&key.span(), format!("unknown key \"{name}\"{hint}")));
            }
        }
        Ok(())
    }

    /// Where the value of a key stands.
    pub(super) fn place(&self, key: &str) -> Option<Range<usize>> {
        self.value(key).map(Spanned::span)
    }

    fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        let mut entries = self.table.iter();
        let (_, value) = entries.find(|(name, _)| name.get_ref() == key)?;
        Some(value)
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) -> PlanError {
        let found = value.get_ref().type_str();
        let message = format!("{key} has to be {expected}, not {found}");
        self.error(&value.span(), message)
    }

    /// A text without control characters, but those of a command of several lines.
    pub(super) fn string(&self, key: &str) -> Result<Option<Placed<&'t str>>, PlanError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.get_ref().as_str() {
            Some(text) if text.contains(|c: char| c.is_control() && c != '\n' && c != '\t') => {
                let message = format!("{key} has a control character");
                Err(self.error(&value.span(), message))
            }
            Some(text) => Ok(Some((text, value.span()))),
            None => Err(self.wrong(key, value, "a string")),
        }
    }

    /// A number within limits.
    pub(super) fn number(
        &self,
        key: &str,
        within: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, PlanError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        match number.filter(|number| within.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let message = format!(
                    "{key} has to be a whole number from {} to {}",
                    within.start(),
                    within.end()
                );
                Err(self.error(&value.span(), message))
            }
        }
    }

    /// Yes or no.
    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, PlanError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let answer = value.get_ref().as_bool();
        answer
            .map(Some)
            .ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    /// Bytes: `"512M"`, `"2G"`.
    pub(super) fn size(&self, key: &str) -> Result<Option<Placed<u64>>, PlanError> {
        let Some((text, span)) = self.string(key)? else {
            return Ok(None);
        };
        match bytes(text) {
            Some(bytes) => Ok(Some((bytes, span))),
            None => Err(self.error(
                &span,
                format!("{key} has to be a size such as \"512M\" or \"2G\""),
            )),
        }
    }

    /// A word, or an array of words; numbers are words too.
    pub(super) fn words(&self, key: &str) -> Result<Option<Vec<Placed<String>>>, PlanError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let single = std::slice::from_ref(value);
        let several: Vec<&Spanned<DeValue<'t>>> = match value.get_ref().as_array() {
            Some(array) => array.iter().collect(),
            None => single.iter().collect(),
        };
        if several.is_empty() {
            return Err(self.error(&value.span(), format!("{key} is empty")));
        }
        let mut words: Vec<Placed<String>> = Vec::new();
        for value in several {
            let word = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                // However it is written: 0x40 is 64.
                DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                    .map_err(|_| {
                        self.error(
                            &value.span(),
                            format!("{key} has a number that is too large"),
                        )
                    })?
                    .to_string(),
                _ => return Err(self.wrong(key, value, "words")),
            };
            if words.iter().any(|(known, _)| *known == word) {
                return Err(self.error(&value.span(), format!("{key} has \"{word}\" twice")));
            }
            words.push((word, value.span()));
        }
        Ok(Some(words))
    }

    /// A table.
    pub(super) fn section(&self, key: &str) -> Result<Option<Self>, PlanError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.get_ref().as_table() {
            Some(table) => Ok(Some(Self::new(self.text, table))),
            None => Err(self.wrong(key, value, "a table")),
        }
    }

    /// Tables: `[[key]]`, each with its place.
    pub(super) fn sections(&self, key: &str) -> Result<Vec<Placed<Self>>, PlanError> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let Some(array) = value.get_ref().as_array() else {
            return Err(self.wrong(key, value, &format!("tables with the heading [[{key}]]")));
        };
        let mut sections = Vec::new();
        for entry in array.iter() {
            match entry.get_ref().as_table() {
                Some(table) => sections.push((Self::new(self.text, table), entry.span())),
                None => return Err(self.wrong(key, entry, "a table")),
            }
        }
        Ok(sections)
    }
}

/// `4096`, `512K`, `2G`: powers of 1024.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("512M", Some(512 << 20)),
            ("2GiB", Some(2 << 30)),
            ("0", None),
            ("G", None),
            ("1.5G", None),
            ("99999999T", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
