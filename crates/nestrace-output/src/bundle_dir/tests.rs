use std::{fs, os::unix::fs::symlink};

use nestrace_trace::manifest::{ClockSample, Guest, GuestSide};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use super::*;

fn named(name: &str) -> Manifest {
    let mut manifest = Manifest::default();
    manifest.tool_version = name.into();
    manifest
}

#[test]
fn a_bundle_is_created_once_and_replaced_only_by_force() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.nest");
    let (mut dir, _) = BundleDir::create(&path, false, &Manifest::default()).unwrap();
    dir.write_manifest(&named("x")).unwrap();
    dir.close(&named("y")).unwrap();
    let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
    assert!(text.contains("\"y\"") && !path.join(NEXT_MANIFEST).exists());
    let again = |force| BundleDir::create(&path, force, &Manifest::default());
    assert!(matches!(again(false), Err(BundleError::Exists(_))));
    assert!(again(true).is_ok());
    assert_eq!(
        fs::read_dir(root.path()).unwrap().count(),
        1,
        "no unfinished directory is left"
    );
}

#[test]
fn an_unseen_bundle_appears_as_a_whole() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.nest");
    for (force, name) in [(false, "first"), (true, "second")] {
        let mut dir = BundleDir::begin_unseen(&path, force).unwrap();
        assert_eq!(path.exists(), force, "the older one, or nothing");
        dir.new_file(HOST_STREAM).unwrap();
        dir.appear(&path, &named(name)).unwrap();
        let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
        assert_eq!(text, named(name).to_json());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
    let again = BundleDir::begin_unseen(&path, false);
    assert!(matches!(again, Err(BundleError::Exists(_))));
    drop(BundleDir::begin_unseen(&path, true).unwrap());
    assert!(path.join(MANIFEST).exists() && fs::read_dir(root.path()).unwrap().count() == 1);
}

#[test]
fn a_shorter_manifest_replaces_a_longer_one() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.nest");
    let (mut dir, _) = BundleDir::create(&path, false, &named(&"x".repeat(5000))).unwrap();
    let read = || fs::read(path.join(MANIFEST)).unwrap();
    for name in ["long".repeat(1000), "short".to_owned(), "tiny".to_owned()] {
        dir.write_manifest(&named(&name)).unwrap();
        assert_eq!(Manifest::from_slice(&read()).unwrap().0.tool_version, name);
    }
    dir.close(&named("last")).unwrap();
    assert_eq!(String::from_utf8(read()).unwrap(), named("last").to_json());
}

#[test]
fn force_spares_what_is_not_a_bundle() {
    let root = tempfile::tempdir().unwrap();
    let precious = root.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("data"), "x").unwrap();
    fs::write(precious.join(MANIFEST), "{}").unwrap();
    let created = BundleDir::create(&precious, true, &Manifest::default());
    assert!(matches!(created, Err(BundleError::NotABundle(_))));
    assert!(precious.join("data").exists() && precious.join(MANIFEST).exists());
    let file = precious.join("data");
    assert!(matches!(
        BundleDir::create(&file, true, &Manifest::default()),
        Err(BundleError::NotABundle(_))
    ));
}

#[test]
fn what_cannot_be_created_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("missing/a.nest");
    assert!(matches!(
        BundleDir::create(&path, false, &Manifest::default()),
        Err(BundleError::Io { .. })
    ));
    let path = root.path().join("a.nest");
    let (mut dir, _) = BundleDir::create(&path, false, &Manifest::default()).unwrap();
    dir.discard();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn what_came_there_meanwhile_is_replaced_only_by_force() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.nest");
    type Ending = fn(&mut BundleDir, &Path) -> Result<(), BundleError>;
    let ends: [Ending; 2] = [
        |dir, path| {
            dir.begin_recording(path, &named("late"))?;
            dir.settle()
        },
        |dir, path| dir.appear(path, &named("late")),
    ];
    for end in ends {
        let mut late = BundleDir::begin_unseen(&path, false).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join(MANIFEST), "early").unwrap();
        assert!(matches!(end(&mut late, &path), Err(BundleError::Exists(_))));
        drop(late);
        assert_eq!(fs::read(path.join(MANIFEST)).unwrap(), b"early");
        let mut forced = BundleDir::begin_unseen(&path, true).unwrap();
        end(&mut forced, &path).unwrap();
        let text = fs::read(path.join(MANIFEST)).unwrap();
        assert_eq!(Manifest::from_slice(&text).unwrap().0, named("late"));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn an_older_bundle_goes_when_the_recording_begins_and_as_a_whole() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.nest");
    fs::create_dir(&path).unwrap();
    for name in [MANIFEST, HOST_STREAM, IMAGE_MAPS] {
        fs::write(path.join(name), "older").unwrap();
    }
    drop(BundleDir::begin_unseen(&path, true).unwrap());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
    let mut dir = BundleDir::begin_unseen(&path, true).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
    dir.begin_recording(&path, &named("new")).unwrap();
    assert!(path.join(MANIFEST).exists() && !path.join(IMAGE_MAPS).exists());
    dir.settle().unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    drop(dir);
    assert!(path.join(MANIFEST).exists());
}

#[test]
fn a_recording_that_does_not_begin_gives_an_older_bundle_its_name_back() {
    type Ending = fn(BundleDir);
    let ends: [Ending; 2] = [|mut dir| dir.discard(), drop];
    type Beginning = fn(&mut BundleDir, &Path) -> Result<(), BundleError>;
    let begins: [Beginning; 2] = [
        |dir, path| dir.begin_recording(path, &named("new")),
        |dir, path| dir.put_older_aside(path),
    ];
    for (begin, end) in begins.iter().flat_map(|begin| ends.map(|end| (begin, end))) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.nest");
        fs::create_dir(&path).unwrap();
        fs::write(path.join(MANIFEST), "older").unwrap();
        let mut dir = BundleDir::begin_unseen(&path, true).unwrap();
        dir.new_file(HOST_STREAM).unwrap();
        begin(&mut dir, &path).unwrap();
        assert!(path.join(HOST_STREAM).exists());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
        dir.new_file("guest-a.arrows").unwrap();
        end(dir);
        assert_eq!(fs::read(path.join(MANIFEST)).unwrap(), b"older");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}

#[test]
fn an_older_bundle_is_not_given_back_over_what_came_there() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.nest");
    fs::create_dir(&path).unwrap();
    fs::write(path.join(MANIFEST), "older").unwrap();
    let mut dir = BundleDir::begin_unseen(&path, true).unwrap();
    dir.begin_recording(&path, &named("new")).unwrap();
    fs::rename(&path, root.path().join("away")).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("data"), "another's").unwrap();
    dir.discard();
    assert_eq!(fs::read(path.join("data")).unwrap(), b"another's");
    let kept = fs::read_dir(root.path()).unwrap().flatten();
    let kept =
        kept.filter(|entry| fs::read(entry.path().join(MANIFEST)).is_ok_and(|m| m == b"older"));
    assert_eq!(kept.count(), 1);
}

#[test]
fn a_directory_that_was_swapped_is_not_written_to() {
    let root = tempfile::tempdir().unwrap();
    let place = |name: &str| root.path().join(name);
    let (path, away, precious) = (place("a.nest"), place("away"), place("precious"));
    fs::write(&precious, "root's").unwrap();
    let (mut dir, _) = BundleDir::create(&path, false, &named("first")).unwrap();
    fs::rename(&path, &away).unwrap();
    fs::create_dir(&path).unwrap();
    for name in [MANIFEST, NEXT_MANIFEST, IMAGE_MAPS] {
        symlink(&precious, path.join(name)).unwrap();
    }
    dir.new_file(IMAGE_MAPS).unwrap();
    dir.write_manifest(&named("second")).unwrap();
    dir.close(&named("third")).unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"root's");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
    let text = fs::read(away.join(MANIFEST)).unwrap();
    assert_eq!(text, named("third").to_json().into_bytes());
    dir.discard();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
    assert_eq!(fs::read_dir(&away).unwrap().count(), 0);
}

#[test]
fn a_link_in_the_directory_is_not_written_through() {
    let root = tempfile::tempdir().unwrap();
    let (path, precious) = (root.path().join("a.nest"), root.path().join("precious"));
    fs::write(&precious, "root's").unwrap();
    let (mut dir, _) = BundleDir::create(&path, false, &named("first")).unwrap();
    for name in ["second", "third"] {
        fs::remove_file(path.join(NEXT_MANIFEST)).unwrap();
        symlink(&precious, path.join(NEXT_MANIFEST)).unwrap();
        dir.write_manifest(&named(name)).unwrap();
    }
    symlink(&precious, path.join(IMAGE_MAPS)).unwrap();
    assert!(dir.new_file(IMAGE_MAPS).is_err());
    dir.close(&named("last")).unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"root's");
}

/// A manifest of so many guests whose agents have all the clock samples that are kept.
fn with_guests(n: usize) -> Manifest {
    let samples = (0..512).map(|n| ClockSample {
        host_sent_ns: 1_000_000_000_000_000 + n,
        guest_ns: 1_000_000_000_000_000 + n,
        host_received_ns: 1_000_000_000_000_000 + n,
    });
    let side = GuestSide {
        clock_samples: samples.collect(),
        ..GuestSide::default()
    };
    let mut manifest = named("full");
    manifest.topology.guests = vec![Guest::default(); n];
    manifest.guest_sides = vec![side; n];
    manifest
}

/// Runs with a disk of 8 MiB mounted at this place, in a mount namespace of its own; skipped where that is not allowed.
fn on_a_small_disk(place: &Path, run: impl FnOnce() + Send) {
    let mounted = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none)?;
        let kind = Some("tmpfs");
        mount(kind, place, kind, MsFlags::empty(), Some("size=8m"))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| match mounted() {
            Ok(()) => run(),
            Err(error) => eprintln!("skipped: a file system cannot be mounted here: {error}"),
        });
    });
}

#[test]
fn a_full_disk_has_room_for_the_last_manifest() {
    let root = tempfile::tempdir().unwrap();
    on_a_small_disk(root.path(), || {
        let path = root.path().join("a.nest");
        let last = with_guests(8);
        let mut first = last.clone();
        first.guest_sides = Vec::new();

        let (mut dir, _) = BundleDir::create(&path, false, &first).unwrap();
        fill(&dir.new_file("guest-a.arrows").unwrap());
        for manifest in [&last, &first, &last] {
            dir.write_manifest(manifest).unwrap();
        }
        dir.close(&last).unwrap();
        let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
        assert_eq!(text, last.to_json());
    });
}

#[test]
fn a_manifest_that_is_long_from_the_start_may_grow_on_a_full_disk() {
    let root = tempfile::tempdir().unwrap();
    on_a_small_disk(root.path(), || {
        let path = root.path().join("a.nest");
        let long = |n: usize| named(&"x".repeat(n * MANIFEST_RESERVE as usize));
        let (mut dir, _) = BundleDir::create(&path, false, &long(2)).unwrap();
        fill(&dir.new_file("guest-a.arrows").unwrap());
        dir.write_manifest(&long(3)).unwrap();
        dir.close(&long(4)).unwrap();
        let text = fs::read(path.join(MANIFEST)).unwrap();
        assert_eq!(Manifest::from_slice(&text).unwrap().0, long(4));
    });
}

#[test]
fn a_manifest_beyond_its_reserve_is_written_without_indents() {
    let root = tempfile::tempdir().unwrap();
    on_a_small_disk(root.path(), || {
        let path = root.path().join("a.nest");
        let (mut dir, _) = BundleDir::create(&path, false, &named("first")).unwrap();
        fill(&dir.new_file("guest-a.arrows").unwrap());
        let last = with_guests(4);
        assert!(last.to_json().len() as u64 > MANIFEST_RESERVE);
        dir.close(&last).unwrap();
        let text = fs::read(path.join(MANIFEST)).unwrap();
        assert_eq!(Manifest::from_slice(&text).unwrap().0, last);
    });
}

/// Writes until there is no more room.
fn fill(file: &File) {
    let page = [7; 4096];
    let mut at = 0;
    let error = loop {
        match file.write_at(&page, at) {
            Ok(n) => at += n as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}
