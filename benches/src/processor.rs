//! Programs that get one processor.

use anyhow::Context;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Does something while this thread, and every program that it starts, has one processor.
pub fn on_one<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this).context("ask which processors there are")?;
    // The last one: the first has most of the interrupts.
    let last = (0..CpuSet::count()).rfind(|cpu| all.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(last.context("find a processor")?)
        .context("choose a processor")?;
    sched_setaffinity(this, &one).context("keep to one processor")?;
    let result = work();
    sched_setaffinity(this, &all).context("have all processors again")?;
    result
}

#[cfg(test)]
mod tests {
    use std::thread::available_parallelism;

    use super::*;

    #[test]
    fn there_is_one_and_then_all_are_back() {
        let before = available_parallelism().unwrap();
        let within = on_one(|| Ok(available_parallelism()?)).unwrap();
        assert_eq!(within.get(), 1);
        assert_eq!(available_parallelism().unwrap(), before);
        assert!(on_one::<()>(|| anyhow::bail!("fails")).is_err());
        assert_eq!(available_parallelism().unwrap(), before);
    }
}
