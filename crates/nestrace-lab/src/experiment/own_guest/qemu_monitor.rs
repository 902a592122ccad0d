//! Disks by QEMU's own monitor, for a guest that no libvirt manages.

use std::path::PathBuf;

use nestrace_rig::guest::DiskSpec;
use nestrace_rig::qemu_command;
use nestrace_rig::qmp::{Qmp, QmpError};
use nestrace_rig::stack::Bus;
use serde_json::{Value, json};

use super::OwnGuestError;
use super::hotplug::Hotplug;
use crate::experiment::base::is_disk_id;

/// A socket of the monitor, which serves one program at a time: it is connected to only while asking. Disks are
/// named by their id.
#[derive(Debug)]
pub(super) struct QemuMonitor {
    pub(super) socket: PathBuf,
}

impl QemuMonitor {
    fn ask(&self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        Qmp::connect(&self.socket)?.execute(command, arguments)
    }

    /// A command of the monitor for people; drives with their cache mode can be made by no other.
    fn tell(&self, line: &str) -> Result<String, QmpError> {
        let said = self.ask("human-monitor-command", json!({ "command-line": line }))?;
        Ok(said.as_str().unwrap_or_default().trim().to_owned())
    }

    /// Whether a drive of the lab's has a device, for each that there is.
    fn drives(&self) -> Result<Vec<(String, bool)>, QmpError> {
        Ok(drives(&self.ask("query-block", Value::Null)?))
    }
}

fn drives(blocks: &Value) -> Vec<(String, bool)> {
    let drive = |block: &Value| {
        let id = block["device"].as_str().filter(|id| is_disk_id(id))?;
        Some((id.to_owned(), block["qdev"].is_string()))
    };
    let blocks = blocks.as_array().map(Vec::as_slice);
    blocks
        .unwrap_or_default()
        .iter()
        .filter_map(drive)
        .collect()
}

/// The first PCI bridge with a name and nothing behind it: a q35 machine takes new devices at root ports alone. `None` where
/// there is none, which a pc machine needs not.
fn free_port(pci: &Value) -> Option<String> {
    let buses = pci.as_array()?.iter();
    let mut devices = buses.filter_map(|bus| bus["devices"].as_array()).flatten();
    let is_free = |device: &&Value| {
        let behind = device["pci_bridge"]["devices"].as_array();
        device["pci_bridge"].is_object() && behind.is_none_or(Vec::is_empty)
    };
    let named = |device: &&Value| device["qdev_id"].as_str().is_some_and(|id| !id.is_empty());
    let port = devices.find(|device| is_free(device) && named(device))?;
    port["qdev_id"].as_str().map(str::to_owned)
}

/// A word of the monitor for people.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Hotplug for QemuMonitor {
    fn name(&self) -> Result<String, OwnGuestError> {
        let answer = self.ask("query-name", Value::Null)?;
        let name = answer["name"].as_str().filter(|name| !name.is_empty());
        name.map(str::to_owned).ok_or(OwnGuestError::Nameless)
    }

    fn state(&self) -> Result<String, OwnGuestError> {
        let answer = self.ask("query-status", Value::Null)?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    fn is_kvm(&self) -> Result<bool, OwnGuestError> {
        Ok(self.ask("query-kvm", Value::Null)?["enabled"] == true)
    }

    fn attached(&self) -> Result<Vec<String>, OwnGuestError> {
        Ok(self.drives()?.into_iter().map(|(id, _)| id).collect())
    }

    fn attach(&self, disk: &DiskSpec) -> Result<(), OwnGuestError> {
        let id = &disk.id;
        let said = self.tell(&format!(
            "drive_add 0 {}",
            quoted(&qemu_command::drive(disk))
        ))?;
        // What it says when it did.
        if said != "OK" {
            return Err(QmpError::Refused {
                command: format!("drive_add {id}"),
                message: said,
            }
            .into());
        }
        let driver = match disk.stack.bus {
            Bus::Virtio => "virtio-blk-pci",
            Bus::VirtioScsi => "scsi-hd",
            Bus::Ide => "ide-hd",
        };
        let mut device = json!({ "driver": driver, "drive": id, "id": id, "serial": id });
        if disk.stack.bus == Bus::Virtio
            && let Some(port) = free_port(&self.ask("query-pci", Value::Null)?)
        {
            device["bus"] = port.into();
        }
        self.ask("device_add", device)?;
        Ok(())
    }

    fn detach(&self, disk: &str) -> Result<(), OwnGuestError> {
        let drives = self.drives()?;
        match drives.into_iter().find(|(id, _)| id == disk) {
            // Its drive goes with the device.
            Some((_, true)) => {
                self.ask("device_del", json!({ "id": disk }))?;
            }
            Some((_, false)) => {
                self.tell(&format!("drive_del {disk}"))?;
            }
            None => {}
        }
        Ok(())
    }

    fn detach_by_hand(&self, disk: &str) -> String {
        format!("device_del {disk}, then drive_del {disk} if it is still there, in QEMU's monitor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drives_of_the_labs_are_taken_away() {
        let blocks = json!([
            {"device": "root", "qdev": "/machine/peripheral/root/virtio-backend"},
            {"device": "nestrace-lab-0", "qdev": "/machine/peripheral/nestrace-lab-0/virtio-backend"},
            {"device": "nestrace-lab-1"},
            {"device": "nestrace-lab-data", "qdev": "x"},
            {"device": ""},
        ]);
        let expected = [("nestrace-lab-0", true), ("nestrace-lab-1", false)];
        assert_eq!(
            drives(&blocks),
            expected.map(|(id, has_device)| (id.to_owned(), has_device))
        );
        assert_eq!(drives(&Value::Null), []);
    }

    #[test]
    fn a_new_device_goes_to_a_free_root_port() {
        let bridge = |id: &str, behind: Value| json!({"qdev_id": id, "pci_bridge": {"bus": {"number": 1}, "devices": behind}});
        let pci = |devices: Vec<Value>| json!([{"bus": 0, "devices": devices}]);
        let host = json!({"qdev_id": ""});
        let taken = bridge("rp1", json!([{"qdev_id": "net"}]));
        let nameless = bridge("", json!([]));
        let free = bridge("rp2", json!([]));
        let machine = pci(vec![host.clone(), taken.clone(), nameless, free]);
        assert_eq!(free_port(&machine).as_deref(), Some("rp2"));
        assert_eq!(free_port(&pci(vec![host, taken])), None);
        assert_eq!(free_port(&Value::Null), None);
    }

    #[test]
    fn a_path_is_one_word() {
        assert_eq!(quoted(r#"file=/a "b"\c"#), r#""file=/a \"b\"\\c""#);
    }
}
