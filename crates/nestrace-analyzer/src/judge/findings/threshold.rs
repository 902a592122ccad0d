//! Every limit of every rule, in one place, each with its reason.
//!
//! A share is a part of the summed latency of the disk's bios unless its name says otherwise.

/// From here on a finding is `high`: a third of the time (or bytes) is more than the spread between two
/// runs of the same load on one machine.
pub(super) const HIGH: f64 = 1.0 / 3.0;
/// From here on it is `medium`: a tenth is what a benchmark shows.
pub(super) const MEDIUM: f64 = 0.1;
/// Less of the latency than this is never worth a finding of its own.
pub(super) const NOTABLE: f64 = 0.05;

/// A judgement on latency needs so many bios that were followed: a mean of fewer moves by itself.
pub(super) const BIOS: u64 = 100;
/// A judgement on a device needs so many requests.
pub(super) const REQUESTS: u64 = 100;

/// `latency-overhead`: more than half of the time is not the device's.
pub(super) const OVERHEAD: f64 = 0.5;
/// `virtualization-share`: the way in and out costs as much as two of the five layers together.
pub(super) const VIRTUALIZATION: f64 = 0.4;
/// `thread-pool-wait`: QEMU's own submission is microseconds, unless requests wait for a worker.
pub(super) const THREAD_POOL: f64 = 0.25;
/// `nothing-to-gain`: what is left besides the device.
pub(super) const NOTHING: f64 = 0.15;

/// `flush-amplification`: part of the latency (flushes included) that is under flushes.
pub(super) const FLUSHING: f64 = 0.1;
/// `journal-on-journal`: part of the bytes written on the host that are its journal's.
pub(super) const JOURNAL: f64 = 0.05;
/// `write-through-cache`: syncs for each write of QEMU; a write-back cache has a few for each flush.
pub(super) const SYNCS_PER_WRITE: f64 = 0.5;

/// Rules about a part of the bytes want so many: 5 % of fewer is less than a commit or two of a journal (some ten
/// blocks each), which come without much I/O of the guest.
pub(super) const BYTES: u64 = 1 << 20;

/// `qcow2-allocation`: bytes of the image's tables for each byte of data written. An L2 update is 4 KiB or
/// less for a cluster of 64 KiB that is filled at once.
pub(super) const IMAGE_TABLES: f64 = 0.02;
/// `sparse-allocation`: part of the bytes written on the host that are metadata and journal.
pub(super) const ALLOCATION: f64 = 0.05;
/// `cow-on-cow`: bytes written on the host for each byte that QEMU wrote.
pub(super) const COPIES: f64 = 1.3;
/// `backing-chain`: part of the bytes read that come from backing files.
pub(super) const BACKING: f64 = 0.05;

/// `direct-io-fallback`: part of the host's bytes that went through the page cache all the same.
pub(super) const FALLBACK: f64 = 0.05;
/// `host-readahead`: part of the host's bytes read that were read ahead.
pub(super) const READ_AHEAD: f64 = 0.5;
/// `readahead-waste`: part of the host's bytes read that were read ahead and never used. What each stream
/// has read ahead when the recording ends is less.
pub(super) const WASTED: f64 = 0.25;

/// `noisy-neighbour`: part of the device's time that others use.
pub(super) const OTHERS: f64 = 0.2;
/// `noisy-neighbour`: a device that is idle most of the time delays no I/O.
pub(super) const BUSY: f64 = 0.3;
/// `tag-starvation`, and `host-throttled` where tags are free: part of the time from Q to C before a request was to be had.
pub(super) const NO_TAG: f64 = 0.2;
/// `scheduler-ineffective`: part of the time from Q to C that requests spend sorted and waiting.
pub(super) const SCHEDULED: f64 = 0.1;

/// `repeated-log-writes`: part of the guest's writes. A log that moves on rewrites nothing but its header,
/// now and then; one that goes back does it for each commit, which is one write of two or three.
pub(super) const REWRITTEN: f64 = 0.2;
/// `metadata-blind`: so many bios with metadata; they are fewer than those with data by far.
pub(super) const METADATA: u64 = 50;
/// `metadata-blind`: so many of them that stood behind data; fewer can be one commit of a journal.
pub(super) const STOOD_BEHIND: u64 = 10;
/// `metadata-blind`: part of the metadata's latency that this cost. Files that are read have a few, and it
/// costs a quarter there.
pub(super) const BEHIND_DATA: f64 = 0.35;
/// `double-cache`: part of what is read that was read before and that the host still had.
pub(super) const CACHED_TWICE: f64 = 0.2;
/// `double-cache`: part of the guest's reads that go into its own page cache. The rest is cached once.
pub(super) const GUEST_CACHES: f64 = 0.5;
/// `atime-updates`: part of the I/O while files are only read that writes metadata.
pub(super) const ACCESS_TIMES: f64 = 0.05;
/// `atime-updates`: so many writes; an update of a file or two is nothing.
pub(super) const ACCESS_TIME_WRITES: u64 = 20;
/// `atime-updates`: so many calls that read.
pub(super) const READ_CALLS: u64 = 100;
/// `writeback-burst`: p99 and median of reads during write-back against those without. Half as much again is
/// what p99 of some hundred reads varies by itself.
pub(super) const SLOWER: f64 = 2.0;
/// `writeback-burst`: so many reads during write-back. Who reads one after the other has few, for each waits;
/// that the median of ten is twice as high is no chance.
pub(super) const READS_DURING: u64 = 10;
/// `host-throttled`: part of the latency of QEMU's requests that they are held back.
pub(super) const HELD_BACK: f64 = 0.3;
/// `host-throttled`: half of the requests are held back for so long. Without a limit the way takes
/// microseconds, on a busy host some hundred.
pub(super) const HELD_BACK_NS: u64 = 1_000_000;
/// `host-throttled`: part of the time with requests in which nothing is under way for any of them.
pub(super) const NOTHING_UNDER_WAY: f64 = 0.3;
/// `host-throttled`: slots that have to show the same pace. How much fewer vary cannot be known.
pub(super) const PACED_SLOTS: u64 = 3;
/// `host-throttled`: requests in a slot at least: of fewer, one more or less says nothing of a pace.
pub(super) const PACED_REQUESTS: f64 = 10.0;
/// `host-throttled`: how far the slots may lie apart (standard deviation). Devices vary more.
pub(super) const PACE: f64 = 0.1;

/// `host-throttled`: what part of a limit the disk uses that is at it. Requests that are merged count once for the limit,
/// and slots are not whole.
pub(super) const AT_LIMIT: std::ops::RangeInclusive<f64> = 0.7..=1.3;

/// `pressure-without-io`: part of the time with I/O pressure in QEMU's cgroup beyond that with I/O in flight. A host is looked at
/// because of less than half of it.
pub(super) const PRESSURE: f64 = 0.2;

/// `backup-holds-writes`: so many requests that waited. One or two are the job's begin.
pub(super) const HELD_WRITES: u64 = 10;

/// `queue-idle`: part of the time in which the device did nothing while the guest waited.
pub(super) const IDLE: f64 = 0.3;
/// `queue-idle`: requests in flight, while there are any, from which on more of them are no advice: the device had
/// some to choose from, and what holds them lies above it.
pub(super) const DEEP: f64 = 4.0;
/// The guest's bytes by its own count and by QEMU's differ by no more, where both were recorded throughout.
pub(super) const THROUGHOUT: f64 = 0.95;
/// `allocation-defeated`, `unmerged-small-requests`: the guest goes in sequence.
pub(super) const SEQUENTIAL: f64 = 0.5;
/// `allocation-defeated`: the device's sequential share against the guest's.
pub(super) const SCATTERED: f64 = 0.5;
/// `unmerged-small-requests`: 8 KiB.
pub(super) const SMALL_SECTORS: u64 = 16;
/// `unmerged-small-requests`: merges for each bio.
pub(super) const FEW_MERGES: f64 = 0.1;
/// `misaligned`: bytes read on the host for each byte written, besides those asked for.
pub(super) const READ_FOR_WRITE: f64 = 0.05;
/// `qcow2-l2-misses`: part of QEMU's bytes read that are tables.
pub(super) const TABLES_READ: f64 = 0.1;

/// `sync-of-metadata`, `log-on-shared-journal`: so many syncs. Each is several bios, and half of [`BIOS`] are enough.
pub(super) const SYNCS: u64 = 50;
/// `sync-drags-others`: so many syncs. What they drag along is counted in bytes ([`BYTES`]); one or two after a large
/// copy are no habit.
pub(super) const DRAGGING_SYNCS: u64 = 10;
/// `small-syncs`: so many syncs. Fewer are the end of a piece of work.
pub(super) const SMALL_SYNCS: u64 = 100;
/// `small-syncs`: bytes written for each sync. A commit of ext4 has four blocks or more of its own, so a sync with four
/// blocks of data costs at least as much as it carries.
pub(super) const SMALL_SYNC: u64 = 16 << 10;
/// `log-on-shared-journal`: part of the file's writes that begin where the one before ended. A log goes back to its
/// header now and then.
pub(super) const LOG_IN_SEQUENCE: f64 = 0.9;
/// `cold-reads`: part of the bytes read into the guest's page cache that had been there before. Fewer are what each cache
/// loses at its edge.
pub(super) const AGAIN: f64 = 0.2;
/// `cold-reads`: what the disk's files brought into the cache before a page was read again, against the guest's available
/// memory. The kernel keeps pages that were used once on a list of their own, which can be this small a part of the cache
/// (`inactive_is_low()`: a quarter at 1 GiB). What goes sooner was dropped by a program, or by the limit of a cgroup.
pub(super) const OF_MEMORY: f64 = 0.25;
/// `readahead-short`, `dirty-throttled`, `mmap-faults`: part of the time of all calls on the disk's files.
pub(super) const WAITING: f64 = 0.2;
/// `readahead-short`, `mmap-faults`: so many waits; a program that starts reads some ten pages of its files one by one.
pub(super) const WAITS: u64 = 100;
/// `readahead-short`: bytes read for each wait: half of the kernel's own read-ahead of 128 KiB (`VM_READAHEAD_PAGES`). A
/// stream with that waits too where the device is slower than its reader, and whether the device does more at a time
/// cannot be known from it.
pub(super) const FOR_EACH_WAIT: u64 = 64 << 10;
/// `readahead-short`: the same where most of a read's time passes on the way to the device and back. That is paid for each
/// request, whatever its length, so a longer one costs less for each byte, up to half of what the advice asks for.
pub(super) const FOR_EACH_LONG_WAY: u64 = 512 << 10;
/// `readahead-short`: part of the reads' time on the way, and part of the disk's read bytes that are of these streams.
pub(super) const LONG_WAY: f64 = 0.5;
/// `dirty-throttled`: so many pauses. One lasts up to 200 ms (`MAX_PAUSE`), most some jiffies.
pub(super) const PAUSES: u64 = 10;
/// `mmap-faults`: part of the bytes read for files that no recorded call asked for, from which on faults may have been
/// many where the kernel does not show them.
pub(super) const BY_NO_CALL: f64 = 0.2;
/// `raid-partial-stripe`: part of the latency under reads for parity. Whole stripes need none.
pub(super) const PARITY_READS: f64 = MEDIUM;
/// `thin-allocation`: part of the latency in thin's own time and under its mappings. A block that is there is looked up in
/// memory, in microseconds.
pub(super) const THIN: f64 = MEDIUM;
/// `crypt-queue`: part of the latency in dm-crypt. A processor encrypts 4 KiB in a few microseconds.
pub(super) const CRYPT: f64 = MEDIUM;
/// `resync-beside`: part of a device's time that a resync used. Where it runs at all it takes what md's limits allow.
pub(super) const RESYNC: f64 = 0.2;
/// `stacked-journals`: part of the latency in a loop device and in its file's file system.
pub(super) const STACKED_JOURNALS: f64 = MEDIUM;

/// `cpu-starved`, `vcpu-not-running`, `iothread-saturated`: part of the latency that passes without a processor, or in front
/// of the one thread that serves the disk. On a host with processors to spare it is some hundredths.
pub(super) const NO_PROCESSOR: f64 = 0.2;
/// `iothread-saturated`: part of the time with requests in which the thread runs. What is left are switches and interrupts.
pub(super) const SATURATED: f64 = 0.9;
