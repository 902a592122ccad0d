//! Captures of `blktrace -a issue -a complete`: every request's time at the device, and who issued it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ISSUE: u32 = 7 | (1 << 6 | 1 << 8 | 1) << 16;
const COMPLETE: u32 = 8 | (1 << 7 | 1 << 8 | 1) << 16;
const QUEUE: u32 = 1 | (1 << 4 | 1 << 8 | 1) << 16;
const PROCESS: u32 = 1 << 26;

/// One record of version 7: number, time, action, sector, thread.
fn record(number: u32, time_ns: u64, action: u32, sector: u64, tid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&0x6561_7407_u32.to_ne_bytes());
    bytes.extend_from_slice(&number.to_ne_bytes());
    bytes.extend_from_slice(&time_ns.to_ne_bytes());
    bytes.extend_from_slice(&sector.to_ne_bytes());
    for field in [4096, action, tid, 8 << 20, 0] {
        bytes.extend_from_slice(&u32::to_ne_bytes(field));
    }
    let payload_len: u16 = if action == PROCESS { 16 } else { 0 };
    bytes.extend_from_slice(&0_u16.to_ne_bytes());
    bytes.extend_from_slice(&payload_len.to_ne_bytes());
    bytes
}

/// A capture of one processor whose thread 100 is `app`.
fn capture(folder: &Path, name: &str, rows: &[(u64, u32, u64, u32)]) -> String {
    let mut bytes = record(0, 0, PROCESS, 0, 100);
    bytes.extend_from_slice(b"app\0\0\0\0\0\0\0\0\0\0\0\0\0");
    for (number, (time_ns, action, sector, tid)) in (1..).zip(rows) {
        bytes.extend(record(number, *time_ns, *action, *sector, *tid));
    }
    std::fs::write(folder.join(format!("{name}.blktrace.0")), bytes).unwrap();
    folder.join(name).display().to_string()
}

/// So many reads of 0.3 ms, one each millisecond; the first ones without their Q.
fn reads(n: u64, n_without_queue: u64) -> Vec<(u64, u32, u64, u32)> {
    let mut rows = Vec::new();
    for index in 0..n {
        let (issued_ns, sector) = (1_000_000_000 + index * 1_000_000, index * 800);
        if index >= n_without_queue {
            rows.push((issued_ns - 10_000, QUEUE, sector, 100));
        }
        rows.push((issued_ns, ISSUE, sector, 100));
        rows.push((issued_ns + 300_000, COMPLETE, sector, 0));
    }
    rows
}

#[test]
fn requests_without_bios_have_their_time_at_the_device_and_their_process() {
    let folder = tempfile::tempdir().unwrap();
    for (name, n, n_without_queue) in [("alone", 50, 50), ("in-flight", 20, 1)] {
        let input = capture(folder.path(), name, &reads(n, n_without_queue));
        let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
            .args(["analyze", &input, "--format", "json"])
            .output()
            .unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let device = &json["devices"][0];
        let d2c = &device["latency_ns"]["d2c"];
        assert_eq!(d2c["n"], n, "{name}");
        assert_eq!(d2c["mean"].as_f64(), Some(300_000.0), "{name}");
        let users = device["users"].as_array().unwrap();
        assert_eq!(users.len(), 1, "{name}: {users:?}");
        assert_eq!(
            (&users[0]["name"], &users[0]["requests"]),
            (&"app".into(), &n.into())
        );
    }
}
