//! The table `[guest]` of a plan: a running guest of the user's, in place of those that the lab boots.

use std::path::PathBuf;

use nestrace_rig::stack::Bus;

use super::error::PlanError;
use super::section::Section;
use super::workload::Action;
use super::{GuestFs, PlannedCell, programs};

/// Its name.
pub(super) const TABLE: &str = "guest";
const DOMAIN: &str = "domain";
const QMP: &str = "qmp";
const SSH: &str = "ssh";
/// What only guests that the lab boots have.
const OF_BUILT_GUESTS: [&str; 4] = ["memory", "vcpus", "kernel", programs::KEY];

/// A guest of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnGuest {
    /// What gives it disks.
    pub monitor: Monitor,
    /// What runs commands in it.
    pub shell: Shell,
}

/// What gives a running guest disks and takes them away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Monitor {
    /// libvirt, by its name of the guest.
    Libvirt(String),
    /// QEMU itself, by a socket of its monitor.
    Qmp(PathBuf),
}

/// What runs commands in a running guest, as its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shell {
    /// ssh, by its name of the guest.
    Ssh(String),
    /// QEMU's guest agent, by libvirt's name of the guest.
    GuestAgent(String),
}

/// Reads it, where the plan has one.
///
/// # Errors
/// It names no guest or two, a name is none, nothing runs commands in it, or the plan says something of guests that
/// the lab boots.
pub(super) fn read(top: &Section<'_>) -> Result<Option<OwnGuest>, PlanError> {
    let Some(section) = top.section(TABLE)? else {
        return Ok(None);
    };
    section.only(&[DOMAIN, QMP, SSH])?;
    let name = |key: &str| -> Result<Option<String>, PlanError> {
        match section.string(key)? {
            Some((word, span)) if !is_name(word) => {
                let message = format!(
                    "\"{word}\" is not valid as {key}: it has to have only letters, digits and @ . : _ -"
                );
                Err(section.error(&span, message))
            }
            found => Ok(found.map(|(word, _)| word.to_owned())),
        }
    };
    let ssh = name(SSH)?.map(Shell::Ssh);
    let (monitor, shell) = match (name(DOMAIN)?, section.string(QMP)?, ssh) {
        (Some(domain), None, ssh) => {
            let shell = ssh.unwrap_or_else(|| Shell::GuestAgent(domain.clone()));
            (Monitor::Libvirt(domain), shell)
        }
        (None, Some((path, _)), Some(ssh)) => (Monitor::Qmp(PathBuf::from(path)), ssh),
        (None, Some((_, span)), None) => {
            let message = "commands reach a guest without libvirt over ssh: ssh = \"root@HOST\"";
            return Err(section.error(&span, message));
        }
        (Some(_), Some((_, span)), _) => {
            let message = "a guest has a libvirt domain or a monitor of QEMU's, not both";
            return Err(section.error(&span, message));
        }
        (None, None, _) => {
            let message = "[guest] names a libvirt domain of yours (domain = \"vm1\") or a socket of QEMU's monitor (qmp = \"/run/vm1.qmp\")";
            return Err(top.error(&top.place(TABLE).unwrap_or(0..0), message));
        }
    };
    for key in OF_BUILT_GUESTS {
        if let Some(span) = top.place(key) {
            let message =
                format!("{key} is only for guests that the lab boots; your guest has its own");
            return Err(top.error(&span, message));
        }
    }
    Ok(Some(OwnGuest { monitor, shell }))
}

/// A word that neither virsh nor ssh takes for an option, and a shell for nothing else.
fn is_name(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@.:_-".contains(c);
    !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain)
}

/// Refuses cells that a running guest cannot take.
///
/// # Errors
/// Their disk or workload needs a guest that the lab boots.
pub(super) fn check(top: &Section<'_>, cells: &[PlannedCell]) -> Result<(), PlanError> {
    let objection = |cell: &PlannedCell| {
        if cell.combination.disk.bus == Bus::Ide {
            return Some("a running guest takes no IDE disk");
        }
        if cell.combination.guest_fs == GuestFs::PassThrough {
            return Some("a running guest takes no folder over 9p");
        }
        match &cell.workload.action {
            Action::Oltp(_) => Some("databases are for guests that the lab boots"),
            Action::Script(script) if script.tree_entries > 0 => {
                Some("the tree of small files is for guests that the lab boots")
            }
            _ => None,
        }
    };
    for cell in cells {
        if let Some(objection) = objection(cell) {
            let place = top.place(TABLE).unwrap_or(0..0);
            return Err(top.error(&place, format!("{}: {objection}", cell.id)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Monitor, OwnGuest, Shell};
    use crate::plan::{Plan, PlanError};

    fn plan(head: &str, guest: &str) -> Result<Plan, PlanError> {
        Plan::read(&format!(
            "name = 'p'\n{head}\n[guest]\n{guest}\n[[workload]]\nname = 'randwrite'\n"
        ))
    }

    #[test]
    fn a_guest_of_the_users_needs_no_memory_of_ours() {
        let own = plan("", "domain = 'vm1'\nssh = 'root@10.0.0.2'").unwrap();
        let guest = OwnGuest {
            monitor: Monitor::Libvirt(String::from("vm1")),
            shell: Shell::Ssh(String::from("root@10.0.0.2")),
        };
        assert_eq!(own.own_guest, Some(guest));
        assert_eq!(own.estimate().memory_bytes, 0);
        let own = plan("", "qmp = '/run/vm1.qmp'\nssh = 'vm1'").unwrap();
        let monitor = own.own_guest.map(|guest| guest.monitor);
        assert_eq!(monitor, Some(Monitor::Qmp("/run/vm1.qmp".into())));
    }

    #[test]
    fn what_a_running_guest_cannot_be_given_is_refused() {
        for (head, guest, expected) in [
            ("", "ssh = 'vm1'", "names a libvirt domain"),
            ("", "", "line 3, column 1: [guest] names a libvirt domain"),
            (
                "",
                "domain = '-c'",
                "line 4, column 10: \"-c\" is not valid as domain",
            ),
            ("", "domain = 'a b'", "is not valid as domain"),
            ("", "domain = 'vm1'\nssh = '-oX'", "is not valid as ssh"),
            ("", "qmp = '/run/a'", "line 4, column 7: commands reach"),
            ("", "qmp = '/run/a'\ndomain = 'vm1'", "not both"),
            (
                "memory = '1G'",
                "domain = 'vm1'",
                "line 2, column 10: memory is only for guests",
            ),
            (
                "axes = { bus = 'ide' }",
                "domain = 'vm1'",
                "takes no IDE disk",
            ),
            ("axes = { guest_fs = '9p' }", "domain = 'vm1'", "over 9p"),
            (
                "host = { in_guest = true }",
                "domain = 'vm1'",
                "exclude each other",
            ),
            (
                "host = { devices = '/dev/sdb1' }",
                "domain = 'vm1'",
                "would see the whole device",
            ),
        ] {
            let error = plan(head, guest).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\nexpected {expected}");
        }
    }
}
