//! overlayfs (a container's root): the layer that holds a file's data. Its inode, not overlayfs' own,
//! is what the kernel reads and writes.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::path::{Path, PathBuf};

use nestrace_probes::mountinfo::MountEntry;

/// Where a file of an overlay may lie, the upper layer first: the first that exists is the one.
/// Layers that were given as relative paths are left out, because nothing says relative to what.
#[must_use]
pub fn candidates(entry: &MountEntry, path: &Path) -> Vec<PathBuf> {
    let Ok(below) = path.strip_prefix(&entry.mount_point) else {
        return Vec::new();
    };
    let root = entry.root.trim_start_matches('/');
    layers(&entry.super_options)
        .into_iter()
        .filter(|layer| layer.starts_with('/'))
        .map(|layer| Path::new(&layer).join(root).join(below))
        .collect()
}

/// The layers of a mount's options, upper first. A backslash takes the meaning from `:` and `,`.
fn layers(options: &str) -> Vec<String> {
    let options = split(options, ',');
    let values = |key: &str| -> Vec<String> {
        options
            .iter()
            .filter_map(|o| o.strip_prefix(key))
            .map(str::to_owned)
            .collect()
    };
    let mut layers: Vec<String> = values("upperdir=").iter().map(|l| unescape(l)).collect();
    // One option with colons, or (since 6.5) one option a layer.
    layers.extend(
        values("lowerdir=")
            .iter()
            .flat_map(|list| split(list, ':'))
            .map(|l| unescape(&l)),
    );
    layers.extend(values("lowerdir+=").iter().map(|l| unescape(l)));
    layers.retain(|layer| !layer.is_empty());
    layers
}

fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match parts.last_mut() {
            Some(part) if escaped || c != separator => part.push(c),
            _ => parts.push(String::new()),
        }
        escaped = c == '\\' && !escaped;
    }
    parts
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(root: &str, options: &str, path: &str, expected: &[&str]) {
        let entry = MountEntry {
            root: root.to_owned(),
            mount_point: "/c".to_owned(),
            super_options: options.to_owned(),
            ..MountEntry::default()
        };
        let got: Vec<String> = candidates(&entry, Path::new(path))
            .iter()
            .map(|p| p.to_string_lossy().into_owned())
            .collect();
        assert_eq!(got, expected, "{options}");
    }

    #[test]
    fn layers_in_their_order() {
        check(
            "/",
            "rw,lowerdir=/a:/b,upperdir=/u,workdir=/w",
            "/c/d/x.img",
            &["/u/d/x.img", "/a/d/x.img", "/b/d/x.img"],
        );
        check(
            "/sub",
            "rw,lowerdir=/a,upperdir=/u",
            "/c/x",
            &["/u/sub/x", "/a/sub/x"],
        );
        check(
            "/",
            "ro,lowerdir=/a\\:1:/b\\,2",
            "/c/x",
            &["/a:1/x", "/b,2/x"],
        );
        check(
            "/",
            "ro,lowerdir+=/a,lowerdir+=/b",
            "/c/x",
            &["/a/x", "/b/x"],
        );
        check("/", "rw,lowerdir=l/A:l/B,upperdir=/u", "/c/x", &["/u/x"]);
        check("/", "rw,upperdir=/u", "/elsewhere/x", &[]);
        check("/", "rw", "/c/x", &[]);
    }
}
