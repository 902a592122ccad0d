//! Requests in flight, reported in time order once their outcome is known.
//!
//! Depth, busy time and active periods are sums over time, from which nothing can be taken back: a request whose
//! completion was lost would be at the device for ever. So a change is held back until the fate of every
//! request that came before it is known. Most of the time that is as long as the oldest request at the device takes.

use std::collections::VecDeque;

/// Changes that are held back. A request that so many others have overtaken has left without being seen to: no
/// device has as many at once.
const MAX_CHANGES: usize = 1 << 14;
/// A request is missed that others have overtaken and that would have been there for so many times as long as any.
const TIMES_THE_LONGEST: u64 = 2;

/// A request's coming to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coming(u64);

/// Something that changes how many requests are at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub ts_ns: u64,
    pub comes: bool,
    pub has_data: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is there, as far as is known.
    Open,
    Known,
    /// It left without being seen to: it was there at D, and who knows how long.
    Missed,
}

/// Requests between D and C.
#[derive(Clone, Debug, Default)]
pub(crate) struct AtDevice {
    held: VecDeque<(Change, Fate)>,
    /// Number of the first change that is held.
    first: u64,
    longest_ns: u64,
    last_left_ns: u64,
}

impl AtDevice {
    /// D.
    #[inline]
    pub(crate) fn comes(&mut self, ts_ns: u64, has_data: bool) -> Coming {
        let coming = Coming(self.first.saturating_add(self.held.len() as u64));
        let change = Change {
            ts_ns,
            comes: true,
            has_data,
        };
        self.held.push_back((change, Fate::Open));
        coming
    }

    /// C, or R. Nothing where it was given up before.
    #[inline]
    pub(crate) fn leaves(&mut self, coming: Coming, ts_ns: u64) {
        let Some(change) = self.known(coming, Fate::Known) else {
            return;
        };
        let lasted_ns = ts_ns.saturating_sub(change.ts_ns);
        self.longest_ns = self.longest_ns.max(lasted_ns);
        self.last_left_ns = self.last_left_ns.max(ts_ns);
        let left = Change {
            ts_ns,
            comes: false,
            ..change
        };
        self.held.push_back((left, Fate::Known));
    }

    /// It has left, and it is not known when.
    pub(crate) fn missed(&mut self, coming: Coming) {
        self.known(coming, Fate::Missed);
    }

    /// Whether one that has not left must have been missed. A device that hangs has let nothing go since.
    pub(crate) fn is_overdue(&self, coming: Coming) -> bool {
        let place = coming.0.checked_sub(self.first);
        let held = place.and_then(|place| self.held.get(usize::try_from(place).ok()?));
        held.is_none_or(|(change, _)| {
            let overtaken_for_ns = self.last_left_ns.saturating_sub(change.ts_ns);
            overtaken_for_ns > self.longest_ns.saturating_mul(TIMES_THE_LONGEST)
        })
    }

    /// The fate of a request that was open; what its coming was.
    #[inline]
    fn known(&mut self, coming: Coming, to: Fate) -> Option<Change> {
        let place = coming.0.checked_sub(self.first)?;
        let (change, fate) = self.held.get_mut(usize::try_from(place).ok()?)?;
        if !change.comes || *fate != Fate::Open {
            return None;
        }
        *fate = to;
        Some(*change)
    }

    /// The next change, if no request before it is open.
    #[inline]
    pub(crate) fn next_known(&mut self) -> Option<Change> {
        loop {
            let (_, fate) = self.held.front()?;
            if *fate == Fate::Open && self.held.len() <= MAX_CHANGES {
                return None;
            }
            let (change, fate) = self.held.pop_front()?;
            self.first += 1;
            if fate == Fate::Known {
                return Some(change);
            }
        }
    }

    /// Nothing comes any more: what is open stays at the device.
    pub(crate) fn stay(&mut self) {
        for (_, fate) in &mut self.held {
            if *fate == Fate::Open {
                *fate = Fate::Known;
            }
        }
    }

    /// What is held back, as if everything that is open were at the device.
    pub(crate) fn held(&self) -> impl Iterator<Item = Change> + '_ {
        let held = self.held.iter();
        held.filter(|(_, fate)| *fate != Fate::Missed)
            .map(|(change, _)| *change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `D1` comes, `C1` leaves, `X1` was missed, `.` nothing comes any more. The result, as times and signs.
    fn told(script: &str) -> String {
        let mut at_device = AtDevice::default();
        let mut comings = std::collections::HashMap::new();
        let mut told = String::new();
        for (word, ts_ns) in script.split_whitespace().zip((10..).step_by(10)) {
            let (what, name) = word.split_at(1);
            match what {
                "D" => _ = comings.insert(name, at_device.comes(ts_ns, true)),
                "C" => at_device.leaves(comings[name], ts_ns),
                "X" => at_device.missed(comings[name]),
                _ => at_device.stay(),
            }
            while let Some(change) = at_device.next_known() {
                let sign = if change.comes { '+' } else { '-' };
                told.push_str(&format!("{}{sign} ", change.ts_ns));
            }
        }
        told.trim_end().to_owned()
    }

    #[test]
    fn changes_are_told_in_order_and_what_was_missed_is_not() {
        for (script, expected) in [
            ("D1 C1", "10+ 20-"),
            ("D1 D2 C2 C1", "10+ 20+ 30- 40-"),
            ("D1 D2 C2", ""),
            ("D1 D2 C2 .", "10+ 20+ 30-"),
            ("D1 D2 C2 X1", "20+ 30-"),
            ("D1 X1 C1 D2 C2", "40+ 50-"),
            // Twice at the same address.
            ("D1 C1 C1 D1 C1", "10+ 20- 40+ 50-"),
        ] {
            assert_eq!(told(script), expected, "{script}");
        }
    }

    #[test]
    fn one_that_thousands_have_overtaken_is_given_up() {
        let mut at_device = AtDevice::default();
        let lost = at_device.comes(0, true);
        let mut n = 0;
        for ts_ns in 1..2 * MAX_CHANGES as u64 {
            let coming = at_device.comes(ts_ns, true);
            at_device.leaves(coming, ts_ns);
            while at_device.next_known().is_some() {
                n += 1;
            }
        }
        assert!(n > 2 * MAX_CHANGES, "{n}");
        assert!(at_device.is_overdue(lost));
        at_device.leaves(lost, u64::MAX);
        assert_eq!(at_device.next_known(), None);
    }

    #[test]
    fn a_device_that_hangs_has_lost_nothing() {
        let mut at_device = AtDevice::default();
        let first = at_device.comes(0, true);
        at_device.leaves(first, 10);
        let stuck = at_device.comes(20, true);
        assert!(!at_device.is_overdue(stuck));
        for (ts_ns, overdue) in [(30, false), (50, true)] {
            let other = at_device.comes(ts_ns - 10, true);
            at_device.leaves(other, ts_ns);
            assert_eq!(at_device.is_overdue(stuck), overdue, "{ts_ns}");
        }
    }
}
