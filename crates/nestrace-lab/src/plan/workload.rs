//! What a guest is made to do, and what is measured of it.
//!
//! The library of named workloads is in [`library`](super::library); here is what each consists of, and the
//! shell scripts that a guest runs for it.

use nestrace_report::lab::Metric;
use nestrace_rig::stack::GuestFsKind;

use super::axes::GuestFs;
use super::error::Place;
use super::file_io::FileIo;
use super::oltp::Oltp;
use super::real_tool::{Figures, RealTool};
use super::sysbench;

/// How long and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Seconds that are measured, of workloads that run for a time.
    pub seconds: u32,
    /// Seconds before, which do not count.
    pub warm_up_seconds: u32,
    /// Bytes of all files of the workload.
    pub data_bytes: u64,
    /// Seconds after which it hangs, where the plan says so.
    pub most_seconds: Option<u32>,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name in the plan.
    pub name: String,
    /// Where it comes from, and what it leaves out of its model.
    pub note: String,
    /// What is measured.
    pub metric: Metric,
    /// How long and how much.
    pub scale: Scale,
    /// What is done.
    pub action: Action,
    /// Whether ext3 becomes ext4 before it is done, in place.
    pub upgrade: Option<Upgrade>,
    /// The program that it comes from, which does it where it is found.
    pub model: Option<RealTool>,
    /// Where the plan has words of its own for shell or fio: `command`, `prepare` and `fio`.
    pub places: Vec<(&'static str, Place)>,
}

/// The upgrade of an ext3 to ext4 without loss, by `tune2fs` and `e2fsck`, and which files are measured then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// Files from before the upgrade: their blocks are still mapped one by one.
    OldFiles,
    /// Files that were made after it: they have extents.
    NewFiles,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Jobs of fio that run at the same time.
    Fio(FioJobs),
    /// Shell, in the folder of the file system under test.
    Script(Script),
    /// sysbench's fileio.
    FileIo(FileIo),
    /// sysbench's OLTP on a MariaDB whose data lie on the file system under test.
    Oltp(Oltp),
    /// Filebench or iozone.
    RealTool(RealTool),
}

/// Jobs of fio.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FioJobs {
    /// Name and options of each.
    pub jobs: Vec<(String, String)>,
    /// Options of all of them, after their own.
    pub options: String,
    /// Ends after the time, beginning anew as often as it takes; else when everything was done once.
    pub is_timed: bool,
    /// What the layout left in the guest's page cache stays there.
    pub is_warm: bool,
}

/// Shell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Before the measurement; may be empty.
    pub prepare: String,
    /// What is timed.
    pub measure: String,
    /// How many operations it is; 0 for a single one whose time is the result.
    pub operations: u64,
    /// Entries of the tree of small files that the guest gets at [`tree`]; 0 for none.
    pub tree_entries: u32,
    /// How long it takes, roughly: it is stopped when it takes many times as long.
    pub seconds: u32,
}

impl Script {
    /// Whether it says something of the device.
    fn needs_device(&self) -> bool {
        [&self.prepare, &self.measure]
            .iter()
            .any(|text| text.contains("$dev") || text.contains("$fsck"))
    }
}

/// Where a guest's file system under test is mounted.
pub const FOLDER: &str = "/mnt/nestrace-lab";
/// The archive of a tree of so many small files, in a guest.
#[must_use]
pub fn tree(entries: u32) -> String {
    format!("/lab-tree-{entries}.tar")
}

/// What fio or sysbench say of a run, in a guest.
pub const RESULT: &str = "/run/lab.result";
/// What a workload says besides, in a guest.
pub const OUTPUT: &str = "/run/lab.out";

/// What was published (E2): all of ext4's features that a file system can be given later. e2fsck says 1 where
/// it changed something, which with -D it does.
const UPGRADE: &str = "cd /\numount /mnt/nestrace-lab\n\
    ${bin}tune2fs -O extents,uninit_bg,dir_index,flex_bg $dev\n\
    ${bin}e2fsck -fyD $dev || [ $? = 1 ]\n\
    mount -t ext4 -o $options $dev /mnt/nestrace-lab";

impl Workload {
    /// The same by the program that it comes from, where that is found.
    pub(super) fn use_model(&mut self, is_found: impl Fn(&str) -> bool) {
        if let Some(tool) = self.model.take().filter(|tool| is_found(tool.program)) {
            self.note.clone_from(&tool.note);
            self.action = Action::RealTool(tool);
        }
    }

    /// Who does it: a program, or the shell.
    #[must_use]
    pub fn program(&self) -> &'static str {
        match &self.action {
            Action::Fio(_) => "fio",
            Action::Script(_) => "sh",
            Action::FileIo(_) | Action::Oltp(_) => sysbench::PROGRAM,
            Action::RealTool(tool) => tool.program,
        }
    }

    /// Why it cannot be done on a file system, if it cannot.
    #[must_use]
    pub fn objection(&self, fs: GuestFs) -> Option<&'static str> {
        if self.upgrade.is_some() && fs != GuestFs::Fs(GuestFsKind::Ext3) {
            return Some("only ext3 is upgraded in place");
        }
        let needs_device = matches!(&self.action, Action::Script(script) if script.needs_device());
        (needs_device && fs == GuestFs::PassThrough)
            .then_some("it needs the guest's disk, and 9p has none")
    }

    /// Shell that lays out the files; the file system is mounted at [`FOLDER`].
    #[must_use]
    pub fn prepare_script(&self) -> String {
        let layout = self.layout_script();
        match self.upgrade {
            None => layout,
            Some(Upgrade::NewFiles) => format!("{UPGRADE}\n{layout}"),
            // Unmounting empties the page cache; lost+found is no file.
            Some(Upgrade::OldFiles) if self.is_warm() => {
                format!("{layout}\n{UPGRADE}\nfind {FOLDER} -type f -exec cat {{}} + > /dev/null")
            }
            Some(Upgrade::OldFiles) => format!("{layout}\n{UPGRADE}"),
        }
    }

    fn layout_script(&self) -> String {
        match &self.action {
            // Everything is synced once, when all is laid out, and not after each of thousands of files.
            Action::Fio(fio) => format!(
                "fio --create_only=1 --create_fsync=0 {}",
                fio.arguments(&self.scale, None)
            ),
            Action::Script(script) => format!("cd {FOLDER}\n{}\ncd /", script.prepare),
            Action::FileIo(test) => test.prepare_script(&self.scale),
            Action::Oltp(oltp) => oltp.prepare_script(&self.scale),
            Action::RealTool(tool) => tool.prepare.clone(),
        }
    }

    /// Shell that does what is measured; so many seconds instead of the scale's where the run is recorded.
    #[must_use]
    pub fn measure_script(&self, recorded: Option<u32>) -> String {
        let (warm_up, seconds) = match recorded {
            Some(seconds) => (0, seconds),
            None => (self.scale.warm_up_seconds, self.scale.seconds),
        };
        match &self.action {
            Action::Fio(fio) => format!(
                "fio --output-format=json --output={RESULT} {}",
                fio.arguments(&self.scale, recorded)
            ),
            Action::Script(script) => format!("cd {FOLDER}\n{}", script.measure),
            Action::FileIo(test) => test.measure_script(&self.scale, warm_up, seconds),
            Action::Oltp(oltp) => oltp.measure_script(warm_up, seconds),
            Action::RealTool(tool) => tool.measure.clone(),
        }
    }

    /// Whether what the layout left in the page cache stays there.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        match &self.action {
            Action::Fio(fio) => fio.is_warm,
            Action::RealTool(tool) => tool.is_warm,
            Action::Script(_) | Action::FileIo(_) | Action::Oltp(_) => false,
        }
    }

    /// The database that it loads, if it does.
    #[must_use]
    pub fn oltp(&self) -> Option<&Oltp> {
        match &self.action {
            Action::Oltp(oltp) => Some(oltp),
            Action::Fio(_) | Action::Script(_) | Action::FileIo(_) | Action::RealTool(_) => None,
        }
    }

    /// Entries of the tree of small files that it unpacks; 0 for none.
    #[must_use]
    pub fn tree_entries(&self) -> u32 {
        match &self.action {
            Action::Script(script) => script.tree_entries,
            Action::Fio(_) | Action::FileIo(_) | Action::Oltp(_) | Action::RealTool(_) => 0,
        }
    }

    /// Seconds after which laying out its files, and what is measured, is stopped: it hangs.
    #[must_use]
    pub fn most_seconds(&self) -> u32 {
        // A host that does nothing else takes a sixth.
        let usual = self.expected_seconds() * 6 + (self.scale.data_bytes >> 20) as u32 + 180;
        self.scale.most_seconds.unwrap_or(usual)
    }

    /// Whether it ends after a time, and not when it is done.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        match &self.action {
            Action::Fio(fio) => fio.is_timed,
            // Filebench gets its duration before it is known whether the run is recorded.
            Action::Script(_) | Action::RealTool(_) => false,
            Action::FileIo(_) | Action::Oltp(_) => true,
        }
    }

    /// Seconds that one run measures, roughly.
    #[must_use]
    pub fn expected_seconds(&self) -> u32 {
        match &self.action {
            Action::Fio(FioJobs { is_timed: true, .. }) | Action::FileIo(_) => {
                self.scale.seconds + self.scale.warm_up_seconds
            }
            Action::RealTool(RealTool {
                figures: Figures::FilebenchSummary,
                ..
            }) => self.scale.seconds + 5,
            // A translated guest moves some 40 MiB/s.
            Action::Fio(_) | Action::RealTool(_) => (self.scale.data_bytes / (40 << 20)) as u32 + 1,
            Action::Script(script) => script.seconds,
            // The server starts, and ends with everything written back.
            Action::Oltp(_) => self.scale.seconds + self.scale.warm_up_seconds + 20,
        }
    }
}

impl FioJobs {
    /// fio's command line. Options after a job's name are the job's, those before are everybody's.
    pub(crate) fn arguments(&self, scale: &Scale, seconds: Option<u32>) -> String {
        let time = if self.is_timed {
            let runtime = seconds.unwrap_or(scale.seconds);
            let ramp = seconds.map_or(scale.warm_up_seconds, |_| 0);
            format!("--time_based --runtime={runtime} --ramp_time={ramp} ")
        } else {
            String::new()
        };
        // Nothing is allocated before it is written, unless the job says so.
        let mut text =
            format!("--directory={FOLDER} --group_reporting --thread --fallocate=none {time}");
        for (name, options) in &self.jobs {
            text.push_str(&format!("--name={name} {options} {} ", self.options));
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_run_has_its_own_length_and_no_warm_up() {
        let workload = Workload {
            name: String::from("mine"),
            note: String::new(),
            metric: Metric::OperationsPerSecond,
            scale: Scale {
                seconds: 10,
                warm_up_seconds: 2,
                data_bytes: 1 << 20,
                most_seconds: None,
            },
            action: Action::Fio(FioJobs {
                jobs: vec![(String::from("a"), String::from("--rw=read"))],
                options: String::from("--bs=4k"),
                is_timed: true,
                is_warm: false,
            }),
            upgrade: None,
            model: None,
            places: Vec::new(),
        };
        let timed = workload.measure_script(None);
        assert!(timed.contains("--runtime=10 --ramp_time=2"), "{timed}");
        assert!(timed.ends_with("--name=a --rw=read --bs=4k"), "{timed}");
        let recorded = workload.measure_script(Some(3));
        assert!(recorded.contains("--runtime=3 --ramp_time=0"), "{recorded}");
        assert!(workload.prepare_script().contains("--create_only=1"));
    }

    #[test]
    fn the_upgrade_makes_extents_and_keeps_the_file_system_whole() {
        use nestrace_rig::external_tool::{Tool, find_program};

        for program in ["mke2fs", "tune2fs", "e2fsck", "dumpe2fs"] {
            if find_program(program).is_none() {
                let is_ci = std::env::var_os("NESTRACE_CI").is_some_and(|word| word == "1");
                assert!(!is_ci, "{program} is not on this machine");
                eprintln!("skipped: {program} is not on this machine");
                return;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
        // What is done to a device, done to a file.
        let commands = UPGRADE.lines().filter(|line| line.starts_with("${bin}"));
        let script: Vec<&str> = commands
            .map(|line| line.trim_start_matches("${bin}"))
            .collect();
        assert_eq!(script.len(), 2);
        let script = format!(
            "set -e; export PATH=$PATH:/usr/sbin:/sbin; dev=$0\nmke2fs -t ext3 -q -F -b 4096 $dev\n{}\n\
             e2fsck -f -n $dev\ndumpe2fs -h $dev",
            script.join("\n")
        );
        let text = Tool::new("sh")
            .args(["-c", &script])
            .arg(&image)
            .run()
            .unwrap();
        let features = text
            .lines()
            .find(|line| line.starts_with("Filesystem features:"));
        let features = features.unwrap_or_default();
        for feature in ["extent", "uninit_bg", "dir_index", "flex_bg"] {
            assert!(features.contains(feature), "{features}");
        }
    }
}
