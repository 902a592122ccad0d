//! Spans of bios and requests from lists of events.

use nestrace_abi::Source;
use nestrace_trace::Event;

use super::BlockSpans;
use crate::follow::block::observer::{Observed, Observer};
use crate::follow::block::{BlockLayer, Lent};
use crate::model::owner::Owner;
use crate::model::span::{BioSpan, RequestSpan};
use crate::model::stacking::Stacking;
use crate::model::threads::Threads;
use crate::notation;
use crate::result::unlinked::Reasons;

fn spans(text: &str) -> (Vec<BioSpan>, Vec<RequestSpan>) {
    spans_seen_by(&mut (), text)
}

fn spans_seen_by<O: Observer>(observer: &mut O, text: &str) -> (Vec<BioSpan>, Vec<RequestSpan>) {
    let mut block = BlockLayer::with_spans();
    let threads = Threads::default();
    for event in notation::events(text) {
        let kind = event.kind().expect("known");
        assert_eq!(kind.source(), Source::Block);
        let mut lent = Lent {
            observer,
            threads: &threads,
            reasons: Reasons::default(),
        };
        block.push(kind, &event, &mut lent);
    }
    let spans = *block.gathered.spans.take().expect("asked for");
    (spans.bios, spans.requests)
}

/// `Q-end: D-C D-C …` of each bio, in the order of their ends.
fn bios(text: &str) -> Vec<String> {
    let of = |bio: &BioSpan| {
        let requests: Vec<String> = bio
            .requests
            .iter()
            .map(|request| {
                let flush = if request.flush { "F" } else { "" };
                format!("{flush}{}-{}", request.issued_ns, request.completed_ns)
            })
            .collect();
        let mark = if bio.ambiguous { " ?" } else { "" };
        format!(
            "{}-{}: {}{mark}",
            bio.queued_ns,
            bio.ended_ns,
            requests.join(" ")
        )
    };
    spans(text).0.iter().map(of).collect()
}

/// An image on the uppermost of three devices: dm-1 over dm-0 over a disk.
struct OnDm;

impl Observer for OnDm {
    fn queued(&mut self, queue: &Event, _threads: &Threads) -> Observed {
        let owner = match queue.dev == DM_1 {
            true => Owner::Image(3),
            false => Owner::Thread(queue.tid),
        };
        Observed {
            owner,
            charged: owner,
            clocks: None,
        }
    }

    fn stacking(&self, dev: u32) -> Option<Stacking> {
        match dev {
            BCACHE_0 => Some(Stacking::Bcache),
            DM_0.. => Some(Stacking::Dm),
            _ => None,
        }
    }
}

const DM_0: u32 = 253 << 20;
const DM_1: u32 = DM_0 + 1;
const BCACHE_0: u32 = 251 << 20;

#[test]
fn bios_of_every_device_below_are_charged_to_the_owner_at_the_top() {
    let text = "10 Q b1 W 0+4096 dev=253:1
        11 A c1 W 4096+4096 dev=253:0 of=253:1
        12 Q c1 W 4096+4096 dev=253:0
        13 A d1 W 8192+4096 of=253:0 at=4096
        14 Q d1 W 8192+4096
        15 G d1
        16 D r1 W 8192+4096 rel=d1
        20 C r1 W 8192+4096
        21 BC c1 W 4096+4096 dev=253:0
        22 BC b1 W 0+4096 dev=253:1";
    let spans = spans_seen_by(&mut OnDm, text).0;
    let owners: Vec<_> = spans
        .iter()
        .map(|span| (span.owner, span.owner_at_top))
        .collect();
    let (image, thread) = (Owner::Image(3), Owner::Thread(spans[0].tid));
    assert_eq!(
        owners,
        [(thread, image), (thread, image), (image, image)],
        "disk, dm-0, dm-1"
    );
}

/// Two writes of one place, each to the backing device and to the cache; a fill of the cache is for no bio. The bios end on the
/// backing device, where bcache has moved them.
#[test]
fn bios_below_bcache_are_for_the_one_that_it_names() {
    let write = |above: &str, n: u32| {
        format!(
            "{n}0 Q {above} W 0+4096 dev=251:0
             {n}1 made c{n} W 8192+4096 dev=8:0 rel={above} of=251:0
             {n}2 Q c{n} W 8192+4096 dev=8:0
             {n}3 made d{n} W 65536+4096 dev=8:16 rel={above} of=251:0
             {n}4 Q d{n} W 65536+4096 dev=8:16\n"
        )
    };
    let end = |n: u32| {
        format!(
            "30 G c{n} dev=8:0
             30 G d{n} dev=8:16
             31 D r{n} W 8192+4096 rel=c{n} dev=8:0
             31 D s{n} W 65536+4096 rel=d{n} dev=8:16
             3{n} C r{n} W 8192+4096 dev=8:0
             3{n} C s{n} W 65536+4096 dev=8:16\n"
        )
    };
    let text = [
        write("b1", 1),
        write("b2", 2),
        "29 made e1 W 0+4096 dev=8:16 rel=b9 of=251:0\n29 Q e1 W 0+4096 dev=8:16\n".to_owned(),
        end(2),
        end(3),
        "40 BC b2 W 8192+4096 dev=8:0\n41 BC b1 W 8192+4096 dev=8:0".to_owned(),
    ]
    .concat()
    .replace("c3", "c1")
    .replace("d3", "d1");
    let spans = spans_seen_by(&mut OnDm, &text).0;
    let parents = spans.iter().map(|span| {
        let above = span.above.as_ref();
        above.map(|above| above.bios.iter().map(|bio| bio.generation).collect())
    });
    let parents: Vec<Option<Vec<u32>>> = parents.collect();
    let (first, second) = (spans[5].generation, spans[4].generation);
    let of = |generation| Some(vec![generation]);
    assert_eq!(
        parents,
        [of(second), of(second), of(first), of(first), None, None]
    );
    let ended: Vec<_> = spans[4..]
        .iter()
        .map(|span| (span.pointer, span.queued_ns, span.ended_ns, span.dev))
        .collect();
    let pointer = notation::address;
    assert_eq!(
        ended,
        [
            (pointer("b2"), 20, 40, BCACHE_0),
            (pointer("b1"), 10, 41, BCACHE_0)
        ]
    );
    assert!(spans.iter().all(|span| span.requests[0].dev == span.dev));
}

#[test]
fn a_bio_without_an_end_does_not_keep_its_requests_for_ever() {
    let mut open = BlockSpans::default();
    for (generation, n_requests) in [(1, 1), (2, 5), (3, 2)] {
        open.open.insert(generation, bio_span(generation));
        for serial in 0..n_requests {
            open.carried(generation, request_span(serial));
        }
    }
    assert_eq!(open.n_requests(), 8);
    open.forget_requests_beyond(8);
    assert_eq!(open.n_requests(), 8);
    open.forget_requests_beyond(7);
    let left = |generation: u32| {
        let span = &open.open[&generation];
        (span.requests.len(), span.ambiguous)
    };
    assert_eq!(
        [left(1), left(2), left(3)],
        [(1, false), (0, true), (2, false)]
    );
    let given_up = open.give_up_heaviest(1);
    assert_eq!(
        given_up.iter().map(|bio| bio.pointer).collect::<Vec<_>>(),
        [3]
    );
    assert_eq!((open.n_open(), open.n_requests()), (2, 1));
}

#[test]
fn a_request_that_carried_two_parts_of_a_bio_is_one_of_its_requests() {
    for n_requests in [3, 500] {
        let mut open = BlockSpans::default();
        open.open.insert(1, bio_span(1));
        for serial in (0..n_requests).chain(0..n_requests) {
            open.carried(1, request_span(serial));
        }
        let bio = open.open.remove(&1).expect("open");
        open.hand_on(bio, 7);
        let serials = open.bios[0].requests.iter().map(|request| request.serial);
        assert!(serials.eq(0..n_requests));
    }
}

fn bio_span(number: u32) -> BioSpan {
    let text = format!(
        "{number} Q b{number} W 0+4096\n{number} G b{number}\n{number} D r1 W 0+4096 rel=b{number}\n9 C r1 W 0+4096"
    );
    let mut bio = spans(&text).0.remove(0);
    bio.requests.clear();
    bio.pointer = number.into();
    bio
}

fn request_span(serial: u64) -> RequestSpan {
    let text = "1 Q b1 W 0+4096\n1 G b1\n1 D r1 W 0+4096 rel=b1\n9 C r1 W 0+4096";
    let request = spans(text).1.remove(0);
    RequestSpan { serial, ..request }
}

#[test]
fn merged_bios_share_their_request() {
    let text = "100 Q b1 W 0+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=u1
         101 G b1
         102 Q b2 W 4096+4096
         103 M b2
         110 D r1 W 0+8192 rel=b1 links=b2
         200 C r1 W 0+8192";
    assert_eq!(bios(text), ["100-200: 110-200", "102-200: 110-200"]);
    let (bios, requests) = spans(text);
    assert_eq!(bios[0].requests[0].serial, bios[1].requests[0].serial);
    assert_eq!(requests, bios[0].requests);
    assert_eq!((requests[0].bytes, requests[0].bios), (8192, 2));
    assert_eq!(bios[0].iocb, notation::address("k1"));
    assert_eq!(bios[0].pointer, notation::address("b1"));
}

#[test]
fn a_split_bio_ends_with_its_last_fragment() {
    assert_eq!(
        bios(
            "100 Q b1 R 0+12288
             101 X f1 R 0+4096 rel=b1
             102 G f1
             103 X f2 R 4096+4096 rel=b1
             104 G f2
             105 G b1
             110 D r1 R 0+4096 rel=f1
             111 D r2 R 4096+4096 rel=f2
             112 D r3 R 8192+4096 rel=b1
             200 C r1 R 0+4096
             205 C r3 R 8192+4096
             210 C r2 R 4096+4096"
        ),
        ["100-210: 110-200 111-210 112-205"]
    );
}

#[test]
fn a_requeued_request_begins_with_its_first_issue() {
    assert_eq!(
        bios(
            "100 Q b1 R 0+4096
             101 G b1
             110 D r1 R 0+4096 rel=b1
             120 RQ r1 R 0+4096
             150 D r1 R 0+4096 rel=b1
             200 C r1 R 0+4096"
        ),
        ["100-200: 110-200"]
    );
}

#[test]
fn a_bio_that_a_partial_completion_ends() {
    assert_eq!(
        bios(
            "100 Q b1 R 0+4096
             101 G b1
             102 Q b2 R 4096+4096
             103 M b2
             110 D r1 R 0+8192 rel=b1 links=b2
             150 C r1 R 0+4096 left=0x1000
             200 C r1 R 4096+4096"
        ),
        ["100-150: 110-150", "102-200: 110-200"]
    );
}

#[test]
fn the_flushes_of_a_journal_commit() {
    let text = "90 D f0 F          # somebody else's, too early to serve it
         100 Q b1 Wfu 0+4096
         101 G b1
         102 C f0 Fs
         103 D fl F
         200 C fl Fs
         210 D r1 Wsfu 0+4096 rel=b1
         260 C r1 Wsfu 0+4096
         262 D fl F
         300 C fl Fs
         301 C r1 Wfu 0+0";
    assert_eq!(bios(text), ["100-301: F103-200 210-260 F262-300"]);
    let (bios, requests) = spans(text);
    assert_eq!(requests.len(), 4);
    assert_eq!(bios[0].requests, requests[1..]);
}

#[test]
fn a_device_with_fua_needs_no_second_flush() {
    assert_eq!(
        bios(
            "100 Q b1 Wfu 0+4096
             101 G b1
             103 D fl F
             200 C fl Fs
             210 D r1 Wsfu 0+4096 rel=b1
             260 C r1 Wsfu 0+4096
             260 C r1 Wfu 0+0"
        ),
        ["100-260: F103-200 210-260"]
    );
}

#[test]
fn flushes_without_data_share_the_one_that_serves_them() {
    // s2 came when the first flush was at the device already: it waits for the next.
    assert_eq!(
        bios(
            "100 Q s1 Wf 0+0
             101 G s1
             102 D fl F
             110 Q s2 Wf 0+0
             111 G s2
             112 Q s3 Wf 0+0
             113 G s3
             200 C fl Fs
             201 C e1 Wf 0+0
             202 D fl F
             300 C fl Fs
             301 C e2 Wf 0+0
             302 C e3 Wf 0+0"
        ),
        [
            "100-201: F102-200",
            "110-301: F202-300",
            "112-302: F202-300"
        ]
    );
}

#[test]
fn a_flush_waits_from_its_request_on_not_from_its_queueing() {
    // s1 was queued first but waited for a tag; s2 reached the flush machinery before it.
    assert_eq!(
        bios(
            "100 Q s1 Wf 0+0
             105 Q s2 Wf 0+0
             106 G s2
             107 D fl F
             150 G s1
             200 C fl Fs
             201 C e2 Wf 0+0
             202 D fl F
             300 C fl Fs
             301 C e1 Wf 0+0"
        ),
        ["105-201: F107-200", "100-301: F202-300"]
    );
}

#[test]
fn of_two_flushes_that_could_be_it_the_last_is_taken_and_marked() {
    assert_eq!(
        bios(
            "100 Q b1 Wf 0+4096
             101 G b1
             103 D fl F
             104 D fm F
             200 C fl Fs
             201 C fm Fs
             210 D r1 Wsf 0+4096 rel=b1
             260 C r1 Wsf 0+4096
             260 C r1 Wf 0+0"
        ),
        ["100-260: F104-201 210-260 ?"]
    );
}

#[test]
fn the_flush_is_that_of_the_bios_own_hardware_queue() {
    // Of both, one flush for each step: fl serves b1, fm serves b2.
    assert_eq!(
        bios(
            "100 Q b1 Wfu 0+4096
             101 G b1
             102 Q b2 Wfu 8192+4096
             103 G b2
             104 D fl F
             105 D fm F
             200 C fl Fs
             201 C fm Fs
             210 D r1 Wsfu 0+4096 rel=b1 iocb=fl
             211 D r2 Wsfu 8192+4096 rel=b2 iocb=fm
             260 C r2 Wsfu 8192+4096
             261 C r1 Wsfu 0+4096
             262 D fl F
             263 D fm F
             300 C fm Fs
             301 C fl Fs
             302 C r1 Wfu 0+0 origin=b1 iocb=fl
             303 C r2 Wfu 8192+0 origin=b2 iocb=fm"
        ),
        [
            "100-302: F104-200 210-261 F262-301",
            "102-303: F105-201 211-260 F263-300"
        ]
    );
}

#[test]
fn a_flush_without_data_has_that_of_its_own_hardware_queue() {
    // fl was issued once more after s1 came, and ended last of all; s2 has it, whichever ended later.
    assert_eq!(
        bios(
            "100 Q s1 Wf 0+0
             101 G s1
             102 D fm F
             103 D fl F
             150 C fl Fs
             160 Q s2 Wf 0+0
             161 G s2
             162 D fl F
             200 C fl Fs
             210 C fm Fs
             211 C e1 Wf 0+0 origin=s1 iocb=fm
             212 C e2 Wf 0+0 origin=s2 iocb=fl"
        ),
        ["100-211: F102-210", "160-212: F162-200"]
    );
}

#[test]
fn light_recordings_have_requests_only() {
    let (bios, requests) = spans(
        "200 RD r1 W 0+4096 issued=100
         300 RD fl Fs issued=250
         301 RD r1 W 0+0 issued=0",
    );
    assert_eq!(bios, []);
    assert_eq!(
        requests
            .iter()
            .map(|request| (request.issued_ns, request.completed_ns, request.flush))
            .collect::<Vec<_>>(),
        [(100, 200, false), (250, 300, true)]
    );
}
