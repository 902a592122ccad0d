//! A guest whose kernel has no BTF and hides its flush requests from a blktrace that does not ask for them (Linux 4.4):
//! what the agent's blktrace backend recorded there is followed to the host as a whole.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn every_request_is_followed_flushes_too() {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/guests/linux-4.4.nest");
    let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(["analyze", "--format", "json"])
        .arg(&bundle)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let analysis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let [chains] = analysis["chains"].as_array().expect("chains").as_slice() else {
        panic!("one disk: {}", analysis["chains"]);
    };
    assert_eq!(chains["guest_bios"], 651);
    assert_eq!(chains["linked"], 651, "{}", chains["unlinked"]);
    assert_eq!(chains["latency_ns"]["flush"]["n"], 4);
    let qemu = &analysis["qemu"][0];
    assert_eq!(qemu["flushes"], 236);
    let served = ["reads", "writes", "flushes", "discards"].map(|kind| qemu[kind].as_u64());
    let served: Option<u64> = served.into_iter().sum();
    assert_eq!(chains["guest_requests"].as_u64(), served);
    // What a journal's commit waits for the device's cache is the device's, not the guest's queue.
    let segments = chains["segments"].as_array().expect("segments");
    let flushed = segments.iter().find(|part| part["name"] == "device_flush");
    assert!(flushed.is_some_and(|part| part["n"].as_u64() >= Some(100)));
    let clock = &analysis["clocks"][0];
    assert_eq!(
        (&clock["violations"], &clock["rejected"]),
        (&0.into(), &0.into())
    );
}
