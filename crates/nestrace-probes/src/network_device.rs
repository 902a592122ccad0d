//! Block devices with their data on a server: NBD, iSCSI, RBD and NVMe over fabrics. What sysfs, and of NBD the client's
//! process, say of the server.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use nestrace_trace::manifest::Server;

use crate::proc_file;

/// Controllers of an NVMe subsystem, connections of a session, sockets of a client: more are not looked at.
const MAX_PATHS: usize = 64;
/// A file of sysfs is a page at most.
const MAX_ATTRIBUTE: usize = 4096;

/// The server of a disk, by its directory in sysfs with links resolved; `None` of a disk of this host.
pub(crate) fn server_of(disk: &Path) -> Option<Server> {
    let name = disk.file_name()?.to_str()?;
    if let Some(number) = number_of(name, "rbd") {
        let device = PathBuf::from(format!("/sys/bus/rbd/devices/{number}"));
        return Some(rbd(|attribute| text(&device.join(attribute))));
    }
    if number_of(name, "nbd").is_some() {
        return nbd_at(disk);
    }
    if name.starts_with("nvme") {
        return nvme_at(disk);
    }
    iscsi_at(disk)
}

/// `12` of `rbd12`.
fn number_of<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let number = name.strip_prefix(prefix)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

/// An attribute; `None` where it is absent or empty.
fn text(path: &Path) -> Option<String> {
    let read = proc_file::read(path, MAX_ATTRIBUTE).ok()?.text();
    let text = read.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn server(protocol: &str, address: String, name: String) -> Server {
    Server {
        protocol: protocol.to_owned(),
        address,
        name,
    }
}

/// `config_info` is what was written to `add`: monitors, options (perhaps with a key), pool, image.
fn rbd(attribute: impl Fn(&str) -> Option<String>) -> Server {
    let monitors = attribute("config_info")
        .and_then(|info| Some(info.split_ascii_whitespace().next()?.to_owned()));
    let parts = ["pool", "pool_ns", "name"].map(&attribute);
    let names: Vec<String> = parts.into_iter().flatten().collect();
    let cluster = || attribute("cluster_fsid").map(|fsid| format!("cluster {fsid}"));
    let address = monitors.or_else(cluster).unwrap_or_default();
    server("rbd", address, names.join("/"))
}

/// A device of NBD that is connected has a `pid`: that of the client's thread. Since Linux 5.14 it also has a `backend`, if the
/// client named one over netlink.
fn nbd_at(disk: &Path) -> Option<Server> {
    let backend = text(&disk.join("backend"));
    let pid = text(&disk.join("pid")).and_then(|pid| pid.parse::<u32>().ok());
    if backend.is_none() && pid.is_none() {
        return None;
    }
    let process = |file: &str, max| {
        let read = proc_file::read(format!("/proc/{}/{file}", pid?), max);
        read.ok().map(|read| read.text())
    };
    let command_line = process("cmdline", proc_file::MAX_CMDLINE).unwrap_or_default();
    let arguments: Vec<&str> = command_line.split('\0').collect();
    let found = of_nbd_client(&arguments).or_else(|| {
        let sockets = pid.map(sockets_of).unwrap_or_default();
        let tables = ["net/tcp", "net/tcp6"].map(|table| process(table, proc_file::MAX_NET_UNIX));
        let peers = tables.iter().flatten().flat_map(|table| peers(table));
        let mut own = peers.filter(|(inode, _)| sockets.contains(inode));
        own.next()
            .map(|(_, peer)| server("nbd", peer, String::new()))
    });
    let unknown = || server("nbd", String::new(), String::new());
    let mut found = found.unwrap_or_else(unknown);
    if let Some(backend) = backend.filter(|_| found.name.is_empty()) {
        found.name = backend;
    }
    Some(found)
}

/// Inodes of a process' sockets.
fn sockets_of(pid: u32) -> Vec<u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    let links = files
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_PATHS)
        .filter_map(|file| fs::read_link(file.path()).ok());
    let inode = |link: PathBuf| {
        let link = link.to_str()?.strip_prefix("socket:[")?;
        link.strip_suffix(']')?.parse().ok()
    };
    links.filter_map(inode).collect()
}

/// Options of `nbd-client` with a value of their own, which may stand apart.
const WITH_VALUE: [&str; 20] = [
    "-A",
    "-B",
    "-C",
    "-F",
    "-H",
    "-K",
    "-b",
    "-i",
    "-t",
    "-y",
    "-block-size",
    "-cacertfile",
    "-certfile",
    "-connections",
    "-identifier",
    "-keyfile",
    "-priority",
    "-size",
    "-timeout",
    "-tlshostname",
];

/// The server that the client's command line names: `nbd-client HOST [PORT] DEVICE`, `nbd-client -unix PATH DEVICE`, or
/// `qemu-nbd -c DEVICE FILE`, which is the server itself.
fn of_nbd_client(arguments: &[&str]) -> Option<Server> {
    let (program, rest) = arguments.split_first()?;
    let program = program.rsplit('/').next()?;
    if program.starts_with("qemu-nbd") {
        let mut words = rest.iter().filter(|word| !word.is_empty());
        let image = words.rfind(|word| !word.starts_with('-'));
        let image = image.map(|image| (*image).to_owned()).unwrap_or_default();
        return Some(server("nbd", String::from("of this host: qemu-nbd"), image));
    }
    if !program.starts_with("nbd-client") {
        return None;
    }
    let mut places: Vec<&str> = Vec::new();
    let (mut export, mut socket) = ("", None);
    let mut words = rest.iter().copied().filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let option = word.strip_prefix("--").map(|long| format!("-{long}"));
        let option = option.as_deref().unwrap_or(word);
        match option {
            "-N" | "-name" => export = words.next().unwrap_or_default(),
            "-u" | "-unix" => socket = words.next(),
            _ if WITH_VALUE.contains(&option) => {
                words.next();
            }
            _ if option.starts_with('-') => {}
            _ => places.push(word),
        }
    }
    let address = match (socket, places.as_slice()) {
        (Some(path), _) => path.to_owned(),
        (None, [host, port, _, ..]) => host_and_port(Some(host), Some(port)),
        (None, [host, ..]) => host_and_port(Some(host), Some("10809")),
        (None, []) => return None,
    };
    Some(server("nbd", address, export.to_owned()))
}

/// Connections of `/proc/PID/net/tcp` and `tcp6`: inode of the socket, and the other side's address.
fn peers(table: &str) -> impl Iterator<Item = (u64, String)> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (address, port) = fields.nth(2)?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        // State, queues, timer, retransmits, user, timeout.
        let inode = fields.nth(6)?.parse().ok()?;
        Some((inode, format!("{}:{port}", host_of(address)?)))
    })
}

/// An address as the kernel prints it: words of 32 bits in the order of this machine, most significant digit first.
fn host_of(digits: &str) -> Option<String> {
    let word = |at: usize| {
        let digits = digits.get(at..at.checked_add(8)?)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).to_string()),
        32 => {
            let mut bytes = [0; 16];
            for (to, at) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
                to.copy_from_slice(&word(at)?);
            }
            let address = Ipv6Addr::from(bytes);
            Some(match address.to_ipv4_mapped() {
                Some(mapped) => mapped.to_string(),
                None => format!("[{address}]"),
            })
        }
        _ => None,
    }
}

/// A disk of SCSI below a session of iSCSI: `…/host3/session1/target3:0:0/3:0:0:1/block/sdb`.
fn iscsi_at(disk: &Path) -> Option<Server> {
    let session = disk
        .components()
        .filter_map(|part| part.as_os_str().to_str())
        .find(|part| number_of(part, "session").is_some())?;
    let class = PathBuf::from("/sys/class");
    let target = text(&class.join("iscsi_session").join(session).join("targetname"))?;
    let number = number_of(session, "session")?;
    let connection = class
        .join("iscsi_connection")
        .join(format!("connection{number}:0"));
    Some(iscsi(target, |attribute| text(&connection.join(attribute))))
}

/// The portal is the connection's; `persistent_*` is the one that was asked for, where the target sent the client on.
fn iscsi(target: String, connection: impl Fn(&str) -> Option<String>) -> Server {
    let of = |attribute: &str| {
        let attribute = connection(attribute);
        // What is not known reads `(null)`.
        attribute.filter(|it| !it.starts_with('('))
    };
    let host = of("address").or_else(|| of("persistent_address"));
    let port = of("port").or_else(|| of("persistent_port"));
    let address = host_and_port(host.as_deref(), port.as_deref());
    server("iscsi", address, target)
}

/// `HOST:PORT`, an IPv6 address in brackets; empty where no host is known.
fn host_and_port(host: Option<&str>, port: Option<&str>) -> String {
    let is_v6 = |host: &str| {
        let (address, _scope) = host.split_once('%').unwrap_or((host, ""));
        address.parse::<Ipv6Addr>().is_ok()
    };
    match (host, port) {
        (Some(host), Some(port)) if is_v6(host) => format!("[{host}]:{port}"),
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or_default().to_owned(),
    }
}

/// A namespace lies below its controller, or with multipath below the subsystem, which has several.
fn nvme_at(disk: &Path) -> Option<Server> {
    let parent = disk.parent()?;
    let mut controllers: Vec<PathBuf> = vec![parent.to_owned()];
    if !parent.join("transport").exists() {
        let children = fs::read_dir(parent).ok()?.flatten().take(MAX_PATHS);
        controllers = children.map(|child| child.path()).collect();
        controllers.retain(|path| path.join("transport").exists());
        controllers.sort();
    }
    let of = |controller: &PathBuf| nvme(|attribute| text(&controller.join(attribute)));
    let mut servers = controllers.iter().filter_map(of);
    let mut first = servers.next()?;
    for other in servers.filter(|other| other.protocol == first.protocol) {
        if !first.address.split(',').any(|known| known == other.address) {
            first.address = format!("{},{}", first.address, other.address);
        }
    }
    Some(first)
}

/// `None` for a controller of this machine.
fn nvme(attribute: impl Fn(&str) -> Option<String>) -> Option<Server> {
    let transport = attribute("transport")?;
    if !matches!(transport.as_str(), "tcp" | "rdma" | "fc" | "loop") {
        return None;
    }
    let address = attribute("address").unwrap_or_default();
    let value = |key: &str| {
        let mut parts = address.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let address = host_and_port(value("traddr"), value("trsvcid"));
    let name = attribute("subsysnqn").unwrap_or_default();
    Some(server(&format!("nvme-{transport}"), address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes by name, as sysfs has them.
    fn attributes(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| {
            let mut pairs = pairs.iter();
            let found = pairs.find(|(attribute, _)| *attribute == name);
            found.map(|(_, text)| (*text).to_owned())
        }
    }

    #[test]
    fn clients_of_nbd() {
        for (line, expected) in [
            (
                "nbd-client 10.0.0.7 10900 /dev/nbd0",
                "nbd server 10.0.0.7:10900",
            ),
            (
                "/usr/sbin/nbd-client -b 4096 -N vm1 store /dev/nbd1 -persist",
                "nbd server store:10809 (vm1)",
            ),
            (
                "nbd-client fe80::1%eth0 10900 /dev/nbd0",
                "nbd server [fe80::1%eth0]:10900",
            ),
            (
                "nbd-client -unix /run/nbd.sock /dev/nbd0 -n -name vm1",
                "nbd server /run/nbd.sock (vm1)",
            ),
            (
                "qemu-nbd -c /dev/nbd0 --persistent /srv/vm1.raw",
                "nbd server of this host: qemu-nbd (/srv/vm1.raw)",
            ),
        ] {
            let arguments: Vec<&str> = line.split(' ').chain([""]).collect();
            let found = of_nbd_client(&arguments).map(|server| server.to_string());
            assert_eq!(found.as_deref(), Some(expected), "{line}");
        }
        assert_eq!(of_nbd_client(&["nbd-client", ""]), None);
        assert_eq!(of_nbd_client(&["python3", "serve.py"]), None);
        assert_eq!(of_nbd_client(&[]), None);
    }

    #[test]
    fn sides_of_connections() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:D431 0100007F:2A39 01 00000000:00000000 02:000005C1 00000000     0        0 4711 2 0 20 4 30 10 -1\n";
        let expected = [(4711, String::from("127.0.0.1:10809"))];
        assert_eq!(peers(tcp).collect::<Vec<_>>(), expected);
        let tcp6 = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 00000000000000000000000001000000:AAAA 00000000000000000000000001000000:2A39 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1\n   \
            1: 0000000000000000FFFF00000100007F:AAAA 0000000000000000FFFF00000200007F:0016 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4 30 10 -1\n";
        let expected = [
            (12, String::from("[::1]:10809")),
            (13, String::from("127.0.0.2:22")),
        ];
        assert_eq!(peers(tcp6).collect::<Vec<_>>(), expected);
        assert_eq!(peers("\nx\n0: zz:1 é:2 01\n").count(), 0);
    }

    #[test]
    fn sessions_of_iscsi() {
        let portal = |pairs| {
            let target = String::from("iqn.2003-01.org.linux-iscsi.store:vm1");
            iscsi(target, attributes(pairs)).to_string()
        };
        assert_eq!(
            portal(&[
                ("address", "10.0.0.7"),
                ("port", "3260"),
                ("persistent_address", "10.0.0.1"),
                ("persistent_port", "3260"),
            ]),
            "iscsi server 10.0.0.7:3260 (iqn.2003-01.org.linux-iscsi.store:vm1)"
        );
        assert_eq!(
            portal(&[
                ("address", "(null)"),
                ("port", "(null)"),
                ("persistent_address", "fe80::1"),
                ("persistent_port", "3260"),
            ]),
            "iscsi server [fe80::1]:3260 (iqn.2003-01.org.linux-iscsi.store:vm1)"
        );
    }

    #[test]
    fn images_of_rbd() {
        let known = attributes(&[
            ("pool", "libvirt"),
            ("name", "vm1"),
            ("cluster_fsid", "a5c21dd6-4b3e-4cf7-9d3e-2d7f5a1c0001"),
            (
                "config_info",
                "10.0.0.1:6789,10.0.0.2:6789 name=admin,key=client.admin libvirt vm1 -",
            ),
        ]);
        assert_eq!(
            rbd(known).to_string(),
            "rbd server 10.0.0.1:6789,10.0.0.2:6789 (libvirt/vm1)"
        );
        let without_rights = attributes(&[
            ("pool", "libvirt"),
            ("pool_ns", "tenant"),
            ("name", "vm1"),
            ("cluster_fsid", "a5c21dd6"),
        ]);
        assert_eq!(
            rbd(without_rights).to_string(),
            "rbd server cluster a5c21dd6 (libvirt/tenant/vm1)"
        );
    }

    #[test]
    fn controllers_of_nvme() {
        let of = |pairs| nvme(attributes(pairs)).map(|server| server.to_string());
        assert_eq!(
            of(&[
                ("transport", "tcp"),
                ("address", "traddr=10.0.0.7,trsvcid=4420,src_addr=10.0.0.2"),
                ("subsysnqn", "nqn.2014-08.org.nvmexpress:store"),
            ])
            .as_deref(),
            Some("nvme-tcp server 10.0.0.7:4420 (nqn.2014-08.org.nvmexpress:store)")
        );
        assert_eq!(
            of(&[
                ("transport", "rdma"),
                ("address", "traddr=fe80::1,trsvcid=4420")
            ])
            .as_deref(),
            Some("nvme-rdma server [fe80::1]:4420")
        );
        assert_eq!(
            of(&[("transport", "loop"), ("subsysnqn", "nqn.test")]).as_deref(),
            Some("nvme-loop server (nqn.test)")
        );
        assert_eq!(
            of(&[("transport", "pcie"), ("address", "0000:01:00.0")]),
            None
        );
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn disks_of_this_host() {
        for path in [
            "/sys/devices/virtual/block/loop0",
            "/sys/devices/pci/x/block/sda",
            "/",
        ] {
            assert_eq!(server_of(Path::new(path)), None);
        }
        assert_eq!(number_of("rbd12", "rbd"), Some("12"));
        assert_eq!(number_of("rbd", "rbd"), None);
        assert_eq!(number_of("sessions", "session"), None);
    }
}
