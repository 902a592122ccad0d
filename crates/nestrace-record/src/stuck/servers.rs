//! Servers of disks that QEMU reads over NBD: whether one of this host is stopped.
//!
//! Only processes that are stopped are looked into. One counts as the server where it has a socket with the disk's address
//! and runs as root or as the guest's user: another user's process says nothing of it.

use std::collections::BTreeSet;
use std::fs;

use nestrace_probes::proc_file;
use nestrace_stuck::facts::{ProcessFacts, RemoteFacts};
use nestrace_trace::manifest::REMOTE_CLIENTS;
use serde_json::Value;

use super::threads;
use crate::guest::{process, socket};

/// Stopped processes that are looked into.
const MAX_STOPPED: usize = 64;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX socket.
    Unix(String),
    /// A port of this host.
    Local(u16),
    /// Elsewhere, or not understood.
    Other,
}

/// What QEMU's name of a file says of a server; `None` for files and devices.
#[must_use]
pub fn remote(file: &str) -> Option<RemoteFacts> {
    let protocol = file.split_once(':').map(|(protocol, _)| protocol);
    let protocol = protocol
        .and_then(|it| it.split('+').next())
        .unwrap_or_default();
    let driver = match file.strip_prefix("json:") {
        Some(json) => driver_of(&serde_json::from_str(json).ok()?)?,
        None => protocol.to_owned(),
    };
    REMOTE_CLIENTS
        .contains(&driver.as_str())
        .then(|| RemoteFacts {
            driver,
            address: file.to_owned(),
            stopped_server: None,
        })
}

/// The lowest driver of a description.
fn driver_of(node: &Value) -> Option<String> {
    match node.get("file") {
        Some(below) if below.is_object() => driver_of(below),
        _ => Some(node.get("driver")?.as_str()?.to_owned()),
    }
}

/// Where an NBD server listens, from QEMU's name of the file: `nbd://host:port/x`, `nbd+unix:///x?socket=/path`,
/// `nbd:unix:/path:exportname=x`, `nbd:host:port`, `json:{…}`.
#[must_use]
pub fn address(file: &str) -> Address {
    if let Some(json) = file.strip_prefix("json:") {
        return serde_json::from_str(json).map_or(Address::Other, |node| in_node(&node));
    }
    if let Some((_, rest)) = file.split_once("?socket=") {
        let path = rest.split('&').next().unwrap_or_default();
        return Address::Unix(path.to_owned());
    }
    if let Some(rest) = file.strip_prefix("nbd:unix:") {
        let path = rest.split(":exportname=").next().unwrap_or_default();
        return Address::Unix(path.to_owned());
    }
    let Some(rest) = file
        .strip_prefix("nbd://")
        .or_else(|| file.strip_prefix("nbd:"))
    else {
        return Address::Other;
    };
    let host_and_port = rest.split(['/', '?']).next().unwrap_or_default();
    let host_and_port = host_and_port
        .split(":exportname=")
        .next()
        .unwrap_or_default();
    match host_and_port.rsplit_once(':') {
        Some((host, port)) => local(host, port),
        None => local(host_and_port, "10809"),
    }
}

fn in_node(node: &Value) -> Address {
    let text = |key: &str| node.get(key).and_then(Value::as_str);
    match (node.get("server"), node.get("file")) {
        (Some(server), _) => in_node(server),
        (None, Some(below)) if below.is_object() => in_node(below),
        _ => match (text("path"), text("host"), text("port")) {
            (Some(path), ..) => Address::Unix(path.to_owned()),
            (None, Some(host), Some(port)) => local(host, port),
            _ => Address::Other,
        },
    }
}

fn local(host: &str, port: &str) -> Address {
    let is_local = matches!(host, "localhost" | "127.0.0.1" | "::1" | "[::1]");
    match port.parse() {
        Ok(port) if is_local => Address::Local(port),
        _ => Address::Other,
    }
}

/// The stopped process of this host that serves the guest `pid` at this address.
#[must_use]
pub fn stopped(address: &Address, pid: u32) -> Option<ProcessFacts> {
    if *address == Address::Other {
        return None;
    }
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let stopped = pids.filter_map(threads::process);
    let stopped = stopped.filter(|process| matches!(process.state.as_str(), "T" | "t"));
    let user = process::user_of(pid);
    stopped
        .take(MAX_STOPPED)
        .filter(|process| {
            let own = process::user_of(process.pid);
            process.pid != pid && (own == Some(0) || own == user)
        })
        .find(|process| serves(process.pid, address))
}

/// Whether a process has a socket with this address.
fn serves(pid: u32, address: &Address) -> bool {
    let text = |file: &str| {
        let text = proc_file::read(format!("/proc/{pid}/net/{file}"), proc_file::MAX_NET_UNIX);
        text.map(|text| text.text()).unwrap_or_default()
    };
    let inodes: BTreeSet<u64> = match address {
        // A path may be relative to the server's folder.
        Address::Unix(path) => {
            let file = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
            let rows = socket::parse_net_unix(&text("unix")).into_iter();
            let own = rows.filter(|row| {
                row.path == *path || (!row.path.starts_with('/') && file(&row.path) == file(path))
            });
            own.map(|row| row.inode).collect()
        }
        Address::Local(port) => ["tcp", "tcp6"]
            .iter()
            .flat_map(|table| parse_net_tcp(&text(table), *port))
            .collect(),
        Address::Other => BTreeSet::new(),
    };
    if inodes.is_empty() {
        return false;
    }
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    fds.flatten().take(proc_file::MAX_DESCRIPTORS).any(|fd| {
        let link = fs::read_link(fd.path()).unwrap_or_default();
        let link = link.to_string_lossy();
        let inode = link
            .strip_prefix("socket:[")
            .and_then(|l| l.strip_suffix(']'));
        inode.is_some_and(|inode| inode.parse().is_ok_and(|inode| inodes.contains(&inode)))
    })
}

/// Inodes of the sockets with this port on their own side.
fn parse_net_tcp(text: &str, port: u16) -> Vec<u64> {
    let rows = text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (_, own) = fields.nth(1)?.rsplit_once(':')?;
        let is_own = u16::from_str_radix(own, 16).ok()? == port;
        // Remote address, state, queues, timer, retransmits, user, timeout.
        let inode = fields.nth(7)?.parse().ok()?;
        is_own.then_some(inode)
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (file, expected) in [
            (
                "nbd+unix:///?socket=/run/a.sock",
                Address::Unix("/run/a.sock".to_owned()),
            ),
            (
                "nbd+unix:///x?socket=a.sock&tls=1",
                Address::Unix("a.sock".to_owned()),
            ),
            (
                "nbd:unix:/run/a.sock:exportname=x",
                Address::Unix("/run/a.sock".to_owned()),
            ),
            ("nbd://localhost:10900/x", Address::Local(10900)),
            ("nbd://127.0.0.1", Address::Local(10809)),
            ("nbd:localhost:10809:exportname=y", Address::Local(10809)),
            ("nbd://other:10809", Address::Other),
            (
                r#"json:{"driver":"raw","file":{"driver":"nbd","server":{"type":"unix","path":"/s"}}}"#,
                Address::Unix("/s".to_owned()),
            ),
            (
                r#"json:{"driver":"nbd","server":{"type":"inet","host":"::1","port":"10"}}"#,
                Address::Local(10),
            ),
            ("json:{", Address::Other),
            ("/a/b.raw", Address::Other),
        ] {
            assert_eq!(address(file), expected, "{file}");
        }
    }

    #[test]
    fn remotes() {
        let driver = |file: &str| remote(file).map(|remote| remote.driver);
        assert_eq!(driver("nbd+unix:///?socket=/run/a").as_deref(), Some("nbd"));
        assert_eq!(driver("rbd:pool/image").as_deref(), Some("rbd"));
        assert_eq!(driver("/a:b.raw"), None);
        assert_eq!(driver("a.raw"), None);
        let json = r#"json:{"driver":"qcow2","file":{"driver":"nbd","path":"/s"}}"#;
        assert_eq!(driver(json).as_deref(), Some("nbd"));
    }

    #[test]
    fn rows_of_tcp() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:2A39 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n";
        assert_eq!(parse_net_tcp(text, 10809), [4711]);
        assert!(parse_net_tcp(text, 10810).is_empty());
    }
}
