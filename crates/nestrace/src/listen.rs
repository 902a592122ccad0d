//! `--listen`: a loopback address, or a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `ADDR:PORT`, of this machine alone.
    Loopback(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err("give a path after unix:".to_owned()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        let address: SocketAddr = text
            .parse()
            .map_err(|_| "give an address such as 127.0.0.1:9732, or unix:PATH".to_owned())?;
        if !address.ip().is_loopback() {
            return Err(
                "the figures name guests and are not encrypted: give a loopback address, and put a proxy in front of it"
                    .to_owned(),
            );
        }
        Ok(Self::Loopback(address))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "/metrics on {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_alone() {
        for (text, is_good) in [
            ("127.0.0.1:9732", true),
            ("[::1]:9732", true),
            ("127.8.0.1:1", true),
            ("0.0.0.0:9732", false),
            ("10.0.0.1:9732", false),
            ("[::]:9732", false),
            ("localhost", false),
            ("unix:/run/nestrace/metrics", true),
            ("unix:", false),
        ] {
            assert_eq!(text.parse::<Listen>().is_ok(), is_good, "{text}");
        }
    }
}
