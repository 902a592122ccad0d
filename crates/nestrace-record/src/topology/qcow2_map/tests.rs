//! Against `qemu-img map`, and with damaged images.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::*;

/// Runs a program of qemu-utils, which the tests of this crate need.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} (package qemu-utils): {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn map_of(path: &Path) -> Mapped {
    let file = File::open(path).unwrap();
    read(|at, into| file.read_exact_at(into, at), MAX_EXTENTS).unwrap()
}

/// What `qemu-img map` says of the top image: guest offset, bytes, file offset.
fn qemu_map(path: &Path) -> Vec<Extent> {
    let json = run(
        "qemu-img",
        &["map", "--output=json", path.to_str().unwrap()],
    );
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let mut extents: Vec<Extent> = Vec::new();
    for row in rows.iter().filter(|row| row["depth"] == 0) {
        let Some(file_offset) = row["offset"].as_u64() else {
            continue;
        };
        let extent = Extent {
            guest_offset: row["start"].as_u64().unwrap(),
            bytes: row["length"].as_u64().unwrap(),
            file_offset,
        };
        match extents.last_mut() {
            // qemu-img cuts where "zero" changes.
            Some(last)
                if last.guest_offset + last.bytes == extent.guest_offset
                    && last.file_offset + last.bytes == extent.file_offset =>
            {
                last.bytes += extent.bytes;
            }
            _ => extents.push(extent),
        }
    }
    extents
}

/// An image after these commands of qemu-io.
fn image(dir: &Path, options: &str, size: &str, commands: &[&str]) -> std::path::PathBuf {
    let path = dir.join("a.qcow2");
    let mut create = vec!["create", "-q", "-f", "qcow2"];
    if !options.is_empty() {
        create.extend(["-o", options]);
    }
    create.extend([path.to_str().unwrap(), size]);
    run("qemu-img", &create);
    let mut arguments = vec!["-f", "qcow2"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(path.to_str().unwrap());
    run("qemu-io", &arguments);
    path
}

const SCATTERED: &[&str] = &[
    "write 10M 64k",
    "write 0 128k",
    "write 640k 4k",
    "write 9M 300k",
    "write 520M 1M",
    "write -z 64k 64k",
    "discard 9M 64k",
    "write 63999k 1k",
];

#[test]
fn it_is_what_qemu_img_says() {
    for options in [
        "",
        "cluster_size=4k",
        "cluster_size=2M",
        "compat=0.10",
        "extended_l2=on,cluster_size=128k",
        "lazy_refcounts=on",
    ] {
        let dir = tempfile::tempdir().unwrap();
        // Writes of zeroes that keep their cluster do not exist before version 3.
        let path = image(dir.path(), options, "1000000k", SCATTERED);
        let ours = map_of(&path);
        assert_eq!(ours.map.partial, None);
        assert_eq!(ours.map.virtual_size, 1_000_000 << 10);
        let expected = qemu_map(&path);
        assert!(expected.len() >= 3, "{expected:?}");
        if options.contains("extended_l2") {
            // qemu-img shows subclusters; the cluster around each has the same place.
            for extent in expected {
                let around = ours.map.extents.iter().any(|e| {
                    e.guest_offset <= extent.guest_offset
                        && extent.guest_offset + extent.bytes <= e.guest_offset + e.bytes
                        && extent.guest_offset - e.guest_offset
                            == extent.file_offset - e.file_offset
                });
                assert!(around, "{extent:?} in {:?}", ours.map.extents);
            }
        } else {
            assert_eq!(ours.map.extents, expected, "{options}");
        }
    }
}

#[test]
fn many_random_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut commands: Vec<String> = Vec::new();
    let mut place: u64 = 7;
    for _ in 0..300 {
        place = place
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        commands.push(format!(
            "write {} 4k",
            (place >> 33) % (3 << 30) / 4096 * 4096
        ));
    }
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let path = image(dir.path(), "cluster_size=8k", "3G", &commands);
    let map = map_of(&path).map;
    assert!(map.extents.len() > 200);
    let file = File::open(&path).unwrap();
    let few = read(|at, into| file.read_exact_at(into, at), 10)
        .unwrap()
        .map;
    assert_eq!(few.extents, map.extents[..10]);
    assert_eq!(few.partial.as_deref(), Some("it has more than 10 extents"));
    assert_eq!(map.extents, qemu_map(&path));
}

#[test]
fn an_external_data_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = format!("data_file={}", dir.path().join("d.raw").display());
    let path = image(dir.path(), &data, "64M", &["write 0 64k", "write 1M 192k"]);
    let ours = map_of(&path);
    assert!(ours.data_file);
    assert_eq!(ours.map.extents, qemu_map(&path));
    assert_eq!(ours.map.extents.first().map(|e| e.file_offset), Some(0));
}

#[test]
fn compressed_clusters_lie_where_their_bytes_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(
        dir.path(),
        "",
        "64M",
        &[
            "write -c -P 0x41 0 64k",
            "write -c -P 0x42 1M 64k",
            "write 2M 64k",
        ],
    );
    let map = map_of(&path).map;
    assert_eq!(map.extents.len(), 1);
    let size = fs::metadata(&path).unwrap().len();
    let clusters = [(0, 0x41), (1 << 20, 0x42)];
    assert_eq!(map.compressed.len(), clusters.len());
    for (cluster, (guest_offset, byte)) in map.compressed.iter().zip(clusters) {
        assert_eq!(cluster.guest_offset, guest_offset);
        assert!(cluster.file_bytes < 1024, "{cluster:?}");
        assert_eq!(read_back(&path, guest_offset), Some(byte));
        assert!(cluster.file_offset + cluster.file_bytes <= size.next_multiple_of(512));
        // With its first bytes gone, this cluster cannot be read any more. The next one is in the same sector.
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 8], cluster.file_offset).unwrap();
        assert_eq!(read_back(&path, guest_offset), None);
        assert_eq!(read_back(&path, 2 << 20), Some(0xcd));
    }
}

/// The byte that qemu-io reads there; `None` where it cannot.
fn read_back(path: &Path, at: u64) -> Option<u8> {
    let command = format!("read -v {at} 512");
    let output = Command::new("qemu-io")
        .args(["-f", "qcow2", "-c", &command])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.lines().next()?.split_whitespace().nth(1)?;
    u8::from_str_radix(word, 16).ok()
}

/// An image in memory; reading past its end fails as it does for a file.
fn read_bytes(bytes: &[u8]) -> Result<Mapped, MapError> {
    let read_at = |at: u64, into: &mut [u8]| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let from = bytes.get(at..at.saturating_add(into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    read(read_at, MAX_EXTENTS)
}

#[test]
fn damage_makes_it_partial_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(
        dir.path(),
        "cluster_size=4k",
        "64M",
        &["write 0 64k", "write 32M 64k"],
    );
    let whole = fs::read(&path).unwrap();
    assert!(matches!(read_bytes(&[]), Err(MapError::Read(_))));
    assert!(matches!(read_bytes(&[0; 4096]), Err(MapError::NotQcow2)));
    for cut in (HEADER..whole.len()).step_by(509) {
        let map = read_bytes(&whole[..cut]).unwrap().map;
        assert!(map.extents.len() <= 2);
    }
    let mut huge = whole.clone();
    huge[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(
        read_bytes(&huge),
        Err(MapError::Invalid {
            field: "l1 size",
            ..
        })
    ));
    for at in 0..HEADER {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let _ = read_bytes(&bytes);
        }
    }
}

#[test]
fn one_table_named_a_million_times_ends() {
    // Every L1 entry names the same L2 table, full of clusters that touch nothing.
    let mut bytes = vec![0; (4 << 20) + (64 << 10)];
    bytes[..4].copy_from_slice(b"QFI\xfb");
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    bytes[20..24].copy_from_slice(&16u32.to_be_bytes());
    bytes[24..32].copy_from_slice(&(1u64 << 62).to_be_bytes());
    bytes[36..40].copy_from_slice(&(500_000u32).to_be_bytes());
    bytes[40..48].copy_from_slice(&(65536u64).to_be_bytes());
    for entry in bytes[65536..].chunks_exact_mut(8) {
        entry.copy_from_slice(&(COPIED | 65536).to_be_bytes());
    }
    let map = read_bytes(&bytes).unwrap().map;
    assert!(map.partial.is_some() && map.extents.len() <= MAX_EXTENTS);
}

/// Whatever `qemu-img check` counts beside the allocated clusters is a table, and no table lies where data does.
#[test]
fn tables_are_what_is_left_beside_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let commands = [
        "write -P 1 0 3M",
        "write -P 2 700M 64k",
        "write -P 3 40M 128k",
    ];
    let path = image(folder.path(), "cluster_size=64k", "1G", &commands);
    run(
        "qemu-img",
        &["snapshot", "-c", "one", path.to_str().unwrap()],
    );
    let map = map_of(&path).map;
    let tables = map.tables.unwrap();
    let check = run(
        "qemu-img",
        &["check", "--output=json", path.to_str().unwrap()],
    );
    let check: serde_json::Value = serde_json::from_str(&check).unwrap();
    let end = check["image-end-offset"].as_u64().unwrap();
    let data: u64 = map.extents.iter().map(|extent| extent.bytes).sum();
    let n_tables: u64 = tables.iter().map(|range| range.bytes).sum();
    // What belongs to the snapshot alone (its own L1 and L2 tables) is left out.
    assert!(data + n_tables <= end, "{data} {n_tables} {end}");
    assert!(
        end - data - n_tables <= 8 * 65_536,
        "{data} {n_tables} {end}"
    );
    for table in &tables {
        let overlaps = map.extents.iter().any(|extent| {
            extent.file_offset < table.file_offset + table.bytes
                && table.file_offset < extent.file_offset + extent.bytes
        });
        assert!(!overlaps, "{table:?}");
    }
    assert_eq!(tables.first().unwrap().file_offset, 0, "the header");
}
