//! The plans that come with the program.

/// Name and text of each.
pub const PLANS: [(&str, &str); 10] = [
    ("quick", include_str!("../../plans/quick.toml")),
    ("fast12", include_str!("../../plans/fast12.toml")),
    (
        "fast12-macro",
        include_str!("../../plans/fast12-macro.toml"),
    ),
    (
        "fast12-remedies",
        include_str!("../../plans/fast12-remedies.toml"),
    ),
    ("raw-qcow2", include_str!("../../plans/raw-qcow2.toml")),
    ("ext3-ext4", include_str!("../../plans/ext3-ext4.toml")),
    (
        "image-format-cache-bus",
        include_str!("../../plans/image-format-cache-bus.toml"),
    ),
    ("ext4-xfs", include_str!("../../plans/ext4-xfs.toml")),
    ("control", include_str!("../../plans/control.toml")),
    (
        "reiserfs-jfs",
        include_str!("../../plans/reiserfs-jfs.toml"),
    ),
];

/// The text of a plan by its name.
#[must_use]
pub fn text(name: &str) -> Option<&'static str> {
    let plan = PLANS.iter().find(|(known, _)| *known == name);
    plan.map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use nestrace_report::lab::power::false_alarm;

    #[test]
    fn every_plan_can_be_read_and_has_its_name() {
        for (name, text) in PLANS {
            let plan = Plan::read(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(plan.name, name);
            assert!(plan.n_compared() > 0 && !plan.about.is_empty());
            let estimate = plan.estimate();
            let hours = estimate.seconds as f64 / 3600.0;
            assert!(hours < 3.0, "{name} takes {hours:.1} h");
            // Where the disk decides, two equal cells are not called different in more than 1 of 20 plans.
            let alarm = false_alarm(plan.repetitions);
            assert!(plan.modelled_disks().is_empty() || alarm <= 0.05, "{name}");
        }
    }

    #[test]
    fn the_quick_plan_is_two_by_two_and_short() {
        let plan = Plan::read(text("quick").unwrap()).unwrap();
        assert_eq!((plan.n_compared(), plan.cells.len()), (4, 6));
        assert!(plan.estimate().seconds < 300, "{:?}", plan.estimate());
    }
}
