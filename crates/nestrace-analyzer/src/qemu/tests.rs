//! Requests of disks whose bus is known, and of others.

use nestrace_trace::manifest::{Backend, Disk};

use super::*;

/// The cookie's place in a request of virtio-blk.
const COOKIE: u64 = 216;
const BACKEND: u64 = 0x10000;

/// Batches of three writes to a disk: all are accounted for, then called, then handed back. Gives where the
/// requests lie, by cookie.
fn batches(bus: &str, element: impl Fn(u64) -> u64) -> Vec<Vec<Option<u64>>> {
    let disk = Disk {
        bus: bus.to_owned(),
        ..Disk::default()
    };
    let backend = Backend {
        address: BACKEND,
        ..Backend::default()
    };
    let guest = Guest {
        disks: vec![disk],
        backends: vec![backend],
        ..Guest::default()
    };
    let mut qemu = Qemu::new(&[guest], &[], 0);
    qemu.follow_requests();
    let images = Images::default();
    let mut ns = 0;
    let mut push = |qemu: &mut Qemu, kind: Kind, object: u64, offset: u64| {
        ns += 10;
        let event = Event {
            kind: kind as u8,
            ts_ns: ns,
            tid: 7,
            object,
            offset,
            bytes: 4096,
            sub: WRITE as u8,
            related: match kind {
                Kind::AcctStart | Kind::AcctDone => BACKEND + 0x40,
                _ => BACKEND,
            },
            ..Event::default()
        };
        let activity = &mut [];
        qemu.push(
            kind,
            &event,
            &mut Disks {
                images: &images,
                activity,
            },
        );
    };
    let requests = [0x9_0000, 0x9_2000, 0x9_1000];
    let at = |batch: u64, request: u64| (batch << 30) + request;
    (0..4)
        .map(|batch| {
            requests
                .iter()
                .for_each(|request| push(&mut qemu, Kind::AcctStart, request + COOKIE, 0));
            requests.iter().for_each(|request| {
                push(&mut qemu, Kind::AioPwritev, *request, at(batch, *request))
            });
            for request in requests {
                push(&mut qemu, Kind::VirtqueuePush, element(request), 0);
                push(&mut qemu, Kind::AcctDone, request + COOKIE, 0);
            }
            let steps = qemu.steps(0).into_iter();
            let ended = steps.filter_map(|step| match step {
                Step::Ended(ended) => Some(ended.offset.map(|offset| offset - (batch << 30))),
                _ => None,
            });
            ended.collect()
        })
        .collect()
}

#[test]
fn batches_are_not_tied_before_the_bus_is_known() {
    let (none, right) = ([None; 3], [0x9_0000, 0x9_2000, 0x9_1000].map(Some));
    let element = |request: u64| request;
    assert_eq!(batches("virtio-blk", element), [right; 4]);
    assert_eq!(batches("", element), [none, right, right, right]);
    assert_eq!(batches("", |_| 0), [none; 4]);
}
