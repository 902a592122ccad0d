//! What is known of a guest's clock and disks before the first request.

use nestrace_abi::Source;
use nestrace_trace::manifest::{GuestSide, MAX_CLOCK_CORRECTION_PPM, Manifest};

use super::corridor::Corridor;
use super::device_disk::DeviceDisk;
use super::devices::match_disks;
use super::request::Band;
use super::timeline::UNCORRECTED_PPM;
use crate::model::clocks::{GuestNs, HostNs};

/// The most that NTP bent the clocks of the host and of the guest, parts per million; 0 where it was not measured.
pub(crate) fn corrections_ppm(manifest: &Manifest, side: &GuestSide) -> (u32, u32) {
    let known = |ppm: Option<u32>| ppm.unwrap_or(0).min(MAX_CLOCK_CORRECTION_PPM);
    (
        known(manifest.host_clock_correction_ppm),
        known(side.clock_correction_ppm),
    )
}

/// Everything that a [`Pairing`](super::Pairing) begins with. Nothing of it has to be known: zeros and
/// empty lists are "unknown".
#[derive(Clone, Debug, Default)]
pub struct ClockStart {
    /// Guest's name, for the result.
    pub guest: String,
    /// Name of the guest's stream, for the result.
    pub stream: String,
    /// Round trips over the agent's port: rough, but certain as long as the agent tells the truth.
    pub round_trips: Vec<RoundTrip>,
    /// Guest's clock minus the host's, by the wall clocks of both; may be wrong by anything.
    pub wall_offset_ns: Option<i64>,
    /// Host's `CLOCK_REALTIME` at `host_start_ns`.
    pub host_start_unix_ns: u64,
    /// Host's `CLOCK_MONOTONIC` at the start of the recording.
    pub host_start_ns: HostNs,
    /// When the host's probes were live.
    pub host_live_ns: HostNs,
    /// When the host's recording ended; 0 if unknown.
    pub host_end_ns: HostNs,
    /// The host's recording lost events of QEMU at some time.
    pub host_lost: bool,
    /// Fastest change of the offset in parts per million, at most 300,000; 0 for 500, which is what two
    /// uncorrected clocks differ by.
    pub rho_ppm: u32,
    /// For each guest device (index into `GuestSide::disks`) the disk, or those that it may be. A device
    /// that is not in the list is the disk with the same index.
    pub devices: Vec<DeviceDisk>,
}

/// One round trip over the agent's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// Host's clock before the question.
    pub host_sent_ns: HostNs,
    /// Guest's clock.
    pub guest_ns: GuestNs,
    /// Host's clock after the answer.
    pub host_received_ns: HostNs,
}

impl ClockStart {
    /// What the manifest tells about the guest of this side.
    #[must_use]
    pub fn of(manifest: &Manifest, side: &GuestSide) -> Self {
        let wall = |unix: u64, mono: u64| (unix > 0).then(|| i128::from(mono) - i128::from(unix));
        let wall_offset_ns = wall(side.start_unix_ns, side.start_mono_ns)
            .zip(wall(manifest.start_unix_ns, manifest.start_mono_ns))
            .and_then(|(guest, host)| i64::try_from(guest - host).ok());
        let guest = manifest
            .topology
            .guests
            .iter()
            .find(|guest| guest.name == side.guest);
        let (host_ppm, guest_ppm) = corrections_ppm(manifest, side);
        Self {
            guest: side.guest.clone(),
            stream: side.file.clone(),
            round_trips: side
                .clock_samples
                .iter()
                .map(|sample| RoundTrip {
                    host_sent_ns: HostNs(sample.host_sent_ns),
                    guest_ns: GuestNs(sample.guest_ns),
                    host_received_ns: HostNs(sample.host_received_ns),
                })
                .collect(),
            wall_offset_ns,
            host_start_unix_ns: manifest.start_unix_ns,
            host_start_ns: HostNs(manifest.start_mono_ns),
            host_live_ns: HostNs(manifest.live_mono_ns.max(manifest.start_mono_ns)),
            host_end_ns: HostNs(manifest.end_mono_ns),
            host_lost: manifest.losses.iter().any(|loss| {
                loss.guest.is_none() && loss.source == Source::Qemu.name() && loss.events > 0
            }),
            rho_ppm: UNCORRECTED_PPM + host_ppm + guest_ppm,
            devices: guest.map_or_else(Vec::new, |guest| match_disks(&side.disks, &guest.disks)),
        }
    }

    /// What the round trips leave possible: the fastest ones first, and of the others those that agree
    /// with them. `None` without any that makes sense.
    pub(super) fn round_trip_corridor(&self, rho_ppm: u64) -> Option<Corridor> {
        let sane = |trip: &&RoundTrip| {
            trip.host_sent_ns <= trip.host_received_ns
                && trip.host_received_ns.0.max(trip.guest_ns.0) < 1 << 62
        };
        let mut trips: Vec<&RoundTrip> = self.round_trips.iter().filter(sane).collect();
        trips.sort_by_key(|trip| trip.host_received_ns.since(trip.host_sent_ns));
        let mut corridor = Corridor::new(rho_ppm);
        for trip in &trips {
            let band = Band {
                lo_ns: trip.guest_ns.minus(trip.host_received_ns),
                hi_ns: trip.guest_ns.minus(trip.host_sent_ns),
            };
            let agrees = corridor
                .at(trip.guest_ns)
                .is_none_or(|now| band.lo_ns <= now.hi_ns && now.lo_ns <= band.hi_ns);
            if agrees {
                corridor.assume(trip.guest_ns, band);
            }
        }
        (!trips.is_empty()).then_some(corridor)
    }
}
