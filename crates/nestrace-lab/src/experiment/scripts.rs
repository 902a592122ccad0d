//! Shell that a guest runs for a cell: a new file system, the workload between two looks at the counters, and its end.

use nestrace_rig::guest_fs::PROGRAM_FOLDER;
use nestrace_rig::machine_root::P9_OPTIONS;

use super::base::disk_id;
use super::counters::SHELL;
use super::failure::TELLING;
use crate::plan::workload::{FOLDER, OUTPUT, RESULT};
use crate::plan::{Combination, GuestFs, PASS_THROUGH, PlannedCell, Scheduler, oltp, real_tool};

/// fio opens all files of a personality at once.
const OPEN_FILES: u32 = 65_536;

/// In the environment of all that workloads start.
const MARK: &str = "NESTRACE_LAB_WORKLOAD";

/// Shell that unmounts the file system, where the workload did not, and before that ends what uses it.
pub(super) fn unmount_script() -> String {
    format!(
        "{}\n{}\ngrep -q ' {FOLDER} ' /proc/mounts || exit 0\numount {FOLDER} 2> /dev/null && exit 0\n{}\n\
         tries=0\n\
         until umount {FOLDER} 2> {OUTPUT}; do\n\
         tries=$((tries + 1))\n\
         [ $tries -lt 20 ] || {{ cat {OUTPUT} >&2; tell_users; exit 1; }}\n\
         sleep 0.1\n\
         done",
        oltp::stop_script(),
        real_tool::stop_script(),
        end_users(FOLDER)
    )
}

/// Shell that ends what workloads started and what still uses files below a folder; `tell_users` names what uses them
/// then. A guest of the user's has processes that are none of ours.
fn end_users(folder: &str) -> String {
    format!(
        "users() {{\n\
         for process in /proc/[0-9]*; do\n\
         {{ ls -l $process/cwd $process/root $process/exe $process/fd; cat $process/maps; }} 2> /dev/null |\n\
         grep -qE ' {folder}(/|$)' && echo ${{process#/proc/}}\n\
         done\n\
         }}\n\
         tell_users() {{\n\
         for process in $(users); do\n\
         echo \"cannot unmount {folder}: $(cat /proc/$process/comm) ($process) uses it\" >&2\n\
         done\n\
         }}\n\
         for process in $(users); do\n\
         tr '\\0' '\\n' < /proc/$process/environ 2> /dev/null | grep -q '^{MARK}=' && kill -KILL $process\n\
         done 2> /dev/null"
    )
}

/// What scripts of workloads find: the device, the file system's name, and the command that checks it.
fn variables(cell: &PlannedCell, disk: usize) -> String {
    let id = disk_id(disk);
    match cell.combination.guest_fs {
        GuestFs::Fs(fs) => format!(
            "export {MARK}=1\nbin=${{bin-{PROGRAM_FOLDER}}}\nname=$(disk {id})\ndev=/dev/$name\nfs={fs}\nfsck=\"{}\"\n",
            fs.fsck_command("${bin}", "").trim_end()
        ),
        GuestFs::PassThrough => format!("export {MARK}=1\ndev={id}\nfs={PASS_THROUGH}\n"),
    }
}

/// Shell that makes the file system anew on a disk that is as it was at first.
pub(super) fn prepare_script(cell: &PlannedCell, disk: usize) -> String {
    let Combination {
        guest_fs,
        guest_scheduler,
        guest_mount_options,
        guest_read_ahead_kib,
        ..
    } = &cell.combination;
    let mut script = format!(
        "set -e\nulimit -n {OPEN_FILES}\numount {FOLDER} 2> /dev/null || true\n{}",
        variables(cell, disk)
    );
    if *guest_scheduler != Scheduler::Default {
        script.push_str(&format!(
            "load bfq mq_deadline kyber_iosched\necho {guest_scheduler} > /sys/block/$name/queue/scheduler\n"
        ));
    }
    if let Some(kib) = guest_read_ahead_kib {
        script.push_str(&format!(
            "echo {kib} > /sys/block/$name/queue/read_ahead_kb\n"
        ));
    }
    if cell.combination.is_thin() {
        script.push_str("blkdiscard $dev\n");
    }
    let options = if guest_mount_options.is_empty() {
        "rw"
    } else {
        guest_mount_options
    };
    let (make, kept, empty) = match guest_fs {
        GuestFs::Fs(fs) => {
            let make = format!(
                "load {}\n{}",
                fs.module(),
                fs.mkfs_command_in("${bin}", "$dev")
            );
            (make, String::new(), String::new())
        }
        // The host's file system stays; what an earlier run left in it goes.
        GuestFs::PassThrough => (
            String::from("load 9pnet_virtio 9p"),
            format!("{P9_OPTIONS},"),
            format!("rm -rf {FOLDER}/* {FOLDER}/.[!.]*"),
        ),
    };
    script.push_str(&format!(
        "{make}\nmkdir -p {FOLDER}\noptions={kept}{options}\nmount -t $fs -o $options $dev {FOLDER}\n{empty}\n\
         set +e\n(\nset -e\n{}\n) > {OUTPUT} 2>&1\nstatus=$?\nset -e\n{}\nsync\n",
        cell.workload.prepare_script(),
        end_if_failed(OUTPUT)
    ));
    if !cell.workload.is_warm() {
        script.push_str("echo 3 > /proc/sys/vm/drop_caches\n");
    }
    script
}

/// Shell that runs the workload between two looks at the counters. They are printed at the end and only where it ended
/// well: what a workload that failed said stands alone.
pub(super) fn measure_script(cell: &PlannedCell, disk: usize, seconds: Option<u32>) -> String {
    format!(
        "ulimit -n {OPEN_FILES}; rm -f {RESULT}\n{}before=$({SHELL})\n\
         (\n{}\n) > {OUTPUT} 2>&1; status=$?\n\
         after=$({SHELL})\n\
         {}\n\
         echo @before; echo \"$before\"; echo @after; echo \"$after\"\n\
         echo @result; cat {RESULT} 2> /dev/null || true",
        variables(cell, disk),
        cell.workload.measure_script(seconds),
        end_if_failed(OUTPUT)
    )
}

/// Shell that ends with `$status` where that is none of success, and with the end of a file that somebody wrote into
/// until then. A line that says what went wrong may stand far above it: fio lists all words that it knows.
fn end_if_failed(file: &str) -> String {
    let telling = TELLING.join("|");
    format!(
        "[ $status = 0 ] || {{\n\
         {{ tail -n 7 {file} | grep -qiE \"{telling}\" || grep -iE \"{telling}\" {file} | tail -n 1\n\
         tail -n 7 {file}; }} >&2\n\
         exit $status\n\
         }}"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::plan::Plan;
    use nestrace_rig::external_tool::{Tool, ToolError};

    /// The last cell of a plan.
    pub(in crate::experiment) fn cell(text: &str) -> PlannedCell {
        let plan = Plan::read(text).unwrap();
        plan.cells.last().unwrap().clone()
    }

    #[test]
    fn the_disk_is_made_anew_where_it_is_thin() {
        let sparse = cell("name='a'\n[[workload]]\nname='randread'");
        let script = prepare_script(&sparse, 3);
        assert!(script.contains("disk nestrace-lab-3") && script.contains("blkdiscard $dev"));
        let written = cell(
            "name='a'\n[axes]\nplacement='fragmented'\nguest_scheduler='bfq'\nguest_read_ahead_kib=0\nguest_mount_options='noatime'\n[[workload]]\nname='iozone-reread'",
        );
        let script = prepare_script(&written, 0);
        assert!(!script.contains("blkdiscard"));
        assert!(script.contains("echo bfq > ") && script.contains("echo 0 > "));
        assert!(script.contains("options=noatime\n") && script.contains("-o $options"));
        // A reread finds what the layout left.
        assert!(!script.contains("drop_caches"));
    }

    #[test]
    fn a_check_finds_its_command_and_the_file_system_unmounted() {
        for (fs, fsck) in [("ext3", "e2fsck -f -n"), ("xfs", "xfs_repair -n")] {
            let cell = cell(&format!(
                "name='a'\n[axes]\nguest_fs='{fs}'\n[[workload]]\nname='fsck-files'"
            ));
            let prepare = prepare_script(&cell, 1);
            let (mount, unmount) = (
                prepare.find("mount -t $fs").unwrap(),
                prepare.rfind("umount /mnt/nestrace-lab").unwrap(),
            );
            assert!(mount < unmount, "{prepare}");
            let script = measure_script(&cell, 1, Some(2));
            assert!(
                script.contains(&format!("fsck=\"${{bin}}{fsck}\"")),
                "{script}"
            );
            assert!(script.contains("$fsck $dev"), "{script}");
        }
    }

    #[test]
    fn an_ext3_is_upgraded_before_or_after_its_files_are_laid_out() {
        for (when, old) in [("old", true), ("new", false)] {
            let cell = cell(&format!(
                "name='a'\n[axes]\nguest_fs='ext3'\nguest_mount_options='noatime'\n\
                 [[workload]]\nname='iozone-reread'\nupgrade='{when}'"
            ));
            let script = prepare_script(&cell, 0);
            let place = |what: &str| script.find(what).unwrap_or_else(|| panic!("{script}"));
            let order = [
                place("mkfs.ext3"),
                place("mount -t $fs -o $options"),
                place("tune2fs -O extents,uninit_bg,dir_index,flex_bg $dev"),
                place("e2fsck -fyD $dev"),
                place("mount -t ext4 -o $options $dev"),
            ];
            assert!(order.is_sorted(), "{script}");
            assert_eq!(place("--create_only=1") < order[2], old, "{script}");
            // A reread finds in the page cache what the upgrade's unmounting took out of it.
            let reading = "\nfind /mnt/nestrace-lab -type f -exec cat {} + > /dev/null\n";
            assert_eq!(script.contains(reading), old, "{script}");
        }
    }

    #[test]
    fn a_folder_of_the_hosts_is_emptied_and_not_formatted() {
        let cell = cell(
            "name='a'\n[axes]\nguest_fs='9p'\nguest_mount_options='noatime'\n[[workload]]\nname='randwrite'",
        );
        let script = prepare_script(&cell, 3);
        for there in [
            "dev=nestrace-lab-3\nfs=9p\n",
            "version=9p2000.L,msize=262144,noatime\nmount -t $fs -o $options $dev",
            "rm -rf /mnt/nestrace-lab/* /mnt/nestrace-lab/.[!.]*",
        ] {
            assert!(script.contains(there), "{script}");
        }
        for not_there in ["mkfs", "blkdiscard", "$(disk"] {
            assert!(!script.contains(not_there), "{script}");
        }
        assert!(!cell.can_be_recorded());
    }

    /// What is said of a workload by a script that ends where it failed.
    fn said(file: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("out");
        std::fs::write(&place, file).unwrap();
        let script = format!("status=3\n{}", end_if_failed(&place.display().to_string()));
        match Tool::new("sh").args(["-c", &script]).run() {
            Err(ToolError::Failed { status, stderr, .. }) if status.code() == Some(3) => stderr,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_line_that_tells_is_kept_however_much_follows() {
        let values: String = (0..12).map(|n| format!("  : value{n}\n")).collect();
        let said_of_fio = said(&format!("fio: failed parsing rw=nosense\n{values}"));
        assert!(
            said_of_fio.starts_with("fio: failed parsing"),
            "{said_of_fio}"
        );
        assert!(said_of_fio.ends_with("value11"), "{said_of_fio}");
        // Once is enough.
        assert_eq!(
            said("one\ndd: No space left\ntwo\n"),
            "one\ndd: No space left\ntwo"
        );
        assert_eq!(said(""), "");
    }

    #[test]
    fn a_workload_that_failed_and_said_nothing_leaves_no_counters() {
        let cell = cell("name='a'\n[[workload]]\nname='x'\ncommand='false'");
        let script = measure_script(&cell, 0, None);
        let (before, after) = script.split_once("exit $status").unwrap();
        assert!(
            !before.contains("echo @") && !before.contains("echo \""),
            "{before}"
        );
        assert!(after.contains("echo @before") && after.contains("echo @after"));
    }

    #[test]
    fn scripts_of_cells_are_shell() {
        for workload in [
            "name='x'\ncommand='true'\nprepare='touch a'",
            "name='randread'",
            "name='sysbench-rndrd'",
            "name='oltp-insert'",
            "name='unpack-tree'",
            "name='mailserver'",
            "name='iozone-reread'",
        ] {
            let plan = Plan::read(&format!("name='a'\n[[workload]]\n{workload}")).unwrap();
            let cell = plan.with_models(|_| true).cells.remove(0);
            for script in [
                prepare_script(&cell, 0),
                measure_script(&cell, 0, None),
                unmount_script(),
            ] {
                Tool::new("sh").args(["-n", "-c", &script]).run().unwrap();
            }
        }
    }

    #[test]
    fn what_a_workload_left_running_is_ended_and_nothing_else() {
        use std::os::unix::process::ExitStatusExt;
        use std::process::{Command, Stdio};

        let folder = tempfile::tempdir().unwrap();
        let sleep = |mark: &str, place: &std::path::Path| {
            let mut command = Command::new("sleep");
            command.arg("60").current_dir(place).stdin(Stdio::null());
            command.env(mark, "1").spawn().unwrap()
        };
        let mut ours = sleep(MARK, folder.path());
        let mut elsewhere = sleep(MARK, std::path::Path::new("/"));
        let mut other = sleep("OTHER", folder.path());
        let script = format!(
            "{}\ntell_users 2>&1",
            end_users(&folder.path().display().to_string())
        );
        let said = Tool::new("sh").args(["-c", &script]).run();
        let killed = ours.wait().unwrap();
        let others = [&mut elsewhere, &mut other].map(|child| {
            let ended = child.try_wait().unwrap();
            let _ = child.kill();
            let _ = child.wait();
            ended
        });
        assert_eq!((killed.signal(), others), (Some(9), [None, None]));
        let told = format!("sleep ({}) uses it", other.id());
        assert!(said.unwrap().contains(&told));
    }
}
