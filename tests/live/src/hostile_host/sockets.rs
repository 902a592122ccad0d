//! Sockets that lead elsewhere: the recorder is root, and whoever can make it connect to a socket of the host speaks with
//! root's voice.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use xtask::case::Case;

use super::processes::{Hostile, Programs};
use crate::stage::Stage;

const SLEEPER: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n";

/// What came to a listener: connections, and bytes of them.
fn came(listener: &UnixListener) -> anyhow::Result<(usize, usize)> {
    listener
        .set_nonblocking(true)
        .context("listen without waiting")?;
    let (mut connections, mut bytes) = (0, 0);
    while let Ok((mut stream, _)) = listener.accept() {
        connections += 1;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut said = [0u8; 4096];
        while let Ok(n @ 1..) = stream.read(&mut said) {
            bytes += n;
        }
    }
    Ok((connections, bytes))
}

/// A process that claims to be a guest, with these options.
fn claims(programs: &Programs, options: &[&str]) -> anyhow::Result<Hostile> {
    let program = programs.compile("qemu-system-x86_64", SLEEPER, &[])?;
    let words: Vec<&str> = ["-machine", "q35", "-name", "hostile"]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    Hostile::start(&program, &words)
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("name a path")
}

/// A monitor's socket that is a link to one of the host's.
pub fn link(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let secret = tempfile::tempdir().context("make a folder of root's")?;
    let listener = UnixListener::bind(secret.path().join("secret"))?;
    let monitor = programs.path("monitor");
    symlink(secret.path().join("secret"), &monitor)?;
    let option = format!("unix:{},server=on,wait=off", text(&monitor)?);
    let _hostile = claims(&programs, &["-qmp", &option])?;
    let end = stage.nestrace(&["guests"])?;
    case.holds("exit code 0", end.code == Some(0), &end.stderr);
    let (connections, _) = came(&listener)?;
    case.equal("connections to the host's socket", connections, 0);
    let said = format!("{}{}", end.stdout, end.stderr);
    case.holds(
        "the link is named",
        said.contains("it is not a socket"),
        &said,
    );
    case.holds(
        "the honest guest is listed",
        said.contains(stage.guest.name()),
        &said,
    );
    Ok(())
}

/// A monitor's socket on which another process listens: it is left without a word, and its answer is not taken.
pub fn other_process(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let monitor = programs.path("monitor");
    let listener = UnixListener::bind(&monitor)?;
    let option = format!("unix:{},server=on,wait=off", text(&monitor)?);
    let _hostile = claims(&programs, &["-qmp", &option])?;
    let end = stage.nestrace(&["guests"])?;
    case.holds("exit code 0", end.code == Some(0), &end.stderr);
    let (_, bytes) = came(&listener)?;
    case.equal("bytes that it was told", bytes, 0);
    let said = format!("{}{}", end.stdout, end.stderr);
    case.holds(
        "it is named",
        said.contains("listens there, not process"),
        &said,
    );
    Ok(())
}

/// The agent's socket of a hostile process is a link to the honest guest's: its agent is not driven under another name.
pub fn agent_link(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let secret = tempfile::tempdir().context("make a folder of root's")?;
    let listener = UnixListener::bind(secret.path().join("secret"))?;
    let port = programs.path("port");
    symlink(secret.path().join("secret"), &port)?;
    let chardev = format!("socket,id=a,path={},server=on,wait=off", text(&port)?);
    let hostile = claims(
        &programs,
        &[
            "-chardev",
            &chardev,
            "-device",
            "virtserialport,chardev=a,name=org.nestrace.agent.0",
        ],
    )?;
    let bundle = stage.ctx.bundle("hostile-agent");
    let (pid, device) = (
        format!("pid:{}", hostile.pid()),
        stage.host.device().to_owned(),
    );
    let end = stage.nestrace(&[
        "record",
        "--guest",
        &pid,
        "--device",
        &device,
        "--duration",
        "1",
        "-o",
        text(&bundle)?,
    ])?;
    case.holds("it is recorded", end.code == Some(0), &end.stderr);
    let (connections, _) = came(&listener)?;
    case.equal("connections to the host's socket", connections, 0);
    case.holds(
        "no agent has answered",
        end.stderr.contains("no agent has answered"),
        &end.stderr,
    );
    stage.ctx.discard(&bundle);
    Ok(())
}
