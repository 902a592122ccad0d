//! What a disk does on command besides the model: requests that fail, are late, do not come back or are torn.
//!
//! A command and its answer are one line of JSON each.

use serde::{Deserialize, Serialize};

use crate::lateness::Report;
use crate::request::{Operation, Request};

/// Rules that are in force at a time, at most.
pub const MAX_TROUBLES: usize = 64;

/// What to do from now on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Command {
    /// Says how far the disk was from its model.
    Report {
        /// Whether to count anew from here.
        #[serde(default)]
        reset: bool,
    },
    /// Whether requests take the model's time, or none: to set something up.
    Pace {
        /// Whether they do.
        modelled: bool,
    },
    /// What the way to the disk and back takes: completions go out so much earlier.
    Way(Way),
    /// Requests have a trouble.
    Trouble(Trouble),
    /// All troubles end, and requests that were withheld are done.
    Heal,
}

/// What the way from a requester to the program that serves the disk takes, and back: no part of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// Of each request, nanoseconds.
    pub ns: u64,
    /// More for each MiB of data, nanoseconds.
    pub ns_per_mib: u64,
}

impl Way {
    /// Nanoseconds for a request with so much data.
    #[must_use]
    pub fn of(&self, bytes: u64) -> u64 {
        let data = (u128::from(self.ns_per_mib) * u128::from(bytes)) >> 20;
        self.ns
            .saturating_add(u64::try_from(data).unwrap_or(u64::MAX))
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Done.
    Done,
    /// What was asked for.
    Report(Report),
    /// The command was not understood, or cannot be followed.
    Refused(String),
}

/// A rule: which requests have which trouble.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// What happens to them.
    pub kind: TroubleKind,
    /// Only to these; without it, to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// Only where they touch these bytes: from here
    #[serde(default)]
    pub first_byte: u64,
    /// up to here. Flushes touch all bytes.
    #[serde(default = "everything")]
    pub end_byte: u64,
    /// Only so many of them; without it, until the disk is healed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

fn everything() -> u64 {
    u64::MAX
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TroubleKind {
    /// It fails with EIO when the model completes it; a write leaves nothing.
    Fail,
    /// It is done so many milliseconds later.
    DelayMs(u64),
    /// It does not come back until the disk is healed.
    Withhold,
    /// A write leaves its first half, in sectors, and fails with EIO. Other requests fail.
    Tear,
}

impl Trouble {
    /// A trouble of all requests of one kind.
    #[must_use]
    pub fn of(kind: TroubleKind, operation: Option<Operation>) -> Self {
        Self {
            kind,
            operation,
            first_byte: 0,
            end_byte: everything(),
            count: None,
        }
    }

    fn concerns(&self, request: &Request) -> bool {
        let is_kind = self.operation.is_none_or(|it| it == request.operation);
        let end = request.offset_bytes.saturating_add(request.length_bytes);
        let touches = request.operation == Operation::Flush
            || (request.offset_bytes < self.end_byte && self.first_byte < end);
        is_kind && touches && self.count != Some(0)
    }
}

/// The rules in force.
#[derive(Clone, Debug, Default)]
pub struct Troubles(Vec<Trouble>);

impl Troubles {
    /// Adds a rule; `false` if there are too many.
    pub fn add(&mut self, trouble: Trouble) -> bool {
        self.0.retain(|it| it.count != Some(0));
        let has_room = self.0.len() < MAX_TROUBLES;
        if has_room {
            self.0.push(trouble);
        }
        has_room
    }

    /// Ends all.
    pub fn heal(&mut self) {
        self.0.clear();
    }

    /// What happens to a request: the first rule that concerns it, which then has one request less.
    pub fn of(&mut self, request: &Request) -> Option<TroubleKind> {
        let mut rules = self.0.iter_mut();
        let rule = rules.find(|rule| rule.concerns(request))?;
        if let Some(count) = &mut rule.count {
            *count = count.saturating_sub(1);
        }
        Some(rule.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: Operation, offset_bytes: u64) -> Request {
        Request {
            id: 0,
            operation,
            offset_bytes,
            length_bytes: 4096,
        }
    }

    #[test]
    fn a_rule_concerns_its_operation_and_its_bytes_and_ends_after_its_count() {
        let text = r#"{"do":"trouble","kind":"fail","operation":"read","first_byte":8192,"end_byte":12288,"count":2}"#;
        let Ok(Command::Trouble(trouble)) = serde_json::from_str(text) else {
            panic!("a trouble");
        };
        let mut troubles = Troubles::default();
        assert!(troubles.add(trouble));
        assert_eq!(troubles.of(&request(Operation::Write, 8192)), None);
        assert_eq!(troubles.of(&request(Operation::Read, 4096)), None);
        for expected in [Some(TroubleKind::Fail), Some(TroubleKind::Fail), None] {
            assert_eq!(troubles.of(&request(Operation::Read, 8192)), expected);
        }
        troubles.add(Trouble::of(TroubleKind::DelayMs(5), None));
        let flush = request(Operation::Flush, 0);
        assert_eq!(troubles.of(&flush), Some(TroubleKind::DelayMs(5)));
        troubles.heal();
        assert_eq!(troubles.of(&flush), None);
    }

    #[test]
    fn commands_and_answers_are_lines() {
        for command in [
            Command::Report { reset: true },
            Command::Pace { modelled: false },
            Command::Way(Way {
                ns: 5,
                ns_per_mib: 6,
            }),
            Command::Trouble(Trouble::of(TroubleKind::DelayMs(20), None)),
            Command::Heal,
        ] {
            let line = serde_json::to_string(&command).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), command);
        }
        let mut troubles = Troubles::default();
        let full = (0..=MAX_TROUBLES)
            .map(|_| troubles.add(Trouble::of(TroubleKind::Tear, None)))
            .filter(|added| !added)
            .count();
        assert_eq!(full, 1);
    }
}
