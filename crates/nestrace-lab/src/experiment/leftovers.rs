//! What a run that was killed left behind: mounts and loop devices in its work folder.

use std::path::Path;

use nestrace_rig::external_tool::Tool;
use nix::mount::{MntFlags, umount2};

/// Unmounts, detaches and removes everything in `work`. No other process uses it: the folder is locked.
pub(super) fn remove(work: &Path) {
    let Some(prefix) = work.to_str() else {
        return;
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for point in mounts_inside(&mounts, prefix) {
        let _ = umount2(point.as_str(), MntFlags::MNT_DETACH);
    }
    let listing = Tool::new("losetup")
        .args(["--noheadings", "--list", "--output", "NAME,BACK-FILE"])
        .for_clean_up()
        .run()
        .unwrap_or_default();
    for (device, file) in listing
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
    {
        if is_inside(file.trim(), prefix) {
            let _ = Tool::new("losetup")
                .arg("--detach")
                .arg(device)
                .for_clean_up()
                .run();
        }
    }
    let _ = std::fs::remove_dir_all(work);
}

/// Mount points in `folder`, inner ones first.
fn mounts_inside(mountinfo: &str, folder: &str) -> Vec<String> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let mut inside: Vec<String> = points
        .map(unescaped)
        .filter(|point| is_inside(point, folder))
        .collect();
    // Inner mounts are later in the list.
    inside.reverse();
    inside
}

/// What `mangle_path` of the kernel's `seq_path` writes in octal: white space and the backslash.
fn unescaped(point: &str) -> String {
    let of = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let escapes = of.into_iter();
    escapes.fold(point.to_owned(), |text, (escape, plain)| {
        text.replace(escape, plain)
    })
}

fn is_inside(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_folder_with_a_space_are_found_and_inner_ones_go_first() {
        let mountinfo = "\
            36 1 254:0 / / rw - ext4 /dev/vda rw\n\
            70 36 7:0 / /my\\040results/work/a/mnt rw - xfs /dev/loop0 rw\n\
            71 70 7:1 / /my\\040results/work/a/mnt/in rw - ext4 /dev/loop1 rw\n\
            72 36 7:2 / /my\\040results/work2 rw - ext4 /dev/loop2 rw\n";
        assert_eq!(
            mounts_inside(mountinfo, "/my results/work"),
            ["/my results/work/a/mnt/in", "/my results/work/a/mnt"]
        );
    }

    #[test]
    fn a_folder_that_begins_alike_is_another_one() {
        assert!(is_inside("/a/work/x", "/a/work"));
        assert!(!is_inside("/a/work2/x", "/a/work"));
        assert!(!is_inside("/a/work", "/a/work"));
    }
}
