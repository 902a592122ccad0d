//! Boots a real guest (TCG, no root needed) and checks everything that the rig promises of it.

use std::path::Path;
use std::time::Duration;

use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::stack::{Aio, Bus, CacheMode, DiskStack, GuestFsKind, ImageFormat};
use nestrace_rig::{disk_image, initramfs, kernel_image, packages};

const SHORT: Duration = Duration::from_secs(20);

fn disk(folder: &Path, id: &str, bus: Bus, format: ImageFormat) -> DiskSpec {
    let image = folder.join(id);
    disk_image::create(&image, format, 400 << 20, "off").unwrap();
    let stack = DiskStack {
        format,
        bus,
        cache: CacheMode::Writeback,
        aio: Aio::Threads,
        iothread: false,
    };
    DiskSpec::new(id, image, stack)
}

#[test]
fn a_guest_boots_obeys_and_leaves_nothing() {
    packages::install(|line| eprintln!("{line}")).unwrap();
    let kernel = kernel_image::obtain("6.1").unwrap();
    let initramfs = initramfs::obtain(&kernel).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut spec = GuestSpec::new("lab-test", &kernel, &initramfs);
    spec.disks = vec![
        disk(folder.path(), "disk-v", Bus::Virtio, ImageFormat::Qcow2),
        disk(folder.path(), "disk-s", Bus::VirtioScsi, ImageFormat::Raw),
        disk(folder.path(), "disk-i", Bus::Ide, ImageFormat::Raw),
    ];
    let extra = folder.path().join("extra");
    std::fs::write(&extra, "#!/bin/sh\necho extra\n").unwrap();
    spec.files = vec![("/opt/extra".to_owned(), extra)];
    let guest = Guest::boot(spec).unwrap();
    let pid = guest.pid();

    commands(&guest);
    files(&guest, folder.path());
    assert_eq!(guest.device_of("disk-v").unwrap(), "/dev/vda");
    let scsi = guest.device_of("disk-s").unwrap();
    let ide = guest.device_of("disk-i").unwrap();
    assert!(scsi.starts_with("/dev/sd") && ide.starts_with("/dev/sd") && scsi != ide);
    file_systems(&guest);

    let agent = guest.agent_socket();
    assert!(agent.exists());
    drop(guest);
    assert!(!agent.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

fn commands(guest: &Guest) {
    let output = guest.run("uname -r; echo oops >&2; exit 3", SHORT).unwrap();
    assert_eq!((output.status, output.stderr.as_str()), (3, "oops\n"));
    assert_eq!(output.stdout.trim(), guest.spec().kernel.release);
    let killed = guest.run("sleep 30", Duration::from_secs(1)).unwrap();
    assert_eq!(killed.status, 137);
    assert_eq!(guest.run_ok("/opt/extra", SHORT).unwrap().stdout, "extra\n");
}

fn files(guest: &Guest, folder: &Path) {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(folder.join("out"), &bytes).unwrap();
    guest.put_file(&folder.join("out"), "/tmp/copy").unwrap();
    guest.get_file("/tmp/copy", &folder.join("back")).unwrap();
    assert!(std::fs::read(folder.join("back")).unwrap() == bytes);
}

fn file_systems(guest: &Guest) {
    for (n, &kind) in GuestFsKind::ALL.iter().enumerate() {
        let disk = ["disk-v", "disk-s", "disk-i"][n % 3];
        let before = guest.disk_stats(disk).unwrap();
        guest
            .make_fs(disk, kind)
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        guest
            .mount(disk, kind, "/mnt/t", "")
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        let fio = "fio --name=t --directory=/mnt/t --size=4m --rw=randwrite --bs=4k --fsync=16 --output-format=terse";
        guest
            .run_ok(fio, Duration::from_secs(60))
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        guest.unmount("/mnt/t").unwrap();
        let done = guest.disk_stats(disk).unwrap().since(&before);
        assert!(
            done.writes > 0 && done.write_bytes >= 4 << 20 && done.flushes > 0,
            "{kind}: {done:?}"
        );
    }
}
