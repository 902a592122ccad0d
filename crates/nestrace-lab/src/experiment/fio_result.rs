//! Reads fio's JSON.

use std::collections::BTreeMap;

use nestrace_report::lab::{Latency, Metric};
use serde_json::Value;

/// What fio says of all jobs of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FioResult {
    /// Bytes per second of reads and writes.
    pub(super) bytes_per_second: f64,
    /// Reads and writes per second.
    pub(super) operations_per_second: f64,
    /// Seconds that it measured.
    pub(super) elapsed_s: f64,
    /// `read`, `write`, `sync`.
    pub(super) latency: BTreeMap<String, Latency>,
}

impl FioResult {
    /// Reads what fio printed, which may begin with its warnings.
    ///
    /// # Errors
    /// There is no result in it; in a line, what there is.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let result = json(text).ok_or_else(|| {
            String::from(
                "fio left no JSON: an option such as --output sent it elsewhere, or it ended early",
            )
        })?;
        let jobs = result.get("jobs").and_then(Value::as_array);
        let mut sum = Self::default();
        for job in jobs.into_iter().flatten() {
            let error = job.get("error").and_then(Value::as_i64).unwrap_or(0);
            if error != 0 {
                let name = job.get("jobname").and_then(Value::as_str);
                let name = name.unwrap_or_default();
                return Err(format!("fio's job {name} ended with error {error}"));
            }
            sum.add(job);
        }
        if sum.operations_per_second > 0.0 {
            return Ok(sum);
        }
        Err(String::from("fio neither read nor wrote anything"))
    }

    fn add(&mut self, job: &Value) {
        let number =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        for operation in ["read", "write"] {
            let Some(part) = job.get(operation) else {
                continue;
            };
            self.bytes_per_second += number(part, "bw_bytes");
            self.operations_per_second += number(part, "iops");
            self.elapsed_s = self.elapsed_s.max(number(part, "runtime") / 1e3);
            self.note(operation, part.get("clat_ns"));
        }
        let sync = job.get("sync").and_then(|sync| sync.get("lat_ns"));
        self.note("sync", sync);
    }

    /// Several jobs of one operation: the mean over all, of percentiles the largest, which is an upper
    /// bound.
    fn note(&mut self, operation: &str, times: Option<&Value>) {
        let Some(times) = times else {
            return;
        };
        let number = |key: &str| times.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        let percentile = |key: &str| {
            let all = times.get("percentile");
            let value = all.and_then(|all| all.get(key)).and_then(Value::as_u64);
            value.unwrap_or(0)
        };
        let n = number("N") as u64;
        if n == 0 {
            return;
        }
        let latency = self.latency.entry(operation.to_owned()).or_default();
        let total = latency.n + n;
        latency.mean_ns =
            (latency.mean_ns * latency.n as f64 + number("mean") * n as f64) / total as f64;
        latency.n = total;
        latency.p50_ns = latency.p50_ns.max(percentile("50.000000"));
        latency.p90_ns = latency.p90_ns.max(percentile("90.000000"));
        latency.p99_ns = latency.p99_ns.max(percentile("99.000000"));
        latency.p999_ns = latency.p999_ns.max(percentile("99.900000"));
        latency.max_ns = latency.max_ns.max(number("max") as u64);
    }

    /// The value that a cell is compared by.
    pub(super) fn value(&self, metric: Metric) -> f64 {
        match metric {
            Metric::BytesPerSecond => self.bytes_per_second,
            Metric::OperationsPerSecond => self.operations_per_second,
            Metric::Seconds => self.elapsed_s,
        }
    }
}

/// The first object in a text.
fn json(text: &str) -> Option<Value> {
    let start = text.find('{')?;
    let mut values = serde_json::Deserializer::from_str(text.get(start..)?).into_iter();
    values.next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_summed_and_errors_are_no_results() {
        let part = |bw: u32, iops: f64, n: u32, mean: f64| {
            format!(
                "{{\"bw_bytes\":{bw},\"iops\":{iops},\"runtime\":2000,\"clat_ns\":{{\"N\":{n},\"mean\":{mean},\"max\":90,\"percentile\":{{\"99.000000\":70}}}}}}"
            )
        };
        let text = format!(
            "fio: a warning\n{{\"jobs\":[{{\"error\":0,\"read\":{},\"write\":{}}},{{\"error\":0,\"read\":{}}}]}}\nmore",
            part(1000, 1.0, 10, 40.0),
            part(500, 2.0, 0, 0.0),
            part(24, 3.0, 30, 80.0)
        );
        let result = FioResult::parse(&text).unwrap();
        assert_eq!(result.bytes_per_second, 1524.0);
        assert_eq!(result.value(Metric::OperationsPerSecond), 6.0);
        assert_eq!(result.elapsed_s, 2.0);
        let read = result.latency["read"];
        assert_eq!((read.n, read.mean_ns, read.p99_ns), (40, 70.0, 70));
        assert!(!result.latency.contains_key("write"));
        let failed = text.replace("\"error\":0", "\"jobname\":\"own\",\"error\":28");
        for (text, expected) in [
            (failed.as_str(), "fio's job own ended with error 28"),
            ("", "left no JSON"),
            ("{", "left no JSON"),
            ("fio: no space", "left no JSON"),
            ("{}", "neither read nor wrote"),
            ("{\"jobs\":[]}", "neither read nor wrote"),
        ] {
            let error = FioResult::parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
