//! Trees as a user sees them.

use super::*;
use nestrace_trace::manifest::Server;

fn image(path: &str, mount: Option<(&str, &str)>, devices: &[&str]) -> Image {
    Image {
        path: path.to_owned(),
        format: "qcow2".to_owned(),
        size: 8 << 30,
        allocated: 1_288_490_189,
        mount: mount.map(|(fs_type, mount_point)| Mount {
            fs_type: fs_type.to_owned(),
            mount_point: mount_point.to_owned(),
            options: "rw,noatime,attr2,inode64,rw".to_owned(),
            ..Mount::default()
        }),
        devices: devices.iter().map(|d| (*d).to_owned()).collect(),
        ..Image::default()
    }
}

fn device(name: &str, kind: &str, beneath: &[&str]) -> Device {
    Device {
        name: name.to_owned(),
        kind: kind.to_owned(),
        beneath: beneath.iter().map(|d| (*d).to_owned()).collect(),
        scheduler: if kind == "disk" || kind == "loop" {
            "mq-deadline"
        } else {
            ""
        }
        .to_owned(),
        read_ahead_kb: 128,
        nr_requests: 64,
        ..Device::default()
    }
}

fn guest(name: &str, disks: Vec<Disk>) -> Guest {
    Guest {
        name: name.to_owned(),
        pid: 1234,
        executable: "qemu-system-x86_64".to_owned(),
        qemu_version: "7.2.22".to_owned(),
        accel: "tcg".to_owned(),
        disks,
        ..Guest::default()
    }
}

fn disk(name: &str, images: Vec<Image>) -> Disk {
    Disk {
        name: name.to_owned(),
        bus: "virtio-blk".to_owned(),
        format: "qcow2".to_owned(),
        cache: Some("none".to_owned()),
        aio: Some("io_uring".to_owned()),
        images,
        ..Disk::default()
    }
}

fn check(topology: &Topology, expected: &str) {
    let got = render(topology);
    assert_eq!(got, expected, "\n{got}");
}

#[test]
fn a_guest_on_a_loop_device() {
    let mut lower = device("loop0", "loop", &["vda"]);
    lower.loop_file = Some(Image {
        size: 0,
        mount: Some(Mount {
            fs_type: "ext4".to_owned(),
            mount_point: "/".to_owned(),
            options: "rw,relatime".to_owned(),
            ..Mount::default()
        }),
        ..image("/var/tmp/backing.img", None, &["vda"])
    });
    let topology = Topology {
        guests: vec![guest(
            "vm1",
            vec![disk(
                "vda-disk",
                vec![image(
                    "/images/vm1.qcow2",
                    Some(("xfs", "/images")),
                    &["loop0"],
                )],
            )],
        )],
        devices: vec![lower, device("vda", "disk", &[])],
        ..Topology::default()
    };
    check(
        &topology,
        "\
vm1  (pid 1234, qemu 7.2.22, tcg)                           agent: none
└─ vda-disk  virtio-blk  qcow2  cache=none  aio=io_uring
   └─ /images/vm1.qcow2  (8.0 GiB, 1.2 GiB allocated, qcow2)
      └─ xfs on /images (rw,noatime)
         └─ loop0  (mq-deadline, read-ahead 128 KiB, 64 requests)
            └─ /var/tmp/backing.img
               └─ ext4 on / (rw)
                  └─ vda  (mq-deadline, read-ahead 128 KiB, 64 requests)
",
    );
}

#[test]
fn chains_members_and_what_is_not_followed() {
    let topology = Topology {
        guests: vec![
            guest(
                "a",
                vec![
                    disk(
                        "d0",
                        vec![
                            image("/i/top", Some(("btrfs", "/i")), &["sda1", "dm-0"]),
                            Image {
                                relation: Some(Relation::DataFileOf(0)),
                                start: 512,
                                ..image("/i/data", Some(("btrfs", "/i")), &["sda1", "dm-0"])
                            },
                            image("/i/base", Some(("btrfs", "/i")), &["sda1", "dm-0"]),
                        ],
                    ),
                    Disk {
                        not_followed: Some("rbd: elsewhere".to_owned()),
                        cache: None,
                        aio: None,
                        ..disk("d1", Vec::new())
                    },
                ],
            ),
            Guest {
                agent: Some("/s".to_owned()),
                qemu_version: String::new(),
                ..guest(
                    "b",
                    vec![disk(
                        "d0",
                        vec![Image {
                            is_block_device: true,
                            ..image("/dev/sda", None, &["sda"])
                        }],
                    )],
                )
            },
            guest("c", Vec::new()),
        ],
        devices: vec![
            device("sda1", "partition", &["sda"]),
            device("sda", "disk", &[]),
            device("dm-0", "dm", &["sda"]),
        ],
        ..Topology::default()
    };
    check(
        &topology,
        "\
a  (pid 1234, qemu 7.2.22, tcg)                             agent: none
├─ d0  virtio-blk  qcow2  cache=none  aio=io_uring
│  ├─ /i/top  (8.0 GiB, 1.2 GiB allocated, qcow2)  …
│  ├─ with its data in /i/data  (8.0 GiB, 1.2 GiB allocated, qcow2, from byte 512)  …
│  └─ backed by /i/base  (8.0 GiB, 1.2 GiB allocated, qcow2)
│     └─ btrfs on /i (rw,noatime)
│        ├─ sda1  (partition, read-ahead 128 KiB, 64 requests)
│        │  └─ sda  (mq-deadline, read-ahead 128 KiB, 64 requests)
│        └─ dm-0  (dm, read-ahead 128 KiB, 64 requests)
│           └─ sda  (mq-deadline, read-ahead 128 KiB, 64 requests)
└─ d1  virtio-blk  qcow2
   └─ not followed: rbd: elsewhere
b  (pid 1234, qemu-system-x86_64, tcg)                      agent: channel
└─ d0  virtio-blk  qcow2  cache=none  aio=io_uring
   └─ /dev/sda  (8.0 GiB, qcow2, block device)
      └─ sda  (mq-deadline, read-ahead 128 KiB, 64 requests)
c  (pid 1234, qemu 7.2.22, tcg)                             agent: none
└─ no disks
sda is shared by a, b
",
    );
}

#[test]
fn servers_have_names() {
    let mut nbd = device("nbd0", "disk", &[]);
    nbd.server = Some(Server {
        protocol: "nbd".to_owned(),
        address: "10.0.0.1:10809".to_owned(),
        name: "vm".to_owned(),
    });
    let mut on_nfs = image("/n/i", Some(("nfs4", "/n")), &[]);
    if let Some(mount) = &mut on_nfs.mount {
        mount.source = "store:/vm".to_owned();
    }
    let topology = Topology {
        guests: vec![guest(
            "a",
            vec![
                disk("d0", vec![image("/dev/nbd0", None, &["nbd0"])]),
                disk("d1", vec![on_nfs]),
            ],
        )],
        devices: vec![nbd],
        ..Topology::default()
    };
    let text = render(&topology);
    for expected in [
        "└─ nbd0  (nbd server 10.0.0.1:10809 (vm), ",
        "   └─ nfs4 on /n (rw,noatime)\n         └─ nfs server store (/vm)\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_cycle_ends() {
    let mut own = device("loop0", "loop", &["loop0"]);
    own.loop_file = Some(image("/f", Some(("ext4", "/")), &["loop0"]));
    let topology = Topology {
        guests: vec![guest(
            "a",
            vec![disk(
                "d",
                vec![image("/i", Some(("ext4", "/")), &["loop0"])],
            )],
        )],
        devices: vec![own],
        ..Topology::default()
    };
    assert!(render(&topology).contains("this is a cycle"));
}

#[test]
fn sizes() {
    assert_eq!(size_text(0), "0 B");
    assert_eq!(size_text(1023), "1023 B");
    assert_eq!(size_text(1024), "1.0 KiB");
    assert_eq!(size_text(u64::MAX), "16384.0 PiB");
    assert_eq!(render(&Topology::default()), "");
}

#[test]
fn names_cannot_write_on_the_terminal() {
    let topology = Topology {
        guests: vec![guest("a\u{1b}[2J\nb", vec![disk("c\u{9b}2J", Vec::new())])],
        ..Topology::default()
    };
    let text = render(&topology);
    assert!(text.starts_with("a\u{fffd}[2J\u{fffd}b  (pid"), "{text:?}");
    assert!(text.contains("─ c\u{fffd}2J  "), "{text:?}");
}
