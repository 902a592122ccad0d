//! Links of requests of every kind against QEMU's own log, request by request.

mod guest;
mod identity;
mod key;
mod qemu;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use xtask::case::Case;

use super::scene::{DISK, Scene, Seen};
use super::stories::Span;
use crate::analysis::{entry, number};
use crate::ground_truth;
use crate::with_agents::chains::{self, Subject};
use guest::GuestRequest;
use identity::Truth;
use key::Operation;

/// QEMU's arguments for the guest: a merged request has no call of its own, and with it no buffer by
/// which it can be known. Merged ones are held against their data instead.
pub const ARGUMENTS: [&str; 2] = ["-global", "virtio-blk-device.request-merging=off"];

/// Storms on few sectors, one by one and in batches (in which the guest's kernel turns the order around
/// between D and the queue), requests over `max_sectors`, overlapping requests in flight, flush sequences
/// of a journal, discards, zeroes (mkfs). Huge pages would hide where in them a buffer lies.
const WORKLOAD: &str = "\
for f in /sys/kernel/mm/transparent_hugepage/enabled; do [ ! -e $f ] || echo never > $f; done
fio --filename=/dev/DEV --direct=1 --ioengine=libaio --output=/tmp/fio.out \
--name=storm --rw=randrw --bs=4k --size=1m --io_size=2m --iodepth=8 \
--norandommap --random_distribution=zoned:60/1:40/99 \
--name=batches --stonewall --rw=randrw --bs=4k --size=1m --io_size=1m --iodepth=16 \
--norandommap --random_distribution=zoned:20/1:80/99 \
--iodepth_batch_submit=8 --iodepth_batch_complete_min=8 \
--name=overlap --stonewall --rw=randwrite --bs=16k --blockalign=4k --size=1m --io_size=6m --iodepth=16 \
--name=split --stonewall --rw=write --bs=4m --size=24m --iodepth=2 \
--name=sync --stonewall --rw=randwrite --bs=4k --size=4m --io_size=1m --fsync=2 --iodepth=1 \
--name=trim --stonewall --rw=randtrim --bs=64k --size=16m --io_size=8m \
|| { tail -5 /tmp/fio.out; exit 1; }
load ext4
/usr/bin/mkfs.ext4 -q -F -E nodiscard /dev/DEV && mkdir -p /mnt/t && mount -t ext4 /dev/DEV /mnt/t || exit 1
fio --directory=/mnt/t --output=/tmp/fio.out --name=journal --rw=randwrite --bs=4k --size=1m --fsync=1 || exit 1
rm /mnt/t/*; sync; fstrim /mnt/t; umount /mnt/t";

/// At least this part is linked: the same sectors in flight at once are ambiguous by design.
const LINKED: f64 = 0.98;
/// At most this part may be left open by the truth itself.
const UNDECIDED: f64 = 0.01;
/// How many wrong links are printed one by one.
const TOLD: u64 = 5;

/// Records the workload and checks every link against the log.
pub fn check(case: &mut Case, scene: &Scene<'_>) -> anyhow::Result<()> {
    let workload = WORKLOAD.replace("DEV", scene.device());
    let seen = scene.record(|| {
        scene.guest().run_ok(&workload, Duration::from_secs(180))?;
        Ok(())
    })?;
    let analysis = &seen.measured.analysis;
    ground_truth::nothing_lost(case, analysis)?;
    let subject = Subject {
        guest: scene.guest(),
        disk: DISK,
        device: scene.device(),
        linked: LINKED,
    };
    let counts = seen.measured.truth.first().context("find the counts")?;
    chains::disk(case, analysis, &subject, counts)?;
    chains::clock(case, analysis, scene.guest().name())?;
    seen.flushes_end_by_name(case, scene.backend());
    let guest = guest::requests(&seen.guest_events)?;
    case.equal(
        "requests of the guest, as QEMU counts them",
        guest.len() as u64,
        counts.requests(),
    );
    let qemu = qemu::requests(case, &seen.host_events, &seen.log)?;
    let truth = identity::truth(case, &guest, &qemu);
    decided(case, &guest, &truth);
    links(case, &seen, &guest, &truth);
    kinds(case, &seen, &guest);
    ambiguous(case, scene, &seen)
}

/// The truth is known of nearly every request.
fn decided(case: &mut Case, guest: &[GuestRequest], truth: &Truth) {
    let (known, all) = (truth.of_guest.len() as u64, guest.len() as u64);
    case.equal(
        "requests whose truth is known or not",
        known + truth.undecided,
        all,
    );
    case.holds(
        "requests whose truth is known",
        truth.undecided as f64 <= UNDECIDED * all as f64,
        &format!("{known} of {all}"),
    );
    case.holds(
        "requests in flight with others like them",
        truth.by_buffer > 0,
        "none",
    );
    case.figure(format!(
        "{known} of {all} requests known, {} of them by their buffer",
        truth.by_buffer
    ));
}

/// Every guest request that is linked is linked to the one QEMU request that it is, and no QEMU request
/// serves two.
fn links(case: &mut Case, seen: &Seen, guest: &[GuestRequest], truth: &Truth) {
    let by_issue: BTreeMap<u64, &GuestRequest> = guest
        .iter()
        .map(|request| (request.issued_ns, request))
        .collect();
    case.equal(
        "requests that D alone tells apart",
        by_issue.len(),
        guest.len(),
    );
    let mut served: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut linked = BTreeSet::new();
    let (mut wrong, mut unproved) = (0_u64, BTreeSet::new());
    for story in &seen.stories {
        for span in story.tree.of_layer("guest_request") {
            let Some(request) = by_issue.get(&span.ts_ns) else {
                let figures = format!("bio {}: {}", story.io, told(span));
                case.holds("a guest request that the guest has", false, &figures);
                continue;
            };
            let children = span.children.iter();
            for child in children.filter(|child| child.layer == "qemu") {
                linked.insert(span.ts_ns);
                served.entry(child.ts_ns).or_default().insert(span.ts_ns);
                let real = truth.of_guest.get(&span.ts_ns);
                if real.is_none() {
                    unproved.insert(span.ts_ns);
                }
                let same = real.is_none_or(|real| real.ts_ns == child.ts_ns);
                if same && agrees(request, child) {
                    continue;
                }
                wrong += 1;
                if wrong <= TOLD {
                    let figures = format!("bio {}: {} is {real:?}", story.io, told(span));
                    case.holds("a link of a request", false, &figures);
                }
            }
        }
    }
    case.equal("wrong links", wrong, 0);
    let shared = served.values().filter(|requests| requests.len() > 1);
    case.equal(
        "QEMU requests that are linked to several guest requests",
        shared.count(),
        0,
    );
    let figures = format!("{} of {}", linked.len(), guest.len());
    let enough = linked.len() as f64 >= LINKED * guest.len() as f64;
    case.holds("guest requests that are linked", enough, &figures);
    case.figure(format!(
        "{figures} guest requests linked, {wrong} wrong, {} beyond proof",
        unproved.len()
    ));
}

/// A request and what it is linked to, without what lies below.
fn told(span: &Span) -> String {
    let one = |span: &Span| {
        let Span {
            what,
            offset,
            bytes,
            ts_ns,
            ..
        } = span;
        format!("{what} {offset}+{bytes} at {ts_ns}")
    };
    let children: Vec<String> = span.children.iter().map(one).collect();
    format!("{} linked to {}", one(span), children.join(", "))
}

/// Operation, offset and length are the same on both sides of a link.
fn agrees(request: &GuestRequest, qemu: &Span) -> bool {
    let place = (qemu.offset, qemu.bytes);
    request.key.operation.in_stories() == qemu.what
        && (request.key.operation == Operation::Flush
            || place == (request.key.offset, request.key.bytes))
}

/// The workload brought about what it is for.
fn kinds(case: &mut Case, seen: &Seen, guest: &[GuestRequest]) {
    for operation in [
        Operation::Read,
        Operation::Write,
        Operation::WriteZeroes,
        Operation::Discard,
        Operation::Flush,
    ] {
        let of_operation = guest
            .iter()
            .filter(|request| request.key.operation == operation);
        let n = of_operation.count();
        case.holds(&format!("requests: {operation:?}"), n > 0, "none");
        case.figure(format!("{operation:?}: {n}"));
    }
    let splits = |story: &&super::stories::Story| story.tree.of_layer("guest_request").len() > 1;
    let n = seen.stories.iter().filter(splits).count();
    case.holds("bios of several requests", n > 0, "none");
    case.figure(format!("{n} bios of several requests"));
}

/// Tells how many bios are not linked because they could be one of several.
fn ambiguous(case: &mut Case, scene: &Scene<'_>, seen: &Seen) -> anyhow::Result<()> {
    let keys = [("guest", scene.guest().name()), ("disk", DISK)];
    let chains = entry(&seen.measured.analysis, "chains", &keys)?;
    let not_linked = chains["unlinked"]["ambiguous"].as_u64().unwrap_or(0);
    let marked = number(chains, "/ambiguous")?;
    case.figure(format!(
        "bios: {not_linked} ambiguous and not linked, {marked} linked with something ambiguous below"
    ));
    Ok(())
}
