//! Which host bios a file I/O waited for, and which QEMU request for which file I/O.

use super::{disk, run, served, topology};
use crate::result::unlinked::UnlinkedReason;

/// One write of `vd` by a worker thread, between 100 and 200.
const ONE_WRITE: &str = "100 acct-write 0x10d8 rel=0x10120 bytes=4096
     101 pwritev 0x1000 8192+4096 rel=0x10000 iocb=0xb1
     110 write 0x5 8192+4096 inode=12 of=7:0 tid=201 iocb=0xb1
     111 dio-begin k1 8192+4096 inode=12 of=7:0 tid=201 iocb=k1 origin=k1
     112 Q b1 W 90112+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=k1 tid=201 at=8192
     113 G b1
     115 D r1 W 90112+4096 rel=b1
     160 C r1 W 90112+4096
     165 dio-done k1 inode=12 of=7:0 tid=201 origin=k1
     170 exit 0x0 result=4096 tid=201
     180 push 0x1000
     190 acct-done 0x10d8 rel=0x10120";

#[test]
fn direct_io_by_a_thread() {
    assert_eq!(
        served(&topology(), &[], ONE_WRITE),
        [
            "qemu Write 8192+4096 100-180 [file Write 8192+4096 110-170 [\
             bio Write 90112+4096 112-160 [request Write 90112+4096 115-160]]]"
        ]
    );
}

#[test]
fn without_a_hand_back_scsi_ends_when_it_is_done_and_ide_with_the_last_host_event() {
    let text = ONE_WRITE
        .replace("0x10120", "0x20120")
        .replace("rel=0x10000", "rel=0x20000")
        .replace("inode=12", "inode=13")
        .replace("180 push 0x1000", "");
    let mut topology = topology();
    let end = |topology: &_| run(topology, &[], &text).served[0].span.end_ns;
    assert_eq!(end(&topology), 190);
    topology.guests[0].disks[1] = disk("sd", "ide", 13);
    assert_eq!(end(&topology), 170);
}

/// A sync of `vd` waits for the log of its own file system, and not for that of the next partition.
#[test]
fn a_sync_waits_for_the_log_of_its_own_file_system() {
    let text = |offset: u32| {
        format!(
            "100 acct-flush 0x10d8 rel=0x10120
             101 aio-flush 0x1000 rel=0x10000
             110 fdatasync 0x5 inode=12 of=259:0 tid=201
             120 Q b1 W {offset}+4096 end_io=3 tid=77
             121 G b1
             122 D r1 W {offset}+4096 rel=b1
             150 C r1 W {offset}+4096
             170 exit 0x0 result=0 tid=201
             180 push 0x1000
             190 acct-done 0x10d8 rel=0x10120"
        )
    };
    let topology = super::two_partitions();
    let own = served(&topology, &[], &text(36_864));
    assert!(
        own[0].contains("bio* Journal 36864+4096 120-150"),
        "{own:?}"
    );
    let others = served(&topology, &[], &text(102_400));
    assert!(!others[0].contains("bio"), "{others:?}");
}

#[test]
fn members_of_a_merged_call_lie_behind_each_other() {
    // Started in any order; the head has the lowest offset.
    let outcome = run(
        &topology(),
        &[],
        "100 acct-read 0x30d8 rel=0x10120 bytes=8192
         101 acct-read 0x10d8 rel=0x10120 bytes=4096
         102 acct-read 0x20d8 rel=0x10120 bytes=4096
         103 preadv 0x1000 65536+16384 rel=0x10000
         110 uring-read u1 65536+16384 inode=12 of=7:0
         170 uring-done u1 result=16384
         180 push 0x1000
         181 acct-done 0x10d8 rel=0x10120
         182 push 0x3000
         183 acct-done 0x30d8 rel=0x10120
         184 push 0x2000
         185 acct-done 0x20d8 rel=0x10120",
    );
    let of = |i: usize| {
        let served = &outcome.served[i];
        assert!(served.merged && served.offset_known && served.handed_back);
        super::tree(&served.span)
    };
    let file = "[file* Read 65536+16384 110-170]";
    assert_eq!(of(0), format!("qemu Read 65536+4096 101-180 {file}"));
    assert_eq!(of(1), format!("qemu Read 69632+8192 100-182 {file}"));
    assert_eq!(of(2), format!("qemu Read 77824+4096 102-184 {file}"));
}

/// Two writes of the same range in flight; `a` and `b` are their buffers in QEMU's call and in the
/// file I/O, which the kernel gets in the other order.
fn storm(a: &str, b: &str) -> String {
    format!(
        "100 acct-write 0x10d8 rel=0x10120 bytes=4096
         101 pwritev 0x1000 0+4096 rel=0x10000 iocb={a}
         102 acct-write 0x20d8 rel=0x10120 bytes=4096
         103 pwritev 0x2000 0+4096 rel=0x10000 iocb={b}
         110 write 0x5 0+4096 inode=12 of=7:0 tid=202 iocb={b}
         111 write 0x5 0+4096 inode=12 of=7:0 tid=201 iocb={a}
         150 exit 0x0 result=4096 tid=202
         160 exit 0x0 result=4096 tid=201
         180 push 0x2000
         181 acct-done 0x20d8 rel=0x10120
         190 push 0x1000
         191 acct-done 0x10d8 rel=0x10120"
    )
}

#[test]
fn a_storm_on_one_range_is_told_apart_by_the_buffers() {
    assert_eq!(
        served(&topology(), &[], &storm("0xa1000", "0xb1000")),
        [
            "qemu Write 0+4096 102-180 [file Write 0+4096 110-150]",
            "qemu Write 0+4096 100-190 [file Write 0+4096 111-160]"
        ]
    );
}

#[test]
fn without_buffers_it_says_that_it_does_not_know() {
    let outcome = run(&topology(), &[], &storm("0x0", "0x0"));
    assert!(outcome.served.iter().any(|served| served.ambiguous));
    assert!(outcome.half.unlinked.is_empty());
}

#[test]
fn native_aio_ends_with_its_last_bio_where_nothing_else_tells() {
    assert_eq!(
        served(
            &topology(),
            &[],
            "100 acct-read 0x10d8 rel=0x10120 bytes=8192
             101 preadv 0x1000 0+8192 rel=0x10000 iocb=0xb1
             109 io_submit 0x0
             110 aio-submit-read i1 0+8192 inode=12 of=7:0 iocb=0xb1
             112 Q b1 R 4096+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=i1
             113 G b1
             114 Q b2 R 40960+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=i1
             115 G b2
             116 D r1 R 4096+4096 rel=b1
             117 D r2 R 40960+4096 rel=b2
             118 io_submit-exit 0x0 result=1
             150 C r2 R 40960+4096
             160 C r1 R 4096+4096
             180 push 0x1000
             181 acct-done 0x10d8 rel=0x10120"
        ),
        ["qemu Read 0+8192 100-180 [file Read 0+8192 110-160 [\
             bio Read 4096+4096 112-160 [request Read 4096+4096 116-160], \
             bio Read 40960+4096 114-150 [request Read 40960+4096 117-150]]]"]
    );
}

#[test]
fn a_merged_request_is_shared_by_file_ios_not_within_one() {
    // b1 and b2 are one read's, b3 another's: the request of all three is shared.
    let text = |third: &str| {
        format!(
            "100 acct-read 0x10d8 rel=0x10120 bytes=8192
             101 preadv 0x1000 0+8192 rel=0x10000
             110 uring-read u1 0+8192 inode=12 of=7:0
             112 Q b1 R 0+4096 inode=12 of=7:0 sub=1 iocb=u1 origin=u1
             113 Q b2 R 4096+4096 inode=12 of=7:0 sub=1 iocb=u1 origin=u1
             114 M b2
             {third}
             150 C r1 R 0+8192
             160 uring-done u1 result=8192
             180 push 0x1000
             181 acct-done 0x10d8 rel=0x10120"
        )
    };
    let alone = text("116 D r1 R 0+8192 rel=b1 links=b2");
    let with_another = text(
        "115 Q b3 R 8192+4096 inode=777 of=7:0 sub=1 iocb=k9 tid=70
         116 D r1 R 0+8192 rel=b1 links=b2,b3",
    );
    let alone = served(&topology(), &[], &alone);
    assert!(!alone[0].contains('*'), "{alone:?}");
    let shared = served(&topology(), &[], &with_another);
    assert_eq!(shared[0].matches("request*").count(), 2, "{shared:?}");
}

#[test]
fn a_sync_waits_for_the_journal_together_with_others() {
    // vd and sd flush at the same time; jbd2 (tid 90) commits for both; the flush at its end is
    // vd's own, by the thread that syncs.
    let text = "100 acct-flush 0x10d8 rel=0x10120
         101 aio-flush 0x1000 rel=0x10000
         102 acct-flush 0x7000 rel=0x20120
         103 aio-flush 0x8000 rel=0x20000
         110 fdatasync 0x5 inode=12 of=7:0 tid=201
         111 fdatasync 0x5 inode=13 of=7:0 tid=202
         112 journal-start t1 tid=90 dev=7:0
         113 Q j1 W 40960+4096 inode=7340032 of=0:5 sub=2 end_io=2 tid=90
         114 G j1
         115 D r1 W 40960+4096 rel=j1
         140 C r1 W 40960+4096
         142 journal-end t1 tid=90 dev=7:0
         143 Q f1 Wf 0+0 tid=201
         144 G f1
         145 D fl F
         160 C fl Fs
         161 C e1 Wf 0+0
         165 exit 0x0 result=0 tid=202
         170 exit 0x0 result=0 tid=201
         175 acct-done 0x7000 rel=0x20120
         180 push 0x1000
         181 acct-done 0x10d8 rel=0x10120";
    let journal = "bio* Journal 40960+4096 113-140 [request* Write 40960+4096 115-140]";
    assert_eq!(
        served(&topology(), &[], text),
        [
            format!("qemu Flush 0+0 102-175 [file Sync 0+0 111-165 [{journal}]]"),
            format!(
                "qemu Flush 0+0 100-180 [file Sync 0+0 110-170 [{journal}, \
                 bio Flush 0+0 143-161 [request Flush 0+0 145-160]]]"
            ),
        ]
    );
}

#[test]
fn one_sync_for_several_flushes_is_shared() {
    assert_eq!(
        served(
            &topology(),
            &[],
            "100 acct-flush 0x10d8 rel=0x10120
             101 aio-flush 0x1000 rel=0x10000
             110 uring-fdatasync u1 inode=12 of=7:0
             112 uring-async u1
             114 sync-enter 0x0 inode=12 of=7:0 tid=301
             120 acct-flush 0x20d8 rel=0x10120
             121 aio-flush 0x2000 rel=0x10000
             130 Q f1 Wf 0+0 tid=301
             131 G f1
             132 D fl F
             150 C fl Fs
             151 C e1 Wf 0+0
             152 sync-exit 0x0 result=0 inode=12 of=7:0 tid=301
             155 uring-done u1 result=0 tid=301
             160 push 0x1000
             161 acct-done 0x10d8 rel=0x10120
             170 push 0x2000
             171 acct-done 0x20d8 rel=0x10120"
        ),
        [
            "qemu Flush 0+0 100-160 [file* Sync 0+0 110-155 [\
             bio Flush 0+0 130-151 [request Flush 0+0 132-150]]]",
            "qemu Flush 0+0 120-170 [file* Sync 0+0 120-155 [\
             bio Flush 0+0 130-151 [request Flush 0+0 132-150]]]",
        ]
    );
}

#[test]
fn a_write_that_must_be_on_the_device_waits_for_a_sync_from_the_end_of_its_data() {
    let mut topology = topology();
    topology.guests[0].disks[0].cache = Some("directsync".into());
    // The second write's data is with the kernel at 130, while the first one's sync runs.
    assert_eq!(
        served(
            &topology,
            &[],
            "100 acct-write 0x10d8 rel=0x10120 bytes=4096
             101 pwritev 0x1000 0+4096 rel=0x10000
             102 acct-write 0x20d8 rel=0x10120 bytes=4096
             103 pwritev 0x2000 8192+4096 rel=0x10000
             105 write 0x5 0+4096 inode=12 of=7:0 tid=201
             106 write 0x5 8192+4096 inode=12 of=7:0 tid=202
             110 exit 0x0 result=4096 tid=201
             120 fdatasync 0x5 inode=12 of=7:0 tid=201
             130 exit 0x0 result=4096 tid=202
             140 exit 0x0 result=0 tid=201
             145 push 0x1000
             146 acct-done 0x10d8 rel=0x10120
             150 fdatasync 0x5 inode=12 of=7:0 tid=202
             160 exit 0x0 result=0 tid=202
             170 push 0x2000
             171 acct-done 0x20d8 rel=0x10120"
        ),
        [
            "qemu Write 0+4096 100-145 [file Write 0+4096 105-110, file* Sync 0+0 120-140]",
            "qemu Write 8192+4096 102-170 [file Write 8192+4096 106-130, \
             file* Sync 0+0 130-140, file Sync 0+0 150-160]",
        ]
    );
}

#[test]
fn a_read_waits_for_pages_that_somebody_else_reads() {
    let mut topology = topology();
    topology.guests[0].disks[0].images[0].direct = Some(false);
    // Read-ahead of thread 55 brings the page that the guest wants, and one that is not wanted.
    let outcome = run(
        &topology,
        &[],
        "100 acct-read 0x10d8 rel=0x10120 bytes=4096
         101 preadv 0x1000 4096+4096 rel=0x10000
         104 Q b1 Rr 40960+8192 inode=12 of=7:0 sub=2 at=0 tid=55
         105 G b1
         106 Q b2 Rr 81920+4096 inode=12 of=7:0 sub=2 at=65536 tid=55
         107 G b2
         108 D r1 R 40960+8192 rel=b1
         109 D r2 R 81920+4096 rel=b2
         110 read 0x5 4096+4096 inode=12 of=7:0 tid=201
         140 C r2 R 81920+4096
         150 C r1 R 40960+8192
         170 exit 0x0 result=4096 tid=201
         180 push 0x1000
         190 acct-done 0x10d8 rel=0x10120",
    );
    assert_eq!(
        super::tree(&outcome.served[0].span),
        "qemu Read 4096+4096 100-180 [file Read 4096+4096 110-170 [\
         bio Read 40960+8192 110-150 [request Read 40960+8192 110-150]]]"
    );
    assert_eq!(
        (outcome.half.deferred.reads, outcome.half.deferred.bytes),
        (1, 4096)
    );
}

#[test]
fn write_back_is_deferred_and_joined_to_the_write() {
    let mut topology = topology();
    topology.guests[0].disks[0].images[0].direct = Some(false);
    let outcome = run(
        &topology,
        &[],
        "100 acct-write 0x10d8 rel=0x10120 bytes=8192
         101 pwritev 0x1000 4096+8192 rel=0x10000
         110 write 0x5 4096+8192 inode=12 of=7:0 tid=201
         120 exit 0x0 result=8192 tid=201
         130 push 0x1000
         131 acct-done 0x10d8 rel=0x10120
         1120 Q b1 W 40960+4096 inode=12 of=7:0 sub=2 at=4096 tid=55
         1121 G b1
         1122 D r1 W 40960+4096 rel=b1
         1150 C r1 W 40960+4096
         2120 Q b2 W 45056+4096 inode=12 of=7:0 sub=2 at=8192 tid=55
         2121 G b2
         2122 D r2 W 45056+4096 rel=b2
         2150 C r2 W 45056+4096
         3120 Q b3 W 90112+4096 sub=2 inode=7340032 of=0:5 tid=56
         3121 G b3
         3122 D r3 W 90112+4096 rel=b3
         3150 C r3 W 90112+4096",
    );
    let deferred = &outcome.half.deferred;
    assert_eq!(
        (deferred.reads, deferred.writes, deferred.bytes),
        (0, 2, 8192),
        "metadata of a file system with several disks on it is nobody's"
    );
    let delay = deferred.delay_ns.expect("two are known");
    assert_eq!((delay.n, delay.min, delay.sum), (2, Some(1000), 3000));
}

#[test]
fn o_direct_that_fell_back_waits_for_the_write_back_of_its_range() {
    // btrfs: the write goes through the page cache; a worker writes it out within the call.
    assert_eq!(
        served(
            &topology(),
            &[],
            "100 acct-write 0x10d8 rel=0x10120 bytes=4096
             101 pwritev 0x1000 8192+4096 rel=0x10000
             110 write 0x5 8192+4096 inode=12 of=7:0 tid=201
             120 Q b1 W 90112+4096 inode=12 of=7:0 sub=2 at=8192 tid=77
             121 G b1
             122 Q b2 W 98304+4096 inode=12 of=7:0 sub=2 at=16384 tid=77
             123 G b2
             124 D r1 W 90112+4096 rel=b1
             125 D r2 W 98304+4096 rel=b2
             150 C r1 W 90112+4096
             151 C r2 W 98304+4096
             170 exit 0x0 result=4096 tid=201
             180 push 0x1000
             190 acct-done 0x10d8 rel=0x10120"
        ),
        [
            "qemu Write 8192+4096 100-180 [file Write 8192+4096 110-170 [\
             bio* Write 90112+4096 120-150 [request* Write 90112+4096 124-150]]]"
        ]
    );
}

#[test]
fn discards_that_qemu_does_not_account_for_are_requests_all_the_same() {
    assert_eq!(
        served(
            &topology(),
            &[],
            "100 acct-read 0x10d8 rel=0x10120 bytes=4096
             101 preadv 0x1000 4096+4096 rel=0x10000
             102 push 0x1000
             103 acct-done 0x10d8 rel=0x10120
             110 pdiscard 0x3000 65536+65536 rel=0x10000
             120 fallocate 0x5 65536+65536 inode=12 of=7:0 tid=201
             150 exit 0x0 result=0 tid=201
             160 push 0x3000"
        ),
        [
            "qemu Read 4096+4096 100-102",
            "qemu Discard 65536+65536 110-160 [file Other 65536+65536 120-150]"
        ]
    );
}

#[test]
fn file_io_without_a_call_is_unlinked() {
    let outcome = run(
        &topology(),
        &[],
        "110 write 0x5 8192+4096 inode=12 of=7:0 tid=201
         150 exit 0x0 result=4096 tid=201",
    );
    assert_eq!(outcome.half.file_ios, 1);
    assert_eq!(outcome.half.unlinked, [(UnlinkedReason::NoMatch, 1)].into());
    assert!(!outcome.half.qemu_seen);
}

#[test]
fn a_request_that_an_error_stopped_is_one() {
    let outcome = run(
        &topology(),
        &[],
        "100 acct-write 0x10d8 rel=0x10120 bytes=4096
         101 pwritev 0x1000 8192+4096 rel=0x10000
         110 write 0x5 8192+4096 inode=12 of=7:0 tid=201
         120 exit 0x0 result=-28 tid=201
         500 acct-write 0x10d8 rel=0x10120 bytes=4096
         501 pwritev 0x1000 8192+4096 rel=0x10000
         510 write 0x5 8192+4096 inode=12 of=7:0 tid=201
         520 exit 0x0 result=4096 tid=201
         530 push 0x1000
         531 acct-done 0x10d8 rel=0x10120",
    );
    assert_eq!(outcome.served.len(), 1);
    assert_eq!(
        super::tree(&outcome.served[0].span),
        "qemu Write 8192+4096 100-530 [file Write 8192+4096 510-520]"
    );
}

#[test]
fn a_member_whose_start_was_lost_leaves_its_place_to_nobody() {
    let outcome = run(
        &topology(),
        &[],
        "# 100 acct-read 0x30d8 rel=0x10120 bytes=4096
         101 acct-read 0x10d8 rel=0x10120 bytes=4096
         102 acct-read 0x20d8 rel=0x10120 bytes=4096
         103 preadv 0x1000 65536+12288 rel=0x10000
         180 push 0x1000
         181 acct-done 0x10d8 rel=0x10120
         182 push 0x3000
         183 acct-done 0x30d8 rel=0x10120
         184 push 0x2000
         185 acct-done 0x20d8 rel=0x10120",
    );
    let known: Vec<bool> = outcome.served.iter().map(|one| one.offset_known).collect();
    assert_eq!(known, [true, false]);
    assert_eq!(
        super::tree(&outcome.served[0].span),
        "qemu Read 65536+4096 101-180"
    );
}

#[test]
fn a_discard_whose_hand_back_was_lost_is_over_at_the_next_of_its_element() {
    let outcome = run(
        &topology(),
        &[],
        "100 acct-read 0x10d8 rel=0x10120 bytes=4096
         101 preadv 0x1000 4096+4096 rel=0x10000
         102 push 0x1000
         103 acct-done 0x10d8 rel=0x10120
         110 pdiscard 0x3000 65536+65536 rel=0x10000
         # push 0x3000
         210 pdiscard 0x3000 0+4096 rel=0x10000
         260 push 0x3000",
    );
    assert_eq!(outcome.served.len(), 2);
    assert_eq!(
        super::tree(&outcome.served[1].span),
        "qemu Discard 0+4096 210-260"
    );
}

#[test]
fn a_request_elsewhere_is_not_the_one_before_that_starts_again() {
    let outcome = run(
        &topology(),
        &[],
        "100 acct-read 0x70d8 rel=0x20120 bytes=4096
         101 preadv 0x8000 0+4096 rel=0x20000
         # acct-done
         500 acct-read 0x70d8 rel=0x20120 bytes=4096
         501 preadv 0x8000 8192+4096 rel=0x20000
         600 acct-done 0x70d8 rel=0x20120",
    );
    assert_eq!(outcome.served.len(), 1);
    assert_eq!(
        super::tree(&outcome.served[0].span),
        "qemu Read 8192+4096 500-600"
    );
}
