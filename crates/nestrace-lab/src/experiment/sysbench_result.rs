//! Reads what `sysbench --histogram=on run` prints.

use nestrace_report::lab::Latency;

/// What sysbench says of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SysbenchResult {
    /// What is counted: `transaction`, or fileio's `request`.
    pub(super) what: &'static str,
    /// How many of these per second; fileio's syncs do not count.
    pub(super) per_second: f64,
    /// Seconds that it measured.
    pub(super) elapsed_s: f64,
    /// Of a transaction, or of a request or sync. Percentiles are those of its histogram, whose steps are some 2 %.
    pub(super) latency: Latency,
}

impl SysbenchResult {
    /// Reads it; `None` if there is no result in it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (what, per_second) = match transactions(text) {
            Some(rate) => ("transaction", rate),
            None => ("request", requests(text)?),
        };
        let seconds = field(text, "total time:")?.trim_end_matches('s');
        let buckets = buckets(text);
        let at = |share: f64| percentile(&buckets, share);
        let milliseconds = |name| -> Option<f64> { field(text, name)?.parse().ok() };
        Some(Self {
            what,
            per_second,
            elapsed_s: seconds.parse().ok()?,
            latency: Latency {
                n: field(text, "total number of events:")?.parse().ok()?,
                mean_ns: (milliseconds("avg:")? * 1e6).round(),
                p50_ns: at(0.5),
                p90_ns: at(0.9),
                p99_ns: at(0.99),
                p999_ns: at(0.999),
                max_ns: (milliseconds("max:")? * 1e6).round() as u64,
            },
        })
        .filter(|result| result.per_second > 0.0)
    }
}

/// `transactions:   3067   (306.52 per sec.)`
fn transactions(text: &str) -> Option<f64> {
    let (_, rate) = field(text, "transactions:")?.split_once('(')?;
    rate.split_whitespace().next()?.parse().ok()
}

/// `reads/s:   41.83` and `writes/s:   27.89`
fn requests(text: &str) -> Option<f64> {
    let rate = |name: &str| field(text, name)?.parse::<f64>().ok();
    Some(rate("reads/s:")? + rate("writes/s:")?)
}

/// What stands behind a name, in the line that begins with it.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.trim().strip_prefix(name).map(str::trim))
}

/// `       8.126 |**********                  12`: milliseconds and how many.
fn buckets(text: &str) -> Vec<(f64, u64)> {
    let bucket = |line: &str| {
        let (value, rest) = line.split_once('|')?;
        let n = rest.split_whitespace().next_back()?;
        Some((value.trim().parse().ok()?, n.parse().ok()?))
    };
    text.lines().filter_map(bucket).collect()
}

/// The bucket below which, itself included, so large a share is, ns.
fn percentile(buckets: &[(f64, u64)], share: f64) -> u64 {
    let all: u64 = buckets.iter().map(|(_, n)| n).sum();
    let wanted = (all as f64 * share).ceil() as u64;
    let mut below = 0;
    for (value, n) in buckets {
        below += n;
        if below >= wanted {
            return (value * 1e6).round() as u64;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As sysbench 1.0.20 prints it.
    const TEXT: &str = "sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)\n\
        \n\
        Latency histogram (values are in milliseconds)\n\
        \x20      value  ------------- distribution ------------- count\n\
        \x20      1.000 |****************************************  50\n\
        \x20      2.000 |********************************          40\n\
        \x20      8.126 |*                                         10\n\
        \x20\n\
        SQL statistics:\n\
        \x20   queries performed:\n\
        \x20       read:                            1400\n\
        \x20   transactions:                        100    (33.29 per sec.)\n\
        \x20   queries:                             2000   (665.80 per sec.)\n\
        \n\
        General statistics:\n\
        \x20   total time:                          3.0037s\n\
        \x20   total number of events:              100\n\
        \n\
        Latency (ms):\n\
        \x20        min:                                    0.90\n\
        \x20        avg:                                    2.05\n\
        \x20        max:                                    9.50\n\
        \x20        95th percentile:                        8.13\n\
        \x20        sum:                                  205.00\n";

    #[test]
    fn rate_and_latencies_are_read() {
        let result = SysbenchResult::parse(TEXT).unwrap();
        assert_eq!((result.per_second, result.elapsed_s), (33.29, 3.0037));
        assert_eq!(result.what, "transaction");
        let latency = result.latency;
        assert_eq!((latency.n, latency.mean_ns), (100, 2_050_000.0));
        assert_eq!((latency.p50_ns, latency.p90_ns), (1_000_000, 2_000_000));
        assert_eq!((latency.p99_ns, latency.max_ns), (8_126_000, 9_500_000));
    }

    /// As sysbench 1.0.20 prints it.
    const FILE_IO: &str = "Latency histogram (values are in milliseconds)\n\
        \x20      value  ------------- distribution ------------- count\n\
        \x20      0.500 |****************************************  70\n\
        \n\
        File operations:\n\
        \x20   reads/s:                      41.83\n\
        \x20   writes/s:                     27.89\n\
        \x20   fsyncs/s:                     1.00\n\
        \n\
        Throughput:\n\
        \x20   read, MiB/s:                  0.65\n\
        \x20   written, MiB/s:               0.44\n\
        \n\
        General statistics:\n\
        \x20   total time:                          1.0040s\n\
        \x20   total number of events:              70\n\
        \n\
        Latency (ms):\n\
        \x20        min:                                    0.10\n\
        \x20        avg:                                    0.45\n\
        \x20        max:                                    9.50\n";

    #[test]
    fn requests_of_fileio_are_reads_and_writes() {
        let result = SysbenchResult::parse(FILE_IO).unwrap();
        assert_eq!((result.what, result.elapsed_s), ("request", 1.004));
        assert!((result.per_second - 69.72).abs() < 1e-9);
        assert_eq!((result.latency.n, result.latency.p99_ns), (70, 500_000));
    }

    #[test]
    fn a_run_that_did_nothing_is_no_result() {
        assert_eq!(SysbenchResult::parse(""), None);
        assert_eq!(SysbenchResult::parse("FATAL: unable to connect"), None);
        let nothing = TEXT.replace("100    (33.29", "0      (0.00");
        assert_eq!(SysbenchResult::parse(&nothing), None);
    }
}
