//! Any bytes as the files of `/proc/PID` that a process can shape: no panic, and nothing is found that is not there.

use std::path::Path;

use nestrace_probes::mountinfo;
use nestrace_record::guest::process::parse_stat;
use nestrace_record::guest::program::MappedCode;
use nestrace_record::guest::socket::parse_net_unix;
use nestrace_record::topology::open_files::{has_image_locks, parse_fdinfo};
use nestrace_record::topology::overlay;

/// Layers of an overlay that may be asked for a file.
const MAX_OPTIONS: usize = 64 << 10;

/// Checks one input, as each of the files.
pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some((_, start)) = parse_stat(&text) {
        assert!(text.contains(')') && text.contains(&start.to_string()));
    }
    let (_, mount_id) = parse_fdinfo(&text);
    assert!(mount_id.is_none() || text.contains("mnt_id:"));
    assert!(!has_image_locks(&text) || text.contains("OFDLCK"));
    let n_lines = text.lines().count();
    let rows = parse_net_unix(&text);
    assert!(rows.len() < n_lines.max(1));
    assert!(rows.iter().all(|row| text.contains(&row.path)));
    let code = MappedCode::parse(&text, 4711);
    assert!(code.check(u64::MAX).is_err());
    assert!(code.check(4096).is_err() || text.contains("4711"));
    let mounts = mountinfo::parse(&text);
    assert!(mounts.len() <= n_lines);
    for mount in &mounts {
        let shown = mount.to_mount();
        assert!(shown.options.len() <= mount.options.len() + mount.super_options.len() + 1);
        let file = Path::new(&mount.mount_point).join("images/vm1.img");
        let candidates = overlay::candidates(mount, &file);
        assert!(candidates.len() <= MAX_OPTIONS);
        assert!(candidates.iter().all(|path| path.is_absolute()));
    }
}
