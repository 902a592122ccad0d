//! Closes links of probes apart from who uses them: the kernel waits for a grace period at each, and three hundred guests that
//! end together took half a minute.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

/// Threads that close at a time: each waits for a grace period, which they share.
const CLOSING: usize = 64;

/// What ends a probe when it is dropped.
pub(super) type Held = Box<dyn Send + Sync>;

/// A thread that closes what it is given. Dropping this waits for it.
#[derive(Default)]
pub(super) struct Closer(Option<(Sender<Held>, JoinHandle<()>)>);

impl Closer {
    /// Has these closed soon; now, where there is no thread.
    pub fn close(&mut self, all: Vec<Held>) {
        if all.is_empty() {
            return;
        }
        if self.0.is_none() {
            let (orders, ordered) = mpsc::channel();
            let thread = thread::Builder::new().name("nestrace-closer".to_owned());
            let thread = thread.spawn(move || close_ordered(&ordered));
            self.0 = thread.ok().map(|thread| (orders, thread));
        }
        match &self.0 {
            // What cannot be sent comes back in the error, and is closed with it.
            Some((orders, _)) => all.into_iter().for_each(|held| drop(orders.send(held))),
            None => close_all(all),
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some((orders, thread)) = self.0.take() {
            drop(orders);
            let _ = thread.join();
        }
    }
}

fn close_ordered(ordered: &Receiver<Held>) {
    while let Ok(first) = ordered.recv() {
        let mut all = vec![first];
        all.extend(ordered.try_iter());
        close_all(all);
    }
}

/// Closes all of these, many at a time.
pub(super) fn close_all<H: Send>(mut all: Vec<H>) {
    let share = all.len().div_ceil(CLOSING).max(1);
    thread::scope(|scope| {
        while !all.is_empty() {
            let part = all.split_off(all.len().saturating_sub(share));
            // Without a thread they are closed here.
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// Takes its time to close, as a link does.
    struct Slow(Arc<AtomicUsize>);

    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(20));
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_the_end_waits_until_all_are_closed() {
        let closed = Arc::new(AtomicUsize::new(0));
        let mut closer = Closer::default();
        let begin = Instant::now();
        for _ in 0..10 {
            let held = |_| Box::new(Slow(Arc::clone(&closed))) as Held;
            closer.close((0..100).map(held).collect());
        }
        // One after the other they take 20 s.
        assert!(begin.elapsed() < Duration::from_secs(2));
        drop(closer);
        assert_eq!(closed.load(Ordering::Relaxed), 1000);
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}
