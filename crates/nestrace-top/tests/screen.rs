//! What stands on the screen, cell by cell, after snapshots and keys.

use nestrace_sums::histogram::{BUCKETS, bucket_of};
use nestrace_sums::snapshot::{DeviceSums, DiskSums, LayerSums, Layers, Op, Snapshot};
use nestrace_sums::text::Statistic;
use nestrace_top::draw::draw;
use nestrace_top::keys::{Key, Wish};
use nestrace_top::state::{Progress, State};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// Requests of one latency.
fn layer(n: u64, ns: u64) -> LayerSums {
    let mut buckets = vec![0; BUCKETS];
    buckets[bucket_of(ns)] = n;
    LayerSums {
        n,
        sum_ns: n * ns,
        max_ns: (n > 0).then_some(ns),
        buckets,
    }
}

/// A disk after so many reads, each of 1 MiB and `ns` in QEMU, half of it in the device; its writes are a tenth.
fn disk(
    guest: &str,
    name: &str,
    reads: u64,
    ns: u64,
    in_flight: u64,
    agent: bool,
) -> Vec<DiskSums> {
    let row = |op, n: u64| {
        let is_data = op != Op::Flush;
        let mut layers = Layers {
            guest: agent.then(|| layer(n, ns * 2)),
            qemu: Some(layer(n, ns)),
            file_io: Some(layer(n, ns * 3 / 4)),
            device: Some(layer(n, ns / 2)),
            ..Layers::default()
        };
        layers.host_queue = Some(layer(n, 2000));
        DiskSums {
            guest: guest.to_owned(),
            uuid: None,
            disk: name.to_owned(),
            device: Some("nvme0n1".to_owned()),
            op,
            n,
            bytes: if is_data { n * MIB } else { 0 },
            merged: None,
            no_guest: None,
            layers,
            in_flight: Some(if op == Op::Read { in_flight } else { 0 }),
            oldest_ns: (op == Op::Read && in_flight > 0).then_some(41 * SECOND),
        }
    };
    vec![
        row(Op::Read, reads),
        row(Op::Write, reads / 10),
        row(Op::Flush, reads / 100),
    ]
}

fn device(name: &str, reads: u64, ns: u64) -> DeviceSums {
    DeviceSums {
        device: name.to_owned(),
        op: Op::Read,
        n: reads,
        bytes: reads * MIB,
        host_queue: Some(layer(reads, 2000)),
        latency: Some(layer(reads, ns)),
        in_flight: Some(0),
        oldest_ns: None,
    }
}

/// Three guests at a second: `vm1` fast and busy, `vm2` slow and stuck, `vm3` idle.
fn at(second: u64) -> Snapshot {
    let disks = [
        disk("vm1", "vda", second * 1000, 800_000, 0, false),
        disk("vm2", "vda", second * 10, 20_000_000, 7, false),
        disk("vm3", "vdb", 5, 1_000_000, 0, false),
    ];
    Snapshot {
        at_unix_ns: (1000 + second) * SECOND,
        lost: [("block".to_owned(), 0)].into(),
        disks: disks.concat(),
        devices: vec![
            device("nvme0n1", second * 1010, 400_000),
            device("sda", 3, 9_000_000),
        ],
    }
}

fn after(seconds: u64) -> State {
    let mut state = State::new(Statistic::Mean, true);
    for second in 1..=seconds {
        state.on_snapshot(at(second), "14:03:07");
    }
    state
}

fn terminal(state: &State, (width, height): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(state, frame)).unwrap();
    terminal
}

/// The lines of the screen.
fn screen(state: &State, size: (u16, u16)) -> Vec<String> {
    let terminal = terminal(state, size);
    let buffer = terminal.backend().buffer();
    let line = |y| -> String { (0..size.0).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..size.1).map(|y| line(y).trim_end().to_owned()).collect()
}

fn keys(state: &mut State, keys: &str) {
    for key in keys.chars() {
        assert_eq!(state.on_key(Key::Char(key)), None, "{key}");
    }
}

/// The names of the disks, from the top.
fn names(state: &State) -> Vec<String> {
    let lines = screen(state, (80, 24));
    let rows = lines
        .iter()
        .skip(2)
        .take_while(|line| !line.starts_with("device"));
    let name = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    rows.map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn eighty_columns_have_every_figure() {
    let lines = screen(&after(5), (80, 24));
    assert_eq!(
        lines[0],
        "nestrace top  14:03:07  latency: mean  sort: requests"
    );
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        words(&lines[1]),
        [
            "guest", "disk", "r/s", "w/s", "f/s", "MiB/s", "qemu", "file", "queue", "device",
            "infl", "oldest"
        ]
    );
    assert_eq!(
        words(&lines[2]),
        [
            "vm1/vda", "1000", "100", "10", "1100", "800µs", "600µs", "2.00µs", "400µs", "0"
        ]
    );
    assert_eq!(
        words(&lines[3]),
        [
            "vm2/vda", "10", "1", "0", "11.0", "20.0ms", "15.0ms", "2.00µs", "10.0ms", "7", "41.0s"
        ]
    );
    // Idle: no latency.
    assert_eq!(words(&lines[4]), ["vm3/vdb", "0", "0", "0", "0.0", "0"]);
    let device = lines
        .iter()
        .position(|line| line.starts_with("device"))
        .unwrap();
    assert_eq!(
        words(&lines[device + 1]),
        ["nvme0n1", "1010", "0", "0", "1010", "2.00µs", "400µs", "0"]
    );
    assert!(lines[device + 2].starts_with("sda "));
    // The figures of devices stand below those of disks.
    let end_of = |line: &str, word: &str| {
        line[..line.find(word).unwrap() + word.len()]
            .chars()
            .count()
    };
    assert_eq!(
        end_of(&lines[1], "queue"),
        end_of(&lines[device + 1], "2.00µs")
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("vm1/vda on nvme0n1  qemu: reads and writes of 4 s"))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("n 4400    mean  800 µs"))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("1 µs") && line.contains("100 ms"))
    );
    assert!(lines.iter().any(|line| line.contains("requests ≤ 1110/s")));
    assert!(lines[23].starts_with("q quit"));
}

/// With an agent there are five layers.
#[test]
fn eighty_columns_have_five_layers() {
    let mut state = State::default();
    for second in [1, 2] {
        let mut now = at(second);
        now.disks
            .extend(disk("vm4", "vda", second * 5000, 123_456, 12, true));
        state.on_snapshot(now, "");
    }
    let lines = screen(&state, (80, 24));
    for heading in [
        "r/s", "w/s", "f/s", "MiB/s", "guest", "qemu", "file", "queue", "device", "infl", "oldest",
    ] {
        assert!(lines[1].contains(heading), "{heading}: {}", lines[1]);
    }
    assert!(lines[2].starts_with("vm4/vda "), "{}", lines[2]);
    assert!(lines[2].contains(" 247µs  123µs"), "{}", lines[2]);
    // Without an agent its layer is not recorded.
    assert!(lines[3].contains(" ?  800µs"), "{}", lines[3]);
}

#[test]
fn two_hundred_columns_have_the_histogram_at_the_side() {
    let lines = screen(&after(70), (200, 50));
    assert!(lines[1].contains("guest disk"), "{}", lines[1]);
    assert!(
        lines[1].contains("vm1/vda on nvme0n1  qemu: reads and writes of 60 s"),
        "{}",
        lines[1]
    );
    assert!(lines[2].contains("nvme0n1 "), "{}", lines[2]);
    assert!(
        lines[2].contains(" 800 µs  600 µs 2.00 µs  400 µs"),
        "{}",
        lines[2]
    );
    let layers = lines
        .iter()
        .position(|line| line.contains("layers, last interval"))
        .unwrap();
    assert!(
        lines[layers + 1].contains("qemu       n 1100    mean  800 µs"),
        "{}",
        lines[layers + 1]
    );
    assert!(
        lines[layers + 4].contains("device     n 1100    mean  400 µs"),
        "{}",
        lines[layers + 4]
    );
    // A minute that was the same is a full line.
    assert!(
        lines.iter().any(|line| line.contains(&"█".repeat(60))),
        "{lines:#?}"
    );
}

/// All of a histogram's requests are in the column above their latency.
#[test]
fn the_histogram_stands_above_its_latency() {
    let mut state = after(5);
    let at_of = |state: &State| {
        let lines = screen(state, (80, 24));
        let axis = lines
            .iter()
            .position(|line| line.starts_with("1 µs"))
            .unwrap();
        let bar = lines[axis - 1].chars().position(|c| c == '█').unwrap();
        let label = |label| {
            lines[axis][..lines[axis].find(label).unwrap()]
                .chars()
                .count()
        };
        (bar, label("100 µs"), label("1 ms"), label("10 ms"))
    };
    let (bar, us, ms, _) = at_of(&state);
    assert!(us < bar && bar < ms, "800 µs at {bar}");
    state.on_key(Key::Down);
    let (bar, _, _, ten_ms) = at_of(&state);
    assert!(ten_ms < bar, "20 ms at {bar}");
    // To the right is the next layer: the files' I/O of 15 ms.
    state.on_key(Key::Right);
    assert!(
        screen(&state, (80, 24))
            .iter()
            .any(|line| line.contains("file_io: reads and writes"))
    );
    let (further, ..) = at_of(&state);
    assert!(further < bar);
}

#[test]
fn keys_sort_filter_and_switch_latencies() {
    let mut state = after(3);
    assert_eq!(names(&state), ["vm1/vda", "vm2/vda", "vm3/vdb"]);
    // By bytes, by latency.
    keys(&mut state, "ss");
    assert_eq!(names(&state), ["vm2/vda", "vm1/vda", "vm3/vdb"]);
    assert!(screen(&state, (80, 24))[0].contains("sort: latency"));
    keys(&mut state, "r");
    assert_eq!(names(&state), ["vm3/vdb", "vm1/vda", "vm2/vda"]);
    keys(&mut state, "rSSS");
    assert!(screen(&state, (80, 24))[0].contains("sort: name"));
    assert_eq!(names(&state), ["vm1/vda", "vm2/vda", "vm3/vdb"]);
    keys(&mut state, "/VM2q");
    assert!(screen(&state, (80, 24))[23].starts_with("filter: VM2q"));
    state.on_key(Key::Backspace);
    state.on_key(Key::Enter);
    assert_eq!(names(&state), ["vm2/vda"]);
    // The device that carries the disk stays, the other one goes.
    let lines = screen(&state, (80, 24));
    assert!(lines.iter().any(|line| line.starts_with("nvme0n1 ")));
    assert!(!lines.iter().any(|line| line.starts_with("sda ")));
    assert!(screen(&state, (80, 24))[0].contains("filter: VM2"));
    state.on_key(Key::Escape);
    assert_eq!(names(&state).len(), 3);
    keys(&mut state, "m");
    assert!(screen(&state, (80, 24))[0].contains("latency: p99"));
}

#[test]
fn a_pause_keeps_the_figures_and_the_selection_stays_with_its_row() {
    let mut state = after(3);
    state.on_key(Key::Down);
    keys(&mut state, "p");
    let before = screen(&state, (80, 24));
    assert!(before[0].contains("PAUSED"));
    let mut next = at(4);
    next.disks.retain(|disk| disk.guest != "vm3");
    state.on_snapshot(next, "14:03:08");
    assert_eq!(screen(&state, (80, 24)), before);
    keys(&mut state, "p");
    let now = screen(&state, (80, 24));
    assert!(now[0].contains("14:03:08") && !now[0].contains("PAUSED"));
    assert_eq!(names(&state), ["vm1/vda", "vm2/vda"]);
    // vm2 goes up; the selection goes with it.
    keys(&mut state, "ss");
    assert!(
        screen(&state, (80, 24))
            .iter()
            .any(|line| line.starts_with("vm2/vda on nvme0n1"))
    );
}

#[test]
fn names_of_guests_command_no_terminal() {
    let hostile = "a\x1b]0;owned\x07\x1b[2J\r\n\u{202e}b";
    let mut state = State::default();
    for second in [1, 2] {
        let mut now = at(second);
        now.disks
            .extend(disk(hostile, "d\x1b[31m", second * 9000, 1000, 0, false));
        for disk in &mut now.disks {
            disk.device = Some("n\x1b[5m".to_owned());
        }
        state.on_snapshot(now, "");
    }
    for size in [(80, 24), (200, 50)] {
        let lines = screen(&state, size);
        let all: String = lines.concat();
        assert!(!all.chars().any(|c| c.is_control() || c == '\u{202e}'));
        assert!(
            lines[2].starts_with("a\u{fffd}]0;owned\u{fffd}"),
            "{}",
            lines[2]
        );
        assert!(all.contains("on n\u{fffd}[5m"));
    }
    // The wish has the name as it is.
    let Some(Wish::Record(subject)) = state.on_key(Key::Char('e')) else {
        panic!("no wish");
    };
    assert_eq!(subject.guest, hostile);
    state.on_progress(Progress::Begins(subject.guest));
    assert!(screen(&state, (80, 24))[23].starts_with("recording a\u{fffd}]0;"));
    state.on_progress(Progress::Failed("x\x1b[2J".to_owned()));
    assert_eq!(screen(&state, (80, 24))[23], "x\u{fffd}[2J");
    state.on_progress(Progress::Answer(
        "t\x1b[2J".to_owned(),
        "a\tb\x1b[2J\nc".to_owned(),
    ));
    let page = screen(&state, (80, 24));
    assert_eq!(page[0], "t\u{fffd}[2J");
    assert_eq!(page[1], "a        b\u{fffd}[2J");
}

/// A name of wide letters moves no figure.
#[test]
fn wide_letters_move_nothing() {
    let mut state = State::default();
    for second in [1, 2] {
        let mut now = at(second);
        now.disks.extend(disk(
            &"仮想".repeat(20),
            "vda",
            second * 9000,
            1000,
            0,
            false,
        ));
        state.on_snapshot(now, "");
    }
    let lines = screen(&state, (80, 24));
    // A wide letter is a cell of two columns, the second one empty.
    let end = |line: &str, word: &str| {
        let (before, _) = line.split_once(word).unwrap();
        ratatui::text::Span::raw(before).width() + word.len()
    };
    let terminal = terminal(&state, (80, 24));
    let buffer = terminal.backend().buffer();
    let column = end(&lines[1], "r/s") - 1;
    let digit = buffer[(u16::try_from(column).unwrap(), 2)].symbol();
    assert_eq!(digit, "0", "9000 ends below r/s");
}

#[test]
fn a_recording_is_shown_until_its_answer() {
    let mut state = after(3);
    state.on_resize(24);
    let wish = state.on_key(Key::Char('e'));
    assert!(matches!(wish, Some(Wish::Record(subject)) if subject.guest == "vm1"));
    state.on_progress(Progress::Begins("vm1".to_owned()));
    assert!(screen(&state, (80, 24))[23].contains("recording vm1: attaching probes"));
    // A second one is refused.
    assert_eq!(state.on_key(Key::Char('e')), None);
    assert!(screen(&state, (80, 24))[23].contains("a recording goes on"));
    state.on_progress(Progress::Left(7));
    state.on_key(Key::Down);
    assert!(screen(&state, (80, 24))[23].contains("7 s left"));
    assert_eq!(state.on_key(Key::Char('x')), Some(Wish::EndRecording));
    state.on_progress(Progress::Analyzes);
    let text: String = (1..=100).map(|n| format!("answer {n}\n")).collect();
    state.on_progress(Progress::Answer("vm1.nest".to_owned(), text));
    let page = screen(&state, (80, 24));
    assert_eq!(
        (page[0].as_str(), page[1].as_str()),
        ("vm1.nest", "answer 1")
    );
    assert!(page[23].starts_with("lines 1 to 22 of 100"));
    state.on_key(Key::End);
    assert_eq!(screen(&state, (80, 24))[22], "answer 100");
    // q closes the answer, not the program.
    assert_eq!(state.on_key(Key::Char('q')), None);
    assert_eq!(names(&state).len(), 3);
    assert_eq!(state.on_key(Key::Char('q')), Some(Wish::Quit));
    // A device has no guest.
    state.on_key(Key::End);
    assert_eq!(state.on_key(Key::Char('e')), None);
    assert!(screen(&state, (80, 24))[23].contains("select one of its disks"));
    assert_eq!(state.on_key(Key::Ctrl('c')), Some(Wish::Quit));
}

#[test]
fn help_fits_eighty_columns() {
    let mut state = after(2);
    keys(&mut state, "?");
    let lines = screen(&state, (80, 40));
    assert!(
        lines
            .iter()
            .any(|line| line.contains("q, Ctrl-C       quit"))
    );
    let longest = nestrace_top::keys::HELP
        .lines()
        .map(|line| line.chars().count())
        .max();
    assert!(longest.unwrap() <= 80);
}

#[test]
fn without_colour_there_is_none() {
    for has_color in [true, false] {
        let mut state = State::new(Statistic::P99, has_color);
        state.on_snapshot(at(1), "");
        state.on_snapshot(at(2), "");
        let terminal = terminal(&state, (80, 24));
        let cells = terminal.backend().buffer().content();
        let colored = cells
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(colored, has_color);
    }
}

/// From the first moment on, at any size, with any number of rows.
#[test]
fn it_draws_at_any_size() {
    let mut many = at(1);
    for n in 0..500 {
        many.disks.extend(disk(
            &format!("guest-{n:03}"),
            "vda",
            10,
            1000,
            0,
            n % 2 == 0,
        ));
    }
    for state in [State::default(), after(1), after(3), {
        let mut state = State::default();
        state.on_snapshot(many.clone(), "");
        state.on_key(Key::PageDown);
        state
    }] {
        for width in [1, 2, 10, 39, 40, 79, 80, 81, 120, 169, 170, 300] {
            for height in [1, 2, 3, 5, 17, 18, 24, 60] {
                screen(&state, (width, height));
            }
        }
    }
    let mut state = State::default();
    state.on_snapshot(many, "");
    state.on_key(Key::Char('S'));
    for _ in 0..30 {
        state.on_key(Key::PageDown);
    }
    let lines = screen(&state, (80, 24));
    // The selected row is seen among many, here a disk near the middle of the list.
    assert!(
        lines.iter().any(|line| line.starts_with("guest-300/vda")),
        "{lines:#?}"
    );
    assert!(lines[1].contains("/503"), "{}", lines[1]);
}
