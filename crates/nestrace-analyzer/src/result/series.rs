//! Sums over stretches of time, one after the other.

/// What can be put together from two stretches of time.
pub(crate) trait Counted: Default {
    /// Adds what was counted in `later`.
    fn add(&mut self, later: &Self);
}

/// When a stretch of time was: after the start of the recording, once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    /// Its beginning.
    pub from_ns: u64,
    /// Its length.
    pub ns: u64,
}

/// Sums over stretches of time, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series<T> {
    /// Each stretch, and what was counted in it.
    pub(crate) stretches: Vec<(Period, T)>,
}

impl<T> Series<T> {
    /// Moves every stretch: by what is to be added to its times.
    pub(crate) fn moved(mut self, by_ns: i64) -> Self {
        for (period, _) in &mut self.stretches {
            period.from_ns = period.from_ns.saturating_add_signed(by_ns);
        }
        self
    }

    /// Counts the times from `start_ns` on.
    pub(crate) fn after(self, start_ns: u64) -> Self {
        self.moved(0i64.saturating_sub_unsigned(start_ns))
    }
}

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self {
            stretches: Vec::new(),
        }
    }
}

/// One series behind the other. Where there are very many stretches, neighbours become one.
pub(crate) fn joined<T: Counted>(mut first: Series<T>, mut later: Series<T>) -> Series<T> {
    let stretches = &mut first.stretches;
    stretches.append(&mut later.stretches);
    while stretches.len() > MAX_STRETCHES {
        let mut halves = std::mem::take(stretches).into_iter();
        while let Some((mut period, mut sums)) = halves.next() {
            if let Some((more_of, more)) = halves.next() {
                period.ns += more_of.ns;
                sums.add(&more);
            }
            stretches.push((period, sums));
        }
    }
    first
}

/// Stretches of all sessions of a guest taken together.
pub(crate) const MAX_STRETCHES: usize = 256;
