//! The socket that listens: of a loopback address, or a Unix socket that root alone may connect to.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, umask};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::exit::{Failure, INPUT};
use crate::listen::Listen;

/// A client.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// A socket that listens. A Unix socket's name is removed with it.
pub enum Listener {
    Loopback(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// The address is taken, or cannot be had.
    pub fn bind(listen: &Listen) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::new(INPUT, format!("cannot listen on {listen}: {error}"));
        match listen {
            Listen::Loopback(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let listener = TcpListener::from_std(listener).map_err(failed)?;
                Ok(Self::Loopback(listener, *address))
            }
            Listen::Unix(path) => {
                remove_left_behind(path).map_err(failed)?;
                // Root alone, from the first moment.
                let before = umask(Mode::S_IRWXG | Mode::S_IRWXO | Mode::S_IXUSR);
                let bound = UnixListener::bind(path);
                umask(before);
                Ok(Self::Unix(bound.map_err(failed)?, path.clone()))
            }
        }
    }

    /// Where it listens: with the port that the system chose, if that was left to it.
    pub fn address(&self) -> Listen {
        match self {
            Self::Loopback(listener, address) => {
                Listen::Loopback(listener.local_addr().unwrap_or(*address))
            }
            Self::Unix(_, path) => Listen::Unix(path.clone()),
        }
    }

    /// The next client.
    ///
    /// # Errors
    /// The system's.
    pub async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Loopback(listener, _) => Box::new(listener.accept().await?.0),
            Self::Unix(listener, _) => Box::new(listener.accept().await?.0),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket that nothing listens on any more is removed; anything else stays, and the address is taken.
fn remove_left_behind(path: &Path) -> io::Result<()> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_the_system_chose_is_told() {
        let listen: Listen = "127.0.0.1:0".parse().unwrap();
        let Listen::Loopback(address) = Listener::bind(&listen).ok().unwrap().address() else {
            panic!("another kind");
        };
        assert_ne!(address.port(), 0);
    }

    #[tokio::test]
    async fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let listen = Listen::Unix(path.clone());
        // Its name stays when std's listener is dropped.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&listen).ok().unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(Listener::bind(&listen).is_err());
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert!(Listener::bind(&listen).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    }
}
