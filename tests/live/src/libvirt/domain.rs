//! A domain of a private libvirt: the rig's kernel and user space under libvirt's command line.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use nestrace_rig::guest_channel::GuestShell;
use nestrace_rig::qmp::{self, DiskStats};
use nestrace_rig::stack::{Bus, DiskStack};
use serde_json::Value;

use super::daemon::Libvirt;
use crate::context::LiveContext;

/// The guest's kernel command line; the modules are those of the disks below.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr mitigations=off \
     random.trust_cpu=on rig.modules=virtio_rng,virtio_blk,virtio_scsi,sd_mod";

/// A disk of the domain.
pub struct DomainDisk<'a> {
    /// libvirt's target: `vda`, `sda`.
    pub target: &'a str,
    /// What the device is called on QEMU's command line (libvirt's alias).
    pub alias: &'a str,
    /// Its image.
    pub image: &'a Path,
    /// How it is attached.
    pub stack: DiskStack,
}

/// A running domain; it ends with its libvirt.
pub struct Domain<'a> {
    libvirt: &'a Libvirt,
    name: &'a str,
    shell: GuestShell,
}

impl<'a> Domain<'a> {
    /// Has libvirt start a domain and waits until its guest obeys.
    pub fn start(
        ctx: &LiveContext,
        libvirt: &'a Libvirt,
        name: &'a str,
        disks: &[DomainDisk<'_>],
    ) -> anyhow::Result<Self> {
        let channel = libvirt.folder().join("rig.sock");
        let definition = libvirt.folder().join("domain.xml");
        std::fs::write(&definition, xml(ctx, name, disks, &channel))
            .context("write the domain's definition")?;
        let path = definition.to_str().context("name the definition")?;
        libvirt.virsh(&["create", path])?;
        let shell = GuestShell::connect(&channel, Duration::from_secs(120))
            .context("hear from the domain's guest")?;
        Ok(Self {
            libvirt,
            name,
            shell,
        })
    }

    /// libvirt's name of it.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Runs a script that has to succeed.
    pub fn run_ok(&self, script: &str, timeout: Duration) -> anyhow::Result<String> {
        let output = self.shell.run(script, timeout)?;
        if output.status != 0 {
            bail!("run `{script}` in the domain: {}", output.stderr);
        }
        Ok(output.stdout)
    }

    /// The guest's device node of a disk, by its target as serial number.
    pub fn device_of(&self, target: &str) -> anyhow::Result<String> {
        let name = self.run_ok(&format!("disk {target}"), Duration::from_secs(10))?;
        Ok(format!("/dev/{}", name.trim()))
    }

    /// QEMU's own count of a disk's requests, asked through libvirt, which holds the monitor.
    pub fn disk_stats(&self, alias: &str) -> anyhow::Result<DiskStats> {
        let question = r#"{"execute":"query-blockstats"}"#;
        let text = self
            .libvirt
            .virsh(&["qemu-monitor-command", self.name, question])?;
        let answer: Value = serde_json::from_str(&text).context("read the monitor's answer")?;
        Ok(qmp::disk_stats(&answer["return"], alias)?)
    }
}

fn xml(ctx: &LiveContext, name: &str, disks: &[DomainDisk<'_>], channel: &Path) -> String {
    let disks: String = disks.iter().map(disk).collect();
    format!(
        "<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>768</memory>
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>{KERNEL_ARGUMENTS}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <devices>
    {disks}
    <controller type='scsi' index='0' model='virtio-scsi'/>
    <controller type='usb' model='none'/>
    <serial type='pty'/>
    <channel type='unix'>
      <source mode='bind' path='{channel}'/>
      <target type='virtio' name='org.nestrace.lab.0'/>
    </channel>
    <channel type='unix'>
      <target type='virtio' name='org.nestrace.agent.0'/>
    </channel>
    <channel type='unix'>
      <target type='virtio' name='org.qemu.guest_agent.0'/>
    </channel>
    <filesystem type='mount' accessmode='passthrough'>
      <source dir='/'/><target dir='machine'/><readonly/>
    </filesystem>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
  </devices>
</domain>
",
        kernel = ctx.kernel.vmlinuz.display(),
        initrd = ctx.initramfs.path.display(),
        channel = channel.display(),
    )
}

fn disk(disk: &DomainDisk<'_>) -> String {
    let DiskStack {
        format, cache, aio, ..
    } = disk.stack;
    let bus = match disk.stack.bus {
        Bus::Virtio => "virtio",
        Bus::VirtioScsi => "scsi",
        Bus::Ide => "ide",
    };
    let (image, target) = (disk.image.display(), disk.target);
    format!(
        "<disk type='file' device='disk'>
      <driver name='qemu' type='{format}' cache='{cache}' io='{aio}' discard='unmap'/>
      <source file='{image}'/>
      <target dev='{target}' bus='{bus}'/>
      <serial>{target}</serial>
    </disk>
    "
    )
}
