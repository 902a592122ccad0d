//! What loop and dm devices do below a host request.

use nestrace_trace::manifest::Device;

use super::{served, topology};

#[test]
fn direct_io_of_a_loop_device_lies_within_its_request() {
    assert_eq!(
        served(
            &topology(),
            &[],
            "100 acct-write 0x10d8 rel=0x10120 bytes=4096
             101 pwritev 0x1000 8192+4096 rel=0x10000
             110 uring-write u1 8192+4096 inode=12 of=7:0
             111 dio-begin k1 8192+4096 inode=12 of=7:0 iocb=k1 origin=u1
             112 Q b1 W 90112+4096 inode=12 of=7:0 sub=1 iocb=k1 origin=u1
             113 G b1
             115 D r1 W 90112+4096 rel=b1
             120 Q c1 W 500000+4096 inode=99 of=8:0 sub=1 iocb=kl origin=r1 dev=8:0 tid=60
             121 G c1 dev=8:0
             122 D r2 W 500000+4096 rel=c1 dev=8:0
             150 C r2 W 500000+4096 dev=8:0
             160 C r1 W 90112+4096
             170 uring-done u1 result=4096
             180 push 0x1000
             190 acct-done 0x10d8 rel=0x10120"
        ),
        [
            "qemu Write 8192+4096 100-180 [file Write 8192+4096 110-170 [\
             bio Write 90112+4096 112-160 [request Write 90112+4096 115-160 [\
             bio Write 500000+4096 120-150 [request Write 500000+4096 122-150]]]]]"
        ]
    );
}

#[test]
fn clones_of_dm_lie_within_the_bio_that_they_are_of() {
    let mut topology = topology();
    topology.devices.push(Device {
        name: "dm-0".into(),
        dev: 253 << 20,
        kind: "dm".into(),
        beneath: vec!["sda".into()],
        ..Device::default()
    });
    topology.guests[0].disks[0].images[0].devices = vec!["dm-0".into()];
    assert_eq!(
        served(
            &topology,
            &[],
            "100 acct-write 0x10d8 rel=0x10120 bytes=8192
             101 pwritev 0x1000 8192+8192 rel=0x10000
             110 uring-write u1 8192+8192 inode=12 of=7:0
             111 dio-begin k1 8192+8192 inode=12 of=7:0 iocb=k1 origin=u1
             112 Q b1 W 90112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=253:0
             113 A c1 W 190112+8192 dev=8:0 of=253:0
             114 Q c1 W 190112+8192 inode=12 of=7:0 sub=1 iocb=k1 origin=u1 dev=8:0
             115 G c1 dev=8:0
             120 D r2 W 190112+8192 rel=c1 dev=8:0
             150 C r2 W 190112+8192 dev=8:0
             155 BC b1 W 90112+8192 dev=253:0
             170 uring-done u1 result=8192
             180 push 0x1000
             190 acct-done 0x10d8 rel=0x10120"
        ),
        [
            "qemu Write 8192+8192 100-180 [file Write 8192+8192 110-170 [\
             bio Write 90112+8192 112-155 [request Write 90112+8192 112-155 [\
             bio Write 190112+8192 114-150 [request Write 190112+8192 120-150]]]]]"
        ]
    );
}
