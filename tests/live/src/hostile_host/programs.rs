//! Programs and arguments that are made to cost time and memory, and programs in which no probe may go.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use xtask::case::Case;

use super::processes::{Cost, Hostile, Programs, cost_of};
use crate::stage::{Stage, manifest};

/// A look at the machine takes no more than this beside hostile processes; many times what it takes alone.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// And no more memory.
pub(super) const MAX_MEMORY_KIB: u64 = 64 << 10;
const SLEEPER: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n";

/// `guests`, `doctor` and a recording of the honest guest, beside what is there.
pub fn all_is_well(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<Cost> {
    let nestrace = &stage.ctx.nestrace;
    let guests = cost_of(nestrace, &["guests"])?;
    let doctor = cost_of(nestrace, &["doctor"])?;
    for (what, cost) in [("guests", &guests), ("doctor", &doctor)] {
        case.holds(
            &format!("{what} ends well"),
            cost.code == Some(0) && cost.took < PATIENCE && cost.memory_kib <= MAX_MEMORY_KIB,
            &format!(
                "exit {:?} after {:.1} s with {} KiB: {}",
                cost.code,
                cost.took.as_secs_f64(),
                cost.memory_kib,
                cost.said
            ),
        );
        case.figure(format!(
            "{what}: {:.2} s, {} MiB",
            cost.took.as_secs_f64(),
            cost.memory_kib >> 10
        ));
    }
    case.holds(
        "the honest guest is listed",
        guests.said.contains(stage.guest.name()),
        &guests.said,
    );
    let recording = stage.record(&["--duration", "0.5", "--agent", "off"])?;
    let ended = recording.wait(PATIENCE)?;
    case.holds(
        "the honest guest is recorded",
        ended.end.status.code() == Some(0),
        &ended.end.stderr,
    );
    stage.ctx.discard(&ended.bundle);
    Ok(guests)
}

/// Arguments of gigabytes, which a process can claim to have without a privilege and without memory.
pub fn long_arguments(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let mut hostile = Vec::new();
    for name in ["bomb", "qemu-system-x86_64"] {
        let program = programs.compile(name, LONG_ARGUMENTS, &[])?;
        for _ in 0..10 {
            hostile.push(Hostile::start(&program, &["4096"])?);
        }
    }
    // The first arguments are gone when the claim is made.
    let is_long = |pid: u32| {
        let mut start = [1u8; 64];
        let line = File::open(format!("/proc/{pid}/cmdline"));
        line.and_then(|line| line.read_at(&mut start, 0))
            .is_ok_and(|n| n == 64 && start == [0u8; 64])
    };
    for process in &hostile {
        process.wait_until("its arguments are long", is_long)?;
    }
    let guests = all_is_well(stage, case)?;
    case.holds(
        "those that are called QEMU are named",
        guests.said.contains("KiB of arguments; left out"),
        &guests.said,
    );
    Ok(())
}

/// Tables of three million symbols in a file that takes no room.
pub fn symbol_tables(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let program = programs.compile("sleeper", SLEEPER, &["-static"])?;
    enlarge_symbols(&program)?;
    let mut hostile = Vec::new();
    for index in 0..10 {
        // Of ten inodes.
        let copy = programs.path(&format!("sleeper-{index}"));
        let copied = Command::new("cp")
            .args(["--sparse=always"])
            .args([&program, &copy])
            .status();
        ensure!(copied.context("start cp")?.success(), "copy the program");
        hostile.push(Hostile::start(&copy, &["-device", "x", "-machine", "q35"])?);
    }
    all_is_well(stage, case)?;
    Ok(())
}

/// Makes a program's table of symbols 72 MB long and its names 72 MB, at the end of the file.
fn enlarge_symbols(program: &Path) -> anyhow::Result<()> {
    const SYMBOLS: u64 = 3_000_000;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(program)
        .context("open the program")?;
    let end = file.metadata()?.len().next_multiple_of(4096);
    let mut header = [0u8; 64];
    file.read_exact_at(&mut header, 0)?;
    let sections_at = u64::from_le_bytes(header[40..48].try_into()?);
    let n_sections = u64::from(u16::from_le_bytes(header[60..62].try_into()?));
    for at in (0..n_sections).map(|index| sections_at + index * 64) {
        let mut section = [0u8; 64];
        file.read_exact_at(&mut section, at)?;
        // SHT_SYMTAB and SHT_STRTAB, but for the sections' own names.
        let (place, bytes) = match section[4] {
            2 => (end, SYMBOLS * 24),
            3 if at != sections_at + 64 * u64::from(header[62]) => {
                (end + SYMBOLS * 24, SYMBOLS * 24)
            }
            _ => continue,
        };
        section[24..32].copy_from_slice(&place.to_le_bytes());
        section[32..40].copy_from_slice(&bytes.to_le_bytes());
        file.write_all_at(&section, at)?;
    }
    file.set_len(end + 2 * SYMBOLS * 24)?;
    Ok(())
}

/// A process of another user that has the honest guest's name: the guest stays reachable by it.
pub fn same_name(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let program = programs.compile("qemu-system-x86_64", SLEEPER, &[])?;
    let hostile = Hostile::start(&program, &["-machine", "q35", "-name", stage.guest.name()])?;
    let named = hostile.pid().to_string();
    hostile.wait_until("the program runs", |pid| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
    })?;
    let recording = stage.record(&["--duration", "0.5", "--agent", "off"])?;
    let ended = recording.wait(PATIENCE)?;
    let said = &ended.end.stderr;
    case.holds("exit code 0", ended.end.status.code() == Some(0), said);
    case.holds(
        "the other process is named",
        said.contains(&format!("chosen only by its pid: pid:{named}")),
        said,
    );
    let pids: Vec<u32> = manifest(&ended.bundle)?
        .topology
        .guests
        .iter()
        .map(|guest| guest.pid)
        .collect();
    case.holds(
        "the honest guest is recorded",
        pids == [stage.guest.pid()],
        &format!("{pids:?}"),
    );
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// Starts a program that looks like QEMU and records it together with the guest's device: what was refused of its probes.
fn refused_probes(
    stage: &Stage<'_>,
    case: &mut Case,
    program: &Path,
) -> anyhow::Result<Vec<String>> {
    let hostile = Hostile::start(program, &["-machine", "q35", "-name", "hostile"])?;
    hostile.wait_until("the program runs", |pid| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
    })?;
    let bundle = stage.ctx.bundle("hostile-program");
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
        "0.3",
        "-o",
        bundle.to_str().context("name the bundle")?,
    ])?;
    case.holds("it is recorded", end.code == Some(0), &end.stderr);
    let manifest = manifest(&bundle)?;
    let attached = manifest
        .probes
        .iter()
        .filter(|probe| probe.source == "qemu")
        .count();
    case.equal("probes of QEMU that were attached", attached, 0);
    let refused = manifest
        .refused
        .iter()
        .filter(|probe| probe.source == "qemu");
    let reasons: Vec<String> = refused.map(|probe| probe.reason.clone()).collect();
    case.holds(
        "they are refused with a reason",
        !reasons.is_empty(),
        "none",
    );
    stage.ctx.discard(&bundle);
    Ok(reasons)
}

fn all_say(case: &mut Case, reasons: &[String], words: &str) {
    case.holds(
        &format!("each reason says: {words}"),
        reasons.iter().all(|reason| reason.contains(words)),
        &reasons.join("; "),
    );
    case.figure(format!("{} probes refused: {words}", reasons.len()));
}

/// The functions of QEMU that a program has to export to be taken for it.
const FUNCTIONS: &str = "#include <unistd.h>\n\
    int block_acct_start(int x) { return x + 1; }\n\
    int block_acct_done(int x) { return x + 2; }\n\
    int blk_aio_preadv(int x) { return x + 3; }\n\
    int qemu_init(int x) { return x + 4; }\n\
    int main(void) { for (;;) { block_acct_start(1); pause(); } }\n";

/// A program that gives whoever starts it another user's rights.
pub fn set_uid(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let program = programs.compile("qemu-system-x86_64", FUNCTIONS, &["-rdynamic"])?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    let reasons = refused_probes(stage, case, &program)?;
    all_say(case, &reasons, "set-uid");
    Ok(())
}

/// The same by capabilities of the file.
pub fn file_capabilities(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let program = programs.compile("qemu-system-x86_64", FUNCTIONS, &["-rdynamic"])?;
    // VFS_CAP_REVISION_2: CAP_NET_RAW permitted, little endian.
    let mut capability = [0u8; 20];
    capability[..4].copy_from_slice(&0x0200_0000_u32.to_le_bytes());
    capability[4..8].copy_from_slice(&(1_u32 << 13).to_le_bytes());
    let script =
        "import os,sys;os.setxattr(sys.argv[1],'security.capability',bytes.fromhex(sys.argv[2]))";
    let hex: String = capability
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let status = Command::new("python3")
        .args(["-c", script])
        .arg(&program)
        .arg(&hex)
        .status()
        .context("start python3")?;
    ensure!(status.success(), "give the program a capability");
    let reasons = refused_probes(stage, case, &program)?;
    all_say(case, &reasons, "file capabilities");
    Ok(())
}

/// Symbols that are called as QEMU's functions are, and lie in data: a breakpoint there would be a write.
pub fn symbols_of_data(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let source = FUNCTIONS
        .replace("int block_acct_start(int x) { return x + 1; }\n", "")
        .replace("block_acct_start(1); ", "")
        + "__asm__(\".data\\n.globl block_acct_start\\n.type block_acct_start,@function\\n\
            block_acct_start: .quad 0x1122334455667788\\n.text\\n\");\n";
    let program = programs.compile("qemu-system-x86_64", &source, &["-rdynamic"])?;
    let hostile = Hostile::start(&program, &["-machine", "q35"])?;
    let end = stage.nestrace(&["doctor", "--json"])?;
    let doctor: serde_json::Value = serde_json::from_str(&end.stdout).context("read JSON")?;
    let pid = hostile.pid();
    let found = doctor["qemu"]
        .as_array()
        .and_then(|all| all.iter().find(|qemu| qemu["pid"] == pid))
        .with_context(|| format!("find process {pid} in {doctor}"))?;
    let targets = |key: &str| -> Vec<String> {
        let probes = found["probes"][key].as_array().cloned().unwrap_or_default();
        probes
            .iter()
            .map(|probe| probe["target"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let (attach, refused) = (targets("attach"), targets("refused"));
    case.holds(
        "the symbol in data is not probed",
        refused.iter().any(|target| target == "block_acct_start"),
        &attach.join(" "),
    );
    case.holds(
        "the function beside it is",
        attach.iter().any(|target| target == "block_acct_done"),
        &refused.join(" "),
    );
    Ok(())
}

const LONG_ARGUMENTS: &str = r#"
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv) {
    unsigned long n = strtoul(argv[1], 0, 0) << 20;
    char *p = mmap(0, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return 1;
    FILE *f = fopen("/proc/self/stat", "r");
    char line[4096];
    fgets(line, sizeof line, f);
    fclose(f);
    char *s = strrchr(line, ')') + 2;
    unsigned long v[64] = {0};
    int i = 3;
    for (char *t = strtok(s, " "); t && i < 60; t = strtok(0, " "), i++) v[i] = strtoul(t, 0, 10);
    struct prctl_mm_map m;
    memset(&m, 0, sizeof m);
    m.start_code = v[26]; m.end_code = v[27]; m.start_stack = v[28];
    m.start_data = v[45]; m.end_data = v[46]; m.start_brk = v[47]; m.brk = (unsigned long)sbrk(0);
    m.env_start = v[50]; m.env_end = v[51];
    m.arg_start = (unsigned long)p; m.arg_end = (unsigned long)p + n;
    m.exe_fd = -1;
    if (prctl(PR_SET_MM, PR_SET_MM_MAP, &m, sizeof m, 0)) return 2;
    for (;;) pause();
}
"#;
