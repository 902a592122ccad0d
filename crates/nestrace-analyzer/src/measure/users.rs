//! Who uses a device: each guest's images, the file system, loop devices, everybody else.

use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::pointer::PointerMap;
use crate::model::threads::Threads;
use crate::result::analysis::{User, UserKind};

/// Users that are distinguished; all later ones are counted as one.
const MAX_USERS: usize = 1024;

/// A user while counting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Image(u32),
    FileSystem,
    Loop(u32),
    Process(u32, String),
}

/// What each user did to one device.
#[derive(Debug, Default)]
pub(crate) struct Users {
    keys: Vec<Key>,
    totals: Vec<Totals>,
    by_owner: PointerMap<u64, usize>,
    /// [`Threads::changes`] that `by_owner` holds for: a program that is executed has another name from then on.
    names: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    requests: u64,
    bytes: u64,
    written_bytes: u64,
    device_ns: u64,
}

impl Users {
    /// Charges a request to the owner of its first bio.
    pub(crate) fn charge(
        &mut self,
        owner: Owner,
        (operation, bytes): (Operation, u64),
        device_ns: u64,
        threads: &Threads,
    ) {
        if self.names != threads.changes() {
            self.names = threads.changes();
            self.by_owner.clear();
        }
        let slot = match self.by_owner.get(&packed(owner)) {
            Some(slot) => *slot,
            None => self.slot(owner, threads),
        };
        if let Some(totals) = self.totals.get_mut(slot) {
            totals.requests += 1;
            totals.bytes += bytes;
            if operation != Operation::Read {
                totals.written_bytes += bytes;
            }
            totals.device_ns = totals.device_ns.saturating_add(device_ns);
        }
    }

    fn slot(&mut self, owner: Owner, threads: &Threads) -> usize {
        let mut key = match owner {
            Owner::Image(image) => Key::Image(image),
            Owner::FileSystem => Key::FileSystem,
            Owner::Loop(device) => Key::Loop(device),
            Owner::Thread(tid) => {
                let (pid, name) = threads.process(tid);
                Key::Process(pid, name)
            }
        };
        if self.keys.len() >= MAX_USERS && !self.keys.contains(&key) {
            key = Key::Process(0, String::from("others"));
        }
        let slot = self
            .keys
            .iter()
            .position(|known| *known == key)
            .unwrap_or_else(|| {
                self.keys.push(key);
                self.totals.push(Totals::default());
                self.keys.len() - 1
            });
        // Threads without a name yet are asked for again; ids of threads are reused, so the map
        // is only a shortcut that starts afresh when it has grown.
        if self.by_owner.len() > 16 * MAX_USERS {
            self.by_owner.clear();
        }
        let unnamed = matches!(owner, Owner::Thread(tid) if threads.get(tid).is_none());
        if !unnamed {
            self.by_owner.insert(packed(owner), slot);
        }
        slot
    }

    /// `devices[].users`, most device time first. `disk_of` gives the names of the guest and of the disk that an image
    /// belongs to.
    pub(crate) fn finish(
        &self,
        disk_of: &dyn Fn(u32) -> Option<(String, String)>,
        guest_pids: &[(u32, String)],
        device_name: &dyn Fn(u32) -> String,
    ) -> Vec<User> {
        let all_ns: u128 = self
            .totals
            .iter()
            .map(|totals| u128::from(totals.device_ns))
            .sum();
        let mut users: Vec<User> = Vec::new();
        for (key, totals) in self.keys.iter().zip(&self.totals) {
            let mut user = name(key, disk_of, guest_pids, device_name);
            user.requests = totals.requests;
            user.bytes = totals.bytes;
            user.written_bytes = totals.written_bytes;
            user.device_ns = totals.device_ns;
            let same = |other: &&mut User| {
                (
                    other.kind,
                    &other.guest,
                    &other.disk,
                    &other.name,
                    other.pid,
                ) == (user.kind, &user.guest, &user.disk, &user.name, user.pid)
            };
            match users.iter_mut().find(same) {
                Some(other) => {
                    other.requests += user.requests;
                    other.bytes += user.bytes;
                    other.written_bytes += user.written_bytes;
                    other.device_ns = other.device_ns.saturating_add(user.device_ns);
                }
                None => users.push(user),
            }
        }
        for user in &mut users {
            user.share = if all_ns == 0 {
                0.0
            } else {
                user.device_ns as f64 / all_ns as f64
            };
        }
        users.sort_by(|a, b| {
            b.device_ns
                .cmp(&a.device_ns)
                .then(b.bytes.cmp(&a.bytes))
                .then(a.name.cmp(&b.name))
        });
        users
    }
}

fn packed(owner: Owner) -> u64 {
    match owner {
        Owner::Image(image) => u64::from(image),
        Owner::FileSystem => 1 << 32,
        Owner::Loop(device) => 2 << 32 | u64::from(device),
        Owner::Thread(tid) => 3 << 32 | u64::from(tid),
    }
}

fn name(
    key: &Key,
    disk_of: &dyn Fn(u32) -> Option<(String, String)>,
    guest_pids: &[(u32, String)],
    device_name: &dyn Fn(u32) -> String,
) -> User {
    let mut user = User::default();
    match key {
        Key::Image(image) => {
            user.kind = UserKind::Image;
            (user.guest, user.disk) = disk_of(*image).unzip();
        }
        Key::FileSystem => user.kind = UserKind::FileSystem,
        Key::Loop(device) => {
            user.kind = UserKind::Loop;
            user.name = Some(device_name(*device));
        }
        Key::Process(pid, name) => {
            let guest = guest_pids
                .iter()
                .find(|(guest_pid, _)| guest_pid == pid && *pid != 0);
            user.kind = match guest {
                Some(_) => UserKind::Guest,
                None => UserKind::Process,
            };
            user.guest = guest.map(|(_, name)| name.clone());
            user.name = Some(name.clone());
            user.pid = (*pid != 0).then_some(*pid);
        }
    }
    user
}

#[cfg(test)]
mod tests {
    use nestrace_abi::Kind;
    use nestrace_trace::Event;

    use super::*;

    #[test]
    fn a_program_has_the_name_that_it_had_at_the_time() {
        let mut threads = Threads::default();
        let mut users = Users::default();
        for (name, bytes) in [("sh", 4096), ("mybackup", 65_536), ("mybackup", 65_536)] {
            let mut word = [0; 8];
            word[..name.len()].copy_from_slice(name.as_bytes());
            threads.name(&Event {
                kind: Kind::Thread as u8,
                tid: 7,
                object: 7,
                related: u64::from_le_bytes(word),
                ..Event::default()
            });
            users.charge(Owner::Thread(7), (Operation::Read, bytes), 10, &threads);
        }
        let mut found = users.finish(&|_| None, &[], &|_| String::new());
        found.sort_by_key(|user| user.bytes);
        let found: Vec<_> = found
            .iter()
            .map(|user| (user.name.as_deref(), user.bytes))
            .collect();
        assert_eq!(found, [(Some("sh"), 4096), (Some("mybackup"), 131_072)]);
    }
}
