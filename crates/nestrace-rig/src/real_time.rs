//! Whether programs that are started here can have a real-time priority, as modelled disks want it.

use std::{io, thread};

/// Asks for it in a thread that ends.
///
/// # Errors
/// What the kernel said: no privilege, or a control group without `cpu.rt_runtime_us` (sched(7)).
pub fn is_allowed() -> io::Result<()> {
    let attempt = thread::spawn(|| {
        let parameters = nix::libc::sched_param { sched_priority: 1 };
        // SAFETY: the call reads what it is given, and changes how this thread is scheduled.
        let done = unsafe {
            nix::libc::sched_setscheduler(0, nix::libc::SCHED_FIFO, &raw const parameters)
        };
        if done == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error())
    });
    attempt
        .join()
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
