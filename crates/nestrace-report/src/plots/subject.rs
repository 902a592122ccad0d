//! What plots are drawn of: the guests' disks with everything recorded of each, else devices.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Amplification, Chains, Device, Image, QemuDisk, Side};
use nestrace_analyzer::verdict::DiskVerdict;
use nestrace_trace::printable;

use crate::table::shorten;

/// Disks or devices with plots of their own; the tables hold all.
const MOST: usize = 4;
/// Letters of a name.
const LONGEST: usize = 100;

/// A disk of a guest, layer by layer, or a device alone.
#[derive(Clone, Debug)]
pub(crate) struct Subject<'a> {
    /// `vm1/disk0 (vda)`.
    pub name: String,
    /// For ids: letters, digits and dashes.
    pub slug: String,
    pub chains: Option<&'a Chains>,
    pub verdict: Option<&'a DiskVerdict>,
    pub guest: Option<&'a Device>,
    pub qemu: Option<&'a QemuDisk>,
    pub images: Vec<&'a Image>,
    /// The host's device that most of its I/O went to.
    pub host: Option<&'a Device>,
    pub amplification: Option<&'a Amplification>,
}

impl<'a> Subject<'a> {
    /// A disk of a guest, by name.
    pub(crate) fn of_disk(analysis: &'a Analysis, guest: &'a str, disk: &'a str) -> Self {
        disk_of(analysis, (guest, disk))
    }

    /// What its host device is called in a legend.
    pub(crate) fn host_name(&self) -> String {
        self.host
            .map_or_else(String::new, |host| shown(&format!("host {}", host.name)))
    }

    /// What its guest device is called in a legend.
    pub(crate) fn guest_name(&self) -> String {
        self.guest
            .map_or_else(String::new, |guest| shown(&format!("guest {}", guest.name)))
    }
}

/// Disks of guests, the most time first; devices where no disk is known.
pub(crate) fn of(analysis: &Analysis) -> Vec<Subject<'_>> {
    let mut subjects: Vec<(u128, Subject<'_>)> = Vec::new();
    for disk in names(analysis) {
        let subject = disk_of(analysis, disk);
        if let Some(time) = time(&subject) {
            subjects.push((time, subject));
        }
    }
    if subjects.is_empty() {
        return devices(analysis);
    }
    subjects.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    let mut subjects: Vec<_> = subjects.into_iter().map(|(_, subject)| subject).collect();
    subjects.truncate(MOST);
    number(&mut subjects);
    subjects
}

/// Disks that have no plots because there are so many.
pub(crate) fn n_left_out(analysis: &Analysis) -> usize {
    let disks = names(analysis)
        .into_iter()
        .map(|disk| disk_of(analysis, disk));
    let n = disks.filter(|disk| time(disk).is_some()).count();
    let n = if n == 0 {
        busy_devices(analysis).count()
    } else {
        n
    };
    n.saturating_sub(MOST)
}

/// Guest and disk, each once.
fn names(analysis: &Analysis) -> Vec<(&str, &str)> {
    let followed = analysis
        .chains
        .iter()
        .map(|it| (it.guest.as_str(), it.disk.as_str()));
    let accounted = analysis
        .qemu
        .iter()
        .filter_map(|it| Some((it.guest.as_str(), it.disk.as_deref()?)));
    let mut names: Vec<(&str, &str)> = Vec::new();
    for name in followed.chain(accounted) {
        if !name.1.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn disk_of<'a>(analysis: &'a Analysis, (guest, disk): (&'a str, &'a str)) -> Subject<'a> {
    let is = |a: &str, b: &str| a == guest && b == disk;
    let chains = analysis.chains.iter().find(|it| is(&it.guest, &it.disk));
    let device = chains.map_or("", |chains| chains.guest_device.as_str());
    let inside = |it: &&Device| it.guest.as_deref() == Some(guest) && it.name == device;
    let images = analysis.images.iter().filter(|it| is(&it.guest, &it.disk));
    let also = if device.is_empty() {
        String::new()
    } else {
        format!(" ({device})")
    };
    Subject {
        name: shown(&format!("{guest}/{disk}{also}")),
        slug: slug(&format!("{guest}-{disk}")),
        chains,
        verdict: analysis
            .verdict
            .disks
            .iter()
            .find(|it| is(&it.guest, &it.disk)),
        guest: analysis.devices.iter().find(inside),
        qemu: analysis
            .qemu
            .iter()
            .find(|it| is(&it.guest, it.disk.as_deref().unwrap_or(""))),
        images: images.collect(),
        host: beneath(analysis, guest, disk),
        amplification: analysis
            .amplification
            .iter()
            .find(|it| is(&it.guest, &it.disk)),
    }
}

/// The host's device that did most for the disk's images.
fn beneath<'a>(analysis: &'a Analysis, guest: &str, disk: &str) -> Option<&'a Device> {
    let requests = |device: &Device| {
        let users = device.users.iter().flatten();
        let own = users.filter(|user| {
            user.guest.as_deref() == Some(guest) && user.disk.as_deref() == Some(disk)
        });
        own.map(|user| user.requests).sum::<u64>()
    };
    let host = analysis
        .devices
        .iter()
        .filter(|device| device.side == Side::Host);
    host.filter(|device| requests(device) > 0)
        .max_by_key(|device| requests(device))
}

/// Time that was spent on its I/O.
fn time(subject: &Subject<'_>) -> Option<u128> {
    let guest = subject.guest.and_then(|guest| guest.latency_ns.all.q2c);
    let qemu = subject.verdict.map(|verdict| u128::from(verdict.qemu_ns));
    let done = subject
        .qemu
        .map(|qemu| u128::from(qemu.reads + qemu.writes));
    guest
        .map(|dist| u128::from(dist.sum))
        .or(qemu)
        .or(done)
        .filter(|time| *time > 0)
}

fn busy_devices(analysis: &Analysis) -> impl Iterator<Item = &Device> {
    let devices = analysis.devices.iter();
    devices.filter(|device| device.counts.issued > 0 || device.bytes.total() > 0)
}

fn devices(analysis: &Analysis) -> Vec<Subject<'_>> {
    let mut subjects: Vec<Subject<'_>> = busy_devices(analysis)
        .take(MOST)
        .map(|device| {
            let inside = device.side == Side::Guest;
            let name = match &device.guest {
                Some(guest) => format!("{guest}/{}", device.name),
                None => device.name.clone(),
            };
            Subject {
                slug: slug(&name),
                name: shown(&name),
                chains: None,
                verdict: None,
                guest: inside.then_some(device),
                qemu: None,
                images: Vec::new(),
                host: (!inside).then_some(device),
                amplification: None,
            }
        })
        .collect();
    number(&mut subjects);
    subjects
}

/// A name as it can be drawn: a recording may hold any.
pub(super) fn shown(name: &str) -> String {
    shorten(&printable(name), LONGEST)
}

/// Letters, digits and dashes of a name.
pub(super) fn slug(name: &str) -> String {
    let dashed = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    let words: Vec<String> = dashed
        .collect::<String>()
        .split('-')
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-").chars().take(60).collect()
}

/// Names that differ only in characters that a slug leaves out get a number.
fn number(subjects: &mut [Subject<'_>]) {
    for place in 1..subjects.len() {
        let (before, rest) = subjects.split_at_mut(place);
        if let Some(subject) = rest.first_mut()
            && (subject.slug.is_empty() || before.iter().any(|it| it.slug == subject.slug))
        {
            subject.slug = format!("{}-{}", subject.slug, place + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_names_of_files() {
        assert_eq!(slug("vm 1/../disk_0"), "vm-1-disk-0");
        assert_eq!(slug("ä/ö"), "");
        assert_eq!(shown("vm\u{1}1").as_str(), "vm\u{fffd}1");
        assert!(shown(&"x".repeat(100_000)).chars().count() <= LONGEST);
    }
}
