//! Writes QEMU's command line for a guest.

use std::path::Path;

use crate::guest_spec::{Accel, DiskSpec, GuestSpec};
use crate::stack::{Bus, DiskStack};
use crate::translation;

/// Sockets and files of a guest, in its own folder.
pub(crate) mod place {
    /// The guest's user space, until it has booted.
    pub(crate) const INITRAMFS: &str = "initramfs";
    /// QMP that is left to nestrace.
    pub(crate) const QMP: &str = "qmp.sock";
    /// QMP of the rig and the tests.
    pub(crate) const OWN_QMP: &str = "rig-qmp.sock";
    /// Command channel.
    pub(crate) const CHANNEL: &str = "rig.sock";
    /// File transfer.
    pub(crate) const TRANSFER: &str = "transfer.sock";
    /// The agent's port.
    pub(crate) const AGENT: &str = "agent.sock";
    /// The guest's serial console.
    pub(crate) const CONSOLE: &str = "console.log";
    /// QEMU's own messages.
    pub(crate) const QEMU_LOG: &str = "qemu.log";
}

/// Arguments of QEMU for `spec`, its sockets in `folder`; `accel` as `-accel` takes it.
pub(crate) fn arguments(spec: &GuestSpec, folder: &Path, accel: &str) -> Vec<String> {
    let mut args = Args::default();
    args.pair("-name", format!("guest={}", spec.name));
    args.pair("-machine", "pc".to_owned());
    args.pair("-accel", accel.to_owned());
    if spec.accel == Accel::Counted {
        args.pair("-icount", translation::COUNTED.to_owned());
        args.pair("-cpu", translation::COUNTED_CPU.to_owned());
    } else {
        args.pair("-cpu", "max".to_owned());
    }
    args.pair("-smp", translation::processors(spec.vcpus));
    args.pair("-m", spec.memory_mib.to_string());
    args.0
        .extend(["-nodefaults", "-no-user-config"].map(str::to_owned));
    if !spec.allow_reboot {
        args.0.push("-no-reboot".to_owned());
    }
    args.pair("-display", "none".to_owned());
    args.pair("-kernel", spec.kernel.vmlinuz.display().to_string());
    args.pair(
        "-initrd",
        folder.join(place::INITRAMFS).display().to_string(),
    );
    args.pair("-append", kernel_command_line(spec, accel));
    args.pair(
        "-serial",
        format!("file:{}", folder.join(place::CONSOLE).display()),
    );
    for socket in [place::QMP, place::OWN_QMP] {
        args.pair(
            "-qmp",
            format!("unix:{},server=on,wait=off", escape(&folder.join(socket))),
        );
    }
    channels(&mut args, folder);
    args.pair(
        "-object",
        "rng-random,id=rng,filename=/dev/urandom".to_owned(),
    );
    args.pair("-device", "virtio-rng-pci,rng=rng".to_owned());
    disks(&mut args, &spec.disks);
    args.0.extend(spec.extra_arguments.iter().cloned());
    args.0
}

fn kernel_command_line(spec: &GuestSpec, accel: &str) -> String {
    let modules = spec.boot_modules().join(",");
    // A translated guest that gets no processor for a while fails the kernel's test of its timer.
    let quiet = "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr mitigations=off random.trust_cpu=on no_timer_check";
    // By itself a translated guest reads the HPET: an exit from translated code for every look at the clock, which takes
    // a third of what a disk can do, and which no guest under KVM has to pay.
    let clock = if translation::is_translated(accel) {
        " tsc=reliable clocksource=tsc"
    } else {
        ""
    };
    format!("{quiet}{clock} rig.modules={modules}")
}

fn channels(args: &mut Args, folder: &Path) {
    args.pair("-device", "virtio-serial-pci,id=serial".to_owned());
    let ports = [
        ("rig", place::CHANNEL, "org.nestrace.lab.0"),
        ("transfer", place::TRANSFER, "org.nestrace.lab.1"),
        ("agent", place::AGENT, "org.nestrace.agent.0"),
    ];
    for (id, socket, name) in ports {
        let path = escape(&folder.join(socket));
        args.pair(
            "-chardev",
            format!("socket,id={id},path={path},server=on,wait=off"),
        );
        args.pair(
            "-device",
            format!("virtserialport,bus=serial.0,chardev={id},name={name}"),
        );
    }
}

fn disks(args: &mut Args, disks: &[DiskSpec]) {
    if disks
        .iter()
        .any(|disk| disk.stack.bus == Bus::VirtioScsi && !disk.stack.iothread)
    {
        args.pair("-device", "virtio-scsi-pci,id=scsi".to_owned());
    }
    let mut n_ide = 0;
    for disk in disks {
        let id = &disk.id;
        args.pair("-drive", drive(disk));
        let iothread = if disk.stack.iothread {
            args.pair("-object", format!("iothread,id=io-{id}"));
            format!(",iothread=io-{id}")
        } else {
            String::new()
        };
        let device = match disk.stack.bus {
            Bus::Virtio => format!("virtio-blk-pci,drive={id},id={id},serial={id}{iothread}"),
            Bus::VirtioScsi if disk.stack.iothread => {
                args.pair("-device", format!("virtio-scsi-pci,id=scsi-{id}{iothread}"));
                format!("scsi-hd,bus=scsi-{id}.0,drive={id},id={id},serial={id}")
            }
            Bus::VirtioScsi => format!("scsi-hd,bus=scsi.0,drive={id},id={id},serial={id}"),
            Bus::Ide => {
                let (channel, unit) = (n_ide / 2, n_ide % 2);
                n_ide += 1;
                format!("ide-hd,bus=ide.{channel},unit={unit},drive={id},id={id},serial={id}")
            }
        };
        args.pair("-device", device);
    }
}

/// What `-drive` and the monitor's `drive_add` take for a disk without a device.
pub fn drive(disk: &DiskSpec) -> String {
    let DiskStack {
        format, cache, aio, ..
    } = disk.stack;
    let mut drive = format!(
        "file={},if=none,id={},format={format},cache={cache},aio={aio},discard=unmap",
        escape(&disk.image),
        disk.id
    );
    if disk.read_only {
        drive.push_str(",readonly=on");
    }
    if !disk.drive_options.is_empty() {
        drive.push(',');
        drive.push_str(&disk.drive_options);
    }
    drive
}

/// Arguments that pass a folder through to a guest, by the name `tag`; `more` are options of `-virtfs`, each after
/// a comma.
pub fn shared_folder(folder: &Path, tag: &str, more: &str) -> [String; 2] {
    let folder = escape(folder);
    [
        String::from("-virtfs"),
        format!("local,path={folder},mount_tag={tag},security_model=none,multidevs=remap{more}"),
    ]
}

/// QEMU's option parser takes a doubled comma for one.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[derive(Default)]
struct Args(Vec<String>);

impl Args {
    fn pair(&mut self, option: &str, value: String) {
        self.0.push(option.to_owned());
        self.0.push(value);
    }
}
