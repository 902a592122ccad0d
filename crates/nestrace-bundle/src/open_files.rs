//! Files that are open at once: a capture of blktrace has one for each processor, and a shell's limit is often 1,024.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::Error;

/// What is opened besides: the output, libraries.
const SPARE: u64 = 64;

/// Lets `more` files be opened beside those that are open, as far as the system allows it.
///
/// # Errors
/// It allows fewer.
pub fn allow(more: usize) -> Result<(), Error> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        // Then opening says what is wrong.
        return Ok(());
    };
    let open = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count() as u64);
    let needed = (more as u64).saturating_add(open).saturating_add(SPARE);
    if needed <= soft {
        return Ok(());
    }
    let message = || format!("open {more} files at once: {hard} are allowed");
    let hint = || format!("ulimit -n {needed} as root, or LimitNOFILE={needed} of the service");
    if needed > hard || setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_err() {
        return Err(Error::too_many_files(message()).hint(hint()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_are_allowed_as_far_as_the_system_does() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        allow(1).unwrap();
        if hard.saturating_sub(soft) > 2000 {
            allow(usize::try_from(soft).unwrap()).unwrap();
            assert!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0 > soft);
        }
        let refused = allow(1 << 40).unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::TooManyFiles);
        assert!(refused.way_out().unwrap().starts_with("ulimit -n "));
    }
}
