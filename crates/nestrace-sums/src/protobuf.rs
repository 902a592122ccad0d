//! A snapshot as Prometheus reads it with native histograms: its protobuf format, `MetricFamily` after `MetricFamily`, each behind
//! its length.
//!
//! Histograms have native buckets, and the same classic ones as the text. A family's name is that of its series: a
//! counter's ends in `_total`.

use prost::Message;

use crate::native::{Native, SCHEMA, Span, ZERO_THRESHOLD_NS};
use crate::series::{Labels, Values, classic, count, each, printable};
use crate::snapshot::{LayerSums, Snapshot};

/// The type that a scrape's answer has.
pub const CONTENT_TYPE: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// `io.prometheus.client` of Prometheus' `client_model` (`io/prometheus/client/metrics.proto`), as far as it is used here.
mod message {
    /// A name and a value.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LabelPair {
        #[prost(string, optional, tag = "1")]
        pub name: Option<String>,
        #[prost(string, optional, tag = "2")]
        pub value: Option<String>,
    }

    /// What a family's metrics are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
    #[repr(i32)]
    pub enum MetricType {
        Counter = 0,
        Gauge = 1,
        Histogram = 4,
    }

    /// A counter or a gauge: both have their value as field 1.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Value {
        #[prost(double, optional, tag = "1")]
        pub value: Option<f64>,
    }

    /// A classic bucket.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Bucket {
        #[prost(uint64, optional, tag = "1")]
        pub cumulative_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub upper_bound: Option<f64>,
    }

    /// Native buckets that follow one another.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct BucketSpan {
        #[prost(sint32, optional, tag = "1")]
        pub offset: Option<i32>,
        #[prost(uint32, optional, tag = "2")]
        pub length: Option<u32>,
    }

    /// A histogram, with both kinds of buckets.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Histogram {
        #[prost(uint64, optional, tag = "1")]
        pub sample_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub sample_sum: Option<f64>,
        #[prost(message, repeated, tag = "3")]
        pub bucket: Vec<Bucket>,
        #[prost(sint32, optional, tag = "5")]
        pub schema: Option<i32>,
        #[prost(double, optional, tag = "6")]
        pub zero_threshold: Option<f64>,
        #[prost(uint64, optional, tag = "7")]
        pub zero_count: Option<u64>,
        #[prost(message, repeated, tag = "12")]
        pub positive_span: Vec<BucketSpan>,
        #[prost(sint64, repeated, packed = "false", tag = "13")]
        pub positive_delta: Vec<i64>,
    }

    /// A series.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Metric {
        #[prost(message, repeated, tag = "1")]
        pub label: Vec<LabelPair>,
        #[prost(message, optional, tag = "2")]
        pub gauge: Option<Value>,
        #[prost(message, optional, tag = "3")]
        pub counter: Option<Value>,
        #[prost(message, optional, tag = "7")]
        pub histogram: Option<Histogram>,
    }

    /// The series of one name.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct MetricFamily {
        #[prost(string, optional, tag = "1")]
        pub name: Option<String>,
        #[prost(string, optional, tag = "2")]
        pub help: Option<String>,
        #[prost(enumeration = "MetricType", optional, tag = "3")]
        pub r#type: Option<i32>,
        #[prost(message, repeated, tag = "4")]
        pub metric: Vec<Metric>,
    }
}

use message::{Bucket, BucketSpan, Histogram, LabelPair, Metric, MetricFamily, MetricType, Value};

/// The bytes of a snapshot.
#[must_use]
pub fn delimited(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    let of_each = |metrics: &dyn Fn(&Labels<'_>, &Values<'_>, &mut Vec<Metric>)| {
        let mut all = Vec::new();
        each(snapshot, |labels, values| metrics(labels, values, &mut all));
        all
    };
    let out = &mut bytes;
    let histograms = of_each(&|labels, values, all| {
        for (layer, sums) in values.layers {
            if let Some(sums) = sums {
                let label = [pairs(labels), vec![pair("layer", layer)]].concat();
                all.push(Metric {
                    label,
                    histogram: Some(histogram(sums)),
                    ..Metric::default()
                });
            }
        }
    });
    let io = ("nestrace_io_seconds", "Latency of I/O by layer.");
    family(out, io, MetricType::Histogram, histograms);
    let n_bytes = of_each(&|labels, values, all| {
        all.push(counter(pairs(labels), values.bytes));
    });
    let io = ("nestrace_io_bytes_total", "Bytes of I/O that has ended.");
    family(out, io, MetricType::Counter, n_bytes);
    let in_flight = of_each(&|labels, values, all| {
        let n = values.in_flight;
        all.extend(n.map(|n| gauge(pairs(labels), n as f64)));
    });
    let in_flight_text = ("nestrace_in_flight", "I/O that has begun and not ended.");
    family(out, in_flight_text, MetricType::Gauge, in_flight);
    let oldest = of_each(&|labels, values, all| {
        if values.in_flight.is_some() {
            let ns = values.oldest_ns.unwrap_or(0);
            all.push(gauge(pairs(labels), seconds(ns)));
        }
    });
    let oldest_text = (
        "nestrace_oldest_seconds",
        "Age of the oldest I/O in flight; 0 where nothing is in flight.",
    );
    family(out, oldest_text, MetricType::Gauge, oldest);
    let lost = snapshot.lost.iter();
    let lost = lost.map(|(source, n)| counter(vec![pair("source", source)], *n));
    let lost_text = (
        "nestrace_events_lost_total",
        "I/O that could not be summed.",
    );
    family(out, lost_text, MetricType::Counter, lost.collect());
    bytes
}

/// Writes a family; Prometheus refuses one without a metric.
fn family(out: &mut Vec<u8>, text: (&str, &str), kind: MetricType, metric: Vec<Metric>) {
    if metric.is_empty() {
        return;
    }
    let (name, help) = text;
    let family = MetricFamily {
        name: Some(name.to_owned()),
        help: Some(help.to_owned()),
        r#type: Some(kind.into()),
        metric,
    };
    let bytes = family.encode_length_delimited_to_vec();
    out.extend_from_slice(&bytes);
}

fn histogram(sums: &LayerSums) -> Histogram {
    let native = Native::of(sums);
    let n = count(sums);
    let bucket = |below, bound| Bucket {
        cumulative_count: Some(below),
        upper_bound: Some(bound),
    };
    let span = |span: &Span| BucketSpan {
        offset: Some(span.offset),
        length: Some(span.length),
    };
    let finite = classic(sums).map(|(bound, below)| bucket(below, seconds(bound)));
    Histogram {
        sample_count: Some(n),
        sample_sum: Some(seconds(sums.sum_ns)),
        bucket: finite
            .chain(std::iter::once(bucket(n, f64::INFINITY)))
            .collect(),
        schema: Some(SCHEMA.into()),
        zero_threshold: Some(seconds(ZERO_THRESHOLD_NS)),
        zero_count: Some(native.zero_count),
        positive_span: native.spans.iter().map(span).collect(),
        positive_delta: native.deltas,
    }
}

fn counter(label: Vec<LabelPair>, value: u64) -> Metric {
    Metric {
        label,
        counter: Some(Value {
            value: Some(value as f64),
        }),
        ..Metric::default()
    }
}

fn gauge(label: Vec<LabelPair>, value: f64) -> Metric {
    Metric {
        label,
        gauge: Some(Value { value: Some(value) }),
        ..Metric::default()
    }
}

fn pairs(labels: &Labels<'_>) -> Vec<LabelPair> {
    let present = labels.present();
    present.map(|(name, value)| pair(name, value)).collect()
}

fn pair(name: &str, value: &str) -> LabelPair {
    LabelPair {
        name: Some(name.to_owned()),
        value: Some(printable(value).collect()),
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use nestrace_abi::histogram::{BUCKETS, bucket_of};

    use super::*;
    use crate::snapshot::{DeviceSums, Op};

    fn snapshot(latencies: &[u64]) -> Snapshot {
        let mut buckets = vec![0; BUCKETS];
        for ns in latencies {
            buckets[bucket_of(*ns)] += 1;
        }
        let sums = LayerSums {
            n: latencies.len() as u64,
            sum_ns: latencies.iter().sum(),
            max_ns: None,
            buckets,
        };
        Snapshot {
            at_unix_ns: 1,
            lost: [("block".to_owned(), 2)].into(),
            disks: Vec::new(),
            devices: vec![DeviceSums {
                device: "sd\"a".to_owned(),
                op: Op::Write,
                n: sums.n,
                bytes: 12288,
                host_queue: None,
                latency: Some(sums),
                in_flight: Some(1),
                oldest_ns: Some(1_500_000_000),
            }],
        }
    }

    /// The fields of a message by their number, as the wire format has them: independent of the messages above.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let field = match key & 7 {
                0 => Field::Varint(varint(&mut bytes)),
                1 => {
                    let (word, rest) = bytes.split_at(8);
                    bytes = rest;
                    Field::Double(f64::from_le_bytes(word.try_into().unwrap()))
                }
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (content, rest) = bytes.split_at(length);
                    bytes = rest;
                    Field::Bytes(content)
                }
                other => panic!("wire type {other}"),
            };
            found.push((key >> 3, field));
        }
        found
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Field<'b> {
        Varint(u64),
        Double(f64),
        Bytes(&'b [u8]),
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                break;
            }
        }
        value
    }

    fn zigzag(value: u64) -> i64 {
        (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
    }

    fn content<'b>(fields: &[(u64, Field<'b>)], number: u64) -> Vec<&'b [u8]> {
        let of_number = fields.iter().filter(|(found, _)| *found == number);
        let bytes = of_number.map(|(_, field)| match field {
            Field::Bytes(bytes) => *bytes,
            other => panic!("{other:?}"),
        });
        bytes.collect()
    }

    fn families(mut bytes: &[u8]) -> Vec<(String, Vec<(u64, Field<'_>)>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let length = varint(&mut bytes) as usize;
            let (family, rest) = bytes.split_at(length);
            bytes = rest;
            let family = fields(family);
            let name = String::from_utf8(content(&family, 1)[0].to_vec()).unwrap();
            found.push((name, family));
        }
        found
    }

    #[test]
    fn the_wire_format_is_that_of_metrics_proto() {
        let bytes = delimited(&snapshot(&[500, 1_000_000, 1_000_000, 3_000_000_000]));
        let families = families(&bytes);
        let names: Vec<&str> = families.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            "nestrace_io_seconds",
            "nestrace_io_bytes_total",
            "nestrace_in_flight",
            "nestrace_oldest_seconds",
            "nestrace_events_lost_total",
        ];
        assert_eq!(names, expected);
        let types: Vec<_> = families
            .iter()
            .flat_map(|(_, family)| family.iter().filter(|(number, _)| *number == 3))
            .map(|(_, field)| *field)
            .collect();
        assert_eq!(types, [4, 0, 1, 1, 0].map(Field::Varint));
        let metric = |family: usize| fields(content(&families[family].1, 4)[0]);
        let histogram = metric(0);
        let labels: Vec<_> = content(&histogram, 1)
            .into_iter()
            .map(|pair| {
                let pair = fields(pair);
                let text = |number| String::from_utf8_lossy(content(&pair, number)[0]).into_owned();
                format!("{}={}", text(1), text(2))
            })
            .collect();
        assert_eq!(labels, ["device=sd\"a", "op=write", "layer=device"]);
        let histogram = fields(content(&histogram, 7)[0]);
        let one = |number: u64| histogram.iter().find(|(it, _)| *it == number).unwrap().1;
        assert_eq!(one(1), Field::Varint(4));
        assert_eq!(one(2), Field::Double(3.002_000_5));
        assert_eq!(one(5), Field::Varint(8), "4 in zigzag");
        assert_eq!(one(6), Field::Double(0.000_001_024));
        assert_eq!(one(7), Field::Varint(1));
        let classic = content(&histogram, 3);
        assert_eq!(classic.len(), 30);
        let last = fields(classic[29]);
        let expected = [(1, Field::Varint(4)), (2, Field::Double(f64::INFINITY))];
        assert_eq!(last, expected);
        let spans: Vec<_> = content(&histogram, 12)
            .into_iter()
            .flat_map(fields)
            .map(|(_, field)| field)
            .collect();
        // -159 is 317 in zigzag; 184 buckets lie between.
        assert_eq!(spans, [317, 1, 368, 1].map(Field::Varint));
        let deltas: Vec<i64> = histogram
            .iter()
            .filter_map(|(number, field)| match field {
                Field::Varint(value) if *number == 13 => Some(zigzag(*value)),
                _ => None,
            })
            .collect();
        assert_eq!(deltas, [2, -1]);
        let value = |family, number| fields(content(&metric(family), number)[0])[0];
        assert_eq!(value(1, 3), (1, Field::Double(12288.0)));
        assert_eq!(value(2, 2), (1, Field::Double(1.0)));
        assert_eq!(value(3, 2), (1, Field::Double(1.5)));
        assert_eq!(value(4, 3), (1, Field::Double(2.0)));
    }

    #[test]
    fn an_empty_histogram_is_native_too() {
        let bytes = delimited(&snapshot(&[]));
        let mut rest = &bytes[..];
        let family = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        let histogram = family.metric[0].histogram.clone().unwrap();
        assert_eq!(histogram.sample_count, Some(0));
        assert_eq!(histogram.zero_count, Some(0));
        // By this Prometheus knows a native one without buckets.
        assert!(histogram.zero_threshold > Some(0.0));
        assert_eq!(histogram.positive_span, []);
    }

    #[test]
    fn no_family_is_empty() {
        let bytes = delimited(&Snapshot::default());
        assert!(bytes.is_empty());
    }
}
