//! Children that do not outlive the program that started them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// Has the kernel send `signal` to the child when the thread that starts it ends, also by a kill that lets
/// nothing clean up (`PR_SET_PDEATHSIG`, prctl(2)).
pub fn ends_with_us(command: &mut Command, signal: Signal) -> &mut Command {
    // SAFETY: prctl is async-signal-safe and touches nothing of the parent.
    unsafe { command.pre_exec(move || set_pdeathsig(signal).map_err(io::Error::from)) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            ends_with_us(command.arg("60"), Signal::SIGTERM).spawn()
        };
        let mut child = thread::spawn(start)
            .join()
            .expect("a thread")
            .expect("sleep runs");
        let status = child.wait().expect("it ends");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(Signal::SIGTERM as i32)
        );
    }
}
