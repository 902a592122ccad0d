//! Hostile and stuck agents: they delay nothing, and what is kept of them is bounded.

use super::*;

fn refused(account: &Account, reason: &str) -> u64 {
    let all = account.sides.iter().flat_map(|s| &s.refused);
    let found = all.filter(|r| r.reason.contains(reason)).map(|r| r.times);
    found.sum()
}

/// Bytes of all that the manifest will have of the guest.
fn account_bytes(account: &Account) -> usize {
    let sides = serde_json::to_vec(&account.sides).unwrap().len();
    sides + serde_json::to_vec(&account.notices).unwrap().len()
}

#[test]
fn half_a_frame_holds_nobody_up() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    let mut bytes = Vec::new();
    AgentMessage::Notice("x".repeat(1000)).encode_to(&mut bytes);
    agent.port.write_all(&bytes[..500]).unwrap();
    thread::sleep(Duration::from_millis(50));
    let (_, account) = rig.stop();
    assert!(account.sides.is_empty() && rig.files().is_empty());
    drop(agent);
}

#[test]
fn a_port_that_takes_nothing_holds_nobody_up() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    // From here on nothing is read: pings pile up and stay bounded.
    rig.until("silent", |a| a.state == State::Silent);
    thread::sleep(Duration::from_secs(1));
    let (_, account) = rig.stop();
    assert_eq!(account.sides[0].gaps.len(), 1);
}

#[test]
fn time_travel_foreign_kinds_and_devices_are_refused_and_counted() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let good = agent.event(1000);
    let mut events = vec![good];
    events.extend(vec![
        Event {
            ts_ns: u64::MAX,
            ..good
        };
        3
    ]);
    events.extend(vec![Event { ts_ns: 5, ..good }; 4]);
    events.extend(vec![
        Event {
            kind: Kind::AcctStart as u8,
            ..good
        };
        5
    ]);
    events.extend(vec![Event { kind: 255, ..good }; 6]);
    events.extend(vec![
        Event {
            dev: 8 << 20,
            ..good
        };
        7
    ]);
    events.push(good);
    agent.record(&events);
    agent.send(&AgentMessage::Pong {
        token: 99,
        guest_ns: 0,
    });
    let mut unknown = Vec::new();
    encode_frame(FrameKind::Hello, b"{\"session\": []}", &mut unknown);
    encode_frame(FrameKind::Stop, b"", &mut unknown);
    agent.port.write_all(&unknown).unwrap();
    agent.send(&AgentMessage::Pong {
        token: 99,
        guest_ns: 0,
    });
    let account = rig.until("counted", |a| refused(a, "without a request") == 2);
    for (reason, times) in [
        ("ahead of the guest's clock", 3),
        ("behind the newest", 4),
        ("guests do not send", 5),
        ("does not know", 7),
        ("did not name", 7),
        ("cannot be read", 1),
    ] {
        assert_eq!(refused(&account, reason), times, "{reason}: {account:?}");
    }
    let serving = thread::spawn(move || agent.serve_to_the_end());
    rig.stop();
    serving.join().unwrap();
    assert_eq!(rig.events(FIRST), [good, good]);
}

fn named(inode: u64, path: &str) -> GuestFile {
    GuestFile {
        dev: VDA,
        inode,
        path: path.to_owned(),
    }
}

#[test]
fn names_of_files_are_text_and_bounded() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let long = format!("/{}", "x".repeat(5000));
    agent.send(&AgentMessage::Files(vec![
        named(7, "/../../etc/shadow"),
        named(8, "/a\x1b]0;x\x07\n"),
        named(7, "/another"),
        named(0, "/no-inode"),
        named(9, "no-path"),
        named(10, &long),
    ]));
    let mut broken = Vec::new();
    encode_frame(FrameKind::Files, b"[{\"path\": 7}]", &mut broken);
    encode_frame(FrameKind::Files, &vec![b'['; 200_000], &mut broken);
    encode_frame(FrameKind::Files, &vec![b' '; 300_000], &mut broken);
    agent.port.write_all(&broken).unwrap();
    for first in (0..20_000).step_by(2000) {
        let files = (first..first + 2000).map(|n| named(100 + n, "/f"));
        agent.send(&AgentMessage::Files(files.collect()));
    }
    let account = rig.until("counted", |a| {
        refused(a, "for which there is no room") > 3000
    });
    assert!(
        account.sides[0].files.is_empty(),
        "they are handed over at the end"
    );
    assert_eq!(refused(&account, "cannot be read"), 3);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let (_, account) = rig.stop();
    serving.join().unwrap();
    let files = &account.sides[0].files;
    assert_eq!(files.len(), MAX_FILES);
    assert_eq!(files[0], named(7, "/../../etc/shadow"));
    assert_eq!(files[1], named(8, "/a\u{fffd}]0;x\u{fffd}\u{fffd}"));
    assert!(account_bytes(&account) < 4 << 20);
    assert_eq!(
        refused(&account, "for which there is no room"),
        3 + 20_002 - MAX_FILES as u64
    );
    assert_eq!(rig.files(), [FIRST, &format!("{FIRST}.idx")]);
}

#[test]
fn names_that_were_not_asked_for_are_refused() {
    let rig = Rig::asking(false, u64::MAX);
    let mut agent = rig.accept();
    agent.begin();
    agent.send(&AgentMessage::Files(vec![named(7, "/a")]));
    rig.until("refused", |a| refused(a, "not asked for") == 1);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let (_, account) = rig.stop();
    serving.join().unwrap();
    assert_eq!(account.sides[0].files, []);
}

#[test]
fn names_and_paths_of_a_guest_name_no_file() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let hello = format!(
        r#"{{"protocol":{VERSION},"session":{},"guest":"other","file":"../../etc/x","backend":"../x",
            "machine":{{"boot_id":"../../boot\u001b[2J","hostname":"../h"}},
            "mounts":[{{"mount_point":"/a/../../etc\u0007","disk":"../vda"}}]}}"#,
        agent.session
    );
    let mut bytes = Vec::new();
    encode_frame(FrameKind::Hello, hello.as_bytes(), &mut bytes);
    agent.port.write_all(&bytes).unwrap();
    let account = rig.until("a second side", |a| a.sides.len() == 2);
    let side = &account.sides[1];
    assert_eq!(
        (side.guest.as_str(), side.file.as_str()),
        ("../vm 1", SECOND)
    );
    assert_eq!(side.mounts[0].mount_point, "/a/../../etc\u{fffd}");
    assert!(!side.machine.boot_id.contains('\u{1b}'));
    assert_eq!(
        rig.files(),
        [
            SECOND.to_owned(),
            format!("{SECOND}.idx"),
            FIRST.to_owned(),
            format!("{FIRST}.idx")
        ]
    );
}

#[test]
fn garbage_does_not_last_long() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunk = vec![0; 64 << 10];
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < SOON {
        for byte in &mut chunk {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        match agent.port.write(&chunk) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    assert!(sent < 64 << 20, "{sent} bytes of garbage were read");
    let account = rig.until("given up", |a| a.state == State::Ended);
    assert_eq!(account.notices[0].what, "agent_refused");
    let (_, account) = rig.stop();
    assert!(account_bytes(&account) < 64 << 10);
    assert!(rig.files().is_empty());
}

#[test]
fn a_flood_is_slowed_down_and_its_stream_is_bounded() {
    let rig = Rig::with_limit(1 << 20);
    let mut agent = rig.accept();
    agent.begin();
    rig.until("live", |a| a.sides.len() == 1);
    // Noise in every column but those that are checked.
    let mut state = 1_u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state
    };
    let base = agent.event(0);
    let events: Vec<Event> = (0..8000)
        .map(|_| Event {
            object: noise(),
            related: noise(),
            offset: noise(),
            ..base
        })
        .collect();
    let frames = frames(&events);
    agent
        .port
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let begin = Instant::now();
    let mut sent = 0;
    // On a machine that is busy, until there is something to look at.
    let enough = || begin.elapsed() > 4 * SOON || rig.account().n_lost() > 8000;
    while begin.elapsed() < Duration::from_secs(4) || !enough() {
        match agent.port.write(&frames[sent % frames.len()..]) {
            Ok(n) => sent += n,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Two seconds' worth may come at once, and a second's lies in the socket and in what was read last.
    let took = begin.elapsed();
    let most = (took.as_secs_f64() + 3.0) * f64::from(64 << 20);
    assert!((sent as f64) < most, "{sent} bytes in {took:?}");
    let (_, account) = rig.stop();
    assert!(account_bytes(&account) < 256 << 10);
    assert!(account.bytes < 4 << 20, "{} bytes", account.bytes);
    assert!(account.n_lost() > 8000);
    assert!(
        account
            .notices
            .iter()
            .any(|n| n.what == "guest_stream_limit")
    );
    assert!(rig.events(FIRST).len() as u64 == account.events);
}

#[test]
fn a_guest_whose_time_goes_ahead_for_ever_is_given_up() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    for _ in 0..15 {
        agent.jump_and_begin(3_600_000_000_000);
    }
    rig.until("live", |a| {
        a.sides.len() == 16 && a.sides[15].live_mono_ns != 0
    });
    agent.jump_and_begin(3_600_000_000_000);
    let account = rig.until("given up", |a| a.state == State::Ended);
    assert_eq!(account.sides.len(), 16);
    let refused = account.notices.iter().find(|n| n.what == "agent_refused");
    let refused = &refused.unwrap().message;
    assert!(refused.contains("jumped, 16 times"), "{refused}");
    rig.stop();
}
