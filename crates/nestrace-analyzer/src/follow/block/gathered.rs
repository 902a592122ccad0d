//! What is gathered of a machine's bios and requests: meters of its devices, and spans of what has ended.

use nestrace_trace::Event;

use super::MAX_DEVICES;
use super::issue::Request;
use super::observer::{Lent, Observer};
use super::spans::BlockSpans;
use crate::measure::collects::Collects;
use crate::measure::device::DeviceMeter;
use crate::measure::machine::MachineStats;
use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;

/// What is gathered of one machine's bios and requests.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub devices: Vec<DeviceMeter>,
    /// What is collected of them.
    pub collects: Collects,
    by_dev: PointerMap<u32, u16>,
    last_device: u16,
    /// The last request that went to a device for the first time.
    pub(super) serial: u64,
    /// Events of devices beyond [`MAX_DEVICES`].
    pub ignored: u64,
    /// What is counted across devices.
    pub machine: MachineStats,
    /// Spans of what has ended, for the caller to drain; `None` unless asked for.
    pub spans: Option<Box<BlockSpans>>,
}

impl Gathered {
    #[inline]
    pub(super) fn device(&mut self, dev: u32) -> Option<u16> {
        if let Some(last) = self.devices.get(usize::from(self.last_device))
            && last.dev == dev
        {
            return Some(self.last_device);
        }
        let known = self.by_dev.get(&dev).copied();
        self.last_device = known.or_else(|| self.new_device(dev))?;
        Some(self.last_device)
    }

    /// A device that was not seen before. Apart: it is large, and would make room on the stack for every event.
    #[cold]
    #[inline(never)]
    fn new_device(&mut self, dev: u32) -> Option<u16> {
        if self.devices.len() >= MAX_DEVICES {
            return None;
        }
        let device = self.devices.len() as u16;
        self.by_dev.insert(dev, device);
        self.devices.push(DeviceMeter::new(dev, self.collects));
        if let [first, _] = self.devices.as_slice() {
            self.machine.take_over(first);
        }
        Some(device)
    }

    /// The meter of a device number that [`Self::device`] gave.
    #[inline]
    pub(super) fn meter(&mut self, device: u16) -> &mut DeviceMeter {
        &mut self.devices[usize::from(device)]
    }

    pub(super) fn dev_of(&self, device: u16) -> u32 {
        self.devices
            .get(usize::from(device))
            .map_or(0, |meter| meter.dev)
    }

    /// The number of another request that goes to a device for the first time.
    #[inline]
    pub(super) fn new_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A device without requests handed a bio, or a part of it, on to one below.
    pub(super) fn remapped_from(&mut self, event: &Event) {
        let Some(source) = self.by_dev.get(&event.former_dev()) else {
            return;
        };
        let source = &mut self.devices[usize::from(*source)];
        let Some((queued_ns, process)) = source.stats.remapped.at(event.former_offset()) else {
            return;
        };
        let whose = (Operation::of(event.op()), process);
        let waited_ns = event.ts_ns.saturating_sub(queued_ns);
        source.record(whose, |parts| &mut parts.q2a, waited_ns);
    }

    /// A request has left the device without being seen to.
    #[inline(never)]
    pub(super) fn completion_missed<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        self.transfer_missed(request, ts_ns, lent);
        if request.has_data() {
            self.meter(request.device)
                .completion_missed(request.operation);
        }
    }

    #[inline(never)]
    pub(super) fn transfer_missed<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        self.meter(request.device)
            .transfer_missed(request.operation, request.bytes_left());
        if request.at_device {
            // When it left is not known, and after its D nothing is certain.
            self.meter(request.device).leaving_missed(request.came);
            self.machine.leaving_missed(request.came_of_machine);
            self.flush_left(request, ts_ns, lent);
        }
    }

    /// A request has left the device: its span is whole.
    pub(super) fn hand_on(&mut self, request: &Request, pointer: u64, completed_ns: u64) {
        let dev = self.dev_of(request.device);
        if let Some(spans) = &mut self.spans
            && request.serial != 0
        {
            spans.completed(request.span(dev, pointer, completed_ns), request.device);
        }
    }

    /// Ends what D began: the depth, and for a flush the wait of those who sync.
    pub(super) fn left_device<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        if !request.at_device {
            return;
        }
        self.meter(request.device).leaves(request.came, ts_ns);
        self.machine.leaves(request.came_of_machine, ts_ns);
        self.flush_left(request, ts_ns, lent);
    }

    /// Nothing waits for a flush at the device any more.
    pub(super) fn flush_left<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        if request.flush {
            let dev = self.dev_of(request.device);
            lent.observer.flushes_in_flight(dev, ts_ns, |stages| {
                stages.issued = stages.issued.saturating_sub(1)
            });
        }
    }

    /// The whole request is its first bio's owner's.
    pub(super) fn charge<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &Lent<'_, O>,
    ) {
        if self.collects.only_what_btt_has() {
            return;
        }
        let spent = ts_ns.saturating_sub(request.issued_ns);
        self.meter(request.device).users.charge(
            request.owner,
            (request.operation, request.bytes),
            spent,
            lent.threads,
        );
    }
}
