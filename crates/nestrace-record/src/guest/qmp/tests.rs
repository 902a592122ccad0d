//! Peers that are slow, hostile, or no QMP at all.

use super::*;
use std::os::unix::net::UnixListener;
use std::thread;

const GREETING_TEXT: &str = r#"{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":""},"capabilities":["oob"]}}"#;

/// Many times what any peer is given: the machine may be busy.
const SOON: Duration = Duration::from_secs(10);

/// Serves one connection with `peer` and runs [`block_stats`] against it.
fn against(
    peer: impl FnOnce(UnixStream) + Send + 'static,
) -> (Result<Vec<BlockStats>, QmpError>, Duration) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("q");
    let listener = UnixListener::bind(&path).expect("bind");
    let server = thread::spawn(move || peer(listener.accept().expect("accept").0));
    let begin = Instant::now();
    let result = block_stats(std::process::id(), path.to_str().expect("UTF-8"));
    let took = begin.elapsed();
    // A peer that was never reached would wait for ever.
    let _ = UnixStream::connect(&path);
    server.join().expect("the peer does not fail");
    (result, took)
}

/// Writes until the client leaves.
fn send(stream: &mut UnixStream, text: &str) -> bool {
    stream.write_all(text.as_bytes()).is_ok()
}

fn skip_line(stream: &mut UnixStream) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && byte != [b'\n'] {}
}

#[test]
fn a_silent_peer_is_busy() {
    let (result, took) = against(|mut stream| {
        // Until it is left.
        let _ = stream.set_read_timeout(Some(2 * SOON));
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(matches!(result, Err(QmpError::Busy { .. })), "{result:?}");
    assert!(took < SOON, "{took:?}");
}

#[test]
fn a_slow_peer_is_left() {
    let (result, took) = against(|mut stream| {
        send(&mut stream, &format!("{GREETING_TEXT}\n"));
        while send(&mut stream, " ") {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(
        matches!(result, Err(QmpError::Timeout { .. })),
        "{result:?}"
    );
    assert!(took < SOON, "{took:?}");
}

#[test]
fn an_endless_peer_is_left() {
    let (result, took) = against(|mut stream| {
        send(&mut stream, &format!("{GREETING_TEXT}\n"));
        let chunk = "x".repeat(1 << 20);
        while send(&mut stream, &chunk) {}
    });
    assert!(
        matches!(
            result,
            Err(QmpError::TooLarge { .. } | QmpError::Timeout { .. })
        ),
        "{result:?}"
    );
    assert!(took < SOON, "{took:?}");
}

#[test]
fn peers_that_are_not_qmp() {
    for text in ["220 mail ready\n", "[]\n", "{\"QMP\":\n}\n{\n", "{}\n"] {
        let (result, _) = against(move |mut stream| {
            send(&mut stream, text);
        });
        assert!(
            matches!(
                result,
                Err(QmpError::NotQmp { .. } | QmpError::Broken { .. })
            ),
            "{text}: {result:?}"
        );
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let (result, _) = against(|mut stream| {
        send(&mut stream, &format!("{}\n", "[".repeat(100_000)));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        skip_line(&mut stream);
    });
    assert!(result.is_err());
}

#[test]
fn a_message_that_never_ends_is_left() {
    let (result, took) = against(|mut stream| {
        send(&mut stream, &format!("{GREETING_TEXT}\n"));
        // Read again with each of the lines, a text of this size would keep its reader for minutes.
        send(
            &mut stream,
            &format!("{{\"a\": [\"{}\", {{\n", "x".repeat(4 << 20)),
        );
        let lines = "}, {\n".repeat(8 << 10);
        while send(&mut stream, &lines) {}
    });
    assert!(
        matches!(
            result,
            Err(QmpError::Timeout { .. } | QmpError::TooLarge { .. })
        ),
        "{result:?}"
    );
    assert!(took < SOON, "{took:?}");
}

#[test]
fn an_answer_of_many_values_is_refused() {
    let (result, _) = against(|mut stream| {
        send(&mut stream, &format!("{GREETING_TEXT}\n"));
        skip_line(&mut stream);
        let values = vec![r#"{"":0}"#; MAX_VALUES].join(",");
        send(
            &mut stream,
            &format!("{{\"return\":{{}}}}\n{{\"return\":[{values}]}}\n"),
        );
        skip_line(&mut stream);
    });
    assert!(
        matches!(result, Err(QmpError::TooLarge { .. })),
        "{result:?}"
    );
}

#[test]
fn events_in_between_and_pretty_answers() {
    let (result, _) = against(|mut stream| {
        send(
            &mut stream,
            "{\r\n    \"QMP\": {\r\n        \"version\": {}\r\n    }\r\n}\r\n",
        );
        skip_line(&mut stream);
        send(&mut stream, "{\"event\":\"RESUME\"}\r\n{\"return\":{}}\r\n");
        skip_line(&mut stream);
        send(
            &mut stream,
            "{\n  \"return\": [\n    {\"device\": \"\", \"qdev\": \"/machine/x\", \"stats\": {\"rd_operations\": 7, \"new_key\": []}}\n  ]\n}\n",
        );
        skip_line(&mut stream);
    });
    let stats = result.expect("an answer");
    assert_eq!(stats[0].counts.rd_operations, 7);
    assert_eq!(
        (stats[0].device.as_deref(), stats[0].qdev.as_deref()),
        (None, Some("/machine/x"))
    );
}

#[test]
fn a_refusal_keeps_the_words_of_qemu() {
    let (result, _) = against(|mut stream| {
        send(&mut stream, &format!("{GREETING_TEXT}\n"));
        skip_line(&mut stream);
        send(
            &mut stream,
            "{\"return\":{}}\n{\"error\":{\"class\":\"GenericError\",\"desc\":\"not now\"}}\n",
        );
        skip_line(&mut stream);
    });
    assert_eq!(
        result.map_err(|e| e.to_string()),
        Err("run query-blockstats: not now".to_owned())
    );
}

#[test]
fn ids_of_devices() {
    let id = |qdev: &str| {
        BlockInfo {
            qdev: Some(qdev.to_owned()),
            ..BlockInfo::default()
        }
        .qdev_id()
        .map(str::to_owned)
    };
    assert_eq!(
        id("/machine/peripheral/vda/virtio-backend").as_deref(),
        Some("vda")
    );
    assert_eq!(id("vda").as_deref(), Some("vda"));
    assert_eq!(id("/machine/peripheral-anon/device[0]"), None);
}
