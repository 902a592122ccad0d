//! Who holds what waits: from what is certain to what is left.

use super::chain::{Chain, behind, holder, server_holder, stopped};
use super::waiting::{self, Waiting};
use super::{Holder, HolderKind, Scene, Verdict, limit};
use crate::facts::{DiskFacts, GuestFacts, ImageFacts, ThreadFacts};
use crate::words::{count, since};

/// What holds a disk's I/O, in words that follow "waits for".
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) verdict: Verdict,
    pub(super) holder: Holder,
    pub(super) words: String,
    /// Whether requests wait cannot be seen.
    pub(super) is_unseen: bool,
}

impl From<(Holder, String)> for Held {
    fn from((holder, words): (Holder, String)) -> Self {
        Self {
            verdict: Verdict::Stuck,
            holder,
            words,
            is_unseen: false,
        }
    }
}

pub(super) fn of_disk(
    scene: &Scene<'_>,
    guest: &GuestFacts,
    disk: &DiskFacts,
    waiting: &Waiting<'_>,
    chain: &Chain<'_>,
) -> Option<Held> {
    if waiting.is_stuck() || !waiting.threads.is_empty() {
        let certain = chain
            .closed()
            .or_else(|| stopped_server(disk))
            .or_else(|| frozen(&waiting.threads, &disk.images))
            .or_else(|| frozen_below(scene, chain));
        if let Some(found) = certain {
            return Some(found.into());
        }
    }
    if waiting.is_stuck() {
        let found = by_stack(&waiting.threads, &disk.images)
            .or_else(|| chain.stalled_words())
            .or_else(|| throttled(scene, &waiting.threads))
            .or_else(|| journal(scene, &waiting.threads, &disk.images, chain))
            .or_else(|| limit::of_qemu(scene, disk))
            .or_else(|| limit::of_cgroup(scene, guest, disk, chain))
            .or_else(|| remote(disk))
            .or_else(|| function(waiting));
        if let Some(found) = found {
            return Some(found.into());
        }
        // The requests may be those of another disk.
        let has_one_disk = guest.disks.len() == 1;
        let is_sure = has_one_disk
            || !(disk.is_shared_queue || waiting::has_unknown(scene.interval_ns, guest));
        return is_sure.then(|| in_qemu(disk, waiting).into());
    }
    if waiting.goes_on {
        let found =
            limit::of_qemu(scene, disk).or_else(|| limit::of_cgroup(scene, guest, disk, chain))?;
        return Some(Held {
            verdict: Verdict::Limited,
            ..found.into()
        });
    }
    // Without QEMU's counts nothing says whether the guest waits.
    if disk.completed.is_none() && disk.in_flight.is_none() {
        let found = chain
            .closed()
            .or_else(|| stopped_server(disk))
            .or_else(|| chain.stalled_words())?;
        return Some(Held {
            is_unseen: true,
            ..found.into()
        });
    }
    None
}

/// Threads that are blocked for no known disk.
pub(super) fn of_rest(
    scene: &Scene<'_>,
    guest: &GuestFacts,
    waiting: &Waiting<'_>,
) -> Option<Held> {
    if waiting.threads.is_empty() {
        return None;
    }
    let images: Vec<ImageFacts> = guest
        .disks
        .iter()
        .flat_map(|disk| disk.images.clone())
        .collect();
    let chain = Chain::below(scene.devices, &images);
    if let Some(found) = chain.closed().or_else(|| frozen(&waiting.threads, &images)) {
        return Some(found.into());
    }
    // While other requests complete, one that takes long is no standstill.
    let n_completed = guest.disks.iter().filter_map(|disk| disk.completed);
    if n_completed.map(|counts| counts.all()).any(|n| n > 0) {
        return None;
    }
    let found = by_stack(&waiting.threads, &images)
        .or_else(|| chain.stalled_words())
        .or_else(|| throttled(scene, &waiting.threads))
        .or_else(|| journal(scene, &waiting.threads, &images, &chain))
        .or_else(|| function(waiting))?;
    Some(found.into())
}

/// Frames of a stack; without one, the function that the thread waits in.
fn frames(thread: &ThreadFacts) -> impl Iterator<Item = &str> {
    let channel = thread.wait_channel.as_deref();
    let channel = channel.filter(|_| thread.stack.is_empty());
    thread.stack.iter().map(String::as_str).chain(channel)
}

fn has(thread: &ThreadFacts, names: &[&str]) -> bool {
    frames(thread).any(|frame| names.contains(&frame))
}

/// Callers of `sb_start_write()` and its like, which is inlined: since 2012 (a lock of its own for each level of a freeze).
const WRITERS: &[&str] = &[
    "vfs_write",
    "vfs_writev",
    "do_writev",
    "do_pwritev",
    "do_iter_write",
    "do_iter_readv_writev",
    "vfs_iter_write",
    "vfs_iocb_iter_write",
    "io_write",
    "aio_write",
    "vfs_fallocate",
    "io_fallocate",
    "ksys_fallocate",
    "kiocb_start_write",
    "sb_start_write",
    "mnt_want_write",
    "mnt_want_write_file",
    "ext4_page_mkwrite",
    "ext4_journal_check_start",
    "__ext4_journal_start_sb",
    "xfs_trans_alloc",
    "xfs_filemap_fault",
    "btrfs_page_mkwrite",
    "start_transaction",
    "lo_rw_aio",
    "loop_process_work",
    "loop_workfn",
];

/// Whether a thread waits for the end of a freeze. Other locks of this kind are taken by other callers.
fn waits_for_thaw(thread: &ThreadFacts) -> bool {
    let waits = has(thread, &["percpu_rwsem_wait", "__percpu_down_read"]);
    let writes = match thread.stack.is_empty() {
        true => {
            let call = thread.system_call.as_deref().unwrap_or_default();
            call.contains("write") || call == "fallocate"
        }
        false => has(thread, WRITERS),
    };
    waits && writes
}

fn frozen(threads: &[&ThreadFacts], images: &[ImageFacts]) -> Option<(Holder, String)> {
    let thread = threads.iter().find(|thread| waits_for_thaw(thread))?;
    let image = image_of(thread, images);
    Some(frozen_words(image))
}

fn frozen_words(image: Option<&ImageFacts>) -> (Holder, String) {
    let mount = image.map_or("", |image| image.mount_point.as_str());
    let of = image.map_or("", |image| image.fs_type.as_str());
    let words = match mount {
        "" => "the host's file system, which is frozen (fsfreeze -u ends that)".to_owned(),
        mount => format!(
            "the host's file system {mount} ({of}), which is frozen; fsfreeze -u {mount} ends that"
        ),
    };
    (holder(HolderKind::FrozenFileSystem, mount), words)
}

/// A loop device's worker that waits for its file's file system.
fn frozen_below(scene: &Scene<'_>, chain: &Chain<'_>) -> Option<(Holder, String)> {
    let loops = chain.0.iter().filter_map(|device| {
        let image = device.loop_file.as_ref()?;
        Some((device, image))
    });
    loops.into_iter().find_map(|(device, image)| {
        let workers = scene.host.kernel_threads.iter();
        let mut own = workers.filter(|thread| names(thread, &device.name));
        own.any(waits_for_thaw).then(|| frozen_words(Some(image)))
    })
}

/// Whether a kernel thread works for a device: `jbd2/loop0-8`, `kworker/u9:1-loop0`, `xfsaild/dm-0`.
fn names(thread: &ThreadFacts, device: &str) -> bool {
    let mut words = thread.name.split(['/', '-', '+', ':']);
    if device.contains('-') {
        return thread
            .name
            .split_once('/')
            .is_some_and(|(_, rest)| rest == device || rest.starts_with(&format!("{device}-")));
    }
    words.any(|word| word == device)
}

/// The image that a thread's file is, else the first.
fn image_of<'a>(thread: &ThreadFacts, images: &'a [ImageFacts]) -> Option<&'a ImageFacts> {
    let own = |image: &&ImageFacts| Some(image.path.as_str()) == thread.file.as_deref();
    images.iter().find(own).or_else(|| images.first())
}

fn stopped_server(disk: &DiskFacts) -> Option<(Holder, String)> {
    let remote = disk.remote.as_ref()?;
    let server = stopped(remote.stopped_server.as_ref()?)?;
    Some((server_holder(server), behind(server, &remote.address)))
}

/// Servers of network file systems, and FUSE.
fn by_stack(threads: &[&ThreadFacts], images: &[ImageFacts]) -> Option<(Holder, String)> {
    threads.iter().find_map(|thread| {
        let image = image_of(thread, images);
        let source = image.map_or("", |image| image.source.as_str());
        let mount = image.map_or("", |image| image.mount_point.as_str());
        let begins = |prefix: &str| frames(thread).any(|frame| frame.starts_with(prefix));
        let server = match () {
            () if begins("nfs") || begins("rpc_") => "NFS",
            () if begins("cifs_") || begins("smb2_") || begins("smb3_") => "SMB",
            () if begins("ceph_") => "Ceph",
            () if begins("fuse_") || has(thread, &["request_wait_answer"]) => {
                let words =
                    format!("the FUSE file system {mount} ({source}), which does not answer");
                return Some((holder(HolderKind::Fuse, mount), words));
            }
            () => return None,
        };
        let words = format!("the {server} server of {mount} ({source}), which does not answer");
        Some((holder(HolderKind::Server, source), words))
    })
}

/// `balance_dirty_pages()`.
fn throttled(scene: &Scene<'_>, threads: &[&ThreadFacts]) -> Option<(Holder, String)> {
    let waits = |thread: &&&ThreadFacts| {
        has(
            thread,
            &[
                "balance_dirty_pages",
                "balance_dirty_pages_ratelimited",
                "balance_dirty_pages_ratelimited_flags",
            ],
        )
    };
    threads.iter().find(waits)?;
    let mib = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{} MiB", bytes >> 20),
        None => "an unknown amount".to_owned(),
    };
    let words = format!(
        "the host's write-back: its page cache has {} that are dirty and {} that are being written",
        mib(scene.host.dirty),
        mib(scene.host.writeback)
    );
    Some((
        holder(HolderKind::DirtyThrottle, "balance_dirty_pages"),
        words,
    ))
}

/// What waits for a commit: of jbd2, of XFS' log, of btrfs' transactions.
const JOURNAL: &[&str] = &[
    "jbd2_log_wait_commit",
    "jbd2_complete_transaction",
    "jbd2_journal_lock_updates",
    "__jbd2_log_wait_for_space",
    "jbd2_fc_wait_bufs",
    "wait_transaction_locked",
    "wait_transaction_switching",
    "add_transaction_credits",
    "start_this_handle",
    "xlog_wait",
    "xlog_wait_on_iclog",
    "xlog_force_lsn",
    "xfs_log_force",
    "xfs_log_force_seq",
    "xlog_grant_head_wait",
    "btrfs_sync_log",
    "wait_log_commit",
    "btrfs_commit_transaction",
    "wait_current_trans",
];

fn journal(
    scene: &Scene<'_>,
    threads: &[&ThreadFacts],
    images: &[ImageFacts],
    chain: &Chain<'_>,
) -> Option<(Holder, String)> {
    let thread = threads.iter().find(|thread| has(thread, JOURNAL))?;
    let mount = image_of(thread, images).map_or("", |image| image.mount_point.as_str());
    let works_here = |worker: &&ThreadFacts| {
        chain.0.iter().any(|device| names(worker, &device.name))
            && ["jbd2/", "xfs", "btrfs", "kworker"]
                .iter()
                .any(|prefix| worker.name.starts_with(prefix))
    };
    let worker = scene.host.kernel_threads.iter().find(works_here);
    let of = match mount {
        "" => "the host's journal".to_owned(),
        mount => format!("the host's journal of {mount}"),
    };
    let words = match worker {
        Some(worker) => format!(
            "{of}: {} waits in {}{}",
            worker.name,
            place(worker).unwrap_or("the kernel"),
            since(worker.asleep_ns)
        ),
        None => format!("{of}: in {}", place(thread).unwrap_or("the kernel")),
    };
    let name = worker.map_or(mount, |worker| worker.name.as_str());
    Some((holder(HolderKind::Journal, name), words))
}

/// A server that is not seen to be stopped.
fn remote(disk: &DiskFacts) -> Option<(Holder, String)> {
    let remote = disk.remote.as_ref()?;
    Some((
        holder(HolderKind::Server, &remote.address),
        format!(
            "its {} server {}, which does not answer",
            remote.driver, remote.address
        ),
    ))
}

/// Frames that say only that a thread sleeps.
const SLEEP: &[&str] = &[
    "__schedule",
    "schedule",
    "io_schedule",
    "io_schedule_timeout",
    "schedule_timeout",
    "schedule_preempt_disabled",
    "bit_wait",
    "bit_wait_io",
    "__wait_on_bit",
    "__wait_on_bit_lock",
    "out_of_line_wait_on_bit",
    "wait_for_completion",
    "wait_for_completion_io",
    "__wait_for_common",
    "percpu_rwsem_wait",
    "__percpu_down_read",
    "rwsem_down_read_slowpath",
    "rwsem_down_write_slowpath",
    "down_read",
    "down_write",
    "__mutex_lock",
    "mutex_lock",
];

/// The function that says why a thread sleeps.
pub(super) fn place(thread: &ThreadFacts) -> Option<&str> {
    let mut named = frames(thread).filter(|frame| !SLEEP.contains(frame));
    named.next().or_else(|| frames(thread).next())
}

fn function(waiting: &Waiting<'_>) -> Option<(Holder, String)> {
    let thread = waiting.oldest()?;
    let place = place(thread)?;
    let doing = doing(thread);
    Some((
        holder(HolderKind::KernelFunction, place),
        format!(
            "{place} in the kernel: thread {} is blocked{doing}",
            thread.tid
        ),
    ))
}

/// ` in fdatasync of /a`.
pub(super) fn doing(thread: &ThreadFacts) -> String {
    match (&thread.system_call, &thread.file) {
        (Some(call), Some(file)) => format!(" in {call} of {file}"),
        (Some(call), None) => format!(" in {call}"),
        (None, _) => String::new(),
    }
}

fn in_qemu(disk: &DiskFacts, waiting: &Waiting<'_>) -> (Holder, String) {
    let n = waiting.requests.unwrap_or(0);
    let limits = match disk.limits == Default::default() {
        true => "",
        false => " (its throttle is set)",
    };
    (
        holder(HolderKind::Qemu, "QEMU"),
        format!(
            "QEMU itself{limits}: it has {}, and no device below it has one that waits as long",
            count(n, "request")
        ),
    )
}
