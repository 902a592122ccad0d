//! Files of a folder that may come from anywhere, read without waiting for anybody and without an end that never comes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// The text of a regular file of at most `most` bytes.
///
/// # Errors
/// It is not there, no regular file (a FIFO, a device; `InvalidInput`), larger (`FileTooLarge`), or no UTF-8
/// (`InvalidData`).
pub fn read(path: &Path, most: u64) -> io::Result<String> {
    // Without O_NONBLOCK a FIFO would have us wait for somebody who writes.
    let file = File::options()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    if !file.metadata()?.is_file() {
        let message = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut text = String::new();
    // It may grow meanwhile: what is read counts, not what it said of its length.
    let n = file.take(most + 1).read_to_string(&mut text)?;
    if n as u64 > most {
        let message = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn what_has_no_end_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::write(place("text"), "four").unwrap();
        std::fs::write(place("bytes"), [0xff]).unwrap();
        nix::unistd::mkfifo(&place("fifo"), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", place("zero")).unwrap();
        std::os::unix::fs::symlink("text", place("link")).unwrap();
        for (name, most, expected) in [
            ("text", 4, Ok("four")),
            ("link", 4, Ok("four")),
            ("text", 3, Err(io::ErrorKind::FileTooLarge)),
            ("bytes", 4, Err(io::ErrorKind::InvalidData)),
            ("fifo", 4, Err(io::ErrorKind::InvalidInput)),
            ("zero", 4, Err(io::ErrorKind::InvalidInput)),
            (".", 4, Err(io::ErrorKind::InvalidInput)),
            ("none", 4, Err(io::ErrorKind::NotFound)),
        ] {
            let told = read(&place(name), most).map_err(|error| error.kind());
            assert_eq!(told, expected.map(str::to_owned), "{name}");
        }
    }
}
