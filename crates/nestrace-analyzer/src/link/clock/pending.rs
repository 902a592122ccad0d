//! Requests of both sides that have no certain partner yet, by key.

use std::collections::VecDeque;

use super::request::{GuestRequest, HostRequest, Key};
use crate::model::clocks::HostBound;
use crate::model::pointer::PointerMap;

/// End of a list.
const NONE: u64 = u64::MAX;

/// What a request is found by: the disk and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DiskKey {
    place: u64,
    bytes: u64,
    disk_and_class: u64,
}

impl DiskKey {
    pub(super) const fn new(disk: u32, key: Key) -> Self {
        Self {
            place: key.offset,
            bytes: key.bytes,
            disk_and_class: (disk as u64) << 8 | key.class as u64,
        }
    }
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In the list of its key.
    Waiting,
    /// Has a partner (its number); to be confirmed.
    Tied(u64),
    /// Reported, or reported with its partner.
    Done,
}

/// A request with its place in the list of its key.
#[derive(Debug)]
pub(super) struct Entry<R> {
    pub request: R,
    pub state: State,
    /// Tied as an exchange that narrows the band.
    pub exchange: bool,
    slot: u32,
    previous: u64,
    next: u64,
}

/// Requests of one side in the order of arrival; a request's number is its place in that order.
#[derive(Debug)]
pub(super) struct Side<R> {
    base: u64,
    entries: VecDeque<Entry<R>>,
}

impl<R: Copy> Side<R> {
    const fn new() -> Self {
        Self {
            base: 0,
            entries: VecDeque::new(),
        }
    }

    /// The number of the oldest that is kept.
    pub(super) const fn first(&self) -> u64 {
        self.base
    }

    /// One more than the number of the youngest.
    pub(super) fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Entry<R>> {
        let index = number.checked_sub(self.base)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Entry<R>> {
        let index = number.checked_sub(self.base)?;
        self.entries.get_mut(usize::try_from(index).ok()?)
    }

    /// Forgets those at the front that are done.
    fn trim(&mut self) {
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.state == State::Done)
        {
            self.entries.pop_front();
            self.base += 1;
        }
    }
}

/// First, last and number of a side's waiting requests of one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u64,
    last: u64,
    pub len: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
    len: 0,
};

#[derive(Debug)]
struct Slot {
    key: DiskKey,
    guests: List,
    hosts: List,
    /// A guest request that was given up may be any host request that started up to then.
    given_up: HostBound,
}

/// Everything that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub guests: Side<GuestRequest>,
    pub hosts: Side<HostRequest>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_key: PointerMap<DiskKey, u32>,
}

/// Adds number `number` to the end of a list.
fn link<R: Copy>(list: &mut List, side: &mut Side<R>, number: u64) {
    let previous = list.last;
    if let Some(last) = side.get_mut(previous) {
        last.next = number;
    } else {
        list.first = number;
    }
    if let Some(entry) = side.get_mut(number) {
        entry.previous = previous;
        entry.next = NONE;
    }
    list.last = number;
    list.len += 1;
}

impl<R: Copy> Side<R> {
    /// Puts a request at the end of the list of its key, which is that of slot `slot`.
    fn wait(&mut self, list: &mut List, slot: u32, request: R) {
        let number = self.end();
        self.entries.push_back(Entry {
            request,
            state: State::Waiting,
            exchange: false,
            slot,
            previous: NONE,
            next: NONE,
        });
        link(list, self, number);
    }
}

/// Takes number `number` out of its list.
fn unlink<R: Copy>(list: &mut List, side: &mut Side<R>, number: u64) {
    let Some(entry) = side.get(number) else {
        return;
    };
    let (previous, next) = (entry.previous, entry.next);
    match side.get_mut(previous) {
        Some(entry) => entry.next = next,
        None => list.first = next,
    }
    match side.get_mut(next) {
        Some(entry) => entry.previous = previous,
        None => list.last = previous,
    }
    list.len -= 1;
}

impl Pending {
    pub(super) fn new() -> Self {
        Self {
            guests: Side::new(),
            hosts: Side::new(),
            slots: Vec::new(),
            free: Vec::new(),
            by_key: PointerMap::default(),
        }
    }

    fn slot(&mut self, key: DiskKey) -> u32 {
        *self.by_key.entry(key).or_insert_with(|| {
            let slot = Slot {
                key,
                guests: EMPTY,
                hosts: EMPTY,
                given_up: HostBound(i64::MIN),
            };
            if let Some(free) = self.free.pop() {
                self.slots[free as usize] = slot;
                free
            } else {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        })
    }

    pub(super) fn add_guest(&mut self, disk: u32, request: GuestRequest) {
        let slot = self.slot(DiskKey::new(disk, request.key));
        self.guests
            .wait(&mut self.slots[slot as usize].guests, slot, request);
    }

    pub(super) fn add_host(&mut self, request: HostRequest) {
        let slot = self.slot(DiskKey::new(request.disk, request.key));
        self.hosts
            .wait(&mut self.slots[slot as usize].hosts, slot, request);
    }

    /// Takes both out of the lists of their key; they wait for no other request.
    pub(super) fn tie(&mut self, guest: u64, host: u64, exchange: bool) {
        if let Some(entry) = self.guests.get_mut(guest) {
            entry.exchange = exchange;
        }
        self.leave_guest(guest, State::Tied(host));
        self.leave_host(host, State::Tied(guest));
    }

    /// Gives up the ties of guest requests from number `from` on: they and their partners wait again.
    pub(super) fn untie(&mut self, from: u64) {
        let mut hosts = Vec::new();
        for number in from.max(self.guests.first())..self.guests.end() {
            let Some(entry) = self.guests.get(number) else {
                continue;
            };
            if let State::Tied(host) = entry.state {
                hosts.push(host);
                let request = entry.request;
                let disk = self.hosts.get(host).map_or(0, |entry| entry.request.disk);
                let slot = self.slot(DiskKey::new(disk, request.key));
                if let Some(entry) = self.guests.get_mut(number) {
                    (entry.state, entry.slot) = (State::Waiting, slot);
                }
                link(
                    &mut self.slots[slot as usize].guests,
                    &mut self.guests,
                    number,
                );
            }
        }
        hosts.sort_unstable();
        for number in hosts {
            let Some(entry) = self.hosts.get(number) else {
                continue;
            };
            let request = entry.request;
            let slot = self.slot(DiskKey::new(request.disk, request.key));
            if let Some(entry) = self.hosts.get_mut(number) {
                (entry.state, entry.slot) = (State::Waiting, slot);
            }
            link(
                &mut self.slots[slot as usize].hosts,
                &mut self.hosts,
                number,
            );
        }
    }

    /// A request that gets no partner.
    pub(super) fn drop_guest(&mut self, guest: u64) {
        self.leave_guest(guest, State::Done);
    }

    /// A guest request that gets no partner, although host requests that started up to `until` may be it:
    /// those are no longer certain to be another's where the host lost some.
    pub(super) fn give_up_guest(&mut self, guest: u64, until: HostBound) {
        if let Some(slot) = self.place(guest) {
            let given_up = &mut self.slots[slot as usize].given_up;
            *given_up = until.max(*given_up);
        }
        self.drop_guest(guest);
    }

    /// Whether a host request with the key of this guest request may be one that was given up.
    pub(super) fn may_be_given_up(&self, guest: u64, host: &HostRequest) -> bool {
        self.place(guest)
            .is_some_and(|slot| host.start_ns.bound() <= self.slots[slot as usize].given_up)
    }

    /// A request that gets no partner.
    pub(super) fn drop_host(&mut self, host: u64) {
        self.leave_host(host, State::Done);
    }

    fn leave_guest(&mut self, guest: u64, state: State) {
        let Some(entry) = self.guests.get_mut(guest) else {
            return;
        };
        let was = std::mem::replace(&mut entry.state, state);
        let slot = entry.slot;
        if was == State::Waiting {
            unlink(
                &mut self.slots[slot as usize].guests,
                &mut self.guests,
                guest,
            );
            self.release(slot);
        }
        self.guests.trim();
    }

    fn leave_host(&mut self, host: u64, state: State) {
        let Some(entry) = self.hosts.get_mut(host) else {
            return;
        };
        let was = std::mem::replace(&mut entry.state, state);
        let slot = entry.slot;
        if was == State::Waiting {
            unlink(&mut self.slots[slot as usize].hosts, &mut self.hosts, host);
            self.release(slot);
        }
        self.hosts.trim();
    }

    fn release(&mut self, number: u32) {
        let slot = &self.slots[number as usize];
        if slot.guests.len == 0 && slot.hosts.len == 0 {
            self.by_key.remove(&slot.key);
            self.free.push(number);
        }
    }

    /// How many guest and host requests with the key of this guest request wait.
    pub(super) fn alike(&self, guest: u64) -> (u32, u32) {
        self.guests.get(guest).map_or((0, 0), |entry| {
            let slot = &self.slots[entry.slot as usize];
            (slot.guests.len, slot.hosts.len)
        })
    }

    /// What the key of this guest request is known by while requests of it wait: the same for all of them.
    pub(super) fn place(&self, guest: u64) -> Option<u32> {
        self.guests.get(guest).map(|entry| entry.slot)
    }

    /// Waiting guest requests from number `from` on, with their disks.
    pub(super) fn waiting_guests(&self, from: u64) -> Vec<(u32, GuestRequest)> {
        let skipped = usize::try_from(from.saturating_sub(self.guests.base)).unwrap_or(0);
        let disk = |slot: u32| (self.slots[slot as usize].key.disk_and_class >> 8) as u32;
        let mut guests: Vec<_> = self
            .guests
            .entries
            .iter()
            .skip(skipped)
            .filter(|entry| entry.state == State::Waiting)
            .map(|entry| (disk(entry.slot), entry.request))
            .collect();
        guests.sort_unstable_by_key(|(_, request)| request.issued_ns);
        guests
    }

    /// Waiting host requests.
    pub(super) fn waiting_hosts(&self) -> Vec<HostRequest> {
        self.hosts
            .entries
            .iter()
            .filter(|entry| entry.state == State::Waiting)
            .map(|entry| entry.request)
            .collect()
    }

    /// Waiting guest requests with the key of this one, itself included, oldest first.
    pub(super) fn guests_like(
        &self,
        guest: u64,
    ) -> impl Iterator<Item = (u64, &GuestRequest)> + use<'_> {
        let first = self
            .guests
            .get(guest)
            .map_or(NONE, |entry| self.slots[entry.slot as usize].guests.first);
        walk(&self.guests, first)
    }

    /// Waiting host requests with this key, oldest first.
    pub(super) fn hosts_with(&self, key: DiskKey) -> impl Iterator<Item = &HostRequest> + use<'_> {
        let first = self
            .by_key
            .get(&key)
            .map_or(NONE, |slot| self.slots[*slot as usize].hosts.first);
        walk(&self.hosts, first).map(|(_, request)| request)
    }

    /// Waiting host requests with the key of this guest request, oldest first.
    pub(super) fn hosts_like(
        &self,
        guest: u64,
    ) -> impl Iterator<Item = (u64, &HostRequest)> + use<'_> {
        let first = self
            .guests
            .get(guest)
            .map_or(NONE, |entry| self.slots[entry.slot as usize].hosts.first);
        walk(&self.hosts, first)
    }
}

fn walk<R: Copy>(side: &Side<R>, first: u64) -> impl Iterator<Item = (u64, &R)> {
    let mut at = first;
    std::iter::from_fn(move || {
        let number = at;
        let entry = side.get(number)?;
        at = entry.next;
        #[cfg(test)]
        super::effort::spend(1);
        Some((number, &entry.request))
    })
}
