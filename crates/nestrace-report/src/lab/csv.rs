//! A comparison as a table for spreadsheets: a line for each cell.

use super::Comparison;
use super::comparison::{Row, distinct};

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
        ",metric,n,value,value_min,value_max,relative,relative_min,relative_max,verdict,\
         operation,latency_mean_ns,latency_p50_ns,latency_p99_ns,relative_latency,\
         guest_cpu_user,guest_cpu_system,guest_cpu_iowait,host_cpu_user,host_cpu_system,host_cpu_iowait,\
         host_disk_utilisation,write_amplification,recorded_relative,recording\n",
    );
    for row in rows {
        text.push_str(&line(row, &axes));
        text.push('\n');
    }
    text
}

fn line(row: &Row, axes: &[&str]) -> String {
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
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    fields.push(word(metric));
    fields.push(
        row.value
            .map_or_else(String::new, |value| value.n.to_string()),
    );
    for spread in [row.value, row.relative] {
        fields.push(number(spread.map(|spread| spread.median)));
        fields.push(number(spread.map(|spread| spread.min)));
        fields.push(number(spread.map(|spread| spread.max)));
    }
    fields.push(word(verdict));
    let latency = row.main_latency();
    fields.push(latency.map_or_else(String::new, |(name, _)| name.to_owned()));
    fields.push(number(latency.map(|(_, latency)| latency.mean_ns)));
    fields.push(number(latency.map(|(_, latency)| latency.p50_ns as f64)));
    fields.push(number(latency.map(|(_, latency)| latency.p99_ns as f64)));
    fields.push(number(row.relative_latency));
    let shares = row.guest_cpu.iter().chain(&row.host_cpu);
    fields.extend(shares.map(f64::to_string));
    fields.push(row.host_disk_utilisation.to_string());
    fields.push(number(row.write_amplification));
    fields.push(number(row.recorded_relative));
    fields.push(row.recording.clone().unwrap_or_default());
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
