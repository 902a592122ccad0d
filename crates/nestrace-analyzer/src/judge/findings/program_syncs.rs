//! Rules about how the guest's programs sync their files.
//!
//! A share is a part of the summed latency of all calls on the disk's file systems.

use nestrace_trace::manifest::GuestMount;

use super::subject::{Subject, journals};
use super::{Case, Judgement, Missing, threshold};
use crate::measure::clues::{FileSyncs, SyncCounts};
use crate::result::units::{of, percent, share, size, time};
use crate::result::verdict::FOLLOWED;

/// Missing where a sync was not followed down to the host.
const NOT_FOLLOWED: Missing = "too many of the programs' syncs could not be followed to the host";
/// Missing on ext4 if the kernel's fields were not found, or there is no journal.
const NO_COMMITS: Missing =
    "which commit of the journal a sync waits for was not recorded, or ext4 has no journal";
/// Missing on file systems whose journals have no recorded commits.
const NOT_EXT4: Missing = "which commits a sync waits for is recorded on ext4 and ext3 only";

/// What a rule looks at.
#[derive(Clone, Copy)]
struct Programs<'a> {
    mounts: &'a [&'a GuestMount],
    syncs: &'a [FileSyncs],
    /// Summed latency of all calls on these mounts.
    calls_ns: u128,
}

pub(super) fn sync_drags_others(subject: &Subject<'_>) -> Judgement {
    with_programs(subject, dragging)
}

pub(super) fn small_syncs(subject: &Subject<'_>) -> Judgement {
    with_programs(subject, small)
}

pub(super) fn sync_of_metadata(subject: &Subject<'_>) -> Judgement {
    with_programs(subject, of_metadata)
}

pub(super) fn log_on_shared_journal(subject: &Subject<'_>) -> Judgement {
    with_programs(subject, shared_journal)
}

/// Applies a rule, unless no program can have synced a file on the disk.
fn with_programs(subject: &Subject<'_>, rule: fn(Programs<'_>) -> Judgement) -> Judgement {
    let Some(syncs) = subject.file_syncs()? else {
        return Ok(None);
    };
    let calls = subject.analysis.calls.iter().flatten();
    let is_here = |point: &str| subject.mounts.iter().any(|it| it.mount_point == point);
    let here = calls.filter(|row| row.guest == subject.guest.name && is_here(&row.file.mount));
    rule(Programs {
        mounts: &subject.mounts,
        syncs,
        calls_ns: here.map(|row| u128::from(row.latency_ns.sum)).sum(),
    })
}

impl<'a> Programs<'a> {
    fn mount_of(self, file: &FileSyncs) -> Option<&'a GuestMount> {
        let mut mounts = self.mounts.iter();
        mounts.find(|mount| mount.dev == file.dev).copied()
    }

    /// Files on file systems whose commits are recorded.
    fn on_ext4(self) -> impl Iterator<Item = (&'a FileSyncs, &'a GuestMount)> {
        let with_mount = move |file| Some((file, self.mount_of(file)?));
        let files = self.syncs.iter().filter_map(with_mount);
        files.filter(|(_, mount)| has_commits(mount))
    }

    /// The same, if their syncs were followed and their commits are known. Another file system with a journal gives no
    /// answer where its programs sync enough for one.
    fn with_commits(self) -> Result<Vec<(&'a FileSyncs, &'a GuestMount)>, Missing> {
        let others = self.syncs.iter().filter(|file| {
            let mount = self.mount_of(file);
            mount.is_some_and(|mount| journals(&mount.fs_type) && !has_commits(mount))
        });
        let files: Vec<_> = self.on_ext4().collect();
        let sum = sum_of(files.iter().map(|(file, _)| *file));
        if sum.syncs < threshold::SYNCS {
            let elsewhere = sum_of(others).syncs;
            return match elsewhere >= threshold::SYNCS {
                true => Err(NOT_EXT4),
                false => Ok(Vec::new()),
            };
        }
        followed(sum)?;
        if share(sum.unknown_commit, sum.syncs) > 1.0 - FOLLOWED {
            return Err(NO_COMMITS);
        }
        Ok(files)
    }

    /// Part of the calls' time; `None` if that is too little.
    fn at_stake(self, ns: u128) -> Option<f64> {
        let part = match self.calls_ns {
            0 => 0.0,
            all => (ns as f64 / all as f64).min(1.0),
        };
        (part >= threshold::NOTABLE).then_some(part)
    }
}

/// jbd2's commits are recorded.
fn has_commits(mount: &GuestMount) -> bool {
    matches!(mount.fs_type.as_str(), "ext3" | "ext4")
}

fn has_option(mount: &GuestMount, option: &str) -> bool {
    mount.options.split(',').any(|it| it == option)
}

fn sum_of<'a>(files: impl Iterator<Item = &'a FileSyncs>) -> SyncCounts {
    let mut sum = SyncCounts::default();
    files.for_each(|file| sum.add(file.counts));
    sum
}

fn followed(counts: SyncCounts) -> Result<(), Missing> {
    if share(counts.followed, counts.syncs) < FOLLOWED {
        return Err(NOT_FOLLOWED);
    }
    Ok(())
}

/// Mean of a sum, nanoseconds.
fn mean(sum: u128, n: u64) -> u64 {
    let mean = sum.checked_div(u128::from(n)).unwrap_or_default();
    u64::try_from(mean).unwrap_or(u64::MAX)
}

fn whole(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

fn dragging(programs: Programs<'_>) -> Judgement {
    let dragged = |file: &FileSyncs| -> u64 { file.others_data.iter().map(|it| it.bytes).sum() };
    let files: Vec<_> = programs
        .on_ext4()
        .filter(|(file, _)| dragged(file) > 0)
        .collect();
    let bytes: u64 = files.iter().map(|(file, _)| dragged(file)).sum();
    let sum = sum_of(files.iter().map(|(file, _)| *file));
    if sum.syncs < threshold::DRAGGING_SYNCS || bytes < threshold::BYTES {
        return Ok(None);
    }
    followed(sum)?;
    let worst = files.iter().max_by_key(|(file, _)| dragged(file));
    let (Some(share), Some((file, mount))) = (programs.at_stake(sum.others_data_ns), worst) else {
        return Ok(None);
    };
    let Some(other) = file.others_data.first() else {
        return Ok(None);
    };
    let (name, others_name) = (file.file.label(), other.file.label());
    let writer = other.process.as_deref().unwrap_or("an unknown program");
    let point = mount.mount_point.as_str();
    let mut advice = Vec::new();
    if has_option(mount, "nodelalloc") {
        advice.push(format!(
            "Mount {point} with delayed allocation, ext4's default: remove `nodelalloc` from `/etc/fstab`, unmount and \
             mount. A file then gets blocks when its data are written. Risk: of a program that never syncs, a crash loses \
             up to half a minute of data instead of five seconds."
        ));
    } else if mount.fs_type == "ext3" {
        advice.push(format!(
            "Mount {point} as ext4 (change the type in `/etc/fstab`, unmount and mount), which allocates blocks when data \
             are written. Risk: of a program that never syncs, a crash loses up to half a minute of data instead of five \
             seconds."
        ));
    }
    advice.extend([
        format!(
            "Give {name} a file system of its own, best on a disk of its own; its syncs then write no other file. Risk: \
             its space has a limit of its own, and a backup must take both file systems at the same moment."
        ),
        String::from(
            "Or let the guest write data back earlier, so that a commit finds less to write: a lower \
             `vm.dirty_background_bytes` and `vm.dirty_writeback_centisecs`. Risk: more and smaller writes.",
        ),
        format!(
            "Or mount {point} with `data=writeback` (`/etc/fstab`, or `tune2fs -o journal_data_writeback`; a remount does \
             not change it). Risk: after a crash, a file that grew shortly before can show old data of deleted files, also \
             those of other users."
        ),
    ]);
    Case {
        title: format!(
            "{}'s syncs of {name} write {writer}'s {others_name} first, {} of the time of all calls",
            file.program,
            percent(share)
        ),
        explanation: format!(
            "With `data=ordered`, a commit of ext4's journal first writes the data of each file that has got new blocks \
             since the last commit. {} of {}, {} on average, wrote {} of other files, most of it {others_name}.",
            of(sum.syncs, "sync", "syncs"),
            match files.len() {
                1 => name.clone(),
                n => format!("{n} files"),
            },
            time(mean(sum.latency_ns, sum.followed)),
            size(bytes),
        ),
        advice,
        evidence: [
            ("program", file.program.as_str().into()),
            ("file", name.as_str().into()),
            ("syncs", sum.syncs.into()),
            ("sync_mean_ns", mean(sum.latency_ns, sum.followed).into()),
            ("other_program", writer.into()),
            ("other_file", others_name.as_str().into()),
            ("others_bytes", bytes.into()),
            ("at_stake_ns", whole(sum.others_data_ns).into()),
            ("mount_options", mount.options.as_str().into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

fn small(programs: Programs<'_>) -> Judgement {
    let is_small = |file: &&FileSyncs| {
        file.counts.written_bytes <= threshold::SMALL_SYNC.saturating_mul(file.counts.syncs)
    };
    let files: Vec<&FileSyncs> = programs.syncs.iter().filter(is_small).collect();
    // One program that syncs many files is one matter, several programs are several.
    let mut by_program: Vec<(&FileSyncs, SyncCounts)> = Vec::new();
    for file in files {
        match by_program
            .iter_mut()
            .find(|(first, _)| first.program == file.program)
        {
            Some((_, sum)) => sum.add(file.counts),
            None => by_program.push((file, file.counts)),
        }
    }
    let worst = by_program.iter().max_by_key(|(_, sum)| sum.latency_ns);
    let Some((file, sum)) = worst.filter(|(_, sum)| sum.syncs >= threshold::SMALL_SYNCS) else {
        return Ok(None);
    };
    followed(*sum)?;
    let Some(share) = programs.at_stake(sum.latency_ns) else {
        return Ok(None);
    };
    let name = file.file.label();
    let program = file.program.as_str();
    let each = sum.written_bytes / sum.syncs.max(1);
    let mount = programs.mount_of(file);
    let mut advice = vec![
        format!(
            "Let {program} collect several changes and sync once (group commit): `commit_delay` in PostgreSQL, \
             `binlog_group_commit_sync_delay` in MySQL, one transaction for many changes in SQLite. Risk: none for the \
             data; a single change waits a little longer."
        ),
        String::from(
            "If the newest changes may be lost: `synchronous_commit=off` in PostgreSQL, \
             `innodb_flush_log_at_trx_commit=2` in MySQL and MariaDB, a WAL with `PRAGMA synchronous=NORMAL` in SQLite. \
             Risk: a crash loses transactions of the last moments that were reported as done.",
        ),
    ];
    if mount.is_some_and(|mount| mount.fs_type == "ext4") {
        advice.push(String::from(
            "Or make each sync smaller: a log that is overwritten in place with `fdatasync` or O_DSYNC, after its blocks were \
             written once (`fallocate` alone is not enough), needs no commit of ext4's journal. `fast_commit` (`tune2fs -O \
             fast_commit` on the unmounted file system, from Linux 5.10) makes commits shorter. Risk of `fast_commit`: \
             kernels before 5.10 and e2fsprogs before 1.46 cannot recover such a journal.",
        ));
    }
    let commit = if mount.is_some_and(|mount| journals(&mount.fs_type)) {
        "the file system's journal and "
    } else {
        ""
    };
    Case {
        title: format!(
            "{program} syncs {name} after every {}, {} of the time of all calls",
            size(each),
            percent(share)
        ),
        explanation: format!(
            "{} carried {} each and took {} on average. However little it carries, a sync waits for {commit}a flush of the \
             disk through all layers.",
            of(sum.syncs, "sync", "syncs"),
            size(each),
            time(mean(sum.latency_ns, sum.followed))
        ),
        advice,
        evidence: [
            ("program", program.into()),
            ("file", name.as_str().into()),
            ("syncs", sum.syncs.into()),
            ("written_bytes", sum.written_bytes.into()),
            ("bytes_per_sync", each.into()),
            ("sync_mean_ns", mean(sum.latency_ns, sum.followed).into()),
            ("at_stake_ns", whole(sum.latency_ns).into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

fn of_metadata(programs: Programs<'_>) -> Judgement {
    let files = programs.with_commits()?;
    let sum = sum_of(files.iter().map(|(file, _)| *file));
    let worst = files
        .iter()
        .max_by_key(|(file, _)| file.counts.for_times_ns);
    let share = programs.at_stake(sum.for_times_ns);
    let (Some(share), Some((file, _))) = (share, worst) else {
        return Ok(None);
    };
    if sum.for_times < threshold::SYNCS {
        return Ok(None);
    }
    let name = file.file.label();
    let program = file.program.as_str();
    Case {
        title: format!(
            "{program}'s syncs of {name} commit only times, {} of the time of all calls",
            percent(share)
        ),
        explanation: format!(
            "{} of {} waited for a commit of the journal that no data of the file needed: it holds changes such as the \
             time of modification, which `fdatasync` leaves for later. They spent {} each in these commits, on average.",
            sum.for_times,
            of(sum.syncs, "sync", "syncs"),
            time(mean(sum.for_times_ns, sum.for_times))
        ),
        advice: vec![
            String::from(
                "Use `fdatasync` instead of `fsync`, and O_DSYNC instead of O_SYNC (`wal_sync_method=fdatasync` in \
                 PostgreSQL, `innodb_use_fdatasync=ON` in MySQL from 8.0.26). Data and size of the file are as safe. Risk: \
                 after a crash the time of modification can be older than the data, so that a backup that compares times \
                 misses the change.",
            ),
            String::from(
                "A file that grows, or gets its blocks by `fallocate` alone, needs commits with either call: write its blocks \
                 once, then overwrite them in place.",
            ),
        ],
        evidence: [
            ("program", program.into()),
            ("file", name.as_str().into()),
            ("syncs", sum.syncs.into()),
            ("syncs_for_times", sum.for_times.into()),
            ("sync_mean_ns", mean(sum.latency_ns, sum.followed).into()),
            ("at_stake_ns", whole(sum.for_times_ns).into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

fn shared_journal(programs: Programs<'_>) -> Judgement {
    let is_log = |file: &FileSyncs| {
        let counts = file.counts;
        counts.syncs >= threshold::SYNCS
            && share(counts.in_sequence, counts.writes) >= threshold::LOG_IN_SEQUENCE
    };
    let mut logs = programs.with_commits()?;
    logs.retain(|(file, _)| is_log(file));
    let worst = logs.iter().max_by_key(|(file, _)| file.counts.behind_ns);
    let Some((file, mount)) = worst else {
        return Ok(None);
    };
    let counts = file.counts;
    let (Some(share), Some((other, others_file))) =
        (programs.at_stake(counts.behind_ns), file.behind.first())
    else {
        return Ok(None);
    };
    let (name, others_name) = (file.file.label(), others_file.label());
    let (program, point) = (file.program.as_str(), mount.mount_point.as_str());
    Case {
        title: format!(
            "{program}'s syncs of {name} wait for commits of other files on {point}, {} of the time of all calls",
            percent(share)
        ),
        explanation: format!(
            "{name} is written in sequence and synced {}, as a log is. A journal does one commit after the other, so {} of \
             these syncs first let a commit end that others had asked for, such as {other} for {others_name}. That took {} \
             each, on average.",
            of(counts.syncs, "time", "times"),
            counts.behind,
            time(mean(counts.behind_ns, counts.behind))
        ),
        advice: vec![
            format!(
                "Put {name} on a file system of its own, best on a disk of its own: its syncs then wait for no other \
                 program's commits, and its flushes write no other file. Risk: if that disk is full, {program} stops, and \
                 a backup must take both file systems at the same moment."
            ),
            String::from(
                "Or write the log's blocks once, then overwrite them in place with `fdatasync` or O_DSYNC: such a sync needs \
                 no commit. Or let the other programs sync less often.",
            ),
        ],
        evidence: [
            ("program", program.into()),
            ("file", name.as_str().into()),
            ("mount_point", point.into()),
            ("syncs", counts.syncs.into()),
            ("syncs_behind_others", counts.behind.into()),
            ("sync_mean_ns", mean(counts.latency_ns, counts.followed).into()),
            ("other_program", other.as_str().into()),
            ("other_file", others_name.as_str().into()),
            ("at_stake_ns", whole(counts.behind_ns).into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

#[cfg(test)]
mod tests;
