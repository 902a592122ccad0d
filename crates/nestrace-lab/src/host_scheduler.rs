//! I/O schedulers of the running kernel.

use nestrace_rig::external_tool::Tool;

use crate::plan::Scheduler;

/// Whether the running kernel has a scheduler, or a module of it.
#[must_use]
pub fn kernel_has_scheduler(scheduler: Scheduler) -> bool {
    if [Scheduler::Default, Scheduler::None].contains(&scheduler) {
        return true;
    }
    let word = scheduler.to_string();
    // Each device lists those that are loaded.
    let devices = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten();
    let lists = devices.map(|device| device.path().join("queue/scheduler"));
    let lists: Vec<String> = lists
        .filter_map(|list| std::fs::read_to_string(list).ok())
        .collect();
    // Without any list nothing is known, and the write to it tells.
    lists.is_empty() || lists.iter().any(|list| names(list, &word)) || {
        // The alias that the kernel itself asks for (`elevator_get` in block/elevator.c).
        let modprobe = Tool::new("modprobe").args(["-n", "-q", &format!("{word}-iosched")]);
        modprobe.run().is_ok()
    }
}

/// Whether a list has a word: `none [mq-deadline] bfq`.
fn names(list: &str, word: &str) -> bool {
    let brackets: &[char] = &['[', ']'];
    let mut words = list.split_whitespace();
    words.any(|one| one.trim_matches(brackets) == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_is_a_whole_word_of_a_list() {
        for (list, word, has) in [
            ("none [mq-deadline] kyber\n", "mq-deadline", true),
            ("[none] bfq", "bfq", true),
            ("[none]\n", "bfq", false),
            ("[none] mq-deadline", "deadline", false),
            ("", "kyber", false),
        ] {
            assert_eq!(names(list, word), has, "{list} {word}");
        }
        assert!(kernel_has_scheduler(Scheduler::None));
    }
}
