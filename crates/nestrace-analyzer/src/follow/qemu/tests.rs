//! Requests of disks whose bus is known, and of others.

use nestrace_trace::manifest::{Backend, Disk};

use super::*;

/// The cookie's place in a request of virtio-blk.
const COOKIE: u64 = 216;
const BACKEND: u64 = 0x10000;

/// A guest with one disk, and QEMU's events of it.
struct World {
    qemu: Qemu,
    ns: u64,
}

impl World {
    fn new(bus: &str) -> Self {
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
        Self { qemu, ns: 0 }
    }

    fn push(&mut self, kind: Kind, object: u64, offset: u64) {
        self.ns += 10;
        let event = Event {
            kind: kind as u8,
            ts_ns: self.ns,
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
        let images = Images::default();
        let activity = &mut [];
        let mut disks = Disks {
            images: &images,
            activity,
        };
        self.qemu.push(kind, &event, &mut disks);
    }

    /// Requests by the addresses of their elements: `started` are accounted for, all are called in this order,
    /// then completed. Gives the offset of each that was accounted for, less `base`; a request's own is its element.
    fn batch(&mut self, base: u64, started: &[u64], called: &[u64]) -> Vec<Option<u64>> {
        for element in started {
            self.push(Kind::AcctStart, element + COOKIE, 0);
        }
        for element in called {
            self.push(Kind::AioPwritev, *element, base + element);
        }
        for element in called {
            self.push(Kind::VirtqueuePush, *element, 0);
            self.push(Kind::AcctDone, element + COOKIE, 0);
        }
        self.ended(base)
    }

    fn ended(&mut self, base: u64) -> Vec<Option<u64>> {
        let steps = self.qemu.steps(0).into_iter();
        let ended = steps.filter_map(|step| match step {
            Step::Ended(ended) => Some(ended.offset.map(|offset| offset - base)),
            _ => None,
        });
        ended.collect()
    }
}

/// Batches of three writes to a disk: all are accounted for, then called, then completed. Gives where the
/// requests lie, by cookie.
fn batches(bus: &str, element: impl Fn(u64) -> u64) -> Vec<Vec<Option<u64>>> {
    let mut world = World::new(bus);
    let requests = [0x9_0000, 0x9_2000, 0x9_1000];
    (0..4)
        .map(|batch: u64| {
            let base = batch << 30;
            let all = requests.iter();
            all.clone()
                .for_each(|request| world.push(Kind::AcctStart, request + COOKIE, 0));
            all.clone()
                .for_each(|request| world.push(Kind::AioPwritev, *request, base + request));
            for request in all {
                world.push(Kind::VirtqueuePush, element(*request), 0);
                world.push(Kind::AcctDone, request + COOKIE, 0);
            }
            world.ended(base)
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

#[test]
fn a_call_whose_start_was_lost_gets_no_other_request() {
    let (a, b, c) = (0x9_0000, 0x9_2000, 0x9_4000);
    for alone in [a, c] {
        let mut world = World::new("virtio-blk");
        assert_eq!(world.batch(0, &[alone], &[alone]), [Some(alone)]);
        assert_eq!(
            world.batch(1 << 30, &[b, c], &[a, b, c]),
            [Some(b), Some(c)]
        );
        assert_eq!(world.batch(2 << 30, &[c], &[a, c]), [Some(c)]);
    }
    // Before the distance is known nothing within a batch is tied by order.
    let mut world = World::new("virtio-blk");
    assert_eq!(world.batch(0, &[b, c], &[a, b, c]), [Some(b), Some(c)]);
}

#[test]
fn the_first_call_of_a_recording_finds_its_request_once_the_distance_is_certain() {
    // Two neighbours on the heap: the first call could be either's, the second one's is behind it.
    let (a, b) = (0x9_0000, 0x9_0160);
    let mut world = World::new("virtio-blk");
    assert_eq!(world.batch(0, &[a, b], &[a, b]), [Some(a), Some(b)]);
}

#[test]
fn neighbours_on_the_heap_do_not_swap_the_first_batch() {
    let heap = [0x9_0400, 0x9_0300, 0x9_0200, 0x9_0100];
    let calls = [0x9_0100, 0x9_0200, 0x9_0300, 0x9_0400];
    let mut world = World::new("virtio-blk");
    // A request by itself tells the distance at once.
    assert_eq!(world.batch(0, &heap[..1], &heap[..1]), [Some(heap[0])]);
    assert!(
        world
            .batch(1 << 30, &heap, &calls)
            .iter()
            .all(Option::is_some)
    );
    let mut world = World::new("virtio-blk");
    for batch in 0..8 {
        let base = batch << 30;
        let ended = world.batch(base, &heap, &calls);
        let right = |(offset, own): (&Option<u64>, &u64)| offset.is_none_or(|it| it == *own);
        assert!(ended.iter().zip(&calls).all(right), "{batch}: {ended:x?}");
        if batch > 1 {
            assert!(ended.iter().all(Option::is_some), "{batch}: {ended:x?}");
        }
    }
}
