//! Writes that wait until a backup has copied what they change.

use nestrace_trace::manifest::{Job, Topology};

use super::{served, topology};

fn with_backup() -> Topology {
    let mut topology = topology();
    topology.guests[0].jobs = vec![Job {
        id: "b".into(),
        kind: "backup".into(),
        disk: Some("vd".into()),
        ..Job::default()
    }];
    topology
}

/// A write of 4 KiB at 68 KiB; the cluster at 64 KiB is read at 110-120 and written to another file at 130-150.
const COPIED_FIRST: &str = "100 acct-write 0x10d8 rel=0x10120 bytes=4096
     101 pwritev 0x1000 69632+4096 rel=0x10000 iocb=0xa1000
     110 read 0x5 65536+65536 inode=12 of=7:0 tid=201 iocb=0xf0000
     120 exit 0x0 result=65536 tid=201
     130 write 0x9 65536+65536 inode=77 of=8:0 tid=202 iocb=0xf0000
     150 exit 0x0 result=65536 tid=202
     160 write 0x5 69632+4096 inode=12 of=7:0 tid=201 iocb=0xa1000
     180 exit 0x0 result=4096 tid=201
     190 push 0x1000
     191 acct-done 0x10d8 rel=0x10120";

#[test]
fn a_write_waits_for_the_copy_of_its_range() {
    assert_eq!(
        served(&with_backup(), &[], COPIED_FIRST),
        [
            "qemu Write 69632+4096 100-190 [job* Other 65536+65536 110-150, file Write 69632+4096 160-180]"
        ]
    );
    // Without the job it is not known what the read was for.
    assert_eq!(
        served(&topology(), &[], COPIED_FIRST),
        ["qemu Write 69632+4096 100-190 [file Write 69632+4096 160-180]"]
    );
}

#[test]
fn what_is_no_proof_is_no_wait() {
    let file_alone = ["qemu Write 69632+4096 100-190 [file Write 69632+4096 160-180]"];
    for (changed, into) in [
        // Another buffer was written.
        ("tid=202 iocb=0xf0000", "tid=202 iocb=0xe0000"),
        // Only a part of it was.
        ("130 write 0x9 65536+65536", "130 write 0x9 65536+4096"),
        // The copy is of another range.
        ("110 read 0x5 65536+65536", "110 read 0x5 131072+65536"),
        // Its write failed.
        ("150 exit 0x0 result=65536", "150 exit 0x0 result=-5"),
        // The guest's own file I/O did not wait.
        ("150 exit", "165 exit"),
    ] {
        let text = COPIED_FIRST.replace(changed, into);
        assert_ne!(text, COPIED_FIRST, "{changed}");
        let mut lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.sort_by_key(|line| {
            let time = line.split(' ').next().unwrap_or_default();
            time.parse::<u64>().unwrap_or_default()
        });
        let found = served(&with_backup(), &[], &lines.join("\n"));
        assert_eq!(found, file_alone, "{into}");
    }
}

#[test]
fn a_copy_that_began_before_is_waited_for_from_the_request_on() {
    let text = COPIED_FIRST
        .replace("100 acct-write", "125 acct-write")
        .replace("101 pwritev", "126 pwritev");
    // That QEMU's functions are probed is known from a request before.
    let before = "10 acct-read 0x50d8 rel=0x10120 bytes=4096
        11 preadv 0x5000 0+4096 rel=0x10000
        20 push 0x5000
        21 acct-done 0x50d8 rel=0x10120";
    let text = format!("{before}\n{text}");
    let mut lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.sort_by_key(|line| {
        let time = line.split(' ').next().unwrap_or_default();
        time.parse::<u64>().unwrap_or_default()
    });
    let found = served(&with_backup(), &[], &lines.join("\n"));
    assert_eq!(
        found.last().map(String::as_str),
        Some(
            "qemu Write 69632+4096 125-190 [job* Other 65536+65536 125-150, file Write 69632+4096 160-180]"
        )
    );
}
