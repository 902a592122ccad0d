//! Clients of `nestrace serve`: many, slow ones, and such as send no good requests; and who is let in.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::guest::Guest;
use nestrace_rig::recorder;
use nix::unistd::{Uid, setfsuid};
use xtask::case::Case;

use super::serving::{ANY_PORT, Address, Serving, Stream};
use super::{DISKS, LiveContext, PATIENCE};

const N_CLIENTS: u32 = 8;
/// Of all clients together.
const SCRAPES_PER_SECOND: u32 = 200;
const STORM: Duration = Duration::from_secs(5);
/// A usual scrape takes some milliseconds; a compiler may run beside.
const SOON: Duration = Duration::from_secs(1);
/// What a client that sends no request gets, and some time for a busy machine.
const CUT_OFF: Duration = Duration::from_secs(8);
/// More than are served at a time.
const N_SLOW: usize = 100;
const N_NEVER_READ: usize = 10;
/// An unprivileged user.
const NOBODY: u32 = 65534;
const PATH: &str = "/metrics";
const KEPT: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The guest is there already, and has no agent.
pub fn clients(ctx: &LiveContext, case: &mut Case, guest: &Guest) -> anyhow::Result<()> {
    let serving = Serving::start(ctx, ANY_PORT, &["--guest", guest.name()])?;
    storm(case, guest, &serving)?;
    slow(case, &serving)?;
    bad(case, &serving)?;
    only_loopback(ctx, case, &serving)?;
    serving.stop(case)?;
    unix_socket(ctx, case, guest)
}

/// One answer on a connection that stays.
fn kept_answer(stream: &mut dyn Stream) -> anyhow::Result<bool> {
    stream.write_all(KEPT)?;
    let mut answer = Vec::new();
    let mut part = [0; 1 << 16];
    loop {
        let n = stream.read(&mut part)?;
        anyhow::ensure!(n > 0, "be answered on a connection that is kept");
        answer.extend_from_slice(&part[..n]);
        if answer.ends_with(b"# EOF\n") {
            return Ok(answer.starts_with(b"HTTP/1.1 200"));
        }
    }
}

/// Scrapes at a steady rate; how many were answered, and the slowest.
fn client(address: &Address, keeps: bool) -> anyhow::Result<(u32, Duration)> {
    let pause = Duration::from_secs(1) * N_CLIENTS / SCRAPES_PER_SECOND;
    let n_wanted = (STORM.as_millis() / pause.as_millis()) as u32;
    let mut kept = keeps.then(|| address.connect()).transpose()?;
    let start = Instant::now();
    let (mut n, mut slowest) = (0, Duration::ZERO);
    for i in 0..n_wanted {
        thread::sleep((pause * i).saturating_sub(start.elapsed()));
        let begin = Instant::now();
        let is_good = match &mut kept {
            Some(stream) => kept_answer(stream.as_mut())?,
            None => {
                let answer = address.get(PATH)?;
                answer.status == 200 && answer.body.ends_with("# EOF\n")
            }
        };
        slowest = slowest.max(begin.elapsed());
        n += u32::from(is_good);
    }
    Ok((n, slowest))
}

/// Many scrapes while the guest works: all are answered, and the counts are QEMU's.
fn storm(case: &mut Case, guest: &Guest, serving: &Serving) -> anyhow::Result<()> {
    let (disk, _) = DISKS[0];
    let labels = [("disk", disk), ("layer", "qemu")];
    let ops = [("op", "read"), ("op", "write")];
    let count = |op: (&'static str, &'static str)| {
        let labels = [labels[0], labels[1], op];
        let samples = serving.samples()?;
        Ok::<_, anyhow::Error>(samples.sum("nestrace_io_seconds_count", &labels) as u64)
    };
    thread::sleep(Duration::from_millis(1500));
    let before = (guest.disk_stats(disk)?, count(ops[0])?, count(ops[1])?);
    let running = guest.start(&super::load(&guest.device_of(disk)?), PATIENCE)?;
    let start = Instant::now();
    let ended: Vec<_> = thread::scope(|scope| {
        let client = |i| scope.spawn(move || client(&serving.address, i % 2 == 0));
        let clients: Vec<_> = (0..N_CLIENTS).map(client).collect();
        clients.into_iter().map(|client| client.join()).collect()
    });
    let took = start.elapsed();
    let (mut n, mut slowest) = (0, Duration::ZERO);
    for end in ended {
        let (of_client, its_slowest) = end.map_err(|_| anyhow::anyhow!("have a client end"))??;
        n += of_client;
        slowest = slowest.max(its_slowest);
    }
    running.wait()?;
    case.figure(format!(
        "{n} scrapes in {:.1} s, the slowest {:.0} ms",
        took.as_secs_f64(),
        slowest.as_secs_f64() * 1e3
    ));
    case.equal(
        "scrapes that were answered",
        u64::from(n),
        u64::from(SCRAPES_PER_SECOND) * STORM.as_secs(),
    );
    case.holds("the rate was held", took < 2 * STORM, &format!("{took:?}"));
    thread::sleep(Duration::from_millis(1500));
    let truth = guest.disk_stats(disk)?.since(&before.0);
    case.equal("reads against QMP", count(ops[0])? - before.1, truth.reads);
    case.equal(
        "writes against QMP",
        count(ops[1])? - before.2,
        truth.writes,
    );
    Ok(())
}

/// Clients that send nothing, half a request, or never read: they do not hold up the others, and are cut off.
fn slow(case: &mut Case, serving: &Serving) -> anyhow::Result<()> {
    let open = || serving.address.connect().context("connect");
    let mut never_read = Vec::new();
    for _ in 0..N_NEVER_READ {
        let mut stream = open()?;
        // More answers than a socket holds.
        stream.write_all(&KEPT.repeat(200))?;
        never_read.push(stream);
    }
    let mut silent = Vec::new();
    for i in 0..N_SLOW {
        let mut stream = open()?;
        if i % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: loc")?;
        }
        silent.push(stream);
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        slowest = slowest.max(serving.scrape()?.1);
    }
    case.figure(format!(
        "beside {} slow clients: the slowest scrape {:.0} ms",
        N_SLOW + N_NEVER_READ,
        slowest.as_secs_f64() * 1e3
    ));
    case.holds(
        "slow clients hold up no scrape",
        slowest < SOON,
        &format!("{slowest:?}"),
    );
    let start = Instant::now();
    let mut n_cut = 0;
    for stream in &mut silent {
        let mut rest = Vec::new();
        // An end or a reset.
        let _ = stream.read_to_end(&mut rest);
        n_cut += usize::from(start.elapsed() < CUT_OFF);
    }
    case.equal("clients that send nothing are cut off", n_cut, N_SLOW);
    drop(never_read);
    Ok(())
}

/// What is no good request gets its answer, and the next one too.
fn bad(case: &mut Case, serving: &Serving) -> anyhow::Result<()> {
    let long_line = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a".repeat(100_000)
    );
    let long_head = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "a".repeat(100_000)
    );
    let many = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X: a\r\n".repeat(1000)
    );
    let huge = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n";
    // 0: cut off without an answer, as HTTP/2 may be.
    let refused: [(&str, &[u8], &[u16]); 10] = [
        ("another page", b"GET /x HTTP/1.0\r\n\r\n", &[404]),
        ("a page above", b"GET /../metrics HTTP/1.0\r\n\r\n", &[404]),
        (
            "another method",
            b"DELETE /metrics HTTP/1.0\r\n\r\n",
            &[405],
        ),
        ("an endless body", huge.as_bytes(), &[405]),
        ("a long line", long_line.as_bytes(), &[400, 414, 431]),
        ("a long header", long_head.as_bytes(), &[431]),
        ("many headers", many.as_bytes(), &[431]),
        (
            "no HTTP",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            &[400],
        ),
        (
            "another version",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &[0, 400, 505],
        ),
        ("no path", b"GET HTTP/1.1\r\n\r\n", &[400]),
    ];
    for (what, request, statuses) in refused {
        let answer = serving.address.send(request);
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        let said = format!("{status}: {answer:?}");
        case.holds(what, statuses.contains(&status), &said);
    }
    let answer = serving.address.send(b"PUT /metrics HTTP/1.0\r\n\r\n")?;
    let says_which = answer.head.contains("allow: get, head");
    case.holds("it says which methods", says_which, &answer.head);
    let head = serving.address.send(b"HEAD /metrics HTTP/1.0\r\n\r\n")?;
    let is_empty = head.status == 200 && head.body.is_empty();
    case.holds("HEAD", is_empty, &format!("{head:?}"));
    let about = serving.address.get("/")?;
    case.holds("/", about.body.contains("/metrics"), &about.body);
    let answer = serving.address.get("/metrics?x=1")?;
    case.equal("with a query", answer.status, 200);
    let of_type = "content-type: application/openmetrics-text; version=1.0.0";
    case.holds("its type", answer.head.contains(of_type), &answer.head);
    // A client that leaves in the middle.
    for _ in 0..50 {
        let mut stream = serving.address.connect()?;
        stream.write_all(KEPT)?;
        stream.end_of_requests()?;
    }
    serving.scrape()?;
    Ok(())
}

/// It listens on loopback alone, and refuses other addresses.
fn only_loopback(ctx: &LiveContext, case: &mut Case, serving: &Serving) -> anyhow::Result<()> {
    let Address::Loopback(address) = &serving.address else {
        anyhow::bail!("listen on loopback");
    };
    case.holds("a free port", address.port() != 0, "0");
    let port = format!(":{:04X}", address.port());
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{}/net/{table}", serving.pid()));
        for line in text.unwrap_or_default().lines() {
            // Its number, the address, the other's, the state: 0A listens.
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, own, _, "0A", ..] = words[..]
                && own.ends_with(&port)
            {
                found.push(own.to_owned());
            }
        }
    }
    case.equal("it listens on", found.join(" "), format!("0100007F{port}"));
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let end = recorder::nestrace(&ctx.nestrace, &["serve", "--listen", listen])?;
        let is_refused = end.code == Some(2) && end.stderr.contains("loopback");
        case.holds(&format!("--listen {listen}"), is_refused, &end.stderr);
    }
    Ok(())
}

/// Whether a user without privileges may connect.
fn nobody_connects(path: &Path) -> anyhow::Result<Result<(), std::io::Error>> {
    let address = Address::Unix(path.to_owned());
    // This thread's alone, and with it the rights that root has on files.
    let thread = thread::spawn(move || {
        setfsuid(Uid::from_raw(NOBODY));
        address.connect().map(drop)
    });
    thread
        .join()
        .map_err(|_| anyhow::anyhow!("have the other user's thread end"))
}

fn unix_socket(ctx: &LiveContext, case: &mut Case, guest: &Guest) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("nestrace-serve-")
        .tempdir()?;
    // Everybody may come as far as to the socket.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let path = folder.path().join("metrics");
    let listen = format!("unix:{}", path.display());
    let serving = Serving::start(ctx, &listen, &["--guest", guest.name()])?;
    let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
    case.equal("the socket's mode", format!("{mode:o}"), "600".to_owned());
    let samples = serving.samples()?;
    let guests = samples.values("nestrace_io_bytes_total", "guest", &[]);
    case.equal(
        "guests by the socket",
        guests.join(" "),
        guest.name().to_owned(),
    );
    let refused = nobody_connects(&path)?;
    let is_refused = refused
        .as_ref()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
    case.holds("nobody is not let in", is_refused, &format!("{refused:?}"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    let lets_in = nobody_connects(&path)?;
    case.holds("its mode decides", lets_in.is_ok(), &format!("{lets_in:?}"));
    let second = recorder::nestrace(&ctx.nestrace, &["serve", "--listen", &listen])?;
    case.holds(
        "a socket in use is not taken",
        second.code == Some(3) && second.stderr.contains("in use"),
        &second.stderr,
    );
    serving.scrape()?;
    serving.stop(case)?;
    case.holds("the socket goes with it", !path.exists(), "it stays");
    Ok(())
}
