//! Uprobes by links of their own (`uprobe_multi`, Linux 6.6): many can be taken away at the same time.
//!
//! A uprobe that is a perf event is taken away under a lock of all perf events, with a grace period for each (0.13 s on
//! 6.18): 32 guests took 53 s. Links have no such lock. A program has to be loaded for them (`expected_attach_type`),
//! which aya 0.14 cannot, so the object is relocated a second time here, onto the maps that exist.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::Ebpf;
use aya::maps::{Map, MapFd, MapInfo};
use aya_obj::Object;

use crate::bpf_call::{LINK_CREATE, PROG_LOAD, ProgramAttr, UprobeMultiAttr, bpf};
use crate::closer::close_all;

/// `BPF_TRACE_UPROBE_MULTI` of `enum bpf_attach_type`.
const UPROBE_MULTI: u32 = 48;
/// `BPF_PROG_TYPE_KPROBE`.
const KPROBE: u32 = 2;
/// Bytes of a map's name that the kernel keeps.
const MAP_NAME: usize = 15;
/// Stands for a map that no loaded program uses: a program that does is refused by the kernel, and loaded as it would be
/// without this.
const NO_MAP: RawFd = RawFd::MAX;

/// The object's uprobe programs, relocated onto the maps that the other programs use.
pub(super) struct UprobeMulti {
    object: Object,
    programs: BTreeMap<String, OwnedFd>,
    /// Each with the process that it is about.
    links: Vec<(u32, OwnedFd)>,
    // The programs were relocated with these.
    _maps: Vec<MapFd>,
}

impl UprobeMulti {
    /// Relocates the object's programs; `None` where this kernel's links do not do. Call it when programs that use every map
    /// have been loaded.
    pub fn prepare(object: &[u8], loaded: &Ebpf) -> Option<Self> {
        if !filters_processes(nix::sys::utsname::uname().ok()?.release().to_str()?) {
            return None;
        }
        Self::relocate(object, loaded)
    }

    fn relocate(object: &[u8], loaded: &Ebpf) -> Option<Self> {
        let mut object = Object::parse(object).ok()?;
        let by_name = maps_of(loaded);
        let mut fds = Vec::new();
        let mut maps = Vec::new();
        for (name, map) in std::mem::take(&mut object.maps) {
            let kept = name.as_bytes().get(..MAP_NAME).unwrap_or(name.as_bytes());
            let own = loaded.map(&name).and_then(descriptor);
            let fd = match (own, by_name.get(kept)) {
                (Some(fd), _) => fd,
                (None, Some(id)) => {
                    let fd = MapInfo::from_id(*id).ok()?.fd().ok()?;
                    let raw = fd.as_fd().as_raw_fd();
                    fds.push(fd);
                    raw
                }
                (None, None) => NO_MAP,
            };
            maps.push((name, fd, map));
        }
        let sections = object
            .functions
            .keys()
            .map(|(section, _)| *section)
            .collect();
        let all = maps.iter().map(|(name, fd, map)| (name.as_str(), *fd, map));
        object.relocate_maps(all, &sections).ok()?;
        object.relocate_calls(&sections).ok()?;
        Some(Self {
            object,
            programs: BTreeMap::new(),
            links: Vec::new(),
            _maps: fds,
        })
    }

    /// Runs the program at `offset` of the file in the process `pid`, with the counter at `semaphore` raised. Gives its
    /// descriptor if it was loaded for this.
    ///
    /// # Errors
    /// Where the kernel does not take the program or the link.
    pub fn attach(
        &mut self,
        program: &str,
        path: &Path,
        pid: u32,
        offset: u64,
        semaphore: Option<u64>,
    ) -> io::Result<Option<RawFd>> {
        let is_new = !self.programs.contains_key(program);
        if is_new {
            let loaded = self.load(program)?;
            self.programs.insert(program.to_owned(), loaded);
        }
        let fd = self.programs.get(program).ok_or(io::ErrorKind::NotFound)?;
        let path = CString::new(path.as_os_str().as_bytes())?;
        let (offset, semaphore) = ([offset], [semaphore.unwrap_or(0)]);
        let attr = UprobeMultiAttr {
            prog_fd: fd.as_raw_fd().cast_unsigned(),
            attach_type: UPROBE_MULTI,
            path: path.as_ptr() as u64,
            offsets: offset.as_ptr() as u64,
            ref_ctr_offsets: semaphore.as_ptr() as u64,
            cnt: 1,
            pid,
            ..UprobeMultiAttr::default()
        };
        self.links.push((pid, bpf(LINK_CREATE, &attr)?));
        Ok(is_new.then_some(fd.as_raw_fd()))
    }

    /// The links to a process; the probes are gone when they are closed.
    pub fn detach(&mut self, pid: u32) -> impl Iterator<Item = OwnedFd> {
        self.links
            .extract_if(.., move |(of, _)| *of == pid)
            .map(|(_, link)| link)
    }

    fn load(&self, name: &str) -> io::Result<OwnedFd> {
        let program = self
            .object
            .programs
            .get(name)
            .ok_or(io::ErrorKind::NotFound)?;
        let function = self
            .object
            .functions
            .get(&program.function_key())
            .ok_or(io::ErrorKind::NotFound)?;
        let mut prog_name = [0u8; 16];
        for (place, byte) in prog_name.iter_mut().take(MAP_NAME).zip(name.bytes()) {
            *place = byte;
        }
        let attr = ProgramAttr {
            prog_type: KPROBE,
            insn_cnt: u32::try_from(function.instructions.len()).map_err(io::Error::other)?,
            insns: function.instructions.as_ptr() as u64,
            license: program.license.as_ptr() as u64,
            prog_name,
            expected_attach_type: UPROBE_MULTI,
            ..ProgramAttr::default()
        };
        bpf(PROG_LOAD, &attr)
    }
}

impl Drop for UprobeMulti {
    fn drop(&mut self) {
        close_all(std::mem::take(&mut self.links));
    }
}

/// The descriptor of a map that only probes of QEMU use; it is open as long as what was loaded.
fn descriptor(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data) | Map::PerCpuArray(data) => {
            Some(data.fd().as_fd().as_raw_fd())
        }
        _ => None,
    }
}

/// The maps of all programs that are loaded: the name that the kernel keeps → id.
fn maps_of(loaded: &Ebpf) -> HashMap<Vec<u8>, u32> {
    let programs = loaded
        .programs()
        .filter_map(|(_, program)| program.info().ok());
    let ids = programs.filter_map(|info| info.map_ids().ok().flatten());
    ids.flatten()
        .filter_map(|id| Some((MapInfo::from_id(id).ok()?.name().to_vec(), id)))
        .collect()
}

/// Until 6.10 (46ba0e49b642) such a link to one process ran in its first thread alone. Nothing in the kernel's types says
/// which way it is.
fn filters_processes(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    (number(), number()) >= (Some(6), Some(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_whose_links_see_all_threads() {
        for (release, expected) in [
            ("6.18.44-fc-v657", true),
            ("6.10.0", true),
            ("6.9.12", false),
            ("6.1.0-44-amd64", false),
            ("7.3.4+deb14-amd64", true),
            ("5.15", false),
            ("odd", false),
        ] {
            assert_eq!(filters_processes(release), expected, "{release}");
        }
    }
}
