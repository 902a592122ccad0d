use nestrace_trace::manifest::{GuestDisk, GuestMount, Machine};

use super::bounds::MAX_SIDE_BYTES;
use super::*;

fn hello(boot: &str, disks: usize, mounts: usize, text: usize) -> AgentHello {
    let text = "x".repeat(text);
    AgentHello {
        machine: Machine {
            boot_id: boot.to_owned(),
            ..Machine::default()
        },
        disks: (0..disks)
            .map(|n| GuestDisk {
                name: text.clone(),
                dev: u32::try_from(n).unwrap(),
                ..GuestDisk::default()
            })
            .collect(),
        mounts: vec![
            GuestMount {
                mount_point: text.clone(),
                ..GuestMount::default()
            };
            mounts
        ],
        ..AgentHello::default()
    }
}

#[test]
fn a_side_has_its_share_of_the_manifest_and_no_more() {
    let mut account = Account::new("../../etc/vm1");
    let file = account.next_stream().unwrap();
    assert_eq!(file, "guest-..%2F..%2Fetc%2Fvm1.arrows");
    account.begin_side(&hello("a", 256, 1024, 1024), &file);
    for _ in 0..100 {
        account.update_side(&hello("a", 256, 1024, 1024), 0);
        account.fit();
    }
    let json = serde_json::to_vec(&account.sides[0]).unwrap();
    assert!(json.len() <= MAX_SIDE_BYTES && account.sides.len() == 1);
    assert!(!account.sides[0].disks.is_empty());
    let refused = &account.sides[0].refused;
    let times = |what: &str| {
        refused
            .iter()
            .find(|r| r.reason.starts_with(what))
            .unwrap()
            .times
    };
    assert_eq!(times("mount for"), 1024);
    let n_disks = account.sides[0].disks.len() as u64;
    assert_eq!(
        n_disks + times("disk for"),
        256,
        "told once, however often it is said"
    );
    account.begin_side(&hello("b", 3, 5, 20), "f");
    assert_eq!(
        (account.sides[1].disks.len(), account.sides[1].mounts.len()),
        (3, 5)
    );
}

#[test]
fn the_largest_correction_of_the_clock_stays() {
    let mut account = Account::new("vm1");
    let says = |clock_correction_ppm| AgentHello {
        clock_correction_ppm,
        ..hello("a", 0, 0, 0)
    };
    account.begin_side(&says(None), "f");
    for (said, kept) in [(None, None), (Some(20), Some(20)), (Some(9000), Some(9000))] {
        account.update_side(&says(said), 0);
        assert_eq!(account.sides[0].clock_correction_ppm, kept);
    }
    // The next session of the same agent begins to measure anew.
    account.update_side(&says(None), 0);
    assert_eq!(account.sides[0].clock_correction_ppm, Some(9000));
}

#[test]
fn boots_are_told_apart_and_bounded() {
    let mut account = Account::new("vm1");
    assert!(!account.is_same_side(&hello("a", 1, 1, 1)));
    let mut files = Vec::new();
    while let Some(file) = account.next_stream() {
        account.begin_side(&hello(&file, 1, 1, 1), &file);
        files.push(file);
    }
    assert_eq!(
        (files.len(), files[1].as_str()),
        (MAX_SIDES, "guest-vm1.2.arrows")
    );
    assert!(account.is_same_side(&hello(files.last().unwrap(), 0, 0, 0)));
    assert_eq!(account.streams().len(), MAX_SIDES);
}

fn lost(source: u32, total: u64) -> Lost {
    Lost {
        source,
        total,
        mono_ns: 1,
    }
}

#[test]
fn losses_add_up_over_sessions() {
    let mut account = Account::new("vm1");
    for (source, total) in [(0, 5), (0, 9), (0, 2), (DROPPED_BUFFERS, 7), (5, 100)] {
        assert!(account.lost(lost(source, total)));
    }
    assert!(!account.lost(lost(77, 1)));
    account.not_written(1);
    let losses: Vec<(String, u64)> = account
        .losses()
        .into_iter()
        .map(|l| (l.source, l.events))
        .collect();
    let expected = [("block", 11), ("guest_stream", 8), ("walk", 100)];
    assert_eq!(losses, expected.map(|(s, n)| (s.to_owned(), n)));
    assert_eq!(account.n_lost(), 19);
    account.lost(lost(0, u64::MAX));
    assert_eq!(account.n_lost(), u64::MAX);
}

#[test]
fn a_mark_in_the_stream_stands_for_an_event_that_is_counted_already() {
    let mut account = Account::new("vm1");
    let losses = |account: &Account| {
        let losses = account.losses().into_iter();
        losses.map(|l| (l.source, l.events)).collect::<Vec<_>>()
    };
    let rows = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter().map(|(s, n)| ((*s).to_owned(), *n)).collect()
    };
    account.lost(lost(0, 5));
    account.lost(lost(DROPPED_BUFFERS, 100));
    account.marked(true);
    assert_eq!(
        losses(&account),
        rows(&[("block", 6), ("guest_stream", 99)])
    );
    // What was in bytes that belong to no frame was not counted.
    account.marked(false);
    assert_eq!(
        losses(&account),
        rows(&[("block", 7), ("guest_stream", 99)])
    );
    assert_eq!(account.n_lost(), 106);
}

#[test]
fn a_new_session_that_loses_more_does_not_hide_what_the_last_one_lost() {
    let mut account = Account::new("vm1");
    account.begin_side(&hello("a", 0, 0, 0), "f");
    for total in [100, 500] {
        account.live(Live {
            mono_ns: 1,
            probes: Vec::new(),
            translation: None,
        });
        account.lost(lost(0, total));
    }
    // What happened in between was not counted either.
    assert_eq!(account.n_lost(), 600 + 1);
}

#[test]
fn gaps_that_touch_are_one() {
    let mut account = Account::new("vm1");
    account.begin_side(&hello("a", 0, 0, 0), "f");
    for (from, to) in [(10, 20), (15, 30), (40, 50), (35, 45)] {
        account.gap(from, to, "x");
    }
    let gaps = account.sides[0].gaps.iter();
    let gaps: Vec<_> = gaps.map(|g| (g.from_host_ns, g.to_host_ns)).collect();
    assert_eq!(gaps, [(10, 30), (35, 50)]);
}

#[test]
fn what_was_refused_before_there_was_a_side_is_not_forgotten() {
    let mut account = Account::new("vm1");
    account.refuse("a", 2);
    assert_eq!(
        account.refused_without_side().collect::<Vec<_>>(),
        [("a", 2)]
    );
    account.begin_side(&hello("a", 0, 0, 0), "f");
    account.refuse("a", 1);
    assert_eq!(account.sides[0].refused[0].times, 3);
    assert_eq!(account.refused_without_side().count(), 0);
    for n in 0..1000 {
        account.gap(10 * n, 10 * n + 2, "x");
    }
    assert_eq!(account.sides[0].gaps.len(), MAX_GAPS);
}

#[test]
fn mounts_go_before_disks() {
    let mut account = Account::new("vm1");
    account.begin_side(&hello("a", 50, 1024, 200), "f");
    account.fit();
    let side = &account.sides[0];
    assert!(side.disks.len() == 50 && side.mounts.len() < 1024);
    let refused: Vec<_> = side.refused.iter().map(|r| r.reason.as_str()).collect();
    assert_eq!(refused, ["mount for which the manifest has no room"]);
}

#[test]
fn a_gap_too_many_is_one_with_the_last() {
    let mut account = Account::new("vm1");
    account.begin_side(&hello("a", 0, 0, 0), "f");
    for n in 0..1000 {
        account.gap(10 * n, 10 * n + 2, "x");
    }
    let gaps = &account.sides[0].gaps;
    assert_eq!(
        (gaps.len(), gaps[MAX_GAPS - 1].to_host_ns),
        (MAX_GAPS, 9992)
    );
    assert_eq!(gaps[MAX_GAPS - 1].from_host_ns, 10 * (MAX_GAPS as u64 - 1));
    // As it is where the manifest has no room for so many.
    account.update_side(&hello("a", 100, 0, 330), 0);
    account.fit();
    let side = &account.sides[0];
    assert!(side.gaps.len() < MAX_GAPS && side.disks.len() == 100);
    assert_eq!(side.gaps.last().unwrap().to_host_ns, 9992);
}

#[test]
fn what_an_agent_says_again_and_again_is_noted_once() {
    let mut account = Account::new("vm1");
    for n in 0..100 {
        account.note_said(n, "agent_says", "no disk");
        account.note_said(n, "agent_ended", "no disk");
    }
    account.note(100, "agent_silent", "its agent is silent");
    account.note(101, "agent_silent", "its agent is silent");
    let times: Vec<u64> = account.notices.iter().map(|n| n.mono_ns).collect();
    assert_eq!(times, [0, 0, 100, 101]);
}

#[test]
fn each_kind_of_notice_has_a_room_of_its_own() {
    let mut account = Account::new("vm1");
    for n in 0..1000 {
        account.note_said(n, "agent_says", &n.to_string());
        account.note(n, "agent_silent", "its agent is silent");
        account.note_once(n, "agent_refused", "its clock jumps too often");
    }
    account.note(1000, "agent_refused", "its agent is ignored from here on");
    let of = |what: &str| {
        let notices = account.notices.iter().filter(|n| n.what == what);
        notices.map(|n| n.message.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((of("agent_says").len(), of("agent_silent").len()), (40, 16));
    let last = "guest vm1: its agent is silent; further ones of this kind are not listed";
    assert_eq!(of("agent_silent").last(), Some(&last));
    assert_eq!(of("agent_refused").len(), 2);
}

#[test]
fn another_disk_under_a_known_number_is_told() {
    const S: u64 = 1_000_000_000;
    let mut account = Account::new("vm1");
    let says = |serial: &str, mono_s: u64| {
        let mut hello = hello("a", 1, 0, 3);
        hello.mono_ns = mono_s * S;
        serial.clone_into(&mut hello.disks[0].serial);
        hello
    };
    account.begin_side(&says("a", 10), "f");
    for mono_s in [20, 30, 40] {
        account.update_side(&says("b", mono_s), 5000 + mono_s);
    }
    let mut last = says("c", 50);
    last.held_mono_ns = 48 * S;
    account.update_side(&last, 5050);
    let disks = &account.sides[0].disks;
    let disks: Vec<_> = disks
        .iter()
        .map(|d| (d.serial.as_str(), d.since_mono_ns / S, d.until_mono_ns / S))
        .collect();
    // An agent that does not say since when it is so: since it said that it was otherwise, for all that is known.
    assert_eq!(disks, [("a", 0, 10), ("b", 20, 48), ("c", 50, 0)]);
    let told: Vec<_> = account
        .notices
        .iter()
        .map(|n| (n.what.as_str(), n.mono_ns))
        .collect();
    assert_eq!(told, [(DISK_REPLACED, 5020), (DISK_REPLACED, 5050)]);
    assert_eq!(account.news.len(), 2);
}
