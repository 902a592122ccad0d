//! What a run that was killed left behind: mounts and loop devices in its work folder.

use std::path::Path;

use nix::mount::{MntFlags, umount2};

use crate::external_tool::Tool;

/// Unmounts, detaches and removes what lies in `work`; nobody else uses it, the folder is locked.
pub(super) fn remove(work: &Path) {
    let Some(prefix) = work.to_str() else {
        return;
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    // Inner mounts are later in the list.
    let mut ours: Vec<&str> = points.filter(|point| is_inside(point, prefix)).collect();
    ours.reverse();
    for point in ours {
        let _ = umount2(point, MntFlags::MNT_DETACH);
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

fn is_inside(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_begins_alike_is_another_one() {
        assert!(is_inside("/a/work/x", "/a/work"));
        assert!(!is_inside("/a/work2/x", "/a/work"));
        assert!(!is_inside("/a/work", "/a/work"));
    }
}
