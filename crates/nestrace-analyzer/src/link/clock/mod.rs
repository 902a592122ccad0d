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
//! The caller merges the streams by time as well as it can ([`Pairing::host_time`] says how), hands
//! over requests as they *end*, and says with [`Pairing::advance`] how far each stream has been read.
//! Outcomes come some hundred milliseconds of trace time later, in no certain order: each guest
//! request gets exactly one `Paired` or `Unpaired`, each host request one `Paired` or `Unclaimed`.

mod band_history;
mod cluster;
mod corridor;
mod device_disk;
mod devices;
mod doubt;
#[cfg(test)]
mod effort;
mod election;
mod ended_pieces;
mod envelope;
mod fitting;
mod matching;
mod misses;
mod pairing;
mod partner;
mod pending;
mod queues;
mod report;
mod request;
mod result;
mod search;
mod start;
mod tally;
#[cfg(test)]
mod tests;
mod timeline;

pub(crate) use device_disk::DeviceDisk;
pub(crate) use devices::{BY_REQUESTS, BY_REQUESTS_OF_OTHERS};
pub(crate) use pairing::{ClockSummary, Pairing};
pub(crate) use request::{Band, GuestRequest, HostRequest, Key, OpClass, Outcome, Paired};
pub(crate) use start::ClockStart;
pub(crate) use start::corrections_ppm;
pub(crate) use timeline::UNCORRECTED_PPM;
