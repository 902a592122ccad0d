//! A bundle of a flight recorder from its first record to its name, and on to the next one.

use std::thread;
use std::time::Duration;

use nestrace_probes::{clock, refusal::with_causes};
use nestrace_trace::Manifest;
use nestrace_trace::manifest::State;

use crate::recording::{Recorder, nanoseconds};

/// How long the end of a bundle may take that is not the last one.
const CLOSING: Duration = Duration::from_secs(4);
/// The same of the last one, on a disk that has stalled.
const LAST_CLOSING: Duration = Duration::from_secs(30);

/// What is due for the bundle that is being written.
pub(super) fn go_on(recorder: &mut Recorder, now_ns: u64, is_last: bool) -> Result<(), String> {
    let Some(writing) = recorder.flying.as_ref().and_then(|it| it.writing.as_ref()) else {
        return Ok(());
    };
    if !writing.has_appeared {
        if !writing.copy.has_begun() {
            return Ok(());
        }
        if let Some(why) = writing.copy.sums().failed {
            return Err(why);
        }
        return appear(recorder);
    }
    let is_over = writing.copy.is_over();
    if let Some(since_ns) = writing.closing_ns {
        let has_maps = writing.has_maps || recorder.guests.has_image_maps_written();
        if let Some(writing) = recorder.flying.as_mut().and_then(|it| it.writing.as_mut()) {
            writing.has_maps = has_maps;
        }
        let is_late = now_ns.saturating_sub(since_ns) > nanoseconds(CLOSING);
        return match is_over && (has_maps || is_late) {
            true => close(recorder, since_ns, now_ns),
            false => Ok(()),
        };
    }
    let host = recorder.flying.as_ref().map(|flying| flying.host.clone());
    if !is_last && host.is_some_and(|host| writing.is_full_or_done(&host, now_ns)) {
        recorder.flush();
        recorder.guests.ask_for_image_maps();
        if let Some(flying) = &mut recorder.flying
            && let Some(writing) = &mut flying.writing
        {
            flying.rings.end_copies();
            writing.copy.stop();
            writing.closing_ns = Some(now_ns);
        }
        return Ok(());
    }
    if std::mem::take(&mut recorder.manifest.changed)
        && let Some(manifest) = manifest(recorder)
    {
        // Where there is no room, the next change or the end tries again.
        let _ = recorder.dir.write_manifest(&manifest);
    }
    Ok(())
}

fn manifest(recorder: &Recorder) -> Option<Manifest> {
    let losses = recorder.losses();
    let flying = recorder.flying.as_ref()?;
    flying.manifest(&recorder.manifest.value, losses)
}

/// All that was kept is written: the bundle can be read, and gets its name.
fn appear(recorder: &mut Recorder) -> Result<(), String> {
    let Some(manifest) = manifest(recorder) else {
        return Ok(());
    };
    let begun = recorder.dir.begin_manifest(&manifest);
    begun.map_err(|error| with_causes(&error))?;
    let Some(flying) = &mut recorder.flying else {
        return Ok(());
    };
    let appeared = recorder.launcher.appear(flying.number);
    appeared.map_err(|error| error.to_string())?;
    recorder.dir.has_appeared();
    if let Some(writing) = &mut flying.writing {
        writing.has_appeared = true;
    }
    Ok(())
}

/// Closes a bundle that is not the last one, and goes on.
fn close(recorder: &mut Recorder, end_ns: u64, now_ns: u64) -> Result<(), String> {
    let Some(mut manifest) = manifest(recorder) else {
        return Ok(());
    };
    // One that was full has its end.
    if manifest.end_mono_ns == 0 {
        manifest.end_mono_ns = end_ns;
    }
    manifest.end_reason = "flight".to_owned();
    manifest.state = State::Complete;
    let closed = recorder.dir.close(&manifest);
    closed.map_err(|error| with_causes(&error))?;
    let path = recorder.dir.path().to_owned();
    if let Some(flying) = &mut recorder.flying {
        recorder.keeper.give_back(flying.number).unwrap_or_default();
        flying.news.push(format!("wrote {}", path.display()));
        flying.written.push(path);
    }
    next(recorder, now_ns);
    Ok(())
}

/// The next bundle is waited for.
pub(super) fn next(recorder: &mut Recorder, now_ns: u64) {
    let Some(flying) = &mut recorder.flying else {
        return;
    };
    flying.writing = None;
    flying.rings.forget_copies();
    flying.not_before_ns = now_ns.saturating_add(nanoseconds(flying.flight.pause));
    let Some(dir) = flying.later.pop_front() else {
        return;
    };
    flying.number += 1;
    recorder.dir = dir;
    if let Err(error) = recorder.guests.begin_image_maps(&recorder.dir) {
        let message = format!("maps of images are not recorded: {}", with_causes(&error));
        flying.news.push(message);
    }
}

/// A bundle that is being closed and is not the last one is closed first.
pub(in crate::recording) fn finish_earlier(recorder: &mut Recorder) {
    let deadline_ns = clock::monotonic_ns().saturating_add(nanoseconds(CLOSING + CLOSING));
    loop {
        let writing = recorder.flying.as_ref().and_then(|it| it.writing.as_ref());
        let is_closing = writing.is_some_and(|writing| writing.closing_ns.is_some());
        let now_ns = clock::monotonic_ns();
        if !is_closing || now_ns > deadline_ns {
            return;
        }
        recorder.drain();
        // The answer of the reader comes with those about backends.
        recorder
            .guests
            .identify_backends(&mut recorder.sink, &mut recorder.manifest);
        if go_on(recorder, now_ns, false).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The recording is over: closes the streams of the bundle that is being written. Whether there is one.
pub(in crate::recording) fn end(recorder: &mut Recorder) -> bool {
    let Some(flying) = &mut recorder.flying else {
        return false;
    };
    let Some(writing) = &flying.writing else {
        return false;
    };
    flying.rings.end_copies();
    writing.copy.stop();
    let deadline_ns = clock::monotonic_ns().saturating_add(nanoseconds(LAST_CLOSING));
    while !writing.copy.is_over() && clock::monotonic_ns() < deadline_ns {
        thread::sleep(Duration::from_millis(5));
    }
    if writing.has_appeared {
        return true;
    }
    let failed = match writing.copy.sums().failed {
        Some(why) if flying.failed.is_some() => Err(why),
        _ => appear(recorder),
    };
    match failed {
        Ok(()) => true,
        Err(why) => {
            let message = format!("cannot write {}: {why}", recorder.dir.path().display());
            if let Some(flying) = &mut recorder.flying {
                flying.failed.get_or_insert(message);
            }
            false
        }
    }
}
