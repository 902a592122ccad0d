//! `nestrace export` to tables, fio's logs and Perfetto's traces, as a user runs it. Others read them in
//! `cargo xtask test --only replay`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nestrace_trace::manifest::{Disk, Guest, GuestDisk, GuestFile, GuestMount, GuestSide, State};
use nestrace_trace::{Event, Kind, Manifest, StreamWriter};
use serde_json::Value;

const CAPTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/blktrace/ext4-mail-none-scsi/gt"
);

fn nestrace(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(words)
        .output()
        .expect("nestrace starts")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name")
}

/// Runs to a good end; its messages.
fn good(words: &[&str]) -> String {
    let output = nestrace(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {stderr}");
    stderr
}

/// The words of an export of `bundle` to `out`.
fn export<'a>(format: &'a str, bundle: &'a Path, out: &'a Path) -> [&'a str; 6] {
    ["export", "--format", format, text(bundle), "-o", text(out)]
}

fn fails(words: &[&str]) -> (Option<i32>, String) {
    let output = nestrace(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), stderr)
}

/// A guest's own capture as a bundle: 3,771 bios of one disk.
fn bundle(folder: &Path) -> PathBuf {
    let bundle = folder.join("gt.nest");
    good(&["import", "blktrace", CAPTURE, "-o", text(&bundle)]);
    bundle
}

fn disk(bundle: &Path) -> Value {
    let output = nestrace(&["analyze", "--format", "json", text(bundle)]);
    let analysis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let devices = analysis["devices"].as_array().expect("devices");
    devices[0].clone()
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Rows of a table that needs no quotes, by the names of its columns.
fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).expect("a table");
    assert!(!text.contains('"'));
    let mut lines = text.split("\r\n");
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let lines = lines.filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), header.len(), "{line}");
            let fields = fields.iter().map(|field| (*field).to_owned());
            header
                .iter()
                .map(|name| (*name).to_owned())
                .zip(fields)
                .collect()
        })
        .collect()
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a BTreeMap<String, String>>, column: &str) -> u64 {
    let fields = rows.into_iter().map(|row| &row[column]);
    fields.map(|field| field.parse().unwrap_or(0)).sum()
}

#[test]
fn tables_have_the_sums_of_the_analysis() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = bundle(folder.path());
    let disk = disk(&bundle);
    let out = folder.path().join("out.csv");
    good(&export("csv", &bundle, &out));
    let requests = rows(&folder.path().join("out.requests.csv"));
    let data: Vec<_> = requests
        .iter()
        .filter(|row| !["flush", "other"].contains(&row["op"].as_str()))
        .collect();
    let ended = data.iter().filter(|row| !row["completed_ns"].is_empty());
    assert_eq!(disk["counts"]["completed"], ended.count());
    for op in ["read", "write", "discard"] {
        let of_op = requests.iter().filter(|row| row["op"] == op);
        assert_eq!(disk["bytes"][op], sum(of_op, "moved_bytes"), "{op}");
    }
    assert!(
        requests
            .iter()
            .all(|row| row["side"] == "guest" && row["dev"] == "8:0")
    );
    // Nothing of the host was recorded: no bio was followed, and each says why.
    let chains = rows(&folder.path().join("out.chains.csv"));
    assert_eq!(disk["latency_ns"]["q2c"]["n"], 3771);
    let bios: Vec<_> = chains.iter().filter(|row| row["op"] != "flush").collect();
    assert_eq!(bios.len(), 3771);
    // A chain ends when the file system gets the completion: after the flush that FUA makes, which the device's q2c
    // does not include.
    let q2c = disk["latency_ns"]["q2c"]["sum"].as_u64().expect("a sum");
    assert!((q2c..2 * q2c).contains(&sum(bios, "q2c_ns")));
    let unlinked = |row: &BTreeMap<String, String>| !row["unlinked"].is_empty();
    assert!(
        chains
            .iter()
            .all(|row| unlinked(row) && row["device_ns"].is_empty())
    );
}

#[test]
fn a_log_for_fio_has_every_request_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = bundle(folder.path());
    let disk = disk(&bundle);
    let out = folder.path().join("out");
    good(&[&export("fio", &bundle, &out)[..], &["--guest", "guest"]].concat());
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = disk["name"].as_str().expect("a name");
    let name = format!("out.{}.iolog", name.replace(|c| !plain(c), "-"));
    let log = fs::read_to_string(folder.path().join(name)).expect("a log");
    let mut lines = log.lines();
    assert_eq!(lines.next(), Some("fio version 3 iolog"));
    let (mut n, mut bytes, mut last_us) = (0, BTreeMap::new(), 0);
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let at_us: u64 = words[0].parse().expect("a time");
        assert!(at_us >= last_us, "{line}");
        last_us = at_us;
        assert!(!words[1].contains('/'), "{line}");
        if let [_, _, op, _, length] = words[..] {
            n += u64::from(op != "sync");
            *bytes.entry(op.to_owned()).or_insert(0) += length.parse::<u64>().expect("a size");
        }
    }
    let (issued, requeues) = (&disk["counts"]["issued"], &disk["counts"]["requeues"]);
    let once = issued.as_u64().expect("a count") - requeues.as_u64().unwrap_or(0);
    assert_eq!(n, once);
    assert_eq!(disk["bytes"]["write"], bytes["write"]);
    assert_eq!(
        disk["bytes"]["read"],
        bytes.get("read").copied().unwrap_or(0)
    );
}

/// The packets of a trace: field 1, one after the other, to the last byte.
fn packets(mut bytes: &[u8]) -> usize {
    let mut n = 0;
    while let Some((&tag, rest)) = bytes.split_first() {
        assert_eq!(tag, 0x0a, "packet {n}");
        let (mut length, mut used) = (0, 0);
        for byte in rest {
            length |= usize::from(byte & 0x7f) << (7 * used);
            used += 1;
            if byte & 0x80 == 0 {
                break;
            }
        }
        bytes = rest.get(used + length..).expect("a whole packet");
        n += 1;
    }
    n
}

#[test]
fn a_trace_has_every_bio() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = bundle(folder.path());
    let out = folder.path().join("out.pftrace");
    let said = good(&export("perfetto", &bundle, &out));
    let bytes = fs::read(&out).expect("a trace");
    // A begin and an end for each bio and each request.
    assert!(packets(&bytes) > 2 * 3771);
    let drawn = said.lines().find(|line| line.contains("bios of guests"));
    let drawn = drawn
        .and_then(|line| line.split(": ").nth(1))
        .expect("a count");
    let n: String = drawn
        .chars()
        .take_while(|c| *c != ' ')
        .filter(char::is_ascii_digit)
        .collect();
    assert!(n.parse::<u64>().expect("a number") >= 3771, "{said}");
}

/// What was made, names of files included, as text.
fn contents(folder: &Path) -> String {
    let mut all = String::new();
    for name in files(folder) {
        let path = folder.join(&name);
        all += &name;
        match path.is_dir() {
            true => all += &contents(&path),
            false => all += &String::from_utf8_lossy(&fs::read(&path).expect("it was made")),
        }
    }
    all
}

#[test]
fn names_are_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("payroll-disk");
    for cpu in [0, 1] {
        let file = format!("{}.blktrace.{cpu}", text(&capture));
        fs::copy(format!("{CAPTURE}.blktrace.{cpu}"), file).expect("a copy");
    }
    let bundle = folder.path().join("gt.nest");
    let import = ["import", "blktrace", text(&capture), "-o", text(&bundle)];
    good(&[&import[..], &["--guest", "payroll-vm"]].concat());
    let chosen = ["--guest", "payroll-vm", "--device", "payroll-disk"];
    // What each format holds of names: of processes, of the guest, of the disk.
    for (format, chosen, held) in [
        (
            "csv",
            &chosen[..],
            &["jbd2", "payroll-vm", "payroll-disk"][..],
        ),
        ("perfetto", &chosen, &["payroll-vm", "payroll-disk"]),
        ("fio", &chosen, &["payroll-disk"]),
        ("blktrace", &chosen, &["jbd2"]),
        ("parquet", &[], &["payroll-vm", "payroll-disk"]),
    ] {
        let made = |redact: &[&str]| {
            let of = tempfile::tempdir().expect("a folder");
            let out = of.path().join("out");
            let export = export(format, &bundle, &out);
            good(&[&export[..], chosen, redact].concat());
            contents(of.path())
        };
        let (plain, redacted) = (made(&[]), made(&["--redact"]));
        for name in held {
            assert!(plain.contains(name), "no {name} in {format}");
        }
        for name in ["jbd2", "kworker", "payroll"] {
            assert!(!redacted.contains(name), "{name} in {format}");
        }
    }
    let out = folder.path().join("repaired.nest");
    good(&["repair", "--redact", text(&bundle), "-o", text(&out)]);
    let redacted = contents(&out);
    assert!(!redacted.contains("payroll") && redacted.contains("8:0"));
}

#[test]
fn what_is_there_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = bundle(folder.path());
    for format in ["csv", "perfetto", "fio"] {
        let of = tempfile::tempdir().expect("a folder");
        let out = of.path().join("out");
        let export = export(format, &bundle, &out);
        let words = [&export[..], &["--guest", "guest"]].concat();
        good(&words);
        let (made, plain) = (files(of.path()), contents(of.path()));
        let (code, stderr) = fails(&words);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(
            stderr.contains("exists") && stderr.contains("--force"),
            "{stderr}"
        );
        assert_eq!(contents(of.path()), plain, "it stays");
        good(&[&words[..], &["--force"]].concat());
        assert_eq!(files(of.path()), made, "nothing is left beside");
    }
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = bundle(folder.path());
    let before = files(folder.path());
    for format in ["csv", "fio", "perfetto"] {
        let out = folder.path().join("out");
        let of = |more: &[&str]| fails(&[&export(format, &bundle, &out)[..], more].concat());
        for wanted in [["--device", "nvme9"], ["--guest", "nobody"]] {
            let (code, stderr) = of(&wanted);
            assert_eq!(code, Some(3), "{stderr}");
            let named = stderr.contains(wanted[1]) && stderr.contains("gt.nest");
            assert!(stderr.starts_with("nestrace: ") && named, "{stderr}");
        }
        let nowhere = folder.path().join("missing/out");
        let words = [
            &export(format, &bundle, &nowhere)[..],
            &["--guest", "guest"],
        ]
        .concat();
        let (code, stderr) = fails(&words);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("hint: mkdir -p"), "{stderr}");
        assert_eq!(files(folder.path()), before, "{format}");
    }
    // Of the host nothing was recorded.
    let out = folder.path().join("out");
    let (code, stderr) = fails(&export("fio", &bundle, &out));
    assert_eq!(code, Some(3), "{stderr}");
}

/// A host of so many processors, each with one request.
fn host_of_processors(folder: &Path, n: u16) -> PathBuf {
    let bundle = folder.join("host.nest");
    fs::create_dir(&bundle).expect("a folder");
    let new = |name: &str| fs::File::create(bundle.join(name)).expect("a file");
    let stream = StreamWriter::new(new("host.arrows"), new("host.arrows.idx"));
    let mut stream = stream.expect("a stream");
    for cpu in 0..n {
        let event = Event {
            ts_ns: 1000 + u64::from(cpu),
            kind: Kind::Issue as u8,
            cpu,
            dev: 8 << 20,
            object: 1 + u64::from(cpu),
            bytes: 4096,
            ..Event::default()
        };
        stream.push(&event).expect("there is room");
    }
    stream.finish().expect("there is room");
    let mut manifest = Manifest::default();
    manifest.state = State::Complete;

    fs::write(bundle.join("manifest.json"), manifest.to_json()).expect("there is room");
    bundle
}

#[test]
fn more_processors_than_open_files_are_exported_and_imported() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = host_of_processors(folder.path(), 300);
    let (out, back) = (folder.path().join("out"), folder.path().join("back.nest"));
    let limited = |limit: &str, words: &[&str]| {
        let output = Command::new("sh")
            .args(["-c", &format!("ulimit {limit} 128 && exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_nestrace"))
            .args(words)
            .output()
            .expect("sh starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let export = export("blktrace", &bundle, &out);
    let import = ["import", "blktrace", text(&out), "-o", text(&back)];
    let (code, stderr) = limited("-n", &export);
    assert!(stderr.contains("hint: ulimit -n "), "{stderr}");
    assert_eq!(
        (code, files(folder.path())),
        (Some(4), vec![String::from("host.nest")])
    );
    for words in [&export[..], &import] {
        let (code, stderr) = limited("-S -n", words);
        assert_eq!(code, Some(0), "{stderr}");
    }
    assert_eq!(files(folder.path()).len(), 302);
}

/// A bundle of a guest in which `payroll` reads 4 KiB of `/srv/ledger/salaries.db` so many times from the page cache, in
/// 3 µs each; the host does one request.
fn calls_of_a_guest(folder: &Path, n: u64) -> PathBuf {
    const READ: u8 = 1;
    let bundle = folder.join("calls.nest");
    fs::create_dir(&bundle).expect("a folder");
    let stream = |name: &str, events: Vec<Event>| {
        let new = |name: String| fs::File::create(bundle.join(name)).expect("a file");
        let stream = StreamWriter::new(new(name.to_owned()), new(format!("{name}.idx")));
        let mut stream = stream.expect("a stream");
        for event in &events {
            stream.push(event).expect("there is room");
        }
        stream.finish().expect("there is room");
    };
    let request = |ts_ns, kind: Kind| Event {
        ts_ns,
        kind: kind as u8,
        dev: 8 << 20,
        object: 1,
        bytes: 4096,
        ..Event::default()
    };
    stream(
        "host.arrows",
        vec![request(1_000, Kind::Issue), request(2_000, Kind::Complete)],
    );
    let call = |ts_ns, kind: Kind, offset| Event {
        ts_ns,
        kind: kind as u8,
        sub: READ,
        tid: 71,
        offset,
        bytes: 4096,
        inode: 12,
        owner_dev: 254 << 20,
        ..Event::default()
    };
    let mut events = vec![Event {
        ts_ns: 1,
        kind: Kind::Thread as u8,
        tid: 71,
        object: 70,
        related: u64::from_le_bytes(*b"payroll\0"),
        ..Event::default()
    }];
    for nth in 0..n {
        events.push(call(10_000 + nth * 5_000, Kind::SyscallEnter, nth * 4096));
        // What it returned.
        events.push(call(13_000 + nth * 5_000, Kind::SyscallExit, 4096));
    }
    stream("guest-vm1.arrows", events);
    let mut manifest = Manifest::default();
    manifest.state = State::Complete;
    manifest.topology.guests = vec![Guest {
        name: "payroll-vm".into(),
        disks: vec![Disk {
            name: "system".into(),
            ..Disk::default()
        }],
        ..Guest::default()
    }];
    manifest.guest_sides = vec![GuestSide {
        guest: "payroll-vm".into(),
        file: "guest-vm1.arrows".into(),
        backend: "ebpf".into(),
        disks: vec![GuestDisk {
            name: "vda".into(),
            dev: 254 << 20,
            ..GuestDisk::default()
        }],
        mounts: vec![GuestMount {
            disk: "vda".into(),
            dev: 254 << 20,
            fs_type: "ext4".into(),
            mount_point: "/srv/ledger".into(),
            ..GuestMount::default()
        }],
        files: vec![GuestFile {
            dev: 254 << 20,
            inode: 12,
            path: "/srv/ledger/salaries.db".into(),
        }],
        ..GuestSide::default()
    }];
    fs::write(bundle.join("manifest.json"), manifest.to_json()).expect("there is room");
    bundle
}

#[test]
fn each_call_is_a_row_and_a_slice() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = calls_of_a_guest(folder.path(), 40);
    let out = folder.path().join("out");
    good(&export("csv", &bundle, &out));
    let calls = rows(&folder.path().join("out.calls.csv"));
    assert_eq!((calls.len(), sum(&calls, "latency_ns")), (40, 40 * 3_000));
    assert_eq!(sum(&calls, "guest_fs_submit_ns"), 40 * 3_000);
    for (nth, row) in (0u64..).zip(&calls) {
        let expected = [
            ("side", "guest"),
            ("process", "payroll"),
            ("pid", "70"),
            ("tid", "71"),
            ("op", "read"),
            ("mount", "/srv/ledger"),
            ("inode", "12"),
            ("path", "/srv/ledger/salaries.db"),
            ("bytes", "4096"),
            ("result", "4096"),
            ("without_io", "1"),
            ("linked", "1"),
            ("bios", "0"),
            ("residual_ns", "0"),
        ];
        for (column, value) in expected {
            assert_eq!(row[column], value, "{column}");
        }
        assert_eq!(row["call"], (nth + 1).to_string());
        assert_eq!(row["offset"], (nth * 4096).to_string());
        assert_eq!(row["start_ns"], (10_000 + nth * 5_000).to_string());
    }
    let trace = folder.path().join("out.pftrace");
    let said = good(&export("perfetto", &bundle, &trace));
    assert!(said.contains("40 calls of their programs"), "{said}");
    let drawn = contents(folder.path());
    for word in [
        "payroll-vm programs",
        "payroll 71",
        "read 4.00 KiB salaries.db",
    ] {
        assert!(drawn.contains(word), "no {word}");
    }
    let set = folder.path().join("set");
    let said = good(&export("parquet", &bundle, &set));
    assert!(said.contains("40 calls"), "{said}");
    assert!(set.join("calls").is_dir());
    // Only what is asked for.
    for (words, left) in [
        (["--device", "vda"], 40),
        (["--device", "254:0"], 40),
        // QEMU's name of it.
        (["--device", "system"], 40),
        (["--guest", "payroll-vm"], 40),
        (["--device", "8:0"], 0),
    ] {
        let of = tempfile::tempdir().expect("a folder");
        let out = of.path().join("out");
        let words = [&export("perfetto", &bundle, &out)[..], &words].concat();
        let output = nestrace(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let found = said.contains(&format!("{left} calls of their programs"));
        assert!(found, "{words:?}: {said}");
    }
}

/// A recording that has none of a table replaces one that had it: the old table would be taken for its own.
#[test]
fn no_table_of_an_earlier_recording_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let table = |what: &str| folder.path().join(format!("out.{what}.csv"));
    let calls = calls_of_a_guest(folder.path(), 3);
    good(&export("csv", &calls, &out));
    assert!(table("calls").exists() && table("chains").exists());
    let forced = |bundle: &Path| good(&[&export("csv", bundle, &out)[..], &["--force"]].concat());
    // By blktrace: chains, no calls.
    let of_blktrace = tempfile::tempdir().expect("a folder");
    forced(&bundle(of_blktrace.path()));
    assert!(!table("calls").exists() && table("chains").exists());
    // Of the host alone.
    let alone = calls_of_a_guest(of_blktrace.path(), 1);
    let manifest = alone.join("manifest.json");
    let mut of_host: Value =
        serde_json::from_slice(&fs::read(&manifest).expect("a manifest")).expect("JSON");
    of_host["guest_sides"] = Value::Array(Vec::new());
    fs::write(&manifest, of_host.to_string()).expect("there is room");
    forced(&alone);
    assert!(table("requests").exists());
    assert!(!table("calls").exists() && !table("chains").exists());
}

#[test]
fn names_of_programs_and_files_are_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = calls_of_a_guest(folder.path(), 3);
    for format in ["csv", "perfetto", "parquet"] {
        let made = |redact: &[&str]| {
            let of = tempfile::tempdir().expect("a folder");
            let out = of.path().join("out");
            good(&[&export(format, &bundle, &out)[..], redact].concat());
            contents(of.path())
        };
        let (plain, redacted) = (made(&[]), made(&["--redact"]));
        for name in ["payroll", "ledger", "salaries"] {
            assert!(plain.contains(name), "no {name} in {format}");
            assert!(!redacted.contains(name), "{name} in {format}");
        }
        assert!(redacted.contains("task71"), "{format}");
    }
}
