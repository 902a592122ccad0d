//! A running `nestrace serve`, and what it answers.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::recorder::Recorder;
use nix::sys::signal::Signal;
use xtask::case::Case;

use super::{LiveContext, PATIENCE};

/// Any free port.
pub const ANY_PORT: &str = "127.0.0.1:0";

/// Where a server is.
#[derive(Clone, Debug)]
pub enum Address {
    /// On loopback.
    Loopback(SocketAddr),
    /// On a Unix socket.
    Unix(PathBuf),
}

/// Both kinds of connection.
pub trait Stream: Read + Write + Send {
    /// No more is sent.
    fn end_of_requests(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn end_of_requests(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn end_of_requests(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Address {
    /// Connects, for answers within the usual patience.
    pub fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Loopback(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
        })
    }

    /// Sends this and reads until the server ends the connection.
    pub fn send(&self, request: &[u8]) -> io::Result<Answer> {
        let mut stream = self.connect()?;
        stream.write_all(request)?;
        let mut bytes = Vec::new();
        // A server that refuses what was sent may reset the connection after its answer.
        match stream.read_to_end(&mut bytes) {
            Err(error) if bytes.is_empty() => return Err(error),
            _ => Ok(Answer::parse(&bytes)),
        }
    }

    /// Asks for a page.
    pub fn get(&self, path: &str) -> io::Result<Answer> {
        self.send(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())
    }
}

/// What a server answered.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// 0 where it is no HTTP.
    pub status: u16,
    /// Status line and headers, in small letters.
    pub head: String,
    /// What comes after them.
    pub body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }
}

/// The samples of a scrape, by their name with labels.
pub struct Samples(BTreeMap<String, f64>);

impl Samples {
    /// Of a text in Prometheus' or OpenMetrics' format.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let parsed = lines.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(parsed.collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those of this name that have these labels.
    fn of(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = (&str, f64)> {
        let start = format!("{name}{{");
        let wanted = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{value}\""))
            .collect::<Vec<_>>();
        let from_here = self.0.range(start.clone()..);
        let of_name = from_here.map_while(move |(series, value)| {
            let labels = series.strip_prefix(&start)?.strip_suffix('}')?;
            Some((labels, *value))
        });
        of_name.filter(move |(labels, _)| {
            let has = |label: &String| labels.split(',').any(|it| it == label);
            wanted.iter().all(has)
        })
    }

    /// Their sum.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.of(name, labels).map(|(_, value)| value).sum()
    }

    /// The values that a label has in them, each once.
    pub fn values(&self, name: &str, label: &str, labels: &[(&str, &str)]) -> Vec<String> {
        let start = format!("{label}=\"");
        let mut found: Vec<String> = self
            .of(name, labels)
            .flat_map(|(labels, _)| labels.split(','))
            .filter_map(|it| it.strip_prefix(&start)?.strip_suffix('"'))
            .map(str::to_owned)
            .collect();
        found.sort();
        found.dedup();
        found
    }
}

/// A running `nestrace serve`. Dropping it ends it.
pub struct Serving {
    recorder: Recorder,
    /// Where it is.
    pub address: Address,
}

impl Serving {
    /// Starts it, and waits until it listens.
    pub fn start(ctx: &LiveContext, listen: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        Self::spawn(Command::new(&ctx.nestrace), listen, arguments)
    }

    /// The same on any port, with as few files open at once as systemd and shells allow by themselves.
    pub fn start_with_few_files(ctx: &LiveContext) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"ulimit -S -n 1024; exec "$@""#, "sh"])
            .arg(&ctx.nestrace);
        Self::spawn(command, ANY_PORT, &[])
    }

    fn spawn(mut command: Command, listen: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        command.args(["serve", "--listen", listen]).args(arguments);
        let mut recorder = Recorder::spawn(command, false)?;
        recorder.wait_for_word("serving", PATIENCE)?;
        let address = match listen.strip_prefix("unix:") {
            Some(path) => Address::Unix(path.into()),
            None => {
                let said = recorder.stderr();
                let address = said
                    .split_once("serving http://")
                    .and_then(|(_, rest)| rest.split('/').next()?.parse().ok());
                Address::Loopback(address.context("see the address")?)
            }
        };
        Ok(Self { recorder, address })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.recorder.pid()
    }

    /// What it said.
    pub fn said(&self) -> String {
        self.recorder.stderr()
    }

    /// Scrapes once; how long that took.
    pub fn scrape(&self) -> anyhow::Result<(String, Duration)> {
        let start = Instant::now();
        let answer = self.address.get("/metrics").context("scrape")?;
        anyhow::ensure!(answer.status == 200, "be answered: {}", answer.head);
        anyhow::ensure!(answer.body.ends_with("# EOF\n"), "read a whole scrape");
        Ok((answer.body, start.elapsed()))
    }

    /// The samples of a scrape.
    pub fn samples(&self) -> anyhow::Result<Samples> {
        Ok(Samples::parse(&self.scrape()?.0))
    }

    /// Ends it as a service manager does.
    pub fn stop(self, case: &mut Case) -> anyhow::Result<()> {
        let end = self.recorder.stop(Signal::SIGTERM, PATIENCE)?;
        case.holds("it ends with 0", end.status.code() == Some(0), &end.stderr);
        Ok(())
    }
}
