//! Times of two machines: a type for each clock, so that nothing compares or subtracts one with the other.
//!
//! The one way from a guest's clock to the host's and back is an offset, the guest's clock minus the host's, which
//! `link/clock` proves. Where only one machine is looked at, times are plain `u64` of that machine's clock.

/// A time on the host's clock (`CLOCK_MONOTONIC`), nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostNs(pub u64);

/// A time on a guest's clock (its `CLOCK_MONOTONIC`), nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GuestNs(pub u64);

/// A bound on the host's clock, which may lie before its zero, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostBound(pub i64);

macro_rules! of_one_clock {
    ($clock:ident) => {
        impl $clock {
            /// The end of all time: a stream that has ended was read up to here.
            pub(crate) const MAX: Self = Self(u64::MAX);

            /// So much later.
            pub(crate) const fn saturating_add(self, ns: u64) -> Self {
                Self(self.0.saturating_add(ns))
            }

            /// So much earlier.
            pub(crate) const fn saturating_sub(self, ns: u64) -> Self {
                Self(self.0.saturating_sub(ns))
            }

            /// Nanoseconds since an earlier time; 0 where that is later.
            pub(crate) const fn since(self, earlier: Self) -> u64 {
                self.0.saturating_sub(earlier.0)
            }
        }
    };
}

of_one_clock!(HostNs);
of_one_clock!(GuestNs);

impl HostNs {
    /// The guest's time, where its clock minus the host's is `offset_ns`.
    pub(crate) const fn in_guest(self, offset_ns: i64) -> GuestNs {
        GuestNs(self.0.saturating_add_signed(offset_ns))
    }

    pub(crate) const fn bound(self) -> HostBound {
        const MOST: u64 = i64::MAX.cast_unsigned();
        let ns = if self.0 > MOST { MOST } else { self.0 };
        HostBound(ns.cast_signed())
    }
}

impl GuestNs {
    /// Nanoseconds between the two, whichever is earlier.
    pub(crate) const fn abs_diff(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }

    /// The host's time, where the guest's clock minus the host's is `offset_ns`.
    pub(crate) const fn on_host(self, offset_ns: i64) -> HostNs {
        HostNs(self.0.saturating_add_signed(offset_ns.saturating_neg()))
    }

    /// The same as a bound, which may lie before the host's zero.
    pub(crate) const fn bound_on_host(self, offset_ns: i64) -> HostBound {
        HostBound(self.0.cast_signed().saturating_sub(offset_ns))
    }

    /// This guest's time minus the host's: the offset between the clocks, were they the same moment.
    pub(crate) const fn minus(self, host: HostNs) -> i64 {
        self.0.cast_signed() - host.0.cast_signed()
    }

    /// The same for a bound.
    pub(crate) const fn minus_bound(self, host: HostBound) -> i64 {
        self.0.cast_signed().saturating_sub(host.0)
    }
}

impl HostBound {
    /// So much earlier.
    pub(crate) const fn saturating_sub(self, ns: i64) -> Self {
        Self(self.0.saturating_sub(ns))
    }
}
