//! What the threads of a chain did, whichever machine they are of.

use std::cell::RefCell;
use std::rc::Rc;

use crate::follow::cpu::CpuStates;
use crate::model::actor::Actor;
use crate::model::clocks::GuestNs;
use crate::result::analysis::CpuTime;

/// The states of the threads of a host and of one session of a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuLookup {
    pub host: Rc<RefCell<CpuStates>>,
    pub guest: Rc<RefCell<CpuStates>>,
    /// Threads of the host that are the guest's processors; 0 where one is not known.
    pub vcpus: Rc<[u32]>,
}

impl CpuLookup {
    /// Of a guest with these processors, where the host's threads are known.
    pub(crate) fn new(host: &Rc<RefCell<CpuStates>>, vcpus: &[u32]) -> Self {
        Self {
            host: Rc::clone(host),
            guest: Rc::default(),
            vcpus: vcpus.into(),
        }
    }

    /// Whether anything is known of any thread.
    pub(crate) fn is_recorded(&self) -> bool {
        self.host.borrow().is_recorded() || self.guest.borrow().is_recorded()
    }

    /// What a thread did between two times of the guest's clock, which is ahead of the host's by `ahead_ns`. The four add
    /// up to the time between.
    pub(crate) fn between(
        &self,
        actor: Actor,
        (from_ns, to_ns): (u64, u64),
        ahead_ns: i64,
    ) -> CpuTime {
        let of_host = |tid: u32| {
            let [from_ns, to_ns] = [from_ns, to_ns].map(|ns| GuestNs(ns).on_host(ahead_ns).0);
            self.host.borrow().between(tid, from_ns, to_ns)
        };
        let known = match actor {
            Actor::Unknown => CpuTime::default(),
            Actor::Host(tid) => of_host(tid),
            Actor::Guest(tid) => self.guest.borrow().between(tid, from_ns, to_ns),
            Actor::Vcpu(number) => {
                let tid = self.vcpus.get(usize::from(number)).copied();
                tid.filter(|tid| *tid != 0)
                    .map_or_else(CpuTime::default, of_host)
            }
        };
        // A clock that ends within the time cuts it.
        let length_ns = to_ns.saturating_sub(from_ns);
        let sure_ns = known.total() - known.unknown;
        if sure_ns > length_ns {
            return CpuTime {
                unknown: length_ns,
                ..CpuTime::default()
            };
        }
        CpuTime {
            unknown: length_ns - sure_ns,
            ..known
        }
    }
}
