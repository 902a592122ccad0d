//! What of everything recorded is exported, where host and guests go into one file.

use nestrace_analyzer::analysis::{CallStory, Story};
use nestrace_trace::{Manifest, device_number, redact};

use crate::{
    bundle,
    cli::ExportArgs,
    exit::{Failure, INPUT},
};

/// `--guest` and `--device`, checked against the recording; with `--redact` in the words that stand for them.
pub struct Selection {
    guest: Option<String>,
    /// Names of devices and disks, and numbers of devices; empty: all.
    devices: Vec<String>,
    /// Guest, name and number of each disk, as guests see them.
    disks: Vec<(String, String, String)>,
}

/// A name and, with `--redact`, what stands for it.
struct Known {
    name: String,
    becomes: String,
}

impl Selection {
    /// Takes the names out of the manifest where that is asked for.
    pub fn of(args: &ExportArgs, manifest: &mut Manifest) -> Result<Self, Failure> {
        let redacted = match args.redact {
            true => redact::manifest(manifest),
            false => manifest.clone(),
        };
        let find = |what: &str, wanted: &String, known: &[Known]| {
            let found = known.iter().find(|known| known.name == *wanted);
            found.map(|known| known.becomes.clone()).ok_or_else(|| {
                let path = args.input.display();
                let names = bundle::each_once(known.iter().map(|known| &known.name));
                Failure::new(INPUT, format!("{path}: no {what} {wanted}"))
                    .hint(bundle::known_names(manifest, &names))
            })
        };
        let guests = guests(manifest, &redacted);
        let guest = args.guest.as_ref();
        let guest = guest
            .map(|wanted| find("guest", wanted, &guests))
            .transpose()?;
        let known = devices(manifest, &redacted);
        // One that goes by its number may be in the streams, whatever the manifest says.
        let devices = args.device.iter().map(|wanted| {
            let number = device_number::parse(wanted).map(device_number::text);
            find("device", wanted, &known).or_else(|failure| number.ok_or(failure))
        });
        let selection = Self {
            guest,
            devices: devices.collect::<Result<_, _>>()?,
            disks: numbered_disks(&redacted),
        };
        *manifest = redacted;
        Ok(selection)
    }

    /// Whether a device of the host is wanted: with `--guest` only what is the guest's is.
    pub fn takes_host(&self, name: &str, dev: u32) -> bool {
        self.guest.is_none() && self.takes_device(&[name, &device_number::text(dev)])
    }

    /// Whether a disk is wanted, as the guest sees it.
    pub fn takes_guest(&self, guest: &str, name: &str, dev: u32) -> bool {
        self.takes_any_of(guest) && self.takes_device(&[name, &device_number::text(dev)])
    }

    /// Whether anything of a guest is wanted.
    pub fn takes_any_of(&self, guest: &str) -> bool {
        self.guest.as_ref().is_none_or(|wanted| wanted == guest)
    }

    /// Whether a chain is wanted.
    pub fn takes_story(&self, story: &Story) -> bool {
        let (guest, device) = (&story.guest, &story.guest_device);
        self.takes_any_of(guest)
            && self.takes_device(&[device, &story.disk, self.number(guest, device)])
    }

    /// Whether a call is wanted: with `--device` only what is known to be about a file system of that disk is.
    pub fn takes_call(&self, call: &CallStory) -> bool {
        let (guest, device) = (&call.guest, &call.guest_device);
        self.takes_any_of(guest)
            && self.takes_device(&[device, &call.disk, self.number(guest, device)])
    }

    /// The number of a disk, as its guest has it.
    fn number(&self, guest: &str, device: &str) -> &str {
        let mut disks = self.disks.iter();
        let known = disks.find(|(of, name, _)| of == guest && name == device);
        known.map_or("", |(_, _, number)| number)
    }

    fn takes_device(&self, names: &[&str]) -> bool {
        self.devices.is_empty()
            || self
                .devices
                .iter()
                .any(|wanted| names.contains(&wanted.as_str()))
    }
}

fn numbered_disks(manifest: &Manifest) -> Vec<(String, String, String)> {
    let sides = manifest.guest_sides.iter();
    let disks = sides.flat_map(|side| side.disks.iter().map(move |disk| (&side.guest, disk)));
    disks
        .map(|(guest, disk)| {
            (
                guest.clone(),
                disk.name.clone(),
                device_number::text(disk.dev),
            )
        })
        .collect()
}

fn guests(manifest: &Manifest, redacted: &Manifest) -> Vec<Known> {
    let named = |manifest: &Manifest| {
        let known = manifest
            .topology
            .guests
            .iter()
            .map(|guest| guest.name.clone());
        let sides = manifest.guest_sides.iter().map(|side| side.guest.clone());
        known.chain(sides).collect::<Vec<_>>()
    };
    paired(named(manifest), named(redacted))
}

fn devices(manifest: &Manifest, redacted: &Manifest) -> Vec<Known> {
    let named = |manifest: &Manifest| {
        let topology = &manifest.topology;
        let disks = topology.guests.iter().flat_map(|guest| &guest.disks);
        let of_guests = manifest.guest_sides.iter().flat_map(|side| &side.disks);
        let of_host = topology.devices.iter().map(|device| &device.name);
        let of_guests = of_guests.map(|disk| &disk.name);
        let disks = disks.map(|disk| &disk.name);
        let names = of_host.chain(of_guests).chain(disks).cloned();
        names.collect()
    };
    paired(named(manifest), named(redacted))
}

/// Names in the same order, each once.
fn paired(names: Vec<String>, become_: Vec<String>) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    for (name, becomes) in names.into_iter().zip(become_) {
        if !name.is_empty() && known.iter().all(|known| known.name != name) {
            known.push(Known { name, becomes });
        }
    }
    known
}
