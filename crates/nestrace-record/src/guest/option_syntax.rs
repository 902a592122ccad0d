//! The two syntaxes in which QEMU takes an option's value: `key=value,…` and JSON.
//!
//! Both end as the same [`Value`], so that whoever reads a `-blockdev` does not care who wrote it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use serde_json::{Map, Value};

/// Splits `key=value,…` as QEMU does: `,,` in a value is a comma, the first part without `=` is the
/// value of the `implied` key, any other bare word is `word=on` (`noword` is `word=off`).
#[must_use]
pub fn split(text: &str, implied: Option<&str>) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    let mut first = true;
    while !rest.is_empty() {
        let (key, tail) = rest.split_at(rest.find(['=', ',']).unwrap_or(rest.len()));
        match (tail.strip_prefix('='), implied.filter(|_| first)) {
            (Some(value), _) => {
                let (value, tail) = take_value(value);
                pairs.push((key.to_owned(), value));
                rest = tail;
            }
            (None, Some(implied)) => {
                let (value, tail) = take_value(rest);
                pairs.push((implied.to_owned(), value));
                rest = tail;
            }
            (None, None) => {
                pairs.push(bare_word(key));
                rest = tail.strip_prefix(',').unwrap_or("");
            }
        }
        first = false;
    }
    pairs
}

/// `wait` is `wait=on`, `nowait` is `wait=off`.
fn bare_word(word: &str) -> (String, String) {
    match word.strip_prefix("no") {
        Some(stem) if !stem.is_empty() && word != "node" => (stem.to_owned(), "off".to_owned()),
        _ => (word.to_owned(), "on".to_owned()),
    }
}

/// The value up to a single comma, with `,,` made one, and what follows.
fn take_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(',') {
        value.push_str(before);
        rest = after;
        match rest.strip_prefix(',') {
            Some(tail) => {
                value.push(',');
                rest = tail;
            }
            None => return (value, rest),
        }
    }
    value.push_str(rest);
    (value, "")
}

/// The last value of `key`, as QEMU takes it.
#[must_use]
pub fn last<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs
        .iter()
        .rev()
        .find(|(k, _)| k == key)
        .map(|(_, v)| v.as_str())
}

/// An option's argument, JSON or `key=value`, as one object; dotted keys (`file.filename=…`) are
/// nested. `None` where JSON does not parse to an object.
#[must_use]
pub fn object(text: &str, implied: Option<&str>) -> Option<Map<String, Value>> {
    if text.trim_start().starts_with('{') {
        return match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Some(map),
            _ => None,
        };
    }
    let mut map = Map::new();
    for (key, value) in split(text, implied) {
        insert_dotted(&mut map, &key, value);
    }
    Some(map)
}

/// How deep dotted keys may nest; QEMU's own chains have a handful.
const MAX_DEPTH: usize = 32;

/// Puts `a.b.c = value` into nested objects. A later scalar wins over an earlier one; where a key is
/// both a scalar and an object (`file=x,file.locking=off`) the scalar becomes the object's `filename`.
pub fn insert_dotted(map: &mut Map<String, Value>, key: &str, value: String) {
    let mut map = map;
    let mut parts = key.splitn(MAX_DEPTH, '.').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            match map.get_mut(part) {
                Some(Value::Object(inner)) => {
                    inner.insert("filename".to_owned(), Value::String(value));
                }
                _ => {
                    map.insert(part.to_owned(), Value::String(value));
                }
            }
            return;
        }
        let slot = map
            .entry(part.to_owned())
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::String(name) = slot {
            let mut inner = Map::new();
            inner.insert("filename".to_owned(), Value::String(std::mem::take(name)));
            *slot = Value::Object(inner);
        }
        let Value::Object(inner) = slot else { return };
        map = inner;
    }
}

/// A scalar as text; `None` for objects, arrays and null.
#[must_use]
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Bool(b) => Some(if *b { "on" } else { "off" }.to_owned()),
        Value::Number(n) => Some(n.to_string()),
        _ => None,
    }
}

/// A number of bytes, with one of QEMU's suffixes or none.
#[must_use]
pub fn bytes(value: &Value) -> Option<u64> {
    let text = text(value)?;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" | "b" | "B" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A switch in any of QEMU's spellings.
#[must_use]
pub fn switch(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(b) => Some(*b),
        Value::String(s) => match s.as_str() {
            "on" | "yes" | "true" | "y" => Some(true),
            "off" | "no" | "false" | "n" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// The scalar at a path of keys, as text.
#[must_use]
pub fn text_at(map: &Map<String, Value>, path: &[&str]) -> Option<String> {
    text(at(map, path)?)
}

/// The number of bytes at a path of keys.
#[must_use]
pub fn bytes_at(map: &Map<String, Value>, path: &[&str]) -> Option<u64> {
    bytes(at(map, path)?)
}

/// The switch at a path of keys; a flat dotted key (`"cache.direct"`) is found too.
#[must_use]
pub fn switch_at(map: &Map<String, Value>, path: &[&str]) -> Option<bool> {
    at(map, path)
        .or_else(|| map.get(&path.join(".")))
        .and_then(switch)
}

fn at<'a>(map: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let mut value = map.get(*first)?;
    for key in rest {
        value = value.as_object()?.get(*key)?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes_have_qemus_suffixes() {
        let read = |text: &str| bytes(&Value::String(text.to_owned()));
        assert_eq!(read("4096"), Some(4096));
        assert_eq!(read("1M"), Some(1 << 20));
        assert_eq!(read("512b"), Some(512));
        assert_eq!(read("2g"), Some(2 << 30));
        assert_eq!(bytes(&Value::from(65536)), Some(65536));
        for text in ["", "M", "1Q", "-1", "99999999999T", "1MM"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    fn check(text: &str, implied: Option<&str>, expected: &str) {
        let got: Vec<String> = split(text, implied)
            .into_iter()
            .map(|(k, v)| format!("{k}→{v}"))
            .collect();
        assert_eq!(got.join(" "), expected, "{text}");
    }

    #[test]
    fn key_value_lists_split_as_qemu_splits_them() {
        check("file=a.img,if=virtio", None, "file→a.img if→virtio");
        check("file=a,,b.img,if=none", None, "file→a,b.img if→none");
        check("file=a,,,if=none", None, "file→a, if→none");
        check("file=,,,,", None, "file→,,");
        check("file=a=b", None, "file→a=b");
        check("vm1", Some("guest"), "guest→vm1");
        check(
            "vm1,,x,debug-threads=on",
            Some("guest"),
            "guest→vm1,x debug-threads→on",
        );
        check(
            "guest=vm1,debug-threads=on",
            Some("guest"),
            "guest→vm1 debug-threads→on",
        );
        check(
            "socket,id=c,server,nowait",
            Some("backend"),
            "backend→socket id→c server→on wait→off",
        );
        check("a=1,a=2", None, "a→1 a→2");
        check("", Some("x"), "");
        check("=x", None, "→x");
        check("a=", None, "a→");
    }

    fn check_object(text: &str, expected: &str) {
        let got = object(text, Some("driver")).map(|m| Value::Object(m).to_string());
        assert_eq!(got.as_deref().unwrap_or("none"), expected, "{text}");
    }

    #[test]
    fn dotted_keys_nest() {
        check_object(
            "qcow2,file.driver=file,file.filename=a",
            r#"{"driver":"qcow2","file":{"driver":"file","filename":"a"}}"#,
        );
        check_object(
            "file=a,file.locking=off",
            r#"{"file":{"filename":"a","locking":"off"}}"#,
        );
        check_object(
            "file.locking=off,file=a",
            r#"{"file":{"filename":"a","locking":"off"}}"#,
        );
        check_object(
            r#"{"driver":"raw","file":"x"}"#,
            r#"{"driver":"raw","file":"x"}"#,
        );
        check_object("{broken", "none");
        check_object("[1]", r#"{"driver":"[1]"}"#);
        // Deep nesting ends, whatever the result.
        assert!(object(&"a.".repeat(500), None).is_some());
    }
}
