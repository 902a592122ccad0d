//! The lab in a guest that no libvirt manages: disks by QEMU's monitor, commands over ssh.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::external_tool::{Tool, find_program};
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::{initramfs, packages};
use serde_json::{Value, json};
use xtask::case::Case;

use super::own_guest::{self, OwnGuest};
use crate::context::LiveContext;

/// The server in the guest.
const SERVER: &str = "dropbear";
const SERVER_PACKAGE: &str = "dropbear-bin";
const CLIENT: &str = "ssh";
const CLIENT_PACKAGE: &str = "openssh-client";
/// What the lab calls the guest, as `~/.ssh/config` would have it.
const HOST: &str = "own";

pub fn run(case: &mut Case, ctx: &LiveContext) -> anyhow::Result<()> {
    let programs = [(SERVER, SERVER_PACKAGE), (CLIENT, CLIENT_PACKAGE)];
    packages::install_programs(&programs, |line| ctx.progress.say(line))?;
    let folder = tempfile::tempdir().context("make a folder for the lab")?;
    let key = folder.path().join("key");
    let made = Tool::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]);
    made.arg(&key).run()?;
    let guest = Guest::boot(spec(ctx)?)?;
    serve(&guest, &std::fs::read_to_string(key.with_extension("pub"))?)?;
    guest.start_agent("")?;
    let path = client(folder.path(), &key, port(&guest)?)?;
    let disks = || Ok(guest.qmp("query-block", Value::Null)?.to_string());
    let own = OwnGuest {
        folder: folder.path(),
        section: format!(
            "qmp = '{}'\nssh = '{HOST}'",
            guest.monitor_socket().display()
        ),
        environment: vec![("PATH", path)],
        disks: &disks,
    };
    own_guest::run(case, ctx, &own)
}

/// A guest without disks, on a network of its own.
fn spec(ctx: &LiveContext) -> anyhow::Result<GuestSpec> {
    let mut spec = ctx.agent_guest_spec(&ctx.guest_name("ssh"))?;
    let server = find_program(SERVER).context("find the server")?;
    spec.files = initramfs::libraries_in_place(&server);
    spec.files.push((format!("/usr/sbin/{SERVER}"), server));
    spec.modules = ["virtio_net", "virtio_blk", "ext4"]
        .map(str::to_owned)
        .to_vec();
    // Port 0: the kernel finds an unused one.
    spec.extra_arguments = [
        "-netdev",
        "user,id=net,hostfwd=tcp:127.0.0.1:0-:22",
        "-device",
        "virtio-net-pci,netdev=net",
    ]
    .map(str::to_owned)
    .to_vec();
    Ok(spec)
}

/// Starts ssh's server in a guest, for its root with this key.
fn serve(guest: &Guest, public_key: &str) -> anyhow::Result<()> {
    let script = format!(
        "set -e\nip link set lo up\nip link set eth0 up\nip addr add 10.0.2.15/24 dev eth0\n\
         mkdir -p /etc/dropbear /root/.ssh\nchmod 700 /root /root/.ssh\n\
         echo root:x:0:0:root:/root:/bin/sh > /etc/passwd\n\
         echo '{}' > /root/.ssh/authorized_keys\nchmod 600 /root/.ssh/authorized_keys\n\
         {SERVER} -R -E -s -P /run/{SERVER}.pid 2> /run/{SERVER}.log < /dev/null",
        public_key.trim()
    );
    guest.run_ok(&script, Duration::from_secs(60))?;
    Ok(())
}

/// The port of this machine behind which the guest's server is.
fn port(guest: &Guest) -> anyhow::Result<u16> {
    let question = json!({ "command-line": "info usernet" });
    let answer = guest.qmp("human-monitor-command", question)?;
    let text = answer.as_str().unwrap_or_default();
    // TCP[HOST_FORWARD]  14       127.0.0.1 40411       10.0.2.15    22     0     0
    let row = text.lines().find(|line| line.contains("HOST_FORWARD"));
    let port = row.and_then(|row| row.split_whitespace().nth(3)?.parse().ok());
    port.with_context(|| format!("find the forwarded port: {text}"))
}

/// A PATH whose ssh knows the guest, as a user's would by its configuration.
fn client(folder: &Path, key: &Path, port: u16) -> anyhow::Result<String> {
    let programs = folder.join("bin");
    std::fs::create_dir(&programs).context("make a folder for ssh")?;
    let configuration = folder.join("ssh_config");
    let known = folder.join("known_hosts");
    let text = format!(
        "Host {HOST}\nHostName 127.0.0.1\nPort {port}\nUser root\nIdentityFile {}\nIdentitiesOnly yes\n\
         StrictHostKeyChecking accept-new\nUserKnownHostsFile {}\nGlobalKnownHostsFile /dev/null\n",
        key.display(),
        known.display()
    );
    std::fs::write(&configuration, text).context("write ssh's configuration")?;
    let real: PathBuf = find_program(CLIENT).context("find ssh")?;
    let wrapper = programs.join(CLIENT);
    let text = format!(
        "#!/bin/sh\nexec {} -F {} \"$@\"\n",
        real.display(),
        configuration.display()
    );
    std::fs::write(&wrapper, text)
        .and_then(|()| std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)))
        .context("write a wrapper of ssh")?;
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{path}", programs.display()))
}
