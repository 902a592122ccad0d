//! Calls that wait for checkpoints of f2fs.

use nestrace_abi::end_io;

use crate::calls::{MOUNT, io, journals_of, row, sorted, with_trees};

const KIB: u64 = 1024;

/// A write by a thread: of f2fs' node (1) or checkpoint (2) area, or of a folder's inode.
fn write(name: &str, tid: u32, inode: u64, place: u64, (from, to): (u64, u64)) -> String {
    format!(
        "{from}u Q {name} W {place}+4096 tid={tid} sub=2 inode={inode} of={MOUNT} at=0 end_io={end_io}
         {from}u G {name} W tid={tid}
         {from}u D r{name} W {place}+4096 rel={name} tid={tid}
         {to}u C r{name} W {place}+4096 tid=0
        ",
        end_io = end_io::F2FS_WRITE
    )
}

fn checkpoint(tid: u32, dev: &str, (from, to): (u64, u64)) -> String {
    format!(
        "{from}u journal-start 0x0 tid={tid} dev={dev} sub=1
         {to}u journal-end 0x0 tid={tid} dev={dev} sub=1
        "
    )
}

/// Two checkpoints by f2fs' thread, 30 to 90 and 110 to 190 µs, and a sync that asks for one.
fn waits((asks, returns): (u64, u64), dev: &str) -> Vec<(i64, i64, Vec<u64>)> {
    let sync = format!(
        "10u fsync fd tid=1 inode=5 of={MOUNT}
         {asks}u commit-wait 0x0 tid=1 dev={dev} sub=3
         {returns}u exit-fsync tid=1 result=0
        "
    );
    let text = [
        sync,
        checkpoint(3, MOUNT, (30, 90)),
        write("node", 3, 1, 64 * KIB, (40, 60)),
        write("folder", 3, 3, 128 * KIB, (41, 70)),
        checkpoint(3, MOUNT, (110, 190)),
        write("pack", 3, 2, 256 * KIB, (120, 180)),
    ];
    journals_of(&with_trees(&sorted(&text.concat())), 1)
}

#[test]
fn a_sync_waits_for_the_checkpoint_that_runs_and_the_next() {
    let first = (20, 80, vec![64 * KIB, 128 * KIB]);
    let second = (100, 180, vec![256 * KIB]);
    assert_eq!(waits((20, 100), MOUNT), std::slice::from_ref(&first));
    // The second one may be another call's: this one's had ended.
    assert_eq!(waits((20, 200), MOUNT), std::slice::from_ref(&first));
    assert_eq!(waits((50, 200), MOUNT), [first, second.clone()]);
    assert_eq!(waits((95, 200), MOUNT), [second]);
    // Of another file system, and one that has not ended.
    assert_eq!(waits((20, 100), "7:2"), []);
    assert_eq!(waits((95, 185), MOUNT), []);
}

/// Without `checkpoint_merge` the thread that syncs makes the checkpoint itself.
#[test]
fn a_checkpoint_of_the_syncs_own_thread_has_each_bio_once() {
    let text = [
        format!(
            "10u fsync fd tid=1 inode=5 of={MOUNT}
             20u commit-wait 0x0 tid=1 dev={MOUNT} sub=3
             200u exit-fsync tid=1 result=0
            "
        ),
        write("data", 1, 5, 512 * KIB, (12, 18)),
        checkpoint(1, MOUNT, (30, 190)),
        write("node", 1, 1, 64 * KIB, (40, 60)),
        write("folder", 1, 3, 128 * KIB, (41, 70)),
    ];
    let analysis = with_trees(&sorted(&text.concat()));
    let sync = row(&analysis, "db", "fsync", 5);
    assert_eq!(sync.waited, io(3, 3 * 4096));
    // A folder is no file's data.
    assert_eq!(sync.others_data.len(), 0);
    let journals = journals_of(&analysis, 1);
    assert_eq!(journals, [(20, 180, vec![128 * KIB])]);
}

/// A sync that needs no checkpoint writes its node and waits for it.
#[test]
fn what_a_sync_writes_into_the_node_area_is_its_own() {
    let text = [
        format!("10u fsync fd tid=1 inode=5 of={MOUNT}\n100u exit-fsync tid=1 result=0\n"),
        write("data", 1, 5, 512 * KIB, (20, 40)),
        write("node", 1, 1, 64 * KIB, (45, 90)),
    ];
    let analysis = with_trees(&sorted(&text.concat()));
    let sync = row(&analysis, "db", "fsync", 5);
    assert_eq!(sync.waited, io(2, 2 * 4096));
}
