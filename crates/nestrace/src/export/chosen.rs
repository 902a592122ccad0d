//! What of a bundle is exported: `--guest`, `--device`.

use nestrace_trace::{Manifest, device_number, manifest::GuestSide, redact};

use crate::{
    bundle::{self, Bundle},
    cli::ExportArgs,
    exit::{Failure, INPUT},
};

/// A machine and the devices of it.
pub struct Chosen {
    /// Place among the bundle's guest streams; `None` is the host.
    pub guest: Option<usize>,
    /// Numbers of devices; `None` is all.
    pub devices: Option<Vec<u32>>,
    /// The machine's `CLOCK_MONOTONIC` at the start.
    pub start_mono_ns: u64,
    /// Its wall clock then; 0 where that is not known.
    pub start_unix_ns: u64,
}

impl Chosen {
    /// The host, or what was recorded inside the guest that was asked for.
    pub fn of(args: &ExportArgs, bundle: &Bundle) -> Result<Self, Failure> {
        let manifest = &bundle.manifest;
        let bad = |why: String| Failure::new(INPUT, format!("{}: {why}", args.input.display()));
        let mut side: Option<&GuestSide> = None;
        let mut place = None;
        if let Some(wanted) = &args.guest {
            let of_guest = |side: usize| {
                manifest
                    .guest_sides
                    .get(side)
                    .is_some_and(|side| side.guest == *wanted)
            };
            place = bundle.guests.iter().position(|guest| of_guest(guest.side));
            let sides = manifest.guest_sides.iter().map(|side| &side.guest);
            let known = bundle::each_once(sides);
            let found = place.ok_or_else(|| {
                let failure = bad(format!("nothing was recorded inside {wanted}"));
                failure.hint(bundle::known_names(manifest, &known))
            })?;
            side = manifest.guest_sides.get(bundle.guests[found].side);
        }
        let known = devices_of(manifest, side);
        let mut devices = Vec::new();
        for wanted in &args.device {
            let named = known.iter().find(|(name, _)| name == wanted);
            let named = named.map(|(_, dev)| *dev);
            // One that goes by its number may be in the stream, whatever the manifest says.
            devices.push(
                named
                    .or_else(|| device_number::parse(wanted))
                    .ok_or_else(|| {
                        let names = bundle::each_once(known.iter().map(|(name, _)| name));
                        let failure = bad(format!("no device {wanted}"));
                        failure.hint(bundle::known_names(manifest, &names))
                    })?,
            );
        }
        // Of a redacted manifest only the times of day are other ones.
        let redacted = args.redact.then(|| redact::manifest(manifest));
        let shown = redacted.as_ref().unwrap_or(manifest);
        let side_shown = place.and_then(|place| shown.guest_sides.get(bundle.guests[place].side));
        Ok(Self {
            guest: place,
            devices: (!devices.is_empty()).then_some(devices),
            start_mono_ns: side.map_or(manifest.start_mono_ns, |side| side.start_mono_ns),
            start_unix_ns: side_shown.map_or(shown.start_unix_ns, |side| side.start_unix_ns),
        })
    }

    /// Whether a device is one of those asked for.
    pub fn takes(&self, dev: u32) -> bool {
        self.devices
            .as_ref()
            .is_none_or(|devices| devices.contains(&dev))
    }
}

/// Names and numbers of the devices of the host, or of a guest.
pub fn devices_of(manifest: &Manifest, side: Option<&GuestSide>) -> Vec<(String, u32)> {
    match side {
        Some(side) => side
            .disks
            .iter()
            .map(|disk| (disk.name.clone(), disk.dev))
            .collect(),
        None => {
            let devices = manifest.topology.devices.iter();
            devices
                .map(|device| (device.name.clone(), device.dev))
                .collect()
        }
    }
}

/// A device's name where the manifest has one, else its number.
pub fn device_name(known: &[(String, u32)], dev: u32) -> String {
    let name = known.iter().find(|(_, number)| *number == dev);
    name.map_or_else(|| device_number::text(dev), |(name, _)| name.clone())
}
