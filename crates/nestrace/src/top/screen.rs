//! `nestrace top` on a terminal: figures that change in their place, and keys.

use std::time::Duration;

use nestrace_record::live::Live;
use nestrace_sums::text::Statistic;
use nestrace_top::keys::Wish;
use nestrace_top::state::{Progress, State};
use nix::libc::SIGCONT;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::answer::Job;
use super::terminal::{self, Held, Input};
use super::{LOOK, failure, ticks};
use crate::cli::TopArgs;
use crate::exit::{DONE, FAILURE, Failure, say};
use crate::stop::Stop;

/// Shows until a key or a signal ends it.
pub async fn show(mut live: Live, args: &TopArgs, mut stop: Stop) -> Result<u8, Failure> {
    let mut job = None;
    let end = run(&mut live, args, &mut stop, &mut job).await;
    // The terminal has been given back.
    if let Some(job) = job {
        let output = job.output.clone();
        say(format_args!("closing {}", output.display()));
        job.close().await;
    }
    end
}

async fn run(
    live: &mut Live,
    args: &TopArgs,
    stop: &mut Stop,
    job: &mut Option<Job>,
) -> Result<u8, Failure> {
    let mut continued = signal(SignalKind::from_raw(SIGCONT))?;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lines = ticks(Duration::from_secs_f64(args.interval));
    let statistic = match args.p99 {
        true => Statistic::P99,
        false => Statistic::Mean,
    };
    let mut state = State::new(statistic, terminal::has_color());
    state.on_snapshot(live.snapshot(), &clock());
    let mut held = Held::take()?;
    let mut inputs = terminal::inputs()?;
    let mut is_stale = true;
    loop {
        if terminal::has_panicked() {
            return Err(Failure::new(FAILURE, "a thread of nestrace has failed"));
        }
        if std::mem::take(&mut is_stale) {
            let height = held.draw(&state)?;
            state.on_resize(height);
        }
        tokio::select! {
            biased;
            _ = stop.next() => return Ok(DONE),
            input = inputs.recv() => {
                is_stale = true;
                let wish = match input {
                    // The terminal is gone.
                    None => Some(Wish::Quit),
                    Some(Input::Key(key)) => state.on_key(key),
                    Some(Input::Resize) => None,
                };
                match wish {
                    None => {}
                    Some(Wish::Quit) => return Ok(DONE),
                    Some(Wish::Redraw) => held.clear()?,
                    Some(Wish::Suspend) => held.suspend()?,
                    Some(Wish::Record(disk)) if job.is_none() => match live.pid_of(&disk.guest) {
                        Some(pid) => *job = Some(Job::start(&disk.guest, pid)),
                        None => state.on_note("this guest does not run any more"),
                    },
                    // One at a time.
                    Some(Wish::Record(_)) => {}
                    Some(Wish::EndRecording) => job.iter_mut().for_each(Job::end),
                }
            }
            _ = continued.recv() => {
                held.take_again()?;
                is_stale = true;
            }
            progress = next(job) => {
                if matches!(progress, Progress::Answer(..) | Progress::Failed(_)) {
                    *job = None;
                }
                state.on_progress(progress);
                is_stale = true;
            }
            _ = lines.tick() => {
                state.on_snapshot(live.snapshot(), &clock());
                is_stale = true;
            }
            _ = looks.tick() => live.look().map_err(|error| failure(&error))?,
        }
        for note in live.notes() {
            state.on_note(&note);
            is_stale = true;
        }
    }
}

/// What the recording does next; without one, for ever.
async fn next(job: &mut Option<Job>) -> Progress {
    match job {
        Some(job) => {
            let lost = || Progress::Failed("the recording is lost".to_owned());
            job.next().await.unwrap_or_else(lost)
        }
        None => std::future::pending().await,
    }
}

fn clock() -> String {
    chrono::Local::now().format("%H:%M:%S").to_string()
}
