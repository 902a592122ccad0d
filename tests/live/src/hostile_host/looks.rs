//! Processes that make a look at them long or large, or that are called as another guest is.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use nestrace_rig::packages;
use xtask::case::Case;

use super::processes::{Hostile, Programs, USER, cost_of};
use super::programs::{PATIENCE, all_is_well};
use crate::stage::Stage;

/// Waits, and writes nothing.
const SLEEPER: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n";
const QEMU: &str = "qemu-system-x86_64";

/// Command lines of 160 KiB with thousands of drives: each looks for a free unit among those before it.
pub fn costly_arguments(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let program = programs.compile(QEMU, SLEEPER, &[])?;
    let words: Vec<&str> = ["-machine", "q35"]
        .into_iter()
        .chain((0..8000).flat_map(|_| ["-drive", "file=x"]))
        .collect();
    let hostile = (0..20).map(|_| Hostile::start(&program, &words));
    let _hostile = hostile.collect::<anyhow::Result<Vec<_>>>()?;
    let guests = all_is_well(stage, case)?;
    case.holds(
        "what is not read is named",
        guests.said.contains("the rest is not read") || guests.said.contains("to parse; left out"),
        &guests.said,
    );
    Ok(())
}

/// A process with as many descriptors as its user may have.
pub fn many_descriptors(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let program = programs.compile(QEMU, DESCRIPTORS, &[])?;
    let hostile = Hostile::start(&program, &["-machine", "q35", "-name", "descriptors"])?;
    hostile.wait_until("it has its descriptors", |pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "ready")
    })?;
    let guests = all_is_well(stage, case)?;
    case.holds(
        "it is named",
        guests
            .said
            .contains("descriptors; the others are not examined"),
        &guests.said,
    );
    Ok(())
}

/// A process in a mount namespace of its own, where an ordinary user may mount as often as he likes: each line of its
/// `mountinfo` has 3,000 bytes.
pub fn many_mounts(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let program = programs.compile(QEMU, MOUNTS, &[])?;
    let image = "file=/tmp/image,format=raw,if=virtio";
    let hostile = Hostile::start(&program, &["-name", "mounts", "-drive", image])?;
    let has_mounts = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "ready")
    };
    hostile.wait_until("it has its mounts", has_mounts)?;
    let mounts = fs::read(format!("/proc/{}/mountinfo", hostile.pid()));
    let mib = mounts.context("read its mountinfo")?.len() >> 20;
    case.holds("they are large", mib > 16, &format!("{mib} MiB"));
    all_is_well(stage, case)?;
    case.figure(format!("{mib} MiB of mountinfo"));
    Ok(())
}

/// Memory that a QEMU which was taken over maps from a FUSE file of its own: a read of it never ends. It is recorded together with
/// the honest guest, and alone.
pub fn memory_of_fuse(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    packages::install_programs(&[("fusermount3", "fuse3")], |line| {
        stage.ctx.progress.say(line);
    })?;
    let programs = Programs::folder()?;
    let program = programs.compile(QEMU, include_str!("fuse_memory.c"), &["-rdynamic"])?;
    let folder = programs.path("own");
    fs::create_dir(&folder).context("make the process' folder")?;
    std::os::unix::fs::chown(&folder, Some(USER), Some(USER)).context("give it away")?;
    let image = programs.path("image");
    fs::File::create(&image)
        .and_then(|file| file.set_len(64 << 20))
        .context("make an image")?;
    std::os::unix::fs::chown(&image, Some(USER), Some(USER)).context("give it away")?;
    let mount = FuseMount(folder.join("hang"));
    let drive = format!("file={},format=raw,if=virtio", image.display());
    let words = ["-name", "of-fuse", "-drive", &drive];
    let places = [("FOLDER", folder.as_os_str()), ("IMAGE", image.as_os_str())];
    let hostile = Hostile::start_with(&program, &words, &places)?;
    hostile.wait_until("it has mapped its file", |pid| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
        maps.is_ok_and(|maps| maps.contains("/hang"))
    })?;
    stage.load()?;
    for more in [&["--guest", stage.guest.name()][..], &[]] {
        let bundle = folder.join("recorded.nest");
        let place = bundle.to_str().context("a plain path")?;
        let mut args = vec!["record", "--guest", "of-fuse", "--duration", "1.5"];
        args.extend(["--agent", "off", "--force", "-o", place]);
        args.extend(more);
        let cost = cost_of(&stage.ctx.nestrace, &args)?;
        case.holds(
            "a recording of it ends in time",
            cost.code == Some(0) && cost.took < PATIENCE,
            &format!("{:?} after {:?}: {}", cost.code, cost.took, cost.said),
        );
        let analysis = nestrace_rig::recorder::analyze(&stage.ctx.nestrace, &bundle)?;
        case.holds(
            "and is whole",
            analysis["incomplete"].as_array().is_none_or(Vec::is_empty),
            &analysis["incomplete"].to_string(),
        );
        case.figure(format!("{:.1} s", cost.took.as_secs_f64()));
    }
    all_is_well(stage, case)?;
    drop(hostile);
    drop(mount);
    Ok(())
}

/// Unmounted when this is dropped, also where its server is gone.
struct FuseMount(PathBuf);

impl Drop for FuseMount {
    fn drop(&mut self) {
        // It may not have been mounted.
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

const DESCRIPTORS: &str = r#"
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
int main(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < 300000 && dup(0) >= 0; i++);
    prctl(PR_SET_NAME, "ready");
    for (;;) pause();
}
"#;

const MOUNTS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    write(fd, text, strlen(text));
    close(fd);
}
int main(void) {
    char line[64], path[4096] = "/tmp";
    unsigned uid = getuid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) return 1;
    snprintf(line, sizeof line, "0 %u 1", uid);
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", line);
    put("/proc/self/gid_map", line);
    mount(0, "/", 0, MS_REC | MS_PRIVATE, 0);
    if (mount("t", "/tmp", "tmpfs", 0, 0)) return 2;
    close(open("/tmp/image", O_CREAT | O_RDWR, 0600));
    truncate("/tmp/image", 1 << 20);
    for (int i = 0; i < 14; i++) {
        size_t n = strlen(path);
        path[n] = '/';
        memset(path + n + 1, 'a' + i, 200);
        path[n + 201] = 0;
        if (mkdir(path, 0755)) return 3;
    }
    for (int i = 0; i < 9000; i++)
        if (mount(path, path, 0, MS_BIND, 0)) break;
    prctl(PR_SET_NAME, "ready");
    open("/tmp/image", O_RDWR);
    for (;;) pause();
}
"#;
