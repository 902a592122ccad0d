//! Sums over stretches of time, one after the other.

/// What can be put together from two stretches of time.
pub(crate) trait Counted: Default {
    /// Adds what was counted in `later`.
    fn add(&mut self, later: &Self);
}

/// Sums over stretches of time, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series<T> {
    /// Length of each stretch in nanoseconds, and what was counted in it.
    pub(crate) stretches: Vec<(u64, T)>,
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
        while let Some((mut ns, mut sums)) = halves.next() {
            if let Some((more_ns, more)) = halves.next() {
                ns += more_ns;
                sums.add(&more);
            }
            stretches.push((ns, sums));
        }
    }
    first
}

/// Stretches of all sessions of a guest taken together.
pub(crate) const MAX_STRETCHES: usize = 256;
