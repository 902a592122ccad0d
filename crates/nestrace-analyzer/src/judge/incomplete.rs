//! Whether a recording is whole: the one definition that the head line, `--strict` and comparisons use.

use crate::Analysis;
use crate::result::analysis::{Device, Trace};
use crate::result::units::{count, of};

/// What is missing of a recording, in words, worst first; nothing where it is whole. Requests whose end was not seen
/// are [`ends_missed`].
#[must_use]
pub fn missing(trace: &Trace) -> Vec<String> {
    let mut missing = Vec::new();
    if trace.lost > 0 {
        missing.push(format!("{} LOST", count(trace.lost)));
    }
    let beside: u64 = trace
        .losses
        .iter()
        .filter(|loss| loss.source == "walk")
        .map(|loss| loss.events)
        .fold(0, u64::saturating_add);
    if beside > 0 {
        missing.push(of(
            beside,
            "request not followed whole",
            "requests not followed whole",
        ));
    }
    if !trace.unread.is_empty() {
        let n = trace.unread.len() as u64;
        missing.push(of(n, "stream MISSING", "streams MISSING"));
    }
    match (trace.truncated, trace.closed) {
        (true, Some(false)) => {
            missing.push("not closed: up to 0.5 s at the end are missing".to_owned());
        }
        (true, None) => missing.push("no manifest: its end is not known".to_owned()),
        (true, Some(true)) if trace.unread.is_empty() => {
            missing.push("cut: the end of a file is missing".to_owned());
        }
        _ => {}
    }
    if !trace.cut_guests.is_empty() {
        missing.push(format!("cut inside {}", trace.cut_guests.join(", ")));
    }
    missing
}

/// Whether anything of a recording is missing: lost, cut, not closed, not readable, or found missing by what should have
/// followed. `--strict` turns it into an exit code.
#[must_use]
pub fn is_incomplete(analysis: &Analysis) -> bool {
    !missing(&analysis.trace).is_empty() || ends_missed(&analysis.devices) > 0
}

/// Requests whose end was not seen, although nothing is known to be lost.
#[must_use]
pub fn ends_missed<'a>(devices: impl IntoIterator<Item = &'a Device>) -> u64 {
    let checks = devices.into_iter().filter_map(|device| device.check);
    let missed = checks.map(|check| check.completions_missed);
    missed.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use nestrace_trace::Manifest;

    use super::*;
    use crate::result::analysis::{SourceLoss, UnreadStream};
    use crate::{Analyzer, Options};

    #[test]
    fn each_lack_is_named() {
        let whole = Trace {
            closed: Some(true),
            ..Trace::default()
        };
        let unread = UnreadStream {
            name: "guest-0.arrows".to_owned(),
            guest: "vm1".to_owned(),
            reason: "gone".to_owned(),
            events: None,
        };
        let walk = SourceLoss {
            source: "walk".to_owned(),
            guest: None,
            events: 1,
        };
        for (trace, expected) in [
            (whole.clone(), ""),
            (
                Trace {
                    lost: 1234,
                    ..whole.clone()
                },
                "1,234 LOST",
            ),
            (
                Trace {
                    truncated: true,
                    closed: Some(false),
                    ..whole.clone()
                },
                "not closed: up to 0.5 s at the end are missing",
            ),
            (
                Trace {
                    truncated: true,
                    closed: None,
                    ..whole.clone()
                },
                "no manifest: its end is not known",
            ),
            (
                Trace {
                    truncated: true,
                    ..whole.clone()
                },
                "cut: the end of a file is missing",
            ),
            (
                Trace {
                    truncated: true,
                    unread: vec![unread],
                    ..whole.clone()
                },
                "1 stream MISSING",
            ),
            (
                Trace {
                    cut_guests: vec!["vm1".to_owned()],
                    ..whole.clone()
                },
                "cut inside vm1",
            ),
            (
                Trace {
                    losses: vec![walk],
                    ..whole
                },
                "1 request not followed whole",
            ),
        ] {
            assert_eq!(missing(&trace).join(" · "), expected);
            let mut analysis =
                Analyzer::analyze(&Manifest::default(), Options::default(), std::iter::empty());
            analysis.trace = trace;
            assert_eq!(is_incomplete(&analysis), !expected.is_empty(), "{expected}");
        }
    }
}
