//! What a process of nestrace can no longer do: the user it runs as, its capabilities, the system calls that it may use, and
//! the files that it may reach.
//!
//! Each of these belongs to a thread in Linux, so every thread gives up for itself ([`Sandbox::enter`]); threads that it
//! starts afterwards have what it has. Nothing of it can be taken back.

mod landlock;
pub mod system_calls;
mod user;

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use caps::Capability;

use landlock::Ruleset;
use system_calls::{Filter, Role};
pub use user::User;

/// Why a process could not give up what it no longer needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Capabilities could not be set.
    #[error("give up capabilities")]
    Capabilities(#[source] caps::errors::CapsError),
    /// The system refused another user.
    #[error("become user {user}")]
    User {
        /// The user id.
        user: u32,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The filter could not be built or installed.
    #[error("install the system-call filter")]
    Filter(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Landlock is there and refused.
    #[error("restrict access to files")]
    Landlock(#[source] io::Error),
    /// A thread has not given up in time.
    #[error("give up privileges in {n} threads")]
    Threads {
        /// How many have not.
        n: usize,
    },
}

/// What a thread gives up, made ready while it can still be.
#[derive(Clone)]
pub struct Sandbox {
    user: Option<User>,
    capabilities: Vec<Capability>,
    filter: Arc<Filter>,
    files: Option<Arc<Ruleset>>,
}

impl Sandbox {
    /// For a process of this role, which keeps these capabilities where it has them. `user`: as whom it goes on, `None`
    /// as it is.
    ///
    /// # Errors
    /// [`SandboxError::Filter`].
    pub fn new(
        role: Role,
        user: Option<User>,
        capabilities: &[Capability],
    ) -> Result<Self, SandboxError> {
        Ok(Self {
            user,
            capabilities: capabilities.to_vec(),
            filter: Arc::new(Filter::of(role)?),
            files: None,
        })
    }

    /// Of all files it may open only those in these folders, from now on, and make and remove files there; and read `readable`.
    /// A kernel without Landlock (before 5.13, or where it is switched off) leaves it with the rights of its user.
    ///
    /// # Errors
    /// [`SandboxError::Landlock`].
    pub fn with_folders(
        mut self,
        folders: &[BorrowedFd<'_>],
        readable: &[&str],
    ) -> Result<Self, SandboxError> {
        let files = Ruleset::of_folders(folders, readable);
        self.files = files.map_err(SandboxError::Landlock)?.map(Arc::new);
        Ok(self)
    }

    /// As whom it goes on, if that is somebody else.
    #[must_use]
    pub const fn user(&self) -> Option<User> {
        self.user
    }

    /// The calling thread gives up what it has, for good.
    ///
    /// # Errors
    /// [`SandboxError`]; the thread may have given up a part then.
    pub fn enter(&self) -> Result<(), SandboxError> {
        user::forbid_new_privileges();
        if let Some(files) = &self.files {
            files
                .restrict_this_thread()
                .map_err(SandboxError::Landlock)?;
        }
        user::become_user(self.user, &self.capabilities)?;
        self.filter.install()
    }

    /// The same for the last thread of a process, once all others have done so.
    ///
    /// # Errors
    /// [`SandboxError::Threads`] where others have not: then this thread has given up all the same.
    pub fn enter_last(&self) -> Result<(), SandboxError> {
        let deadline = Instant::now() + OTHER_THREADS;
        let mut n = n_free_threads();
        while n > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
            n = n_free_threads();
        }
        self.enter()?;
        if n == 0 {
            Ok(())
        } else {
            Err(SandboxError::Threads { n })
        }
    }
}

/// How long the other threads may take, which give up before they do anything else.
const OTHER_THREADS: Duration = Duration::from_secs(1);

/// Threads of this process without a system-call filter, besides the calling one.
fn n_free_threads() -> usize {
    let own = nix::unistd::gettid().to_string();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let is_free = |task: &fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status"));
        // One that has just ended has nothing to give up.
        status.is_ok_and(|status| !status.lines().any(|line| line == "Seccomp:\t2"))
    };
    tasks
        .flatten()
        .filter(|task| task.file_name().to_str() != Some(own.as_str()))
        .filter(is_free)
        .count()
}

#[cfg(test)]
mod tests;
