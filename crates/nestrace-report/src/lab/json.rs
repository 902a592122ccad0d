//! A comparison for programs.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Comparison, Explanation};

/// One JSON object, with a newline at its end.
#[must_use]
pub fn render(comparison: &Comparison) -> String {
    let mut text = serde_json::to_string_pretty(comparison).unwrap_or_default();
    text.push('\n');
    text
}

/// What the recordings said when an earlier report was made, by cell: they are large, and may be gone since. Nothing where
/// the text is no such report.
#[must_use]
pub fn explanations(text: &str) -> BTreeMap<String, Explanation> {
    #[derive(Deserialize)]
    struct Row {
        id: String,
        explanation: Option<Explanation>,
    }
    #[derive(Deserialize)]
    struct Report {
        rows: Vec<Row>,
    }
    let report: Option<Report> = serde_json::from_str(text).ok();
    let rows = report.into_iter().flat_map(|report| report.rows);
    rows.filter_map(|row| Some((row.id, row.explanation?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Results};
    use super::*;

    #[test]
    fn what_recordings_said_is_read_back() {
        let explanation = Explanation {
            q2c_mean_ns: Some(5.0),
            lost: 3,
            ..Explanation::default()
        };
        let cell = |id: &str| Cell {
            id: id.to_owned(),
            ..Cell::default()
        };
        let explanations = BTreeMap::from([(String::from("a"), explanation)]);
        let results = Results {
            cells: vec![cell("a"), cell("b")],
            explanations: explanations.clone(),
            ..Results::default()
        };
        let text = render(&Comparison::new(&results));
        assert_eq!(super::explanations(&text), explanations);
        assert!(super::explanations("{}").is_empty());
    }
}
