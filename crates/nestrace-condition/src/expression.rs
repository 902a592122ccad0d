//! A condition as a tree of comparisons.

use std::collections::BTreeSet;
use std::fmt;

use nestrace_sums::snapshot::Op;

/// A condition.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A statistic compared with a limit.
    Comparison(Comparison),
    /// All of them hold.
    All(Vec<Self>),
    /// At least one of them holds.
    Any(Vec<Self>),
}

/// A statistic over a window, compared with a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// What is computed.
    pub statistic: Statistic,
    /// The requests that it counts.
    pub subject: Subject,
    /// Where the value must lie.
    pub relation: Relation,
    /// The limit.
    pub limit: Limit,
    /// The window in nanoseconds, as it was written; `None`: one second, and for [`Statistic::Oldest`] this moment.
    pub window_ns: Option<u64>,
}

/// Requests of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Their operation; `None`: any.
    pub op: Option<Op>,
    /// The layer that they are measured in; `None`: the outermost one that is recorded.
    pub layer: Option<Layer>,
}

/// What is computed of the requests of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The median of their latencies.
    P50,
    /// The 99th percentile: one request in a hundred took longer.
    P99,
    /// The longest latency.
    Max,
    /// The mean latency.
    Mean,
    /// How many have ended.
    Count,
    /// How many have ended, a second.
    Rate,
    /// The age of the oldest request that has not ended.
    Oldest,
}

/// Where a request is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// From a bio's start to its end in the guest's block layer, as the agent sends it.
    Guest,
    /// From QEMU's start of a request to its end.
    Qemu,
    /// QEMU's calls on the image's file.
    FileIo,
    /// From the host's bio to the issue of its request to the lowest device.
    HostQueue,
    /// From the issue to the completion by the lowest device.
    Device,
}

/// A machine with requests of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The host.
    Host,
    /// A guest, by a number of the caller's.
    Guest(u32),
}

/// How a value is compared with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `<=`
    AtMost,
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// A time in nanoseconds.
    Time(u64),
    /// A number of requests.
    Count(u64),
    /// Requests a second.
    Rate(f64),
}

/// The window of a statistic for which none was written, in nanoseconds.
pub(crate) const DEFAULT_WINDOW_NS: u64 = 1_000_000_000;

impl Expression {
    /// Its comparisons, from left to right.
    #[must_use]
    pub fn comparisons(&self) -> Vec<&Comparison> {
        match self {
            Self::Comparison(comparison) => vec![comparison],
            Self::All(parts) | Self::Any(parts) => {
                parts.iter().flat_map(Self::comparisons).collect()
            }
        }
    }

    /// The layers that it is about, where `outermost` stands for those that it does not name.
    #[must_use]
    pub fn layers(&self, outermost: Layer) -> BTreeSet<Layer> {
        let comparisons = self.comparisons().into_iter();
        comparisons
            .map(|comparison| comparison.subject.layer.unwrap_or(outermost))
            .collect()
    }

    /// The longest of its windows, in nanoseconds.
    #[must_use]
    pub fn longest_window_ns(&self) -> u64 {
        let comparisons = self.comparisons().into_iter();
        comparisons.map(Comparison::window_ns).max().unwrap_or(0)
    }

    /// Puts the layer in where none was written.
    #[must_use]
    pub fn with_outermost(mut self, outermost: Layer) -> Self {
        self.name_layer(outermost);
        self
    }

    fn name_layer(&mut self, outermost: Layer) {
        match self {
            Self::Comparison(comparison) => {
                comparison.subject.layer.get_or_insert(outermost);
            }
            Self::All(parts) | Self::Any(parts) => {
                parts.iter_mut().for_each(|part| part.name_layer(outermost));
            }
        }
    }

    /// Whether it holds where its comparisons, from left to right, do or do not.
    pub(crate) fn holds(&self, comparisons: &mut impl Iterator<Item = bool>) -> bool {
        // Every part takes its answers, whatever the parts before it say.
        match self {
            Self::Comparison(_) => comparisons.next().unwrap_or(false),
            Self::All(parts) => parts
                .iter()
                .fold(true, |all, part| part.holds(comparisons) & all),
            Self::Any(parts) => parts
                .iter()
                .fold(false, |any, part| part.holds(comparisons) | any),
        }
    }
}

impl Comparison {
    /// The window in nanoseconds; 0: this moment.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        let default_ns = match self.statistic {
            Statistic::Oldest => 0,
            _ => DEFAULT_WINDOW_NS,
        };
        self.window_ns.unwrap_or(default_ns)
    }
}

impl Statistic {
    /// Every one with its name.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("p50", Self::P50),
        ("p99", Self::P99),
        ("max", Self::Max),
        ("mean", Self::Mean),
        ("count", Self::Count),
        ("rate", Self::Rate),
        ("oldest", Self::Oldest),
    ];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_in(Self::ALL, self)
    }
}

impl Layer {
    /// Every one with its name, the outermost first.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("guest", Self::Guest),
        ("qemu", Self::Qemu),
        ("file_io", Self::FileIo),
        ("host_queue", Self::HostQueue),
        ("device", Self::Device),
    ];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_in(Self::ALL, self)
    }
}

impl Subject {
    /// Every operation with its name.
    pub const OPS: &'static [(&'static str, Option<Op>)] = &[
        ("read", Some(Op::Read)),
        ("write", Some(Op::Write)),
        ("flush", Some(Op::Flush)),
        ("discard", Some(Op::Discard)),
        ("any", None),
    ];

    /// Its operation as it is written.
    #[must_use]
    pub fn op_name(self) -> &'static str {
        name_in(Self::OPS, self.op)
    }
}

impl Relation {
    /// Every one as it is written; those of two characters first.
    pub const ALL: &'static [(&'static str, Self)] = &[
        (">=", Self::AtLeast),
        ("<=", Self::AtMost),
        (">", Self::Above),
        ("<", Self::Below),
    ];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_in(Self::ALL, self)
    }

    /// Whether a value lies where it must.
    #[must_use]
    pub fn holds<T: PartialOrd>(self, value: T, limit: T) -> bool {
        match self {
            Self::Above => value > limit,
            Self::AtLeast => value >= limit,
            Self::Below => value < limit,
            Self::AtMost => value <= limit,
        }
    }
}

fn name_in<T: PartialEq>(table: &[(&'static str, T)], wanted: T) -> &'static str {
    let found = table.iter().find(|(_, value)| *value == wanted);
    found.map_or("", |(name, _)| name)
}

/// A time as a condition has it: `1.5s`, `100ms`.
pub(crate) struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        let (unit, name) = match ns {
            1_000_000_000.. => (1e9, "s"),
            1_000_000.. => (1e6, "ms"),
            1_000.. => (1e3, "us"),
            _ => (1.0, "ns"),
        };
        write!(f, "{}{name}", ns as f64 / unit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(ns) => Time(*ns).fmt(f),
            Self::Count(n) => n.fmt(f),
            Self::Rate(rate) => write!(f, "{rate}/s"),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op_name())?;
        match self.layer {
            Some(layer) => write!(f, ", {}", layer.name()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (statistic, relation) = (self.statistic.name(), self.relation.name());
        write!(f, "{statistic}({}) {relation} {}", self.subject, self.limit)?;
        match self.window_ns {
            Some(ns) => write!(f, " for {}", Time(ns)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, word) = match self {
            Self::Comparison(comparison) => return comparison.fmt(f),
            Self::All(parts) => (parts, " and "),
            Self::Any(parts) => (parts, " or "),
        };
        for (n, part) in parts.iter().enumerate() {
            if n > 0 {
                f.write_str(word)?;
            }
            match part {
                Self::Comparison(comparison) => comparison.fmt(f)?,
                Self::All(_) | Self::Any(_) => write!(f, "({part})")?,
            }
        }
        Ok(())
    }
}
