//! A comparison as a table for spreadsheets: a line for each cell.

use std::collections::{BTreeMap, BTreeSet};

use super::comparison::{Row, distinct};
use super::{Comparison, Counters, Explanation, Latency, Spread};

/// A column's name, and its field of a part of a cell.
type Column<T> = (&'static str, fn(&T) -> String);

/// Counters of a side by name, as in JSON.
const COUNTERS: [Column<Counters>; 13] = [
    ("seconds", |c| or_empty(c.seconds)),
    ("cpu_user", |c| c.cpu_user.to_string()),
    ("cpu_system", |c| c.cpu_system.to_string()),
    ("cpu_iowait", |c| c.cpu_iowait.to_string()),
    ("context_switches", |c| c.context_switches.to_string()),
    ("paged_in_kib", |c| c.paged_in_kib.to_string()),
    ("paged_out_kib", |c| c.paged_out_kib.to_string()),
    ("disk_reads", |c| c.disk_reads.to_string()),
    ("disk_writes", |c| c.disk_writes.to_string()),
    ("disk_read_bytes", |c| c.disk_read_bytes.to_string()),
    ("disk_write_bytes", |c| c.disk_write_bytes.to_string()),
    ("disk_flushes", |c| c.disk_flushes.to_string()),
    ("disk_utilisation", |c| c.disk_utilisation.to_string()),
];
/// Figures of an operation's latency by name, as in JSON.
const LATENCIES: [Column<Latency>; 7] = [
    ("n", |l| l.n.to_string()),
    ("mean_ns", |l| l.mean_ns.to_string()),
    ("p50_ns", |l| l.p50_ns.to_string()),
    ("p90_ns", |l| l.p90_ns.to_string()),
    ("p99_ns", |l| l.p99_ns.to_string()),
    ("p999_ns", |l| l.p999_ns.to_string()),
    ("max_ns", |l| l.max_ns.to_string()),
];

/// What a recording says, by name.
const RECORDED: [Column<Explanation>; 6] = [
    ("recorded_q2c_mean_ns", |e| or_empty(e.q2c_mean_ns)),
    ("recorded_linked", |e| or_empty(e.linked)),
    ("recorded_amplification", |e| or_empty(e.amplification)),
    ("recorded_device_flushes", |e| or_empty(e.device_flushes)),
    ("recorded_lost", |e| e.lost.to_string()),
    ("findings", |e| {
        let ids: Vec<&str> = e.findings.iter().map(|one| one.id.as_str()).collect();
        ids.join(" ")
    }),
];

fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

type Latencies = BTreeMap<String, Latency>;
type LatenciesOf = fn(&Row) -> Option<&Latencies>;
/// The latencies of a row: the workload's, and its disk's in the recorded run.
const OF_ROW: [(&str, LatenciesOf); 2] = [
    ("", |row| Some(&row.latency)),
    ("recorded_disk_", |row| {
        row.explanation.as_ref().map(|told| &told.latency)
    }),
];

/// The table; numbers have a point, nothing is rounded away, cells without a value are empty.
#[must_use]
pub fn render(comparison: &Comparison) -> String {
    let rows = &comparison.rows;
    let axes = distinct(
        rows.iter()
            .flat_map(|row| row.axes.keys().map(String::as_str)),
    );
    let mut text = String::from("cell,baseline,workload");
    axes.iter()
        .for_each(|axis| text.push_str(&format!(",{axis}")));
    text.push_str(
        ",metric,n,value,value_min,value_max,values,relative,relative_min,relative_max,verdict,\
         relative_latency,write_amplification,recorded_relative,recording,failures",
    );
    for side in ["guest", "host"] {
        COUNTERS
            .iter()
            .for_each(|(name, _)| text.push_str(&format!(",{side}_{name}")));
    }
    RECORDED
        .iter()
        .for_each(|(name, _)| text.push_str(&format!(",{name}")));
    let segments = segments(rows);
    segments
        .iter()
        .for_each(|name| text.push_str(&format!(",recorded_{name}_mean_ns")));
    let operations = OF_ROW.map(|(prefix, of)| {
        let all = rows.iter().filter_map(of);
        let names: BTreeSet<&str> = all.flat_map(BTreeMap::keys).map(String::as_str).collect();
        for operation in &names {
            LATENCIES
                .iter()
                .for_each(|(name, _)| text.push_str(&format!(",{prefix}{operation}_{name}")));
        }
        names
    });
    text.push('\n');
    for row in rows {
        text.push_str(&line(row, &axes, &segments, &operations));
        text.push('\n');
    }
    text
}

/// Segments of any recording, in the order of the path as far as recordings agree on it.
fn segments(rows: &[Row]) -> Vec<&str> {
    let told = rows.iter().filter_map(|row| row.explanation.as_ref());
    distinct(told.flat_map(|told| told.segments.iter().map(|segment| segment.name.as_str())))
}

fn line(row: &Row, axes: &[&str], segments: &[&str], operations: &[BTreeSet<&str>; 2]) -> String {
    let mut fields = vec![
        row.id.clone(),
        row.baseline.clone().unwrap_or_default(),
        row.workload.clone(),
    ];
    fields.extend(axes.iter().map(|axis| row.word(axis).to_owned()));
    let metric = serde_json::to_value(row.metric).ok();
    let verdict = serde_json::to_value(row.verdict).ok();
    let word = |value: Option<serde_json::Value>| {
        let text = value.as_ref().and_then(serde_json::Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    fields.push(word(metric));
    fields.push(or_empty(row.value.map(|value| value.n)));
    let limits = |spread: Option<Spread>| {
        let of = |limit: fn(&Spread) -> f64| or_empty(spread.as_ref().map(limit));
        [of(|s| s.median), of(|s| s.min), of(|s| s.max)]
    };
    fields.extend(limits(row.value));
    let values: Vec<String> = row.values.iter().map(f64::to_string).collect();
    fields.push(values.join(" "));
    fields.extend(limits(row.relative));
    fields.push(word(verdict));
    fields.push(or_empty(row.relative_latency));
    fields.push(or_empty(row.write_amplification));
    fields.push(or_empty(row.recorded_relative));
    fields.push(row.recording.clone().unwrap_or_default());
    fields.push(row.failures.join("; "));
    for counters in [&row.guest, &row.host] {
        fields.extend(COUNTERS.iter().map(|(_, of)| of(counters)));
    }
    let told = row.explanation.as_ref();
    fields.extend(RECORDED.map(|(_, of)| told.map_or_else(String::new, of)));
    fields.extend(segments.iter().map(|name| {
        let mut own = told.iter().flat_map(|told| &told.segments);
        or_empty(own.find(|one| one.name == **name).map(|one| one.mean_ns))
    }));
    for ((_, of_row), operations) in OF_ROW.iter().zip(operations) {
        for operation in operations {
            let latency = of_row(row).and_then(|of| of.get(*operation));
            let of = |(_, of): &Column<Latency>| latency.map_or_else(String::new, of);
            fields.extend(LATENCIES.iter().map(of));
        }
    }
    let quoted = fields.iter().map(|field| quote(field));
    quoted.collect::<Vec<_>>().join(",")
}

fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!(quote("noatime,ro"), "\"noatime,ro\"");
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
        assert_eq!(quote("plain"), "plain");
    }
}
