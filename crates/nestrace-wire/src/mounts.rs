//! A guest's mounts over time.

use nestrace_trace::manifest::GuestMount;

/// Mounts that are gone and still listed; the oldest are forgotten.
const MAX_GONE: usize = 256;

/// Takes over what a guest says of its mounts. One that is gone stays, behind those that are there: its events name its
/// device. It goes where something else is mounted at its place, or another file system lies on its device.
pub fn merge_mounts(known: &mut Vec<GuestMount>, new: Vec<GuestMount>) {
    let gone = std::mem::replace(known, new);
    let n_there = known.len();
    for mount in gone {
        let there = known.iter().take(n_there);
        let mut same_device = there.filter(|other| other.dev == mount.dev);
        let is_replaced = same_device
            .any(|other| other.mount_point == mount.mount_point || other.fs_type != mount.fs_type);
        if !is_replaced {
            known.push(mount);
        }
    }
    known.truncate(n_there + MAX_GONE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(dev: u32, fs_type: &str, mount_point: &str, options: &str) -> GuestMount {
        GuestMount {
            disk: "vda".to_owned(),
            dev,
            fs_type: fs_type.to_owned(),
            mount_point: mount_point.to_owned(),
            options: options.to_owned(),
        }
    }

    #[test]
    fn what_was_mounted_stays_until_something_else_is_on_its_device() {
        let [root, data] = [mount(1, "ext4", "/", "rw"), mount(2, "ext3", "/data", "rw")];
        let mut known = vec![data.clone()];
        merge_mounts(&mut known, vec![root.clone(), data.clone()]);
        assert_eq!(known, [root.clone(), data.clone()]);
        // Unmounted, and unmounted still.
        for _ in 0..2 {
            merge_mounts(&mut known, vec![root.clone()]);
            assert_eq!(known, [root.clone(), data.clone()]);
        }
        let elsewhere = mount(2, "ext3", "/srv", "ro");
        merge_mounts(&mut known, vec![elsewhere.clone()]);
        assert_eq!(known, [elsewhere.clone(), root.clone(), data.clone()]);
        let again = mount(2, "ext3", "/data", "ro");
        merge_mounts(&mut known, vec![again.clone()]);
        assert_eq!(known, [again, elsewhere, root.clone()]);
        let made_anew = mount(2, "xfs", "/data", "rw");
        merge_mounts(&mut known, vec![made_anew.clone()]);
        assert_eq!(known, [made_anew, root]);
    }

    #[test]
    fn the_oldest_of_many_that_are_gone_are_forgotten() {
        let root = mount(1, "ext4", "/", "rw");
        let mut known = vec![root.clone()];
        for n in 0..300 {
            let snapshot = mount(2, "xfs", &format!("/snapshots/{n}"), "ro");
            merge_mounts(&mut known, vec![root.clone(), snapshot]);
        }
        assert_eq!(known.len(), 2 + MAX_GONE);
        let places: Vec<&str> = known.iter().map(|m| m.mount_point.as_str()).collect();
        assert_eq!(places[..3], ["/", "/snapshots/299", "/snapshots/298"]);
    }
}
