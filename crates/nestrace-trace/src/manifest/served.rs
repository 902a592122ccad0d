//! What a server on a network holds: file systems, devices, images.

use super::{Device, Image, Mount, Server, Topology};

impl Mount {
    /// The server of a file system on a network; `None` of others.
    #[must_use]
    pub fn server(&self) -> Option<Server> {
        let source = self.source.as_str();
        let (protocol, address, name) = match self.fs_type.as_str() {
            "nfs" | "nfs4" => {
                let (address, export) = address_and_path(source);
                ("nfs", address, export)
            }
            "cifs" | "smb3" => {
                let share = source.trim_start_matches('/');
                let (address, share) = share.split_once('/').unwrap_or((share, ""));
                ("cifs", address, share)
            }
            other @ ("ceph" | "glusterfs") => {
                let (address, path) = address_and_path(source);
                (other, address, path)
            }
            // The name of a channel to the hypervisor, or of a cell.
            other @ ("9p" | "virtiofs" | "afs") => (other, "", source),
            _ => return None,
        };
        Some(Server {
            protocol: protocol.to_owned(),
            address: address.to_owned(),
            name: name.to_owned(),
        })
    }
}

/// `server:/export`; the server may be an IPv6 address in brackets, or several with ports.
fn address_and_path(source: &str) -> (&str, &str) {
    let at = source.find(":/");
    let parts = at.and_then(|at| Some((source.get(..at)?, source.get(at.checked_add(1)?..)?)));
    parts.unwrap_or((source, ""))
}

impl Device {
    /// The server that does the device's I/O: its own, or that of a loop device's file. Through the page cache a loop
    /// device's I/O need not reach the server.
    #[must_use]
    pub fn served_by(&self) -> Option<Server> {
        let of_file = || {
            let file = self.loop_file.as_ref()?;
            let is_direct = file.direct == Some(true) && file.devices.is_empty();
            file.mount.as_ref().filter(|_| is_direct)?.server()
        };
        self.server.clone().or_else(of_file)
    }
}

impl Topology {
    /// The servers that hold an image's data, each once: that of its file system, or those of the devices below it.
    #[must_use]
    pub fn servers_of(&self, image: &Image) -> Vec<Server> {
        let of_mount = image.mount.as_ref().and_then(Mount::server);
        let mut servers: Vec<Server> = of_mount.into_iter().collect();
        let mut left: Vec<&String> = image.devices.iter().collect();
        let mut met: Vec<&String> = Vec::new();
        while let Some(name) = left.pop() {
            if met.contains(&name) {
                continue;
            }
            met.push(name);
            let Some(device) = self.devices.iter().find(|device| device.name == *name) else {
                continue;
            };
            servers.extend(device.served_by());
            left.extend(&device.beneath);
        }
        servers.sort();
        servers.dedup();
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_of(fs_type: &str, source: &str) -> Option<String> {
        let mount = Mount {
            fs_type: fs_type.to_owned(),
            source: source.to_owned(),
            ..Mount::default()
        };
        mount.server().map(|server| server.to_string())
    }

    #[test]
    fn file_systems_on_a_network() {
        for (fs_type, source, expected) in [
            (
                "nfs4",
                "10.0.0.1:/srv/images",
                "nfs server 10.0.0.1 (/srv/images)",
            ),
            ("nfs", "[fe80::1]:/", "nfs server [fe80::1] (/)"),
            ("cifs", "//nas/images/vm", "cifs server nas (images/vm)"),
            (
                "ceph",
                "10.0.0.1:6789,10.0.0.2:6789:/vm",
                "ceph server 10.0.0.1:6789,10.0.0.2:6789 (/vm)",
            ),
            ("9p", "root", "9p server (root)"),
            // A redacted recording.
            ("nfs4", "source-1", "nfs server source-1"),
        ] {
            assert_eq!(server_of(fs_type, source).as_deref(), Some(expected));
        }
        assert_eq!(server_of("ext4", "/dev/sda1"), None);
        assert_eq!(server_of("fuse.sshfs", "host:/"), None);
    }

    fn nbd() -> Server {
        Server {
            protocol: "nbd".to_owned(),
            address: "10.0.0.1:10809".to_owned(),
            name: String::new(),
        }
    }

    #[test]
    fn below_an_image() {
        let device = |name: &str, beneath: &[&str], server: Option<Server>| Device {
            name: name.to_owned(),
            beneath: beneath.iter().map(|it| (*it).to_owned()).collect(),
            server,
            ..Device::default()
        };
        let topology = Topology {
            devices: vec![
                device("dm-0", &["nbd0p1", "sda", "dm-0"], None),
                device("nbd0p1", &["nbd0"], None),
                device("nbd0", &[], Some(nbd())),
                device("sda", &[], None),
            ],
            ..Topology::default()
        };
        let on = |name: &str| {
            topology.servers_of(&Image {
                devices: vec![name.to_owned()],
                ..Image::default()
            })
        };
        assert_eq!(on("dm-0"), [nbd()]);
        assert_eq!(on("sda"), []);
        assert_eq!(on("missing"), []);
    }

    #[test]
    fn a_loop_device_on_a_server() {
        let with = |direct| Device {
            loop_file: Some(Image {
                direct,
                mount: Some(Mount {
                    fs_type: "nfs4".to_owned(),
                    source: "a:/b".to_owned(),
                    ..Mount::default()
                }),
                ..Image::default()
            }),
            ..Device::default()
        };
        let served = |direct| with(direct).served_by().map(|server| server.to_string());
        assert_eq!(served(Some(true)).as_deref(), Some("nfs server a (/b)"));
        assert_eq!(served(Some(false)), None);
    }
}
