//! JSON Schemas of what the commands print, made from the types that serialize to it: `docs/*.schema.json`.

use nestrace_analyzer::{Analysis, compare, rule_ids};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};

use crate::{fleet, lab};

/// Holds for every key.
const RULES: &str =
    "Keys may be added; none is renamed or removed. null: not recorded or unknown, never 0.";

/// Of `nestrace analyze --format json`.
#[must_use]
pub fn analysis() -> String {
    let mut schema = schema_of::<Analysis>("nestrace analyze --format json");
    // The rules stand on a floor above the values.
    for of in ["Finding", "Unjudged"] {
        let id = schema.pointer_mut(&format!("/$defs/{of}/properties/id"));
        if let Some(id) = id.and_then(|id| id.as_object_mut()) {
            id.insert(String::from("enum"), rule_ids().into());
        }
    }
    text(&schema)
}

/// Of `nestrace compare --format json`.
#[must_use]
pub fn comparison() -> String {
    text(&schema_of::<compare::Comparison>(
        "nestrace compare --format json",
    ))
}

/// Of `report.json`, which `nestrace lab report` writes.
#[must_use]
pub fn lab_report() -> String {
    text(&schema_of::<lab::Comparison>(
        "nestrace lab report: report.json",
    ))
}

/// Of `nestrace fleet report --format json`.
#[must_use]
pub fn fleet_report() -> String {
    text(&schema_of::<fleet::FleetReport>(
        "nestrace fleet report --format json",
    ))
}

/// The schema of what `T` serializes to.
fn schema_of<T: JsonSchema>(title: &str) -> Schema {
    let generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    RecursiveTransform(describe).transform(&mut schema);
    schema.insert(String::from("title"), title.into());
    schema.insert(String::from("description"), RULES.into());
    schema
}

/// Descriptions are the documentation of the types: they are read without their links, and say `null` for `None`.
fn describe(schema: &mut Schema) {
    let Some(described) = schema.get("description").and_then(|text| text.as_str()) else {
        return;
    };
    let mut text = String::new();
    let mut parts = described.split("[`");
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once("`]").unwrap_or((part, ""));
        let rest = match rest.strip_prefix('(').and_then(|path| path.split_once(')')) {
            Some((_, rest)) => rest,
            None => rest,
        };
        let name = name.rsplit("::").next().unwrap_or(name);
        text.push_str(&format!("`{name}`{rest}"));
    }
    let text = text.replace("`None`", "`null`");
    schema.insert(String::from("description"), text.into());
}

/// Indented, with a final newline.
fn text(schema: &Schema) -> String {
    let mut text = serde_json::to_string_pretty(schema).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_no_links() {
        for (text, expected) in [
            (
                "Like [`Self::n`], `None` if unknown.",
                "Like `n`, `null` if unknown.",
            ),
            (
                "As [`figures`](crate::a::figures) say.",
                "As `figures` say.",
            ),
            ("plain", "plain"),
        ] {
            let mut schema = schemars::json_schema!({ "description": text });
            describe(&mut schema);
            assert_eq!(
                schema.get("description").and_then(|it| it.as_str()),
                Some(expected)
            );
        }
    }
}
