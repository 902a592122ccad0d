//! How much a test lets the clock look at: steps, not time, so that a slow machine changes nothing.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Runs `work`, which may take this many steps; gives back what it says and how many it took.
pub(super) fn within<T>(steps: u64, work: impl FnOnce() -> T) -> (T, u64) {
    LEFT.set(steps);
    let said = work();
    let taken = steps - LEFT.replace(u64::MAX);
    (said, taken)
}

/// A request, or a node of an index, is looked at.
///
/// # Panics
/// Panics where the test has allowed no more: what is quadratic need not run to its end.
pub(super) fn spend(steps: u64) {
    let left = LEFT.get().checked_sub(steps);
    LEFT.set(left.expect("no more steps than the test allows"));
}
