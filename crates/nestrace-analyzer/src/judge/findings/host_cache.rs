//! Rules about caches and what is read ahead into them.

use nestrace_trace::manifest::Image;

use super::subject::Subject;
use super::{Case, Judgement, Missing, threshold};
use crate::result::units::{count, of, percent, share, size, time};

pub(super) fn write_through_cache(subject: &Subject<'_>) -> Judgement {
    let cache = subject.disk.cache.as_deref();
    if !matches!(cache, None | Some("writethrough" | "directsync")) {
        return Ok(None);
    }
    let chains = subject.followed_to_the_image()?;
    subject.files_alone()?;
    let files = || {
        subject
            .images
            .iter()
            .filter_map(|image| image.file_io.as_ref())
    };
    let writes: u64 = files().map(|file| file.writes).sum();
    let syncs: u64 = files().map(|file| file.syncs + file.dsync).sum();
    if writes == 0 || (syncs as f64) < threshold::SYNCS_PER_WRITE * writes as f64 {
        return Ok(None);
    }
    let Some(cache) = cache else {
        return Err("the disk's cache mode is unknown");
    };
    let latency = chains.latency_ns;
    let share = latency.write.sum as f64 / (latency.data.sum + latency.flush.sum).max(1) as f64;
    let without = if cache == "writethrough" {
        "writeback"
    } else {
        "none"
    };
    Case {
        title: format!("every write waits until the device has it (cache={cache})"),
        explanation: format!(
            "QEMU did {} and {} (a separate sync, or a flag of the write). A write completes only when the device has \
             the data. Writes take {} of the latency.",
            of(writes, "write", "writes"),
            of(syncs, "sync", "syncs"),
            percent(share)
        ),
        advice: vec![format!(
            "Use cache={without}. Writes then stay in a cache until the guest flushes. Risk: a program that does not \
             flush can lose its last writes in a power failure; file systems and databases do flush."
        )],
        evidence: [
            ("cache", cache.into()),
            ("writes", writes.into()),
            ("syncs", syncs.into()),
            ("write_mean_ns", (latency.write.sum / latency.write.n.max(1)).into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn direct_io_fallback(subject: &Subject<'_>) -> Judgement {
    subject.whole()?;
    subject.seen_to_the_device()?;
    subject.files_alone()?;
    let (mut through_cache, mut all, mut fs) = (0, 0, "unknown");
    for image in &subject.images {
        let (Some(file), Some(host)) = (&image.file_io, image.host_bytes) else {
            continue;
        };
        through_cache += file.buffered_fallback_bytes;
        all += host.read + host.write;
        fs = image.fs_type.as_deref().unwrap_or(fs);
    }
    let share = through_cache as f64 / all.max(1) as f64;
    if all < threshold::BYTES || share < threshold::FALLBACK {
        return Ok(None);
    }
    Case {
        title: format!("{} of the O_DIRECT I/O went through the host's page cache", percent(share)),
        explanation: format!(
            "QEMU opened the image with O_DIRECT, but {fs} did this I/O through the page cache: it copied the data, \
             wrote it back and waited for that. Here cache=none does not bypass the cache."
        ),
        advice: vec![String::from(
            "Preallocate the image, or keep images on xfs, ext4 or a logical volume. On btrfs, make the image NOCOW: \
             set `chattr +C` on a new, empty file or directory and copy the image into it. Risk: the image loses \
             checksums and compression; after a snapshot, the first write to a block still copies it.",
        )],
        evidence: [
            ("buffered_bytes", through_cache.into()),
            ("host_bytes", all.into()),
            ("host_fs", fs.into()),
        ]
        .into(),
        share: share.min(1.0),
        information: false,
    }
    .fires()
}

/// Bytes that were read.
struct Reads {
    host: u64,
    /// Of these, read ahead.
    ahead: u64,
    /// Of these, never asked for.
    unused: u64,
    /// Asked for by QEMU, of the host's cache too.
    asked: u64,
}

impl Reads {
    fn wasted(&self) -> f64 {
        share(self.unused, self.host)
    }
}

fn reads(subject: &Subject<'_>) -> Result<Reads, Missing> {
    let amplified = subject.amplified()?;
    let missing = "the host's block layer was not recorded";
    Ok(Reads {
        host: amplified.read.host.ok_or(missing)?,
        ahead: amplified.by_class.readahead.ok_or(missing)?,
        unused: amplified.readahead_unused.ok_or(missing)?,
        asked: amplified.read.qemu.ok_or(missing)?,
    })
}

pub(super) fn host_readahead(subject: &Subject<'_>) -> Judgement {
    let reads = reads(subject)?;
    let share = share(reads.ahead, reads.host);
    let wasted = reads.wasted() >= threshold::WASTED;
    if reads.host < threshold::BYTES || share < threshold::READ_AHEAD || wasted {
        return Ok(None);
    }
    Case {
        title: format!("{} of the host's reads are read-ahead that the guest uses", percent(share)),
        explanation: String::from(
            "The guest reads in sequence, and the host reads the next blocks into its page cache before the guest asks \
             for them. This is how a virtual disk can read faster than its device.",
        ),
        advice: vec![String::from(
            "Keep it, or raise the device's `queue/read_ahead_kb`. With cache=none the host does not read ahead.",
        )],
        evidence: [
            ("readahead_bytes", reads.ahead.into()),
            ("host_read_bytes", reads.host.into()),
            ("asked_bytes", reads.asked.into()),
        ]
        .into(),
        share,
        information: true,
    }
    .fires()
}

pub(super) fn readahead_waste(subject: &Subject<'_>) -> Judgement {
    let reads = reads(subject)?;
    let wasted = reads.wasted();
    if reads.host < threshold::BYTES || wasted < threshold::WASTED {
        return Ok(None);
    }
    Case {
        title: format!("{} of the host's reads are read-ahead that is never used", percent(wasted)),
        explanation: String::from(
            "The host reads ahead in the image, but the guest's reads jump elsewhere. The device spends its time on \
             bytes that are never used.",
        ),
        advice: vec![String::from(
            "Lower `queue/read_ahead_kb` of the device that holds the image, or use cache=none.",
        )],
        evidence: [
            ("readahead_bytes", reads.ahead.into()),
            ("host_read_bytes", reads.host.into()),
            ("asked_bytes", reads.asked.into()),
            ("unused_bytes", reads.unused.into()),
        ]
        .into(),
        share: wasted,
        information: false,
    }
    .fires()
}

pub(super) fn double_cache(subject: &Subject<'_>) -> Judgement {
    let may_cache = |image: &&Image| image.direct != Some(true);
    let Some(image) = subject
        .disk
        .images
        .get(subject.data_image())
        .filter(may_cache)
    else {
        return Ok(None);
    };
    let clues = subject.gathered_to_the_device()?;
    let seen = clues.from_host.read_again;
    let part = share(seen.again_cached_bytes, seen.bytes);
    if part < threshold::CACHED_TWICE {
        return Ok(None);
    }
    let guest = clues.from_guest.reads;
    let known = guest.cached_bytes + guest.direct_bytes;
    if guest.unknown_bytes > known {
        return Err(
            "the recording does not say whether the guest caches its reads: that needs the agent's eBPF backend",
        );
    }
    let caches = share(guest.cached_bytes, known);
    if caches < threshold::GUEST_CACHES {
        return Ok(None);
    }
    if image.direct.is_none() {
        return Err("it is unknown whether QEMU opened the image with O_DIRECT");
    }
    let cache = subject.disk.cache.as_deref().unwrap_or("unknown");
    Case {
        title: format!(
            "guest and host cache the same blocks: {} of the bytes read were still in the host's cache",
            percent(part)
        ),
        explanation: format!(
            "The guest keeps what it reads in its page cache. With cache={cache} the host caches it too. The guest read \
             {} of the image, and {} of that again, which the host had in memory. The same blocks take up memory \
             twice.",
            size(seen.distinct_bytes),
            size(seen.again_cached_bytes)
        ),
        advice: vec![String::from(
            "Use cache=none and give the memory to the guest, whose cache is faster. Risk: without more memory in the \
             guest, repeated reads go to the device and are slower. If several guests share an image, cache it on the \
             host instead.",
        )],
        evidence: [
            ("cache", cache.into()),
            ("read_bytes", seen.bytes.into()),
            ("read_again_bytes", seen.again_bytes.into()),
            ("read_again_cached_bytes", seen.again_cached_bytes.into()),
            ("distinct_bytes", seen.distinct_bytes.into()),
            ("given_up_bytes", seen.given_up_bytes.into()),
            ("guest_cached_share", caches.into()),
        ]
        .into(),
        share: part,
        information: false,
    }
    .fires()
}

pub(super) fn writeback_burst(subject: &Subject<'_>) -> Judgement {
    // There each write is written back at once, which is another rule's.
    let cache = subject.disk.cache.as_deref();
    if matches!(cache, Some("writethrough" | "directsync")) {
        return Ok(None);
    }
    let seen = subject.gathered_to_the_device()?.from_host.writeback;
    let (during, between) = (seen.during, seen.between);
    if during.n < threshold::READS_DURING {
        return Ok(None);
    }
    if between.n < threshold::BIOS {
        return Err("too few reads ran outside write-back to compare with: record for longer");
    }
    let (Some(slow), Some(fast), Some(mean)) = (during.p99, between.p99, between.mean) else {
        return Ok(None);
    };
    let more = during.sum.saturating_sub(during.n.saturating_mul(mean));
    let part = share(more, seen.all_ns);
    let slower = |during: u64, between: u64| during as f64 >= threshold::SLOWER * between as f64;
    let medians = during.p50.zip(between.p50);
    let all_slower = slower(slow, fast) && medians.is_some_and(|(slow, fast)| slower(slow, fast));
    if !all_slower || part < threshold::NOTABLE {
        return Ok(None);
    }
    Case {
        title: format!(
            "reads wait for the host's write-back (p99 {} during it, {} without)",
            time(slow),
            time(fast)
        ),
        explanation: format!(
            "The host wrote back {} of its page cache. {} reads ran at the device during that time, with a p99 of {}; \
             {} reads ran without write-back, with a p99 of {}. The difference is {} of the latency of all of the \
             disk's requests.",
            size(seen.bytes),
            count(during.n),
            time(slow),
            count(between.n),
            time(fast),
            percent(part)
        ),
        advice: vec![
            String::from(
                "Let the host write back earlier and less at a time: set `vm.dirty_background_bytes` and \
                 `vm.dirty_bytes` to about 100 MiB. Risk: every program that writes on the host waits sooner.",
            ),
            String::from(
                "Or use cache=none: the guest's writes then go straight to the device. Risk: reads that the host's \
                 cache answered go to the device too.",
            ),
        ],
        evidence: [
            ("reads_during", during.n.into()),
            ("p99_during_ns", slow.into()),
            ("reads_between", between.n.into()),
            ("p99_between_ns", fast.into()),
            ("written_back_bytes", seen.bytes.into()),
            ("written_back_requests", seen.bios.into()),
            ("given_up", seen.given_up.into()),
        ]
        .into(),
        share: part,
        information: false,
    }
    .fires()
}
