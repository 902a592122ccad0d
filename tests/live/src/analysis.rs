//! Finds entries and numbers in the JSON of `analyze`; a key that is not there is an error.

use anyhow::{Context, bail};
use serde_json::Value;

/// The number at a JSON pointer.
pub fn number(entry: &Value, pointer: &str) -> anyhow::Result<u64> {
    let value = entry
        .pointer(pointer)
        .with_context(|| format!("find {pointer} in the analysis"))?;
    value
        .as_u64()
        .with_context(|| format!("read {pointer} of the analysis as a count: {value}"))
}

/// The only entry of an array whose keys have these values.
pub fn entry<'a>(
    analysis: &'a Value,
    array: &str,
    keys: &[(&str, &str)],
) -> anyhow::Result<&'a Value> {
    let all = analysis[array]
        .as_array()
        .with_context(|| format!("find {array}[] in the analysis"))?;
    let fits = |entry: &&Value| keys.iter().all(|(key, value)| entry[*key] == *value);
    let mut found = all.iter().filter(fits);
    match (found.next(), found.next()) {
        (Some(entry), None) => Ok(entry),
        (None, _) => bail!("find {array}[] with {keys:?} among {} entries", all.len()),
        _ => bail!("tell {array}[] with {keys:?} apart: there are several"),
    }
}
