//! What of a guest was not recorded is a gap in its side, or a loss in its stream.

use super::*;

#[test]
fn a_pause_is_a_gap() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("silent", |a| a.state == State::Silent);
    agent.clock_ns += 100;
    let event = agent.event(0);
    agent.record(&[event]);
    // The question that was repeated is that of the same session.
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let account = rig.until("back", |a| a.state == State::Live && a.events == 1);
    let gap = &account.sides[0].gaps[0];
    assert!(gap.to_host_ns - gap.from_host_ns >= SILENT_NS, "{gap:?}");
    let what: Vec<&str> = account.notices.iter().map(|n| n.what.as_str()).collect();
    assert!(
        what.starts_with(&["agent_silent", "agent_back"]),
        "{what:?}"
    );
    rig.stop();
    serving.join().unwrap();
}

/// Disks or mounts have changed in the pause: the first word after it is a Hello, and no Live follows.
#[test]
fn a_pause_that_ends_with_changed_facts_is_a_gap() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("silent", |a| a.state == State::Silent);
    agent.clock_ns += 100;
    let event = agent.event(0);
    let mut bytes = Vec::new();
    AgentMessage::Hello(Box::new(agent.hello())).encode_to(&mut bytes);
    put_events(&[event], &mut bytes);
    agent.port.write_all(&bytes).unwrap();
    let account = rig.until("back", |a| a.events == 1 && !a.sides[0].gaps.is_empty());
    let gap = &account.sides[0].gaps[0];
    assert!(gap.to_host_ns - gap.from_host_ns >= SILENT_NS, "{gap:?}");
    // It is as live as before: two seconds without a word are a silence again, and no minute.
    let is_silent_again = |a: &Account| {
        a.notices
            .iter()
            .filter(|n| n.what == "agent_silent")
            .count()
            >= 2
    };
    rig.until("silent again", is_silent_again);
    let account = rig.stop().1;
    let reasons: Vec<&str> = account.sides[0]
        .gaps
        .iter()
        .map(|g| g.reason.as_str())
        .collect();
    assert!(
        reasons
            .iter()
            .all(|r| r.starts_with("the agent was silent")),
        "{reasons:?}"
    );
}

#[test]
fn one_that_takes_long_to_attach_is_not_silent() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    loop {
        if let HostMessage::Start(start) = agent.next() {
            agent.session = start.session;
            break;
        }
    }
    let hello = Box::new(agent.hello());
    agent.send(&AgentMessage::Hello(hello));
    rig.until("attaching", |a| a.state == State::Attaching);
    thread::sleep(Duration::from_nanos(SILENT_NS) + Duration::from_millis(300));
    // Not all of what it says then comes at once.
    agent.send(&AgentMessage::Refused(vec![]));
    thread::sleep(Duration::from_millis(100));
    let account = rig.account();
    assert_eq!((account.state, account.notices), (State::Attaching, vec![]));
    agent.send(&AgentMessage::Live(Live {
        mono_ns: agent.clock_ns,
        probes: vec![],
        translation: None,
    }));
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let is_told = |a: &Account| a.news.iter().any(|news| news.contains("live (ebpf"));
    rig.until("live", is_told);
    rig.stop();
    serving.join().unwrap();
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let event = agent.event(5);
    agent.record(&[event]);
    rig.until("written", |a| a.events == 1);
    drop(agent);
    rig.until("silent", |a| a.state == State::Silent);
    let mut agent = rig.accept();
    // There is no answer yet.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.account().state, State::Silent);
    agent.begin();
    let later = agent.event(6);
    agent.record(&[later]);
    let account = rig.until("written", |a| a.events == 3);
    assert_eq!(account.sides.len(), 1);
    let gap = &account.sides[0].gaps[0];
    assert!(
        gap.to_host_ns - gap.from_host_ns >= 300_000_000,
        "too short: {gap:?}"
    );
    let serving = thread::spawn(move || agent.serve_to_the_end());
    rig.stop();
    serving.join().unwrap();
    // Between what was seen before and after stands a loss, at the time of the last word before.
    let loss = Event {
        ts_ns: event.ts_ns,
        kind: Kind::Loss as u8,
        sub: Source::Block as u8,
        object: 1,
        ..Event::default()
    };
    assert_eq!(rig.events(FIRST), [event, loss, later]);
}

#[test]
fn a_loss_stands_where_events_are_missing() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let [first, second, third] = [5, 6, 7].map(|n| agent.event(n));
    let lost = |source, total, mono_ns| {
        AgentMessage::Loss(Lost {
            source,
            total,
            mono_ns,
        })
    };
    agent.record(&[first]);
    agent.send(&lost(DROPPED_BUFFERS, 100, first.ts_ns - 9));
    // The same place.
    agent.send(&lost(DROPPED_BUFFERS, 150, first.ts_ns + 9));
    agent.record(&[second]);
    agent.send(&lost(DROPPED_BUFFERS, 150, 0));
    agent.send(&lost(Source::File as u32, 9, second.ts_ns));
    // A time of no clock places nothing.
    agent.send(&lost(DROPPED_BUFFERS, 160, u64::MAX - 1));
    agent.record(&[third]);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let (_, account) = rig.stop();
    serving.join().unwrap();
    let loss = |at: Event, source: Source, object| Event {
        ts_ns: at.ts_ns,
        kind: Kind::Loss as u8,
        sub: source as u8,
        object,
        ..Event::default()
    };
    let expected = [
        first,
        loss(first, Source::Block, 1),
        second,
        loss(second, Source::File, 9),
        loss(second, Source::Block, 2),
        third,
    ];
    assert_eq!(rig.events(FIRST), expected);
    // Two are of the 160.
    let losses = account.losses().into_iter().map(|l| (l.source, l.events));
    let expected = [("block", 2), ("file", 9), ("guest_stream", 158)];
    assert!(losses.eq(expected.map(|(source, n)| (source.to_owned(), n))));
}

/// How much of the guest is missing at the end, and why, after `last` and half a second more.
fn missing_at_the_end(last: impl FnOnce(&Agent) -> AgentMessage<'static>) -> (u64, String) {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("live", |a| a.state == State::Live);
    let last = last(&agent);
    agent.send(&last);
    rig.until("ended", |a| a.state == State::Ended);
    thread::sleep(Duration::from_millis(500));
    let account = rig.stop().1;
    let [gap] = account.sides[0].gaps.as_slice() else {
        panic!("{account:?}");
    };
    (gap.to_host_ns - gap.from_host_ns, gap.reason.clone())
}

#[test]
fn what_is_not_listened_to_any_more_is_missing_to_the_end() {
    let (missing_ns, reason) = missing_at_the_end(|agent| {
        AgentMessage::Hello(Box::new(AgentHello {
            protocol: VERSION + 1,
            ..agent.hello()
        }))
    });
    assert!(missing_ns >= 500_000_000, "{missing_ns}");
    assert_eq!(reason, "its agent was ignored");
}

#[test]
fn what_comes_after_an_agent_s_own_end_is_missing() {
    let (missing_ns, reason) = missing_at_the_end(|agent| {
        AgentMessage::End(End {
            mono_ns: agent.clock_ns,
            reason: "signal".to_owned(),
        })
    });
    assert!(missing_ns >= 500_000_000, "{missing_ns}");
    assert_eq!(reason, "its agent had ended");
}
