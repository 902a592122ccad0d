//! The recorder's end of an agent's port, which counts what comes and keeps nothing.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::interrupt;
use nestrace_wire::kernel_buffers::{Format, KernelBuffers};
use nestrace_wire::{AgentMessage, FrameReader, HostMessage, Start, VERSION};

use super::Trace;

/// The agent finds its port connected, looks at the guest and attaches.
const LIVE: Duration = Duration::from_secs(30);

/// A session with an agent.
pub struct Drain {
    socket: UnixStream,
    reader: Option<JoinHandle<anyhow::Result<Trace>>>,
    live: Arc<AtomicBool>,
}

impl Drain {
    /// Begins a session and waits until the agent's probes are live.
    pub fn start(port: &Path, device: &str, backend: &str, detail: &str) -> anyhow::Result<Self> {
        let socket = UnixStream::connect(port).context("connect to the agent's port")?;
        let live = Arc::new(AtomicBool::new(false));
        let (stream, heard) = (socket.try_clone()?, Arc::clone(&live));
        let is_light = detail == "light";
        let reader = thread::spawn(move || listen(stream, is_light, &heard));
        let drain = Self {
            socket,
            reader: Some(reader),
            live,
        };
        drain.say(&HostMessage::Start(Start {
            protocol: VERSION,
            session: u64::from(std::process::id()),
            detail: detail.to_owned(),
            devices: vec![device.trim_start_matches("/dev/").to_owned()],
            backend: backend.to_owned(),
            paths: true,
            cpu: true,
        }))?;
        let deadline = Instant::now() + LIVE;
        while !drain.live.load(Ordering::Acquire) {
            interrupt::check()?;
            let gone = drain.reader.as_ref().is_none_or(JoinHandle::is_finished);
            if gone || Instant::now() > deadline {
                bail!("see the agent live within {LIVE:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(drain)
    }

    /// Ends the session and waits for the agent's last word.
    pub fn stop(mut self) -> anyhow::Result<Trace> {
        self.say(&HostMessage::Stop)?;
        let reader = self.reader.take().context("stop the agent once")?;
        match reader.join() {
            Ok(trace) => trace,
            Err(_) => bail!("read what the agent sent"),
        }
    }

    fn say(&self, message: &HostMessage) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        message.encode_to(&mut bytes);
        (&self.socket)
            .write_all(&bytes)
            .context("write to the agent")
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Reads until the agent's End.
fn listen(mut stream: UnixStream, is_light: bool, live: &AtomicBool) -> anyhow::Result<Trace> {
    stream.set_read_timeout(Some(LIVE))?;
    let mut frames = FrameReader::new();
    let mut buffers = KernelBuffers::new(Format::Blktrace { light: is_light });
    let mut trace = Trace::default();
    let mut lost = std::collections::BTreeMap::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = stream.read(&mut buffer).context("read from the agent")?;
        if n == 0 {
            bail!("hear the agent's last word: the port was closed");
        }
        trace.bytes += n as u64;
        let mut bytes = &buffer[..n];
        while !bytes.is_empty() {
            let taken = frames.feed(bytes);
            bytes = &bytes[taken..];
            while let Some(frame) = frames.next_frame().context("understand the agent")? {
                match AgentMessage::parse(frame).context("understand the agent")? {
                    Some(AgentMessage::Live(said)) => {
                        if let Some(translation) = said.translation {
                            buffers = KernelBuffers::new(Format::Probes(translation));
                        }
                        live.store(true, Ordering::Release);
                    }
                    Some(AgentMessage::Buffer { number, bytes }) => buffers.push(number, bytes),
                    Some(AgentMessage::Until(mono_ns)) => {
                        trace.events += buffers.until(mono_ns).count() as u64;
                    }
                    Some(AgentMessage::Loss(loss)) => {
                        lost.insert(loss.source, loss.total);
                    }
                    Some(AgentMessage::End(_)) => {
                        trace.lost = lost.values().sum();
                        return Ok(trace);
                    }
                    _ => {}
                }
            }
        }
    }
}
