//! What `nestrace guests --how` says, typed into a real QEMU.

use nestrace_record::guest::qmp::Qmp;
use serde_json::Value;

use crate::TOOLS;
use crate::rig::{Qemu, directory, guest, ready, run};

#[test]
fn a_channel_that_is_plugged_in_as_told_is_found() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    run(&[
        "qemu-img",
        "create",
        "-q",
        "-f",
        "qcow2",
        &path("d.qcow2"),
        "48M",
    ]);
    let name = format!("channel-{}", std::process::id());
    let monitor = format!("unix:{},server=on,wait=off", path("qmp.sock"));
    let drive = format!("file={},if=none,id=d0,format=qcow2", path("d.qcow2"));
    let arguments = [
        "-name",
        &name,
        "-qmp",
        &monitor,
        "-device",
        "virtio-serial-pci,id=ser0",
        "-drive",
        &drive,
        "-device",
        "virtio-blk-pci,drive=d0,serial=first",
    ];
    let qemu = Qemu::start(dir.path(), &arguments);

    let before = qemu.discover();
    let found = guest(&before);
    assert_eq!(found.agent, None);
    let disk = &found.disks[0];
    assert_eq!(
        (disk.serial.as_deref(), disk.virtual_size),
        (Some("first"), 48 << 20)
    );

    let how = before.channels[0].how(found);
    let commands: Vec<Value> = how
        .lines()
        // As the shell would have it: a quoted word on each line.
        .filter_map(|line| {
            let (word, _) = line.trim().strip_prefix('\'')?.rsplit_once('\'')?;
            serde_json::from_str(word).ok()
        })
        .collect();
    assert_eq!(commands.len(), 3, "{how}");
    let mut qmp = Qmp::connect(qemu.pid, &path("qmp.sock")).expect("a free monitor");
    for command in &commands[1..] {
        let name = command["execute"].as_str().expect("a name");
        qmp.execute(name, &command["arguments"])
            .expect("QEMU does it");
    }
    drop(qmp);

    let after = qemu.discover();
    let found = guest(&after);
    let socket = found.agent.clone().expect("a channel");
    assert_eq!(socket, format!("/run/nestrace-{name}.org.nestrace.agent.0"));
    assert!(
        after.channels[0]
            .how(found)
            .contains("The channel is there")
    );
    drop(qemu);
    let _ = std::fs::remove_file(socket);
}
