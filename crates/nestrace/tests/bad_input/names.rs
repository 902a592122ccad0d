//! Names that a terminal would obey, wherever a recording has one.

use std::fs;
use std::path::{Path, PathBuf};

use nestrace_trace::is_printable;
use nestrace_trace::manifest::{GuestSide, Notice};

use crate::limited::nestrace;
use crate::recording::{BATCHES, HOST_DEV, batch, bundle, manifest, write_stream};

/// Names the window of a terminal; as a thread's name it takes no privilege.
const EVIL: &str = "\x1b]0;x\x07";
/// What is shown of it.
const SHOWN: &str = "\u{fffd}]0;x\u{fffd}";

/// A recording full of such names, with a guest's stream that is cut and one that is missing.
fn hostile(folder: &Path) -> PathBuf {
    let path = bundle(folder, "hostile");
    let evil_thread = |number| {
        let mut events = batch(number, HOST_DEV);
        events[0].related = u64::from_le_bytes(*b"\x1b]0;x\x07\0\0");
        events
    };
    write_stream(&path, "host.arrows", (0..BATCHES).map(evil_thread));
    let stream = path.join("guest-vm1.arrows");
    let mut bytes = fs::read(&stream).expect("the stream");
    bytes.truncate(bytes.len() * 2 / 3);
    fs::write(&stream, bytes).expect("the stream");
    let mut manifest = manifest();
    manifest.host.kernel += EVIL;
    let topology = &mut manifest.topology;
    topology.guests[0].name += EVIL;
    topology.guests[0].disks[0].name += EVIL;
    topology.devices[0].name += EVIL;
    manifest.streams[0].kernel += EVIL;
    manifest.guest_sides[0].guest += EVIL;
    manifest.guest_sides[0].disks[0].name += EVIL;
    manifest.guest_sides.push(GuestSide {
        guest: EVIL.to_owned(),
        file: "guest-gone.arrows".to_owned(),
        ..GuestSide::default()
    });
    manifest.notices.push(Notice {
        message: EVIL.to_owned(),
        ..Notice::default()
    });
    fs::write(path.join("manifest.json"), manifest.to_json()).expect("manifest");
    path
}

#[test]
fn no_name_writes_on_the_terminal() {
    let folder = tempfile::tempdir().expect("folder");
    let input = hostile(folder.path()).display().to_string();
    let out = |name: &str| folder.path().join(name).display().to_string();
    for (words, in_stdout, in_stderr) in [
        (
            &["analyze", &input][..],
            &[SHOWN][..],
            &[
                &format!("from inside vm1{SHOWN}: ")[..],
                &format!("nothing was read from inside {SHOWN}"),
            ][..],
        ),
        (&["analyze", &input, "--slowest", "1"], &[], &[SHOWN]),
        (&["analyze", &input, "--device", "x"], &[], &[SHOWN]),
        (
            &["analyze", &input, "--format", "btt"],
            &[SHOWN, &format!("# guest vm1{SHOWN} #")],
            &[SHOWN],
        ),
        (&["compare", &input, &input], &[SHOWN], &[SHOWN]),
        (
            &["export", "--format", "csv", &input, "-o", &out("table")],
            &[],
            &[SHOWN],
        ),
        (&["repair", &input, "-o", &out("r.nest")], &[], &[]),
    ] {
        let outcome = nestrace(words);
        outcome.check();
        for (text, expected) in [(&outcome.stdout, in_stdout), (&outcome.stderr, in_stderr)] {
            assert!(
                text.chars().all(|c| c == '\n' || is_printable(c)),
                "{outcome:#?}"
            );
            for expected in expected {
                assert!(text.contains(expected), "{expected}: {outcome:#?}");
            }
        }
    }
}
