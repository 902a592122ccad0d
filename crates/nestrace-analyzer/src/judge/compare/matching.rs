//! What in one recording is the same as what in the other.
//!
//! Guests, disks and devices are taken for the same by their names; what is left by being the only one
//! left, or by its place among as many. A device of the host below a disk goes with the disk, whatever it
//! is called: `loop0` of one run is `loop1` of the next.

use crate::result::analysis::{Analysis, Device};
use crate::result::side::Side;

use super::comparison::{Both, DiskName, Matched, Unmatched, UnmatchedKind, Which};

/// Places in two lists.
pub(super) struct Pair {
    pub places: Both<usize>,
    pub matched: Matched,
}

/// What belongs together, in the order of the first list, and what is left of each.
pub(super) struct Pairs {
    pub pairs: Vec<Pair>,
    pub left: Both<Vec<usize>>,
}

/// Pairs two lists by name, the rest by place.
pub(super) fn pairs<T>(a: &[T], b: &[T], same: impl Fn(&T, &T) -> bool) -> Pairs {
    let mut pairs = Vec::new();
    let mut left = Both {
        a: (0..a.len()).collect::<Vec<_>>(),
        b: (0..b.len()).collect::<Vec<_>>(),
    };
    left.a.retain(|place| {
        let found = left.b.iter().position(|other| same(&a[*place], &b[*other]));
        if let Some(found) = found {
            let places = Both {
                a: *place,
                b: left.b.remove(found),
            };
            let matched = Matched::Name;
            pairs.push(Pair { places, matched });
        }
        found.is_none()
    });
    if left.a.len() == left.b.len() {
        let matched = match left.a.len() {
            1 => Matched::OnlyOne,
            _ => Matched::Order,
        };
        let rest = left.a.drain(..).zip(left.b.drain(..));
        pairs.extend(rest.map(|(a, b)| Pair {
            places: Both { a, b },
            matched,
        }));
    }
    pairs.sort_by_key(|pair| pair.places.a);
    Pairs { pairs, left }
}

/// Names what is left.
pub(super) fn unmatched(
    kind: UnmatchedKind,
    left: &Both<Vec<usize>>,
    names: (impl Fn(usize) -> String, impl Fn(usize) -> String),
) -> Vec<Unmatched> {
    let (n_a, n_b) = (left.a.len(), left.b.len());
    let reason = |others: usize, other: &str| match others {
        0 => format!("{other} has nothing that is left to be the same"),
        _ => format!(
            "{other} has {others} without this name, {n_a} and {n_b} cannot be paired by their order"
        ),
    };
    let of_a = left.a.iter().map(|place| Unmatched {
        only_in: Which::A,
        kind,
        name: names.0(*place),
        reason: reason(n_b, "B"),
    });
    let of_b = left.b.iter().map(|place| Unmatched {
        only_in: Which::B,
        kind,
        name: names.1(*place),
        reason: reason(n_a, "A"),
    });
    of_a.chain(of_b).collect()
}

/// The guests whose disks did something, in the order of the recording.
pub(super) fn guests(disks: &[DiskName]) -> Vec<&str> {
    let mut guests: Vec<&str> = Vec::new();
    for disk in disks {
        if !guests.contains(&disk.guest.as_str()) {
            guests.push(&disk.guest);
        }
    }
    guests
}

/// The disks that did something, in the order of the recording.
pub(super) fn disks(analysis: &Analysis) -> Vec<DiskName> {
    let accounted = analysis.qemu.iter().filter_map(|disk| {
        let worked = disk.reads + disk.writes + disk.flushes + disk.discards > 0;
        Some((
            disk.guest.as_str(),
            disk.disk.as_deref().filter(|_| worked)?,
        ))
    });
    let followed = analysis.chains.iter().filter(|it| it.guest_bios > 0);
    let followed = followed.map(|it| (it.guest.as_str(), it.disk.as_str()));
    let mut names: Vec<(&str, &str)> = Vec::new();
    for name in followed.chain(accounted) {
        if !name.1.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names.iter().map(|name| disk(analysis, *name)).collect()
}

fn disk(analysis: &Analysis, (guest, disk): (&str, &str)) -> DiskName {
    let is = |a: &str, b: &str| a == guest && b == disk;
    let chains = analysis.chains.iter().find(|it| is(&it.guest, &it.disk));
    let image = analysis.images.iter().find(|it| is(&it.guest, &it.disk));
    DiskName {
        guest: guest.to_owned(),
        disk: disk.to_owned(),
        guest_device: chains.map(|chains| chains.guest_device.clone()),
        host_device: beneath(analysis, guest, disk).map(|device| device.name.clone()),
        image: image.map(|image| match &image.fs_type {
            Some(fs_type) => format!("{} on {fs_type}", image.format),
            None => image.format.clone(),
        }),
    }
}

/// The host's device that did most for the disk's images.
fn beneath<'a>(analysis: &'a Analysis, guest: &str, disk: &str) -> Option<&'a Device> {
    let requests = |device: &Device| -> u64 {
        let users = device.users.iter().flatten();
        let own = users.filter(|user| {
            user.guest.as_deref() == Some(guest) && user.disk.as_deref() == Some(disk)
        });
        own.map(|user| user.requests).sum()
    };
    let host = analysis.devices.iter().filter(|it| it.side == Side::Host);
    host.filter(|device| requests(device) > 0)
        .max_by_key(|device| requests(device))
}

/// Place of a device of the host.
pub(super) fn host_place(analysis: &Analysis, name: &str) -> Option<usize> {
    let mut devices = analysis.devices.iter();
    devices.position(|device| device.side == Side::Host && device.name == name)
}

/// Place of a device of a guest.
pub(super) fn guest_place(analysis: &Analysis, guest: &str, name: &str) -> Option<usize> {
    let mut devices = analysis.devices.iter();
    devices.position(|device| device.guest.as_deref() == Some(guest) && device.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = (Vec<(usize, usize, Matched)>, Vec<usize>, Vec<usize>);

    fn paired(a: &[&str], b: &[&str]) -> Found {
        let Pairs { pairs, left } = pairs(a, b, |a, b| a == b);
        let pairs = pairs
            .iter()
            .map(|it| (it.places.a, it.places.b, it.matched));
        (pairs.collect(), left.a, left.b)
    }

    #[test]
    fn names_first_then_the_only_one_then_the_place() {
        use Matched::{Name, OnlyOne, Order};
        for (a, b, expected) in [
            (
                &["x", "y"][..],
                &["y", "x"][..],
                (vec![(0, 1, Name), (1, 0, Name)], vec![], vec![]),
            ),
            (
                &["x", "y"],
                &["y", "z"],
                (vec![(0, 1, OnlyOne), (1, 0, Name)], vec![], vec![]),
            ),
            (
                &["u", "v"],
                &["w", "x"],
                (vec![(0, 0, Order), (1, 1, Order)], vec![], vec![]),
            ),
            (&["u", "v"], &["w"], (vec![], vec![0, 1], vec![0])),
            (&[], &["w"], (vec![], vec![], vec![0])),
        ] {
            assert_eq!(paired(a, b), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn what_is_left_is_named_with_the_reason() {
        let left = Both {
            a: vec![0, 1],
            b: vec![0],
        };
        let names = unmatched(
            UnmatchedKind::Disk,
            &left,
            (|i| format!("a{i}"), |i| format!("b{i}")),
        );
        let text: Vec<_> = names
            .iter()
            .map(|it| (it.only_in, it.name.as_str()))
            .collect();
        assert_eq!(text, [(Which::A, "a0"), (Which::A, "a1"), (Which::B, "b0")]);
        assert!(names[0].reason.contains("2 and 1"));
    }
}
