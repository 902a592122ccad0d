//! On this machine's own file systems. Where a folder of a test lies on one that is not asked for, it is as if it were a
//! mount.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use nestrace_probes::block_device;

use super::*;

/// A folder as the only mount of a guest whose root is this machine's.
struct Rig {
    folder: tempfile::TempDir,
    finder: Finder,
    dev: u32,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dev = block_device::from_stat(fs::metadata(folder.path()).unwrap().dev());
        let mut finder = Finder::new(
            Places::below("", std::process::id()),
            Arc::new(AtomicBool::new(false)),
        );
        finder.places.set(&[GuestMount {
            dev,
            fs_type: "xfs".to_owned(),
            mount_point: folder.path().to_str().unwrap().to_owned(),
            ..GuestMount::default()
        }]);
        Self {
            folder,
            finder,
            dev,
        }
    }

    fn make(&self, name: &str) -> (FileId, fs::File) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = fs::File::create_new(path).unwrap();
        ((self.dev, file.metadata().unwrap().ino()), file)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

fn fresh(files: &[FileId]) -> NewFiles {
    NewFiles {
        fresh: files.to_vec(),
        again: Vec::new(),
    }
}

fn paths(files: &[GuestFile]) -> Vec<&str> {
    let mut paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    paths.sort_unstable();
    paths
}

#[test]
fn open_files_have_the_names_that_they_have_or_had() {
    let mut rig = Rig::new();
    let (open, _open) = rig.make("open (deleted)");
    let (removed, _removed) = rig.make("removed");
    fs::remove_file(rig.path("removed")).unwrap();
    let (closed, _) = rig.make("closed");
    rig.finder
        .add(fresh(&[open, removed, closed, (rig.dev + 1, 7)]));
    let found = rig.finder.look(Duration::from_secs(10));
    assert_eq!(
        paths(&found),
        [rig.path("open (deleted)"), rig.path("removed")]
    );
    for _ in 0..MAX_LOOKS {
        assert_eq!(rig.finder.look(LOOK), []);
    }
    assert_eq!(
        rig.finder.unknown,
        [(closed, 0)].into(),
        "it is left to the end"
    );
}

#[test]
fn the_end_finds_the_rest_in_folders_but_not_over_links() {
    let mut rig = Rig::new();
    let (deep, _) = rig.make("a/b/c/deep");
    let (gone, file) = rig.make("gone");
    drop(file);
    fs::remove_file(rig.path("gone")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path().join("other");
    fs::write(&other, "").unwrap();
    symlink(elsewhere.path(), rig.path("link")).unwrap();
    symlink(&other, rig.path("file-link")).unwrap();
    let linked = (rig.dev, fs::metadata(&other).unwrap().ino());
    rig.finder.add(fresh(&[deep, gone, linked]));
    let found = rig.finder.end();
    assert_eq!(paths(&found), [rig.path("a/b/c/deep")]);
}

#[test]
fn a_walk_has_an_end() {
    let mut rig = Rig::new();
    let (file, _) = rig.make("file");
    let over = Limit {
        until: Instant::now(),
        stop: Arc::default(),
    };
    let wanted = || BTreeSet::from([file]);
    assert_eq!(walk::find(wanted(), &rig.finder.places, &over), []);
    let stopped = Limit {
        until: Instant::now() + END,
        stop: Arc::new(AtomicBool::new(true)),
    };
    assert_eq!(walk::find(wanted(), &rig.finder.places, &stopped), []);
    rig.finder.stop.store(true, Ordering::Relaxed);
    rig.finder.add(fresh(&[file]));
    assert_eq!(rig.finder.look(END), []);
}

#[test]
fn the_first_inodes_are_the_file_system_s() {
    let mut rig = Rig::new();
    let mount = |fs_type: &str| GuestMount {
        dev: rig.dev,
        fs_type: fs_type.to_owned(),
        mount_point: rig.folder.path().to_str().unwrap().to_owned(),
        ..GuestMount::default()
    };
    for (fs_type, first) in [("ext4", 11), ("xfs", 1), ("f2fs", 4)] {
        rig.finder.places.set(&[mount(fs_type)]);
        let may = |inode| rig.finder.places.may_name((rig.dev, inode));
        assert_eq!((may(first - 1), may(first)), (false, true), "{fs_type}");
    }
    // Whatever lies at the place of a mount must be that mount.
    let other = GuestMount {
        dev: rig.dev + 1,
        ..mount("xfs")
    };
    rig.finder.places.set(&[other, mount("btrfs")]);
    let has_subvolumes_or_is_none = rig.finder.places.iter().count() == 0;
    assert!(has_subvolumes_or_is_none || Path::new("/sys/fs/btrfs").exists());
}

#[test]
fn the_thread_ends_by_itself() {
    let mut names = Names::start().unwrap();
    names.look_for(fresh(&[(1, 5)]), &[]);
    names.end();
    let begun = Instant::now();
    while let Some(files) = names.wait(LOOK) {
        assert_eq!(files, []);
    }
    assert!(begun.elapsed() < END, "nothing could be named");
}

#[test]
fn an_inode_that_was_used_again_has_no_name() {
    let mut rig = Rig::new();
    let (file, _open) = rig.make("second");
    rig.finder.add(fresh(&[file]));
    let again = NewFiles {
        fresh: Vec::new(),
        again: vec![file],
    };
    let without = GuestFile {
        dev: file.0,
        inode: file.1,
        path: String::new(),
    };
    assert_eq!(rig.finder.add(again), [without]);
    assert_eq!(
        (rig.finder.look(END), rig.finder.end()),
        (Vec::new(), Vec::new())
    );
}
