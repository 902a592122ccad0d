//! The examples say of a recording what nestrace says of it: they are run as cargo builds them for tests
//! (with `cargo test`; not with `--test examples` alone).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// 4 KiB reads of one at a time; every one of them is followed.
const LONE_READS: &str = "lone-reads.nest";

fn bundle(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/findings");
    fixtures.join(name)
}

fn run(example: &str, args: &[&str]) -> Output {
    run_on(LONE_READS, example, args)
}

fn run_on(name: &str, example: &str, args: &[&str]) -> Output {
    let test = std::env::current_exe().expect("the test's own path");
    let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/NAME");
    let program = folder.join("examples").join(example);
    let run = Command::new(&program).arg(bundle(name)).args(args).output();
    run.unwrap_or_else(|error| {
        panic!(
            "{}: {error}; `cargo test -p nestrace-bundle` builds it",
            program.display()
        )
    })
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// The line that begins like this.
fn line_of(output: &Output, begin: &str) -> String {
    let lines = lines(output);
    let line = lines.iter().find(|line| line.trim().starts_with(begin));
    line.map_or_else(String::new, |line| line.trim().to_owned())
}

/// The words of the line that begins like this.
fn words<'a>(lines: &'a [String], begin: &str) -> Vec<&'a str> {
    let line = lines.iter().find(|line| line.trim().starts_with(begin));
    let line = line.unwrap_or_else(|| panic!("no {begin} in {lines:#?}"));
    line.split_whitespace().collect()
}

#[test]
fn latency_of_one_disk_tells_the_halves_of_q2c() {
    let lines = lines(&run("latency_of_one_disk", &["vdb"]));
    assert_eq!(lines[0], "vdb (guest):");
    let figures = |begin: &str| {
        let words = words(&lines, begin);
        let from = words.iter().position(|word| *word == "600").expect(begin);
        words[from..].join(" ")
    };
    assert_eq!(
        figures("all    in the queue"),
        "600 I/Os median 17.9 µs 99 % 97.3 µs at most 1.65 ms"
    );
    assert_eq!(
        figures("read   at the device"),
        "600 I/Os median 225 µs 99 % 2.08 ms at most 3.73 ms"
    );
    assert_eq!(
        figures("all    in all"),
        "600 I/Os median 244 µs 99 % 2.29 ms at most 3.75 ms"
    );
    // A wait for a free tag is neither I2D nor G2D, and nearly all of the time here.
    let few_tags = run_on("few-tags.nest", "latency_of_one_disk", &["loop17"]);
    assert_eq!(
        line_of(&few_tags, "all    a mean of"),
        "all    a mean of 251 ms = 219 ms until issued + 32.9 ms at the device"
    );
    assert!(
        !lines.iter().any(|line| line.contains("write")),
        "{lines:#?}"
    );
}

#[test]
fn slower_than_tells_each_one_and_why() {
    let lines = lines(&run("slower_than", &["3"]));
    assert_eq!(
        lines,
        [
            "vm1 vdb bio 247: read of 4.00 KiB took 3.75 ms, 3.14 ms of it virt_complete",
            "vm1 vdb bio 371: read of 4.00 KiB took 3.10 ms, 2.51 ms of it qemu_complete",
            "2 of 600 took longer",
        ]
    );
}

#[test]
fn custom_finding_tells_the_disk_that_breaks_the_promise() {
    let broken = lines(&run("custom_finding", &["2"]));
    assert_eq!(
        broken,
        [
            "vm1 vdb: 99 % within 2.29 ms, promised 2.00 ms; 29 % of the time is virt_complete",
            "  latency-overhead: 91 % of the latency is spent above the device",
            "  virtualization-share: 53 % of the latency is the way into and out of the VM",
        ]
    );
    assert!(lines(&run("custom_finding", &["3"])).is_empty());
}

#[test]
fn json_tells_all() {
    let said = lines(&run("json", &[])).concat();
    assert!(
        said.starts_with("{\"schema\":\"nestrace-analysis/1\""),
        "{said}"
    );
}

#[test]
fn what_is_not_there_is_an_error() {
    let no_disk = run("latency_of_one_disk", &["vdz"]);
    let said = String::from_utf8_lossy(&no_disk.stderr);
    assert!(
        !no_disk.status.success()
            && said.contains("lone-reads.nest: no device vdz\nhint: the recording has: "),
        "{said}"
    );
    for example in ["slower_than", "custom_finding"] {
        let no_number = run(example, &["soon"]);
        assert!(!no_number.status.success() && no_number.stdout.is_empty());
    }
}
