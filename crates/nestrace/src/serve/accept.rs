//! Which format a scrape asks for, by its `Accept` headers. Text is what everybody gets who does not ask for protobuf.

use nestrace_sums::{metrics, protobuf};

/// What a scrape is answered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics text, with classic histograms.
    Text,
    /// Prometheus' protobuf, with classic and native ones.
    Protobuf,
}

/// Ranges of a request that are looked at.
const MAX_RANGES: usize = 32;

/// A range of media types in an `Accept` header.
struct Range<'h> {
    kind: &'h str,
    parameters: Vec<(&'h str, &'h str)>,
    weight: f32,
}

impl<'h> Range<'h> {
    fn parse(text: &'h str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let mut range = Self {
            kind,
            parameters: Vec::new(),
            weight: 1.0,
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("q") {
                // A weight that is none: the range is not wanted.
                range.weight = value
                    .parse()
                    .ok()
                    .filter(|q| (0.0..=1.0).contains(q))
                    .unwrap_or(0.0);
            } else {
                range.parameters.push((name, value));
            }
        }
        range
    }

    fn is(&self, kind: &str) -> bool {
        self.kind.eq_ignore_ascii_case(kind)
    }

    fn has(&self, name: &str, value: &str) -> bool {
        let is_it = |(found, of): &(&str, &str)| found.eq_ignore_ascii_case(name) && *of == value;
        self.parameters.iter().any(is_it)
    }

    /// Protobuf that is meant: all of this type have another message or another framing.
    fn is_protobuf(&self) -> bool {
        self.is("application/vnd.google.protobuf")
            && self.has("proto", "io.prometheus.client.MetricFamily")
            && self.has("encoding", "delimited")
    }

    /// Text that is named: Prometheus' own is near enough.
    fn is_text(&self) -> bool {
        self.is("application/openmetrics-text") || self.is("text/plain")
    }
}

impl Format {
    /// Protobuf where it is named and weighs more than each text that is named, else text. A range with `*` names nothing.
    pub fn accepted<'h>(headers: impl Iterator<Item = &'h str>) -> Self {
        let ranges = headers.flat_map(|header| header.split(','));
        let (mut protobuf, mut text) = (0.0_f32, 0.0_f32);
        for range in ranges.take(MAX_RANGES).map(Range::parse) {
            if range.is_protobuf() {
                protobuf = protobuf.max(range.weight);
            } else if range.is_text() {
                text = text.max(range.weight);
            }
        }
        if protobuf > text {
            Self::Protobuf
        } else {
            Self::Text
        }
    }

    /// The header of the answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => metrics::CONTENT_TYPE,
            Self::Protobuf => protobuf::CONTENT_TYPE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

    fn check(header: &str, expected: Format) {
        let header = header.replace("PROTOBUF", PROTOBUF);
        assert_eq!(
            Format::accepted(std::iter::once(header.as_str())),
            expected,
            "{header}"
        );
    }

    #[test]
    fn what_is_asked_for_is_given() {
        // Prometheus 2.42 with native histograms, 3 with them, 2.42 without.
        check(
            "PROTOBUF,application/openmetrics-text;version=1.0.0;q=0.8,\
             application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format::Protobuf,
        );
        check(
            "PROTOBUF;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.2",
            Format::Protobuf,
        );
        check(
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format::Text,
        );
        check("PROTOBUF", Format::Protobuf);
        check(
            "Application/vnd.Google.protobuf; proto=\"io.prometheus.client.MetricFamily\"; Encoding=delimited",
            Format::Protobuf,
        );
        check("PROTOBUF;q=0.3, */*", Format::Protobuf);
    }

    #[test]
    fn everybody_else_gets_text() {
        for header in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/*",
            "PROTOBUF;q=0",
            "PROTOBUF;q=much",
            "PROTOBUF;q=NaN",
            "PROTOBUF;q=2",
            "PROTOBUF;q=0.5,text/plain;q=0.6",
            "PROTOBUF;q=0.5,text/plain;q=0.5",
            "application/vnd.google.protobuf",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
            "application/vnd.google.protobuf;proto=another.Message;encoding=delimited",
            ";;;,,,=;q=",
        ] {
            check(header, Format::Text);
        }
        assert_eq!(Format::accepted(std::iter::empty()), Format::Text);
    }

    #[test]
    fn headers_add_up() {
        let headers = ["text/plain;q=0.5", PROTOBUF];
        assert_eq!(Format::accepted(headers.into_iter()), Format::Protobuf);
    }
}
