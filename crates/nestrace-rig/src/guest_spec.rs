//! What a guest is made of: kernel, memory, disks and what else is asked for.

use std::path::PathBuf;

use crate::external_tool::find_program;
use crate::initramfs::Initramfs;
use crate::kernel_image::KernelImage;
use crate::stack::{Bus, DiskStack};

/// Where the agent is in a guest that has one.
pub const AGENT_PLACE: &str = "/usr/bin/nestrace-agent";

/// How the guest's processor is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accel {
    /// Translated: works everywhere.
    #[default]
    Tcg,
    /// Translated, with a clock of the guest's own that goes on by 1 ns for each instruction, and with the host's while it waits:
    /// time is what was executed, however busy this machine is. One processor only.
    Counted,
    /// By hardware; where a guest does not come up that way within 10 s, translated.
    KvmIfItBoots,
    /// By hardware, or not at all.
    Kvm,
}

impl Accel {
    /// That of guests which are to be like one that had `kvm` or `tcg`; any where none is known.
    pub fn like(word: &str) -> Self {
        match word {
            "kvm" => Self::Kvm,
            "tcg" => Self::Tcg,
            _ => Self::KvmIfItBoots,
        }
    }
}

/// One disk of a guest.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Id of drive and device, and the serial number that the guest sees; at most 20 characters.
    pub id: String,
    /// The image, which must exist.
    pub image: PathBuf,
    /// How it is attached.
    pub stack: DiskStack,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// More options of QEMU's `-drive`, comma-separated (`l2-cache-size=64k`); may be empty.
    pub drive_options: String,
}

impl DiskSpec {
    /// A writable disk.
    pub fn new(id: impl Into<String>, image: impl Into<PathBuf>, stack: DiskStack) -> Self {
        Self {
            id: id.into(),
            image: image.into(),
            stack,
            read_only: false,
            drive_options: String::new(),
        }
    }
}

/// What to boot.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// `-name guest=NAME`.
    pub name: String,
    /// Kernel and modules.
    pub kernel: KernelImage,
    /// User space.
    pub initramfs: Initramfs,
    /// More files in the guest: place there, file of this machine.
    pub files: Vec<(String, PathBuf)>,
    /// The static agent; it is put at [`AGENT_PLACE`] and started by [`Guest::start_agent`].
    ///
    /// [`Guest::start_agent`]: crate::guest::Guest::start_agent
    pub agent: Option<PathBuf>,
    /// The disks.
    pub disks: Vec<DiskSpec>,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// Virtual processors.
    pub vcpus: u32,
    /// The QEMU to run.
    pub qemu: PathBuf,
    /// How it is executed.
    pub accel: Accel,
    /// Modules to load at boot besides the drivers of the disks.
    pub modules: Vec<String>,
    /// How many times longer than usual it may take for everything: more than 1 where it is translated twice.
    pub patience: u32,
    /// More arguments of QEMU.
    pub extra_arguments: Vec<String>,
    /// Whether a reset boots again instead of ending QEMU.
    pub allow_reboot: bool,
}

impl GuestSpec {
    /// A guest with 512 MiB, two processors and no disk.
    pub fn new(name: impl Into<String>, kernel: &KernelImage, initramfs: &Initramfs) -> Self {
        Self {
            name: name.into(),
            kernel: kernel.clone(),
            initramfs: initramfs.clone(),
            files: Vec::new(),
            agent: None,
            disks: Vec::new(),
            memory_mib: 512,
            vcpus: 2,
            qemu: find_program("qemu-system-x86_64").unwrap_or_else(|| "qemu-system-x86_64".into()),
            accel: Accel::default(),
            modules: Vec::new(),
            patience: 1,
            extra_arguments: Vec::new(),
            allow_reboot: false,
        }
    }

    /// Everything that this guest has besides the shared initramfs: place there, file here.
    pub(crate) fn own_files(&self) -> Vec<(String, PathBuf)> {
        let agent = self.agent.iter().cloned();
        let agent = agent.map(|agent| (AGENT_PLACE.to_owned(), agent));
        self.files.iter().cloned().chain(agent).collect()
    }

    pub(crate) fn boot_modules(&self) -> Vec<String> {
        let mut modules = vec!["virtio_rng".to_owned()];
        for disk in &self.disks {
            let drivers: &[&str] = match disk.stack.bus {
                Bus::Virtio => &["virtio_blk"],
                Bus::VirtioScsi => &["virtio_scsi", "sd_mod"],
                Bus::Ide => &["ata_piix", "sd_mod"],
            };
            for driver in drivers {
                if !modules.iter().any(|module| module == driver) {
                    modules.push((*driver).to_owned());
                }
            }
        }
        modules.extend(self.modules.iter().cloned());
        modules
    }
}
