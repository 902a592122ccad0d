//! How a guest gets the agent's channel: a virtio-serial port named [`AGENT_PORT`] whose host side is
//! a UNIX socket, or vsock. Pure.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fmt::Write as _;

use nestrace_trace::manifest::Guest;
use nestrace_trace::{printable, shell_word};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::command_line::AGENT_PORT;
use super::option_syntax;

/// What the command line says about getting a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// libvirt started this QEMU.
    pub libvirt: bool,
    /// How virtio devices are attached to this machine.
    pub transport: Transport,
    /// Whether PCI devices can be plugged into the root bus while the machine runs; q35 needs a root port.
    pub root_bus_takes_hotplug: bool,
    /// virtio-serial buses: the controller's id, `None` where it has none.
    pub serial_buses: Vec<Option<String>>,
    /// Address of the vsock device.
    pub vsock_cid: Option<u32>,
}

/// How virtio devices are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// PCI.
    #[default]
    Pci,
    /// Channel I/O of s390x.
    Ccw,
    /// Memory-mapped (microvm).
    Mmio,
}

impl Transport {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Pci => "pci",
            Self::Ccw => "ccw",
            Self::Mmio => "device",
        }
    }
}

impl Channel {
    /// From the devices and chardevs of a command line, the program and the machine type.
    #[must_use]
    pub fn of<'a>(
        devices: &[Map<String, Value>],
        mut chardevs: impl Iterator<Item = &'a str>,
        (program, machine): (&str, &str),
    ) -> Self {
        let driver = |device: &Map<String, Value>| option_syntax::text_at(device, &["driver"]);
        let is = |device: &Map<String, Value>, family: &str| {
            driver(device).is_some_and(|d| d.starts_with(family))
        };
        let transport = match () {
            () if program.ends_with("s390x") => Transport::Ccw,
            () if machine.starts_with("microvm") => Transport::Mmio,
            () => Transport::Pci,
        };
        let x86 =
            program.ends_with("x86_64") || program.ends_with("i386") || program.ends_with("kvm");
        Self {
            // The name that libvirt gives its own monitor.
            libvirt: chardevs.any(|id| id == "charmonitor"),
            transport,
            root_bus_takes_hotplug: x86 && !machine.contains("q35") && transport == Transport::Pci,
            serial_buses: devices
                .iter()
                .filter(|d| is(d, "virtio-serial"))
                .map(|d| option_syntax::text_at(d, &["id"]))
                .collect(),
            vsock_cid: devices
                .iter()
                .filter(|d| is(d, "vhost-vsock"))
                .find_map(|d| option_syntax::text_at(d, &["guest-cid"])?.parse().ok()),
        }
    }

    /// What to do on the host so that this guest has the channel, as text for a person.
    #[must_use]
    pub fn how(&self, guest: &Guest) -> String {
        let mut out = format!("{} (pid {})\n", printable(&guest.name), guest.pid);
        match (&guest.agent, guest.vsock_cid) {
            (Some(path), _) => {
                section(
                    &mut out,
                    "The channel is there; the host needs nothing more.",
                );
                line(&mut out, &printable(path));
                in_guest(&mut out, "nestrace-agent");
                return out;
            }
            (None, Some(cid)) => {
                let _ = writeln!(out, "  It has vsock (CID {cid}), which is a channel too:");
                line(
                    &mut out,
                    &format!(
                        "nestrace record --guest {} --agent vsock:{cid}:PORT …",
                        shell_word(&guest.name)
                    ),
                );
                in_guest(&mut out, "nestrace-agent --vsock PORT");
            }
            (None, None) => {
                section(
                    &mut out,
                    "It has no channel to an agent. Any one of these gives it one:",
                );
            }
        }
        if self.libvirt {
            self.libvirt_text(&mut out, guest);
        } else {
            self.qmp_text(&mut out, guest);
            self.flags_text(&mut out, guest);
        }
        if guest.vsock_cid.is_none() {
            self.vsock_text(&mut out);
        }
        if guest.vsock_cid.is_none() {
            in_guest(&mut out, "nestrace-agent");
        }
        out
    }

    /// libvirt (seen with 9.0) refuses to plug a virtio-serial controller in, and adds one by itself to
    /// a domain's configuration.
    fn libvirt_text(&self, out: &mut String, guest: &Guest) {
        let (how, when) = if self.serial_buses.is_empty() {
            section(
                out,
                "libvirt, from the next start on (it cannot plug a virtio-serial controller into a running domain):",
            );
            ("--config", "")
        } else {
            section(out, "libvirt, while it runs:");
            ("--live", "   # and --config, to keep it after a restart")
        };
        let xml = format!(
            "<channel type=\"unix\"><source mode=\"bind\"/>\
             <target type=\"virtio\" name=\"{AGENT_PORT}\"/></channel>"
        );
        line(
            out,
            &format!("echo {} > nestrace-channel.xml", shell_word(&xml)),
        );
        let domain = shell_word(&guest.name);
        line(
            out,
            &format!("virsh attach-device {domain} nestrace-channel.xml {how}{when}"),
        );
    }

    fn qmp_text(&self, out: &mut String, guest: &Guest) {
        let Some(monitor) = &guest.qmp else {
            section(
                out,
                "It has no QMP socket that is free, so nothing can be plugged in while it runs.",
            );
            return;
        };
        if self.serial_buses.is_empty() && !self.root_bus_takes_hotplug {
            section(
                out,
                "Hot-plug needs a virtio-serial bus, which this guest was not started with, and its \
                 root bus takes no new devices (a free root port of PCI Express would).",
            );
            return;
        }
        let socket = default_socket(guest);
        section(out, "Hot-plug over QMP:");
        let mut commands = vec![r#"{"execute":"qmp_capabilities"}"#.to_owned()];
        if self.serial_buses.is_empty() {
            let driver = format!("virtio-serial-{}", self.transport.suffix());
            let bus = json!({ "driver": driver, "id": "nestrace-serial" });
            commands.push(execute("device_add", &bus));
        }
        let address = json!({ "type": "unix", "data": { "path": socket } });
        let data = json!({ "addr": address, "server": true, "wait": false });
        let chardev =
            json!({ "id": "nestrace-agent", "backend": { "type": "socket", "data": data } });
        commands.push(execute("chardev-add", &chardev));
        let mut port = json!({
            "driver": "virtserialport", "id": "nestrace-port", "name": AGENT_PORT, "chardev": "nestrace-agent",
        });
        let bus = match self.serial_buses.first() {
            Some(id) => id.clone(),
            None => Some("nestrace-serial".to_owned()),
        };
        if let (Some(bus), Some(port)) = (bus, port.as_object_mut()) {
            port.insert("bus".to_owned(), Value::String(format!("{bus}.0")));
        }
        commands.push(execute("device_add", &port));
        line(out, "printf '%s\\n' \\");
        for (n, command) in commands.iter().enumerate() {
            let end = if n + 1 < commands.len() { "\\" } else { "|" };
            line(out, &format!("  {} {end}", shell_word(command)));
        }
        line(
            out,
            &format!("socat -t 2 - UNIX-CONNECT:{}", shell_word(monitor)),
        );
    }

    fn flags_text(&self, out: &mut String, guest: &Guest) {
        section(out, "QEMU's command line, at its next start:");
        if self.serial_buses.is_empty() {
            line(
                out,
                &format!("-device virtio-serial-{}", self.transport.suffix()),
            );
        }
        line(
            out,
            &format!(
                "-chardev socket,id=nestrace-agent,path={},server=on,wait=off",
                shell_word(&default_socket(guest).replace(',', ",,"))
            ),
        );
        line(
            out,
            &format!("-device virtserialport,name={AGENT_PORT},chardev=nestrace-agent"),
        );
    }

    fn vsock_text(&self, out: &mut String) {
        section(
            out,
            "Or vsock, where the host has vhost_vsock (CID: any number from 3 that no other guest has):",
        );
        if self.libvirt {
            line(out, "<vsock model='virtio'><cid auto='yes'/></vsock>");
        } else if self.transport == Transport::Mmio {
            line(out, "-device vhost-vsock-device,guest-cid=CID");
        } else {
            line(
                out,
                &format!(
                    "-device vhost-vsock-{},guest-cid=CID",
                    self.transport.suffix()
                ),
            );
        }
        line(
            out,
            "nestrace record … --agent vsock:CID:PORT, and in the guest nestrace-agent --vsock PORT",
        );
    }
}

fn execute(command: &str, arguments: &Value) -> String {
    format!(r#"{{"execute":"{command}","arguments":{arguments}}}"#)
}

fn in_guest(out: &mut String, command: &str) {
    section(
        out,
        "In the guest, as root (or the systemd unit nestrace-agent.service):",
    );
    line(out, command);
}

/// Where a socket for this guest would be made. Only characters that no shell, and no option of
/// QEMU's, reads as something else.
fn default_socket(guest: &Guest) -> String {
    let name: String = guest
        .name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '_'
            }
        })
        .collect();
    format!("/run/nestrace-{name}.{AGENT_PORT}")
}

fn section(out: &mut String, text: &str) {
    let _ = writeln!(out, "  {text}");
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "      {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::command_line::parse;

    fn how(line: &str, qmp: Option<&str>) -> String {
        let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let read = parse(&argv);
        let guest = Guest {
            name: read.name.clone().unwrap_or_default(),
            pid: 7,
            qmp: qmp.map(str::to_owned),
            vsock_cid: read.channel.vsock_cid,
            agent: read.agent.as_ref().map(|_| "/s".to_owned()),
            ..Guest::default()
        };
        read.channel.how(&guest)
    }

    fn check(line: &str, qmp: Option<&str>, has: &[&str], lacks: &[&str]) {
        let text = how(line, qmp);
        for word in has {
            assert!(text.contains(word), "{line}: no {word:?} in\n{text}");
        }
        for word in lacks {
            assert!(!text.contains(word), "{line}: {word:?} in\n{text}");
        }
    }

    const PORT: &str = "-device virtio-serial-pci,id=s -chardev socket,id=c,path=/s,server=on,wait=off \
                        -device virtserialport,name=org.nestrace.agent.0,chardev=c";

    #[test]
    fn a_guest_with_a_channel_needs_nothing() {
        let line = format!("qemu-system-x86_64 -name vm1 {PORT}");
        check(
            &line,
            Some("/q"),
            &["The channel is there", "/s"],
            &["device_add", "virsh"],
        );
    }

    #[test]
    fn qmp_plugs_in_what_is_missing() {
        let with_bus =
            "qemu-system-x86_64 -name vm1 -machine q35 -device virtio-serial-pci,id=ser0";
        check(
            with_bus,
            Some("/run/q s"),
            &[
                "UNIX-CONNECT:'/run/q s'",
                "chardev-add",
                r#""bus":"ser0.0""#,
                "virtserialport",
            ],
            &[
                r#""driver":"virtio-serial-pci""#,
                "-device virtio-serial-pci",
                "virsh",
            ],
        );
        let unnamed = "qemu-system-x86_64 -name vm1 -device virtio-serial-pci";
        check(unnamed, Some("/q"), &["chardev-add"], &[r#""bus""#]);
        let without = "qemu-system-x86_64 -name vm1";
        check(
            without,
            Some("/q"),
            &[
                r#""driver":"virtio-serial-pci""#,
                r#""bus":"nestrace-serial.0""#,
                "-device virtio-serial-pci",
            ],
            &["root port"],
        );
        check(
            "qemu-system-x86_64 -name vm1 -M q35",
            Some("/q"),
            &["root port"],
            &["chardev-add"],
        );
        check(
            without,
            None,
            &["no QMP socket", "-chardev socket"],
            &["chardev-add"],
        );
        check(
            "qemu-system-s390x -name z",
            None,
            &["virtio-serial-ccw", "vhost-vsock-ccw"],
            &["pci"],
        );
    }

    #[test]
    fn libvirt_gets_xml() {
        let line = "qemu-system-x86_64 -name guest=vm1,debug-threads=on -chardev socket,id=charmonitor,fd=29,server=on";
        let virsh = "virsh attach-device vm1 nestrace-channel.xml";
        check(
            line,
            None,
            &["<channel type=\"unix\">", &format!("{virsh} --config")],
            &["--live", "chardev-add", "-chardev"],
        );
        let line = format!("{line} -device virtio-serial-pci,id=virtio-serial0");
        check(&line, None, &[&format!("{virsh} --live")], &["chardev-add"]);
    }

    #[test]
    fn vsock_is_a_channel_too() {
        let line = "qemu-system-x86_64 -name vm1 -device vhost-vsock-pci,guest-cid=5";
        check(
            line,
            None,
            &["--agent vsock:5:PORT", "--vsock PORT"],
            &["guest-cid="],
        );
    }

    #[test]
    fn no_name_breaks_out_of_the_text() {
        let line = "qemu-system-x86_64 -name guest=a';reboot\u{7}/../x";
        check(
            line,
            None,
            &["path=/run/nestrace-a__reboot__.._x.org.nestrace.agent.0,server"],
            &["\u{7}", " a';reboot"],
        );
    }
}
