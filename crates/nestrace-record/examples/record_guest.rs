//! `record_guest NAME BUNDLE SECONDS`: records a guest as `nestrace record` does, as root. It shows what a program that embeds the
//! recorder has to do: be ready to be executed again as a helper.

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nestrace_kernel::plan::Detail;
use nestrace_probes::kernel_facts;
use nestrace_record::agent_address::Choice;
use nestrace_record::guest::Selection;
use nestrace_record::recording::{Options, Recorder};
use nestrace_record::roles::{self, finder::discover_apart};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if let Some(code) = roles::run_if_asked() {
        return Ok(code);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [guest, output, seconds] = args.as_slice() else {
        return Err("usage: record_guest NAME BUNDLE SECONDS".into());
    };
    let duration = Duration::from_secs_f64(seconds.parse()?);
    let (facts, layout) = kernel_facts::gather();
    let found = discover_apart(&Selection::Named(vec![guest.clone()]), true)?;
    let options = Options {
        output: output.into(),
        force: true,
        detail: Detail::Full,
        qemu: true,
        qemu_debug: None,
        max_bytes: None,
        flight: None,
        ring_bytes: None,
        cpu: true,
        topology: found.topology,
        start_ticks: found.start_ticks,
        open_files: found.open_files,
        programs: found.programs,
        agent: Choice::Auto,
        paths: true,
        command: Vec::new(),
    };
    let mut recorder = Recorder::start(options, &facts, &layout)?;
    recorder.launch()?;
    let deadline = Instant::now() + duration;
    while Instant::now() < deadline && recorder.tick().is_none() {
        thread::sleep(Duration::from_millis(50));
    }
    let summary = recorder.finish("duration")?;
    println!(
        "{} events in {}",
        summary.counters.events,
        summary.path.display()
    );
    Ok(ExitCode::SUCCESS)
}
