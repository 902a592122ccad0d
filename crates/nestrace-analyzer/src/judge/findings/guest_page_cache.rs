//! Rules about the guest's own page cache: what its programs wait for above its block layer.

use std::collections::BTreeMap;

use nestrace_trace::manifest::GuestMemory;

use super::subject::Subject;
use super::{Case, Judgement, Missing, latency, threshold};
use crate::measure::clues::{CallWaits, DiskClues, Waits};
use crate::result::analysis::Evidence;
use crate::result::units::{of, percent, share, size, time};

/// Missing without the agent's BPF.
const NO_CALLS: Missing = "the calls and pages of the guest's programs were not recorded: that needs the agent's eBPF backend";

/// What was gathered where calls and pages were recorded.
fn recorded<'a>(subject: &Subject<'a>) -> Result<&'a DiskClues, Missing> {
    let clues = subject.gathered()?;
    if !subject.guest_calls_probed || !subject.guest_tells_owners {
        return Err(NO_CALLS);
    }
    Ok(clues)
}

/// The guest's memory when the recording began; 0 where it is not known.
fn memory(subject: &Subject<'_>) -> GuestMemory {
    subject.side.map(|side| side.memory).unwrap_or_default()
}

/// Whether the agent had a probe there.
fn has_probe(subject: &Subject<'_>, name: &str) -> bool {
    let mut probes = subject.side.into_iter().flat_map(|side| &side.probes);
    probes.any(|probe| probe.name == name)
}

/// `mysqld (/var/lib/mysql/ib)` waits longest.
fn longest(waits: &Waits) -> String {
    let longest = waits.longest.as_ref();
    longest.map_or_else(String::new, |it| {
        format!(
            " Longest waits {} ({}), {} in all.",
            it.program,
            it.file,
            time(it.ns)
        )
    })
}

/// What all of these rules rest on.
fn evidence(waits: &Waits, calls: &CallWaits) -> BTreeMap<&'static str, Evidence> {
    let mut evidence: BTreeMap<&'static str, Evidence> = [
        ("waits", waits.n.into()),
        ("waited_ns", waits.ns.into()),
        ("calls_ns", calls.all_ns.into()),
    ]
    .into();
    if let Some(longest) = &waits.longest {
        evidence.insert("program", longest.program.as_str().into());
        evidence.insert("file", longest.file.as_str().into());
    }
    evidence
}

pub(super) fn cold_reads(subject: &Subject<'_>) -> Judgement {
    let seen = recorded(subject)?.from_guest.brought_again;
    let part = share(seen.again_bytes, seen.read_bytes);
    let Some(between) = seen.between_bytes.p50 else {
        return Ok(None);
    };
    if seen.read_bytes < threshold::BYTES || part < threshold::AGAIN {
        return Ok(None);
    }
    let memory = memory(subject);
    if memory.available_bytes == 0 {
        return Err("the guest's memory is not known: its agent is an older one");
    }
    if (between as f64) < threshold::OF_MEMORY * memory.available_bytes as f64 {
        return Ok(None);
    }
    Case {
        title: format!(
            "the guest's memory is too small for its files: {} of what it reads was in its page cache before",
            percent(part)
        ),
        explanation: format!(
            "The guest had {} of memory for its page cache when the recording began ({} in all). Its programs used {} of \
             this disk's files. {} of the {} that were read had been in the page cache before, and had been evicted after \
             a median of {} of other pages.",
            size(memory.available_bytes),
            size(memory.total_bytes),
            size(seen.distinct_bytes),
            size(seen.again_bytes),
            size(seen.read_bytes),
            size(between)
        ),
        advice: vec![
            format!(
                "Give the guest more memory: this disk's files alone want {}. Risk: the host then has less for its own \
                 cache and its other guests; if it has to swap, all of them become slow.",
                size(seen.distinct_bytes)
            ),
            String::from(
                "Or keep scans out of the cache: a backup or a copy that reads each file once can use O_DIRECT, or \
                 `posix_fadvise(POSIX_FADV_DONTNEED)` behind it. Risk: a program that reads the same pages soon after has \
                 to read them from the disk.",
            ),
            String::from(
                "A database with its own cache can do without the guest's: give the memory to its own cache and use \
                 O_DIRECT for its data files.",
            ),
        ],
        evidence: [
            ("read_bytes", seen.read_bytes.into()),
            ("read_again_bytes", seen.again_bytes.into()),
            ("distinct_bytes", seen.distinct_bytes.into()),
            ("between_p50_bytes", between.into()),
            ("memory_available_bytes", memory.available_bytes.into()),
            ("memory_total_bytes", memory.total_bytes.into()),
        ]
        .into(),
        share: part,
        information: false,
    }
    .fires()
}

/// The part of the time of a disk's reads that does not pass at the host's device or in its queue; 0 where most of what is
/// read is of no such stream.
fn on_the_way(subject: &Subject<'_>, reads: &Waits) -> Result<f64, Missing> {
    let chains = subject.followed()?;
    let of_disk = subject.inside()?.bytes.read;
    if (reads.bytes as f64) < threshold::LONG_WAY * of_disk as f64 {
        return Ok(0.0);
    }
    let at_device = |name: &str| name == "host_queue" || latency::DEVICE.contains(&name);
    let segments = chains.by_op.read.iter();
    let on_the_way = segments.filter(|segment| !at_device(segment.name));
    Ok(on_the_way.map(|segment| segment.share).sum())
}

pub(super) fn readahead_short(subject: &Subject<'_>) -> Judgement {
    let calls = &recorded(subject)?.calls;
    let reads = &calls.reads_on;
    let part = share(reads.ns, calls.all_ns);
    let for_each = reads.bytes / reads.n.max(1);
    if reads.n < threshold::WAITS
        || part < threshold::WAITING
        || for_each > threshold::FOR_EACH_LONG_WAY
    {
        return Ok(None);
    }
    let on_the_way = match for_each > threshold::FOR_EACH_WAIT {
        true => Some(on_the_way(subject, reads)?),
        false => None,
    };
    if on_the_way.is_some_and(|part| part < threshold::LONG_WAY) {
        return Ok(None);
    }
    let known = subject.guest_disk;
    let setting = known.map(|disk| disk.read_ahead_kb);
    let name = known.map_or("DISK", |disk| disk.name.as_str());
    let most = for_each.max(threshold::FOR_EACH_WAIT);
    let is_small = setting.is_some_and(|kb| u64::from(kb) << 10 <= most);
    let raise = format!(
        "Raise the read-ahead in the guest: `echo 1024 > /sys/block/{name}/queue/read_ahead_kb`, or `blockdev --setra 2048 \
         /dev/{name}` (in sectors of 512 bytes), and measure again. A file system on dm or md has the read-ahead of that \
         device. Risk: reads that jump, and files that are read in part, then bring pages that are never used; these \
         take the disk's time and push others out of the cache."
    );
    let by_program = String::from(
        "A program can ask for more by itself: `posix_fadvise(POSIX_FADV_SEQUENTIAL)` doubles the read-ahead of its file, \
         `POSIX_FADV_WILLNEED` reads a range ahead, and larger reads wait less often. Look for `POSIX_FADV_RANDOM` in it, \
         which turns read-ahead off.",
    );
    let advice = if is_small || setting.is_none() {
        vec![raise, by_program]
    } else {
        vec![by_program, raise]
    };
    let mut evidence = evidence(reads, calls);
    evidence.insert("read_bytes", reads.bytes.into());
    evidence.insert("for_each_wait_bytes", for_each.into());
    if let Some(kb) = setting {
        evidence.insert("read_ahead_kb", u64::from(kb).into());
    }
    let setting = setting.map_or_else(String::new, |kb| {
        format!(" {name} has read_ahead_kb={kb} in the guest.")
    });
    let why = on_the_way.map_or_else(String::new, |part| {
        evidence.insert("on_the_way_share", part.into());
        format!(
            " {} of the time of this disk's reads passes on the way to the host's device and back. That is paid for each \
             request, so a longer read-ahead pays it less often.",
            percent(part)
        )
    });
    Case {
        title: format!(
            "sequential reads wait for each {}: the guest reads too little ahead",
            size(for_each)
        ),
        explanation: format!(
            "Programs read {} in sequence through the page cache and waited {} for the next pages, {} each time. That is \
             {} of the time of all calls on this disk's files.{why}{setting}{}",
            size(reads.bytes),
            of(reads.n, "time", "times"),
            time(reads.ns / reads.n.max(1)),
            percent(part),
            longest(reads)
        ),
        advice,
        evidence,
        // Of a long way only that can become shorter.
        share: part.min(1.0) * on_the_way.unwrap_or(1.0),
        information: false,
    }
    .fires()
}

pub(super) fn dirty_throttled(subject: &Subject<'_>) -> Judgement {
    let calls = &recorded(subject)?.calls;
    let paused = &calls.paused;
    if calls.written_bytes >= threshold::BYTES && !has_probe(subject, "balance_dirty_pages") {
        return Err(
            "the pauses of the guest's writers were not recorded: its agent is an older one, or its kernel does not show \
             them",
        );
    }
    let part = share(paused.ns, calls.all_ns);
    if paused.n < threshold::PAUSES || part < threshold::WAITING {
        return Ok(None);
    }
    let memory = memory(subject);
    let limits = match (memory.dirty_limit_bytes, memory.dirty_background_bytes) {
        (0, _) => String::new(),
        (limit, background) => format!(
            " The whole guest may have {} of dirty pages. The kernel writes back by itself from {} on, and slows writers \
             down from the middle between the two.",
            size(limit),
            size(background)
        ),
    };
    let mut evidence = evidence(paused, calls);
    evidence.insert("written_bytes", calls.written_bytes.into());
    if memory.dirty_limit_bytes > 0 {
        evidence.insert("dirty_limit_bytes", memory.dirty_limit_bytes.into());
        evidence.insert(
            "dirty_background_bytes",
            memory.dirty_background_bytes.into(),
        );
    }
    Case {
        title: format!(
            "programs that write are made to wait for {} of their calls' time: too many pages are dirty",
            percent(part)
        ),
        explanation: format!(
            "The guest's kernel let programs that write sleep {} (`balance_dirty_pages`), {} in all, because they change \
             pages faster than the disk takes them. They wrote {} in the recording.{limits}{}",
            of(paused.n, "time", "times"),
            time(paused.ns),
            size(calls.written_bytes),
            longest(paused)
        ),
        advice: vec![
            String::from(
                "If the writes come in bursts, raise `vm.dirty_bytes` in the guest above the size of a burst, and set \
                 `vm.dirty_background_bytes` to a quarter of it so that write-back begins early. Risk: what is dirty is lost \
                 in a crash or power failure, and a sync (with ext4's data=ordered also of another file) writes more at \
                 once and takes longer.",
            ),
            String::from(
                "If they go on, only a faster disk or fewer writes help: a larger limit is full a little later. Let a program \
                 that writes much use O_DIRECT, or `sync_file_range` after each few MiB, so that others do not wait for its \
                 pages. Risk: that program itself then goes at the disk's pace.",
            ),
        ],
        evidence,
        share: part.min(1.0),
        information: false,
    }
    .fires()
}

pub(super) fn mmap_faults(subject: &Subject<'_>) -> Judgement {
    let clues = recorded(subject)?;
    let calls = &clues.calls;
    if !has_probe(subject, "mm_filemap_fault") {
        let read = clues.from_guest.brought_again.read_bytes;
        let unseen = calls.by_no_call_bytes;
        if read >= threshold::BYTES && share(unseen, read) >= threshold::BY_NO_CALL {
            return Err(
                "page faults on mapped files were not recorded: the guest's kernel shows them since Linux 6.12",
            );
        }
        return Ok(None);
    }
    let faults = &calls.faults;
    let part = share(faults.ns, calls.all_ns);
    if faults.n < threshold::WAITS || part < threshold::WAITING {
        return Ok(None);
    }
    Case {
        title: format!(
            "programs wait for page faults on mapped files: {} of the time of all calls and faults",
            percent(part)
        ),
        explanation: format!(
            "{} had to wait for the disk, {} on average. A thread has one fault at a time, so the disk gets one read after \
             the other.{}",
            of(faults.n, "page fault on a mapped file", "page faults on mapped files"),
            time(faults.ns / faults.n.max(1)),
            longest(faults)
        ),
        advice: vec![
            String::from(
                "Bring the pages before they are needed: `madvise(MADV_WILLNEED)` or `MADV_POPULATE_READ` (Linux 5.14) on the \
                 next range, `MAP_POPULATE` for a mapping that is used whole. Risk: pages that are not used after all take \
                 the disk's time and push others out of the cache; `MAP_POPULATE` makes `mmap` itself wait.",
            ),
            String::from(
                "Say how the mapping is used: `MADV_SEQUENTIAL` reads further ahead. `MADV_RANDOM` reads single pages, where \
                 otherwise each fault brings what lies around it (`read_ahead_kb`); that is right for accesses that jump \
                 and wrong for scans.",
            ),
            String::from(
                "Or read with `pread`, io_uring or several threads, so that many reads are in flight at once. If the same \
                 pages come again and again, the guest needs more memory.",
            ),
        ],
        evidence: {
            let mut evidence = evidence(faults, calls);
            evidence.insert("by_no_call_bytes", calls.by_no_call_bytes.into());
            evidence
        },
        share: part.min(1.0),
        information: false,
    }
    .fires()
}
