//! One clock for host and guest, and which guest request is which QEMU request.
//!
//! A guest request goes to the driver (D) before QEMU receives it, and QEMU hands it back before the
//! guest sees it complete (C). So each pair of the two is an exchange that bounds the guest's clock
//! minus the host's: `D - start <= offset <= C - end`. [`Pairing`] finds the pairs by their keys (disk,
//! operation, offset, length) inside the bound that other exchanges prove, and the bound from the
//! pairs; see `docs/clock.md`.
//!
//! What it does not do: it looks at no event, opens nothing, and never moves a time to make an order
//! come out right. A request whose partner is not certain is [`Outcome::Unpaired`], with the reason.
//!
//! # Use
//!
//! ```
//! use nestrace_analyzer::clock::{ClockStart, GuestRequest, HostRequest, Key, OpClass, Outcome, Pairing};
//!
//! let mut pairing = Pairing::new(ClockStart::default());
//! for i in 0..200u64 {
//!     let key = Key { class: OpClass::Write, offset: i * i * 4096, bytes: 4096 };
//!     let at = i * i * 10_000;
//!     // The guest's clock is 5 s behind.
//!     pairing.host_request(HostRequest { serial: i, disk: 0, key, buffer: 0, lane: HostRequest::ANY_LANE,
//!         start_ns: 6_000_040_000 + at, end_ns: 6_000_100_000 + at });
//!     pairing.guest_request(GuestRequest { serial: i, device: 0, key, buffer: 0, may_be_alone: false, lane: GuestRequest::ANY_LANE,
//!         issued_ns: 1_000_000_000 + at, completed_ns: 1_000_130_000 + at });
//!     pairing.advance(1_000_130_000 + at, 6_000_130_000 + at);
//! }
//! let clock = pairing.finish();
//! let linked = std::iter::from_fn(|| pairing.next_outcome()).filter(|o| matches!(o, Outcome::Paired(_)));
//! assert_eq!(linked.count(), 200);
//! assert!((clock.clock.offset_ns.unwrap() + 5_000_000_000).abs() <= 35_000);
//! ```
//!
//! The caller merges the streams by time as well as it can ([`Pairing::host_time`] tells how), hands
//! over requests as they *end*, and says with [`Pairing::advance`] how far each stream has been read.
//! Outcomes come some hundred milliseconds of trace time later, in no certain order: each guest
//! request gets exactly one `Paired` or `Unpaired`, each host request one `Paired` or `Unclaimed`.

mod cluster;
mod corridor;
mod device_disk;
mod devices;
mod doubt;
#[cfg(test)]
mod effort;
mod election;
mod envelope;
mod fitting;
mod misses;
mod pairing;
mod pending;
mod report;
mod request;
mod result;
mod search;
mod start;
mod tally;
mod tie;
mod timeline;
mod trail;
mod trails;
mod tying;

pub use device_disk::DeviceDisk;
pub use devices::match_disks;
pub(crate) use devices::{BY_REQUESTS, BY_REQUESTS_OF_OTHERS};
pub use pairing::{ClockSummary, Pairing};
pub use request::{
    Band, GuestRequest, HostRequest, Key, OpClass, Outcome, Paired, Unpaired, UnpairedReason,
};
pub(crate) use start::corrections_ppm;
pub use start::{ClockStart, RoundTrip};
pub(crate) use timeline::UNCORRECTED_PPM;
