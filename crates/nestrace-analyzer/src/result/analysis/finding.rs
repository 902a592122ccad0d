//! `findings[]`.

use std::collections::BTreeMap;

use serde::Serialize;

/// A rule that fired for a disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Finding {
    /// The rule, as in `docs/findings.md`.
    pub id: &'static str,
    /// The guest.
    pub guest: String,
    /// The disk; empty where the guest as a whole is meant.
    pub disk: String,
    /// By what is at stake.
    pub severity: Severity,
    /// What happened, in a line.
    pub title: String,
    /// What was seen and why it happens.
    pub explanation: String,
    /// The numbers it rests on.
    pub evidence: BTreeMap<&'static str, Evidence>,
    /// What to do, and what that risks.
    pub advice: Vec<String>,
    /// Part of the guest's latency, bytes or requests that is at stake, 0 to 1.
    pub share: f64,
}

impl Finding {
    /// Something can be gained by following the advice.
    #[must_use]
    pub const fn is_worth_acting_on(&self) -> bool {
        !matches!(self.severity, Severity::Info)
    }
}

/// How much is at stake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// To know, not to act on.
    Info,
    /// Less than a tenth.
    Low,
    /// A tenth or more.
    Medium,
    /// A third or more.
    High,
}

/// A number or a word that a finding rests on. The unit is in its name: `_ns`, `_bytes`, `_share`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
#[non_exhaustive]
pub enum Evidence {
    /// A count, nanoseconds or bytes.
    Whole(u64),
    /// A share, a ratio or a mean.
    Real(f64),
    /// A setting.
    Word(String),
}

impl From<u64> for Evidence {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Evidence {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<&str> for Evidence {
    fn from(value: &str) -> Self {
        Self::Word(value.to_owned())
    }
}

/// A rule that could not judge a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Unjudged {
    /// The rule.
    pub id: &'static str,
    /// The guest.
    pub guest: String,
    /// The disk.
    pub disk: String,
    /// What is missing.
    pub missing: &'static str,
}
