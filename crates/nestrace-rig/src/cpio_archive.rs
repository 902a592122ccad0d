//! Writes cpio archives in the `newc` form that the kernel unpacks as an initramfs.
//!
//! Ours, because it has to set owner and device numbers without root and be the same for the same
//! input; uncompressed, because a TCG guest needs seconds to decompress.

use std::io::{self, Write};

const TRAILER: &str = "TRAILER!!!";
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// An archive that is being written.
#[derive(Debug)]
pub struct CpioArchive<W> {
    out: W,
    n_entries: u32,
    offset: u64,
}

impl<W: Write> CpioArchive<W> {
    /// Starts an archive.
    pub fn new(out: W) -> Self {
        Self {
            out,
            n_entries: 0,
            offset: 0,
        }
    }

    /// Adds a folder; its parents must have been added before.
    ///
    /// # Errors
    /// The output refused.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, S_IFDIR | 0o755, 2, &[])
    }

    /// Adds a file with permission bits `mode`.
    ///
    /// # Errors
    /// The output refused, or the file is over 4 GiB.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, S_IFREG | (mode & 0o7777), 1, content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// The output refused.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, S_IFLNK | 0o777, 1, target.as_bytes())
    }

    /// Writes the trailer and gives the output back.
    ///
    /// # Errors
    /// The output refused.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry(TRAILER, 0, 1, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, n_links: u32, content: &[u8]) -> io::Result<()> {
        let name = path.trim_start_matches('/');
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "file is over 4 GiB"))?;
        self.n_entries += 1;
        let name_size = name.len() as u32 + 1;
        // magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor,
        // rdevminor, namesize, check
        let fields = [
            self.n_entries,
            mode,
            0,
            0,
            n_links,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.put(b"070701")?;
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(content)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.offset += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = (4 - self.offset % 4) % 4;
        self.put(&[0; 3][..missing as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external_tool::Tool;

    #[test]
    fn busybox_reads_what_was_written() {
        let mut archive = CpioArchive::new(Vec::new());
        archive.folder("/etc").unwrap();
        archive.file("/etc/motd", 0o640, b"hello\n").unwrap();
        archive.symlink("/etc/link", "motd").unwrap();
        let bytes = archive.finish().unwrap();

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.cpio");
        std::fs::write(&file, bytes).unwrap();
        let script = format!(
            "cd {} && busybox cpio -id < a.cpio",
            folder.path().display()
        );
        Tool::new("sh").args(["-c", &script]).run().unwrap();
        assert_eq!(
            std::fs::read_to_string(folder.path().join("etc/link")).unwrap(),
            "hello\n"
        );
        let listing = Tool::new("busybox").args(["stat", "-c", "%a"]);
        let mode = listing.arg(folder.path().join("etc/motd")).run().unwrap();
        assert_eq!(mode.trim(), "640");
    }
}
