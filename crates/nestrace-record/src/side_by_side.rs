//! Looks at many things at once, each with a time limit: one that never answers delays and hides no other.
//!
//! A look at a process may wait for ever: its memory map may be locked, its files may lie on a file system that its own
//! owner serves. Such a thread is left behind; it ends with this program.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often slow ones are looked for.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// More threads than this are not left behind at once.
const MAX_LEFT_BEHIND: usize = 256;

/// What the threads share.
struct Shared<T, W> {
    items: Vec<T>,
    work: W,
    next: AtomicUsize,
    /// The item that is worked on, and since when, of each thread.
    busy: Mutex<Vec<Option<(usize, Instant)>>>,
}

/// Calls `work` with each item in `n_threads` threads; `None` for those that took longer than `limit`. The order is that of
/// the items.
pub fn side_by_side<T, R, W>(
    items: Vec<T>,
    n_threads: usize,
    limit: Duration,
    work: W,
) -> Vec<Option<R>>
where
    T: Send + Sync + 'static,
    R: Send + 'static,
    W: Fn(&T) -> R + Send + Sync + 'static,
{
    let n_items = items.len();
    let mut results: Vec<Option<R>> = Vec::new();
    results.resize_with(n_items, || None);
    let shared = Arc::new(Shared {
        items,
        work,
        next: AtomicUsize::new(0),
        busy: Mutex::new(Vec::new()),
    });
    let (sender, receiver) = mpsc::channel();
    let start = || {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        let place = {
            let mut busy = lock(&shared.busy);
            busy.push(None);
            busy.len() - 1
        };
        // Without a thread the others do the work.
        let _ = thread::Builder::new()
            .name("nestrace-look".to_owned())
            .spawn(move || {
                loop {
                    let index = shared.next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = shared.items.get(index) else {
                        break;
                    };
                    set(&shared.busy, place, Some((index, Instant::now())));
                    let result = (shared.work)(item);
                    set(&shared.busy, place, None);
                    if sender.send((index, result)).is_err() {
                        break;
                    }
                }
            });
    };
    (0..n_threads.clamp(1, n_items.max(1))).for_each(|_| start());
    let mut settled = vec![false; n_items];
    let (mut n_settled, mut n_left_behind) = (0, 0);
    while n_settled < n_items {
        match receiver.recv_timeout(LOOK_AROUND) {
            Ok((index, result)) => {
                if let (Some(is_settled), Some(place)) =
                    (settled.get_mut(index), results.get_mut(index))
                    && !*is_settled
                {
                    *is_settled = true;
                    *place = Some(result);
                    n_settled += 1;
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let overdue: Vec<usize> = {
            let mut busy = lock(&shared.busy);
            busy.iter_mut()
                .filter_map(|place| {
                    let (index, _) = place.take_if(|(_, since)| since.elapsed() > limit)?;
                    Some(index)
                })
                .collect()
        };
        for index in overdue {
            if let Some(is_settled) = settled.get_mut(index)
                && !*is_settled
            {
                *is_settled = true;
                n_settled += 1;
            }
            n_left_behind += 1;
            if n_left_behind <= MAX_LEFT_BEHIND {
                start();
            }
        }
        if n_left_behind > MAX_LEFT_BEHIND {
            break;
        }
    }
    results
}

fn set(busy: &Mutex<Vec<Option<(usize, Instant)>>>, place: usize, value: Option<(usize, Instant)>) {
    if let Some(slot) = lock(busy).get_mut(place) {
        *slot = value;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing is left half done by a thread that panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_hangs_hides_no_other() {
        let limit = Duration::from_millis(100);
        let begin = Instant::now();
        // Twice as many that never end as there are threads.
        let results = side_by_side((0..200).collect(), 4, limit, |n: &u32| {
            if n % 25 == 3 {
                thread::sleep(Duration::from_secs(600));
            }
            n * 2
        });
        assert!(begin.elapsed() < Duration::from_secs(20));
        for (n, result) in (0..200u32).zip(results) {
            assert_eq!(result, (n % 25 != 3).then_some(n * 2), "{n}");
        }
    }

    #[test]
    fn nothing_is_no_work() {
        let results = side_by_side(Vec::new(), 4, Duration::from_secs(1), |n: &u32| *n);
        assert!(results.is_empty());
    }
}
