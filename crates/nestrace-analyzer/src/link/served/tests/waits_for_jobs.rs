//! Writes that wait until a job has copied what they change, or has written it to its target too.

use nestrace_trace::manifest::{Job, Topology};

use super::{served, topology};

fn with_backup() -> Topology {
    with_job("backup")
}

fn with_job(kind: &str) -> Topology {
    let mut topology = topology();
    topology.guests[0].jobs = vec![Job {
        id: "b".into(),
        kind: kind.into(),
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
        let found = served(&with_backup(), &[], &in_order(&text));
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
    let found = served(&with_backup(), &[], &in_order(&text));
    assert_eq!(
        found.last().map(String::as_str),
        Some(
            "qemu Write 69632+4096 125-190 [job* Other 65536+65536 125-150, file Write 69632+4096 160-180]"
        )
    );
}

/// A write of 4 KiB at 68 KiB to the image, and after it the same buffer to another file.
const MIRRORED: &str = "100 acct-write 0x10d8 rel=0x10120 bytes=4096
     101 pwritev 0x1000 69632+4096 rel=0x10000 iocb=0xa1000
     110 write 0x5 69632+4096 inode=12 of=7:0 tid=201 iocb=0xf0000
     130 exit 0x0 result=4096 tid=201
     150 write 0x9 69632+4096 inode=77 of=8:0 tid=202 iocb=0xf0000
     170 exit 0x0 result=4096 tid=202
     190 push 0x1000
     191 acct-done 0x10d8 rel=0x10120";

#[test]
fn a_write_waits_for_its_copy_in_the_mirror() {
    let file = "file Write 69632+4096 110-130";
    let alone = format!("qemu Write 69632+4096 100-190 [{file}]");
    assert_eq!(
        served(&with_job("mirror"), &[], MIRRORED),
        [format!(
            "qemu Write 69632+4096 100-190 [{file}, job* Other 69632+4096 130-170]"
        )]
    );
    for (changed, into) in [
        // Another buffer, and a part of it.
        ("tid=202 iocb=0xf0000", "tid=202 iocb=0xe0000"),
        ("150 write 0x9 69632+4096", "150 write 0x9 69632+512"),
        // It failed, or was under way before the data was with the image.
        ("170 exit 0x0 result=4096", "170 exit 0x0 result=-5"),
        ("150 write", "125 write"),
    ] {
        let text = in_order(&MIRRORED.replace(changed, into));
        assert_eq!(
            served(&with_job("mirror"), &[], &text),
            std::slice::from_ref(&alone),
            "{into}"
        );
    }
    assert_eq!(served(&topology(), &[], MIRRORED), [alone]);
}

#[test]
fn a_table_that_is_written_back_is_no_copy() {
    let text = COPIED_FIRST.replace("inode=77 of=8:0", "inode=12 of=7:0");
    assert_eq!(
        served(&with_backup(), &[], &text),
        ["qemu Write 69632+4096 100-190 [file Write 69632+4096 160-180]"]
    );
}

fn in_order(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.sort_by_key(|line| {
        let time = line.split(' ').next().unwrap_or_default();
        time.parse::<u64>().unwrap_or_default()
    });
    lines.join("\n")
}
