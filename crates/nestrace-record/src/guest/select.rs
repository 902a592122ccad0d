//! Choosing guests by what a user types: QEMU's name, UUID, or `pid:N`.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::DiscoverError;

/// Which guests to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selection {
    /// All that run.
    #[default]
    All,
    /// Those that are named, in this order.
    Named(Vec<String>),
}

/// What a guest can be called by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// `-name`, or `pid:N`.
    pub name: String,
    /// `-uuid`.
    pub uuid: Option<String>,
    /// Root's or libvirt's user runs it: where several have one name, it is the one that is meant.
    pub is_trusted: bool,
}

/// Users as whom libvirt runs QEMU: Debian's, Fedora's.
const LIBVIRT_USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// Whether a process of this user is taken for a guest before those of other users.
#[must_use]
pub fn is_trusted(user: u32) -> bool {
    user == 0 || libvirt_users().contains(&user)
}

/// Their ids, asked for once.
static LIBVIRT_IDS: OnceLock<Vec<u32>> = OnceLock::new();

fn libvirt_users() -> &'static [u32] {
    LIBVIRT_IDS.get_or_init(|| {
        let found = LIBVIRT_USERS
            .iter()
            .filter_map(|name| nix::unistd::User::from_name(name).ok().flatten());
        found.map(|user| user.uid.as_raw()).collect()
    })
}

/// Asks for what [`is_trusted`] needs to know, where that can be asked later no more.
pub fn learn_trusted_users() {
    libvirt_users();
}

/// Others that are called as a chosen one is, by their process ids.
#[must_use]
pub fn namesakes(chosen: &Identity, running: &[Identity]) -> Vec<u32> {
    let is_same = |other: &&Identity| {
        other.pid != chosen.pid
            && (other.name == chosen.name || (chosen.uuid.is_some() && other.uuid == chosen.uuid))
    };
    running
        .iter()
        .filter(is_same)
        .map(|other| other.pid)
        .collect()
}

/// The process id that `pid:N` names.
#[must_use]
pub fn pid_of(wanted: &str) -> Option<u32> {
    wanted.strip_prefix("pid:")?.parse().ok()
}

/// Indexes of the chosen guests, in the order of the selection, each once.
///
/// # Errors
///
/// [`DiscoverError::UnknownGuest`] and [`DiscoverError::AmbiguousGuest`].
pub fn select(selection: &Selection, running: &[Identity]) -> Result<Vec<usize>, DiscoverError> {
    let Selection::Named(names) = selection else {
        return Ok((0..running.len()).collect());
    };
    let mut chosen = Vec::new();
    for wanted in names {
        let index = one(wanted, running)?;
        if !chosen.contains(&index) {
            chosen.push(index);
        }
    }
    Ok(chosen)
}

fn one(wanted: &str, running: &[Identity]) -> Result<usize, DiscoverError> {
    let matching = |test: &dyn Fn(&Identity) -> bool| -> Vec<usize> {
        running
            .iter()
            .enumerate()
            .filter(|(_, guest)| test(guest))
            .map(|(index, _)| index)
            .collect()
    };
    let mut found = match pid_of(wanted) {
        Some(pid) => matching(&|guest| guest.pid == pid),
        None => matching(&|guest| guest.name == wanted),
    };
    if found.is_empty() {
        found = matching(&|guest| {
            guest
                .uuid
                .as_deref()
                .is_some_and(|uuid| uuid.eq_ignore_ascii_case(wanted))
        });
    }
    let trusted: Vec<usize> = found
        .iter()
        .copied()
        .filter(|index| running.get(*index).is_some_and(|guest| guest.is_trusted))
        .collect();
    if let [one] = trusted.as_slice() {
        return Ok(*one);
    }
    match found.as_slice() {
        [index] => Ok(*index),
        [] => Err(DiscoverError::UnknownGuest {
            wanted: wanted.to_owned(),
            running: running.iter().map(|guest| guest.name.clone()).collect(),
        }),
        several => Err(DiscoverError::AmbiguousGuest {
            wanted: wanted.to_owned(),
            pids: several
                .iter()
                .filter_map(|index| running.get(*index))
                .map(|guest| guest.pid)
                .collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], expected: &str) {
        let guest = |pid, name: &str, uuid: Option<&str>| Identity {
            pid,
            name: name.to_owned(),
            uuid: uuid.map(str::to_owned),
            is_trusted: pid >= 20,
        };
        let running = [
            guest(10, "vm1", Some("c7a5fdbd-edaf-9455-926a-d65c16db1809")),
            guest(11, "twin", None),
            guest(12, "twin", None),
            guest(13, "pid:13", None),
            guest(14, "claimed", Some("11111111-edaf-9455-926a-d65c16db1809")),
            guest(20, "claimed", Some("11111111-edaf-9455-926a-d65c16db1809")),
            guest(15, "twice", None),
            guest(21, "twice", None),
            guest(22, "twice", None),
        ];
        let selection = Selection::Named(names.iter().map(|n| (*n).to_owned()).collect());
        let got = match select(&selection, &running) {
            Ok(chosen) => format!("{chosen:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, expected, "{names:?}");
    }

    #[test]
    fn names_uuids_and_pids() {
        check(&["vm1"], "[0]");
        check(&["C7A5FDBD-edaf-9455-926a-d65c16db1809"], "[0]");
        check(&["pid:12", "pid:13", "vm1", "pid:10"], "[2, 3, 0]");
        check(
            &["twin"],
            "find one guest \"twin\": several have that name; use pid:11 or pid:12",
        );
        // Root's is meant, whoever else has its name or number.
        check(&["claimed"], "[5]");
        check(&["11111111-edaf-9455-926a-d65c16db1809"], "[5]");
        check(&["pid:14"], "[4]");
        check(
            &["twice"],
            "find one guest \"twice\": several have that name; use pid:15 or pid:21 or pid:22",
        );
        check(
            &["vm2"],
            "find guest \"vm2\": running are vm1, twin, twin, pid:13, claimed, claimed, twice, twice, twice",
        );
        check(
            &["pid:99"],
            "find guest \"pid:99\": running are vm1, twin, twin, pid:13, claimed, claimed, twice, twice, twice",
        );
        check(
            &["pid:x"],
            "find guest \"pid:x\": running are vm1, twin, twin, pid:13, claimed, claimed, twice, twice, twice",
        );
        check(&[], "[]");
    }

    #[test]
    fn nobody_runs() {
        let error =
            select(&Selection::Named(vec!["vm1".to_owned()]), &[]).expect_err("nothing to find");
        assert_eq!(
            error.to_string(),
            "find guest \"vm1\": no QEMU guest is running"
        );
        assert_eq!(
            select(&Selection::All, &[]).expect("nothing is fine"),
            Vec::<usize>::new()
        );
    }
}
