//! What the guests' agents say, on its way into the manifest.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nestrace_output::bundle_dir::BundleDir;
use nestrace_output::held_dir::HeldDir;
use nestrace_probes::clock;
use nestrace_trace::manifest::{Loss, Notice, Topology};
use nix::sys::statvfs::fstatvfs;

use super::nanoseconds;
use super::open_manifest::{MAX_NOTICES, OpenManifest};
use crate::agent::{Account, Agents, Asked, Place, State};
use crate::agent_address::Choice;
use crate::roles::keeper::Keeper;

/// How long the host's side waits for agents before it goes live without them.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How often a guest can make the manifest be written.
const MANIFEST_PAUSE: Duration = Duration::from_secs(1);
/// Clock samples and gaps are in the manifest of a recording that was killed, but for this much.
const MANIFEST_AGE: Duration = Duration::from_secs(15);
/// Notices that guests leave to the host's side.
const HOST_NOTICES: usize = 100;
/// Room that guests leave on the bundle's file system, at most an eighth of it.
const RESERVE_BYTES: u64 = 512 << 20;

/// The recorder's view of the agents.
#[derive(Default)]
pub(super) struct GuestSides {
    agents: Agents,
    accounts: Vec<Account>,
    news: Vec<String>,
    without_channel: Vec<String>,
    next_manifest_ns: u64,
    changed: bool,
}

/// A guest's agent, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentStatus {
    /// The guest.
    pub guest: String,
    /// Where it stands; `None` where the guest has no channel.
    pub state: Option<State>,
}

impl GuestSides {
    /// Where the guests' agents are spoken to, and the guests that have no channel though one is wanted.
    pub fn places(choice: &Choice, topology: &Topology) -> (Vec<Place>, Vec<String>) {
        let (mut places, mut without_channel) = (Vec::new(), Vec::new());
        for guest in &topology.guests {
            match choice.address(guest) {
                Some(address) => places.push(Place {
                    guest: guest.name.clone(),
                    address,
                }),
                None if *choice != Choice::Off => without_channel.push(guest.name.clone()),
                None => {}
            }
        }
        (places, without_channel)
    }

    /// Connects to the guests' agents, and reads nothing yet. An agent that cannot be spoken to is no error. `to_come` bytes of the file system
    /// will be free soon.
    pub fn start(
        (places, without_channel): (&[Place], Vec<String>),
        keeper: &Arc<Keeper>,
        (dir, to_come): (&Arc<HeldDir>, u64),
        asked: &Asked,
        max_bytes: Option<u64>,
    ) -> Self {
        let mut sides = Self {
            without_channel,
            ..Self::default()
        };
        // From its first byte on: what a guest sends before the first look may be more than there is room for.
        let share_bytes = share(dir, places.len(), to_come).unwrap_or(u64::MAX);
        let share_bytes = share_bytes.min(most(max_bytes, places.len()));
        match Agents::connect(places, dir, asked, share_bytes, Some(keeper)) {
            Ok(agents) => sides.agents = agents,
            Err(error) => sides.news.push(format!("agents are not recorded: {error}")),
        }
        sides
    }

    /// Begins to read what the agents send.
    pub fn listen(&mut self) {
        if let Err(error) = self.agents.listen() {
            self.news.push(format!("agents are not recorded: {error}"));
        }
    }

    /// Waits for the agents that were reached, but not for long.
    pub fn wait_live(&self) {
        let deadline_ns = clock::monotonic_ns() + nanoseconds(PATIENCE);
        while !self.agents.all_live() && clock::monotonic_ns() < deadline_ns {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The host's side is live from this time on.
    pub fn host_is_live(&self, since_ns: u64) {
        self.agents.host_is_live(since_ns);
    }

    /// Events, bytes and losses of all guests.
    pub fn totals(&self) -> (u64, u64, u64) {
        let sum =
            |of: fn(&Account) -> u64| self.accounts.iter().map(of).fold(0, u64::saturating_add);
        (sum(|a| a.events), sum(|a| a.bytes), sum(Account::n_lost))
    }

    /// How many agents are live.
    pub fn n_live(&self) -> usize {
        let live = self.accounts.iter().filter(|a| a.state == State::Live);
        live.count()
    }

    /// What of all accounts belongs into the manifest's list of losses.
    pub fn losses(&self) -> impl Iterator<Item = Loss> {
        self.accounts.iter().flat_map(Account::losses)
    }

    /// What is to be said to the user since the last call.
    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Every guest's agent.
    pub fn status(&self) -> Vec<AgentStatus> {
        let known = self.accounts.iter().map(|account| AgentStatus {
            guest: account.guest().to_owned(),
            state: Some(account.state),
        });
        let none = self.without_channel.iter().map(|guest| AgentStatus {
            guest: guest.clone(),
            state: None,
        });
        known.chain(none).collect()
    }

    /// Takes over what has happened; the notices go to the caller.
    fn take(&mut self) -> Vec<Notice> {
        let outline = |accounts: &[Account]| -> Vec<(usize, State)> {
            let rows = accounts.iter().map(|a| (a.sides.len(), a.state));
            rows.collect()
        };
        let before = outline(&self.accounts);
        self.accounts = self.agents.accounts();
        let mut notices = Vec::new();
        for account in &mut self.accounts {
            notices.append(&mut account.notices);
            self.news.append(&mut account.news);
        }
        self.changed |= before != outline(&self.accounts) || !notices.is_empty();
        notices
    }

    /// Takes over what the agents' threads have heard.
    pub fn take_news(&mut self, manifest: &mut OpenManifest, now_ns: u64) {
        for notice in self.take() {
            if manifest.value.notices.len() < MAX_NOTICES - HOST_NOTICES {
                manifest.value.notices.push(notice);
            }
        }
        let next_ns = self.next_manifest_ns;
        let due_ns = if self.changed {
            next_ns
        } else {
            next_ns + nanoseconds(MANIFEST_AGE)
        };
        if now_ns >= due_ns && !self.accounts.is_empty() {
            self.put_into(manifest);
            manifest.changed = true;
            self.changed = false;
            self.next_manifest_ns = now_ns + nanoseconds(MANIFEST_PAUSE);
        }
    }

    /// Writes the accounts into the manifest's value.
    pub fn put_into(&self, manifest: &mut OpenManifest) {
        let accounts = &self.accounts;
        let manifest = &mut manifest.value;
        manifest.streams.truncate(1);
        let streams = accounts.iter().flat_map(Account::streams);
        manifest.streams.extend(streams);
        let sides = accounts.iter().flat_map(|a| a.sides.iter().cloned());
        manifest.guest_sides = sides.collect();
    }

    /// Guests may fill the file system less than the host's own stream may.
    pub fn limit(&self, dir: &BundleDir, max_bytes: Option<u64>) {
        let n = self.agents.len();
        if let Some(share) = share(dir.held(), n, dir.older_bytes()) {
            let most = most(max_bytes, n);
            let limit = |now: u64| now.saturating_add(share).min(most);
            self.agents.set_limit(limit);
        }
    }

    /// Asks the agents to end.
    pub fn stop(&self) {
        self.agents.stop();
    }

    /// Whether all have said their last words, or are not waited for.
    pub fn have_ended(&self) -> bool {
        self.agents.all_ended()
    }
}

/// Bytes by which the streams of each of `n` guests may grow in this folder, where `to_come` more will be free. `None` without guests, or where
/// the file system does not say what is free.
fn share(dir: &HeldDir, n: usize, to_come: u64) -> Option<u64> {
    let space = fstatvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.fragment_size());
    let free = bytes(space.blocks_available()).saturating_add(to_come);
    share_of(free, bytes(space.blocks()), n)
}

/// The same, of `free` bytes on a file system of `all`.
fn share_of(free: u64, all: u64, n: usize) -> Option<u64> {
    let reserve = RESERVE_BYTES.min(all / 8);
    let room = free.saturating_sub(reserve) / 2;
    room.checked_div(n as u64)
}

/// Bytes that the streams of each of `n` guests may have of a recording that ends at `max_bytes`: half of them are the
/// host's, so that no guest ends it.
fn most(max_bytes: Option<u64>, n: usize) -> u64 {
    let share = max_bytes.and_then(|max| (max / 2).checked_div(n as u64));
    share.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_have_half_of_the_largest_size() {
        assert_eq!(most(Some(1000), 2), 250);
        assert_eq!((most(None, 2), most(Some(1000), 0)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn guests_share_half_of_what_is_free() {
        const GIB: u64 = 1 << 30;
        for (free, all, n, expected) in [
            (10 * GIB, 100 * GIB, 1, Some(5 * GIB - GIB / 4)),
            (10 * GIB, 100 * GIB, 2, Some((5 * GIB - GIB / 4) / 2)),
            // Of a small one an eighth is left.
            (GIB, GIB, 1, Some(7 * GIB / 16)),
            (GIB / 8, 100 * GIB, 1, Some(0)),
            (10 * GIB, 100 * GIB, 0, None),
        ] {
            assert_eq!(share_of(free, all, n), expected, "{free} of {all} for {n}");
        }
        // What others do on this file system meanwhile is less than what is announced.
        let folder = tempfile::tempdir().unwrap();
        let dir = HeldDir::around(&folder.path().join("bundle")).unwrap();
        let [now, then] = [0, 1 << 60].map(|to_come| share(&dir, 1, to_come).unwrap());
        assert!(now < 1 << 58 && then >= 1 << 58, "{now} {then}");
        assert_eq!(share(&dir, 0, 0), None);
    }
}
