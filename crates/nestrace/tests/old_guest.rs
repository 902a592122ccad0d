//! Guests whose kernels have no BTF: what the agent's blktrace backend recorded there is followed to the host as a whole.
//!
//! Linux 4.4 hides its flush requests from a blktrace that does not ask for them; 3.2 shows them, but not their ends.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn analysis(recording: &str) -> Value {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/guests");
    let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(["analyze", "--format", "json"])
        .arg(fixtures.join(recording))
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Bios, those that are flushes without data, and QEMU's flushes; reads and writes are checked against QEMU.
fn check_disk(analysis: &Value, name: &str, bios: u64, empty_flushes: u64, flushes: u64) {
    let of_disk = |list: &str| {
        let disks = analysis[list].as_array().expect(list);
        let disk = disks.iter().find(|disk| disk["disk"] == name);
        disk.unwrap_or_else(|| panic!("no {name} in {list}"))
    };
    let (chains, qemu) = (of_disk("chains"), of_disk("qemu"));
    assert_eq!(chains["guest_bios"], bios);
    assert_eq!(chains["linked"], bios, "{name}: {}", chains["unlinked"]);
    assert_eq!(chains["latency_ns"]["flush"]["n"], empty_flushes);
    assert_eq!(qemu["flushes"], flushes);
    let served = ["reads", "writes", "flushes", "discards"].map(|kind| qemu[kind].as_u64());
    let served: Option<u64> = served.into_iter().sum();
    assert_eq!(chains["guest_requests"].as_u64(), served, "{name}");
}

/// How many bios of a disk waited for the device's cache, where that was a journal's commit and not the guest's queue.
fn flushed(analysis: &Value, name: &str) -> Option<u64> {
    let chains = analysis["chains"].as_array().expect("chains");
    let chains = chains.iter().find(|chains| chains["disk"] == name)?;
    let segments = chains["segments"].as_array().expect("segments");
    let part = segments.iter().find(|part| part["name"] == "device_flush");
    part?["n"].as_u64()
}

fn check_clock(analysis: &Value) {
    let clock = &analysis["clocks"][0];
    assert_eq!(
        (&clock["violations"], &clock["rejected"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn linux_4_4_is_followed_its_flushes_too() {
    let analysis = analysis("linux-4.4.nest");
    check_disk(&analysis, "d0", 651, 4, 236);
    assert!(flushed(&analysis, "d0") >= Some(100));
    check_clock(&analysis);
}

#[test]
fn linux_3_2_is_followed_though_it_tells_no_end_of_a_flush() {
    let analysis = analysis("linux-3.2.nest");
    check_disk(&analysis, "virtio0", 519, 73, 169);
    check_disk(&analysis, "virtio1", 154, 0, 0);
    check_disk(&analysis, "ide0-hd0", 116, 11, 13);
    assert!(flushed(&analysis, "virtio0") >= Some(40));
    check_clock(&analysis);
    // The single-queue block layer knows no `none`.
    assert!(analysis.to_string().contains("echo noop > "));
    assert!(!analysis.to_string().contains("echo none > "));
}
