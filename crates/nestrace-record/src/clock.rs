//! The two clocks of a recording.

use nestrace_trace::manifest::ClockRate;
use nix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
    })
}

/// `CLOCK_MONOTONIC` in nanoseconds: what `bpf_ktime_get_ns` gives the probes.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    read(ClockId::CLOCK_REALTIME)
}

/// How the kernel corrects its clocks now (`timex.freq`, which NTP sets); `None` where it does not say.
/// Only asks: nothing is changed.
#[must_use]
pub fn rate() -> Option<ClockRate> {
    // SAFETY: `timex` holds integers only, for which all zeroes are values.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `timex` of our own, and `modes` 0 asks for no change.
    let state = unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, &raw mut timex) };
    let in_ns = timex.status & libc::STA_NANO != 0;
    (state >= 0).then(|| ClockRate {
        mono_ns: monotonic_ns(),
        // Parts per million with 16 bits behind the point.
        freq_ppb: timex.freq.saturating_mul(1000) >> 16,
        offset_ns: timex.offset.saturating_mul(if in_ns { 1 } else { 1000 }),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_within_what_the_kernel_allows() {
        let rate = super::rate().expect("clock_adjtime asks for no privilege");
        assert!(rate.mono_ns > 0 && rate.freq_ppb.abs() <= 500_000);
    }
}
