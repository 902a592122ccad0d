//! The socket that takes commands, a line of JSON each, and answers each with a line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_modelled_disk::troubles::{Answer, Command};

use crate::pacer::Pacer;

/// A longer line is refused.
const MAX_LINE_BYTES: u64 = 4096;
/// A client that says nothing for so long is left, because others wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens until the program ends.
pub fn start(socket: &Path, pacer: Arc<Pacer>) -> anyhow::Result<()> {
    let listener =
        UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
    let listen = move || {
        for client in listener.incoming().flatten() {
            let _ = serve(&client, &pacer);
        }
    };
    let thread = thread::Builder::new().name(String::from("control"));
    thread.spawn(listen).context("start a thread")?;
    Ok(())
}

/// Answers a client until it goes.
fn serve(client: &UnixStream, pacer: &Pacer) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(client);
    let mut writer = client;
    loop {
        let mut line = String::new();
        if reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_str::<Command>(&line) {
            Ok(command) => pacer.follow(command),
            Err(error) => Answer::Refused(error.to_string()),
        };
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        writer.write_all(text.as_bytes())?;
    }
}
