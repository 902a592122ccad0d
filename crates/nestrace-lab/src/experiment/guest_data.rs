//! What workloads find in guests that the lab boots: databases and trees of small files, from the cache or made for it
//! before the first guest boots. What cannot be made fails the cells that want it, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestrace_rig::guest::DiskSpec;
use nestrace_rig::initramfs;
use nestrace_rig::interrupt::{self, Interrupted};
use nestrace_rig::kernel_image;

use super::LabError;
use super::database::{self, DatabaseDisk, DatabaseError};
use super::tree::{self, TreeError};
use crate::plan::Plan;
use crate::plan::workload::{self, Workload};

/// What the cells of a plan that are not finished want.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Where it is kept.
    cache: PathBuf,
    /// Debian's series of the guests' kernel.
    kernel: String,
    database: Option<Result<DatabaseDisk, Arc<DatabaseError>>>,
    /// Bytes that the making of the database takes.
    database_bytes: u64,
    /// Entries of each tree.
    trees: BTreeSet<u32>,
}

/// What is there of it.
#[derive(Debug, Default)]
pub(super) struct GuestData {
    database: Option<Result<PathBuf, Arc<DatabaseError>>>,
    trees: BTreeMap<u32, Result<PathBuf, Arc<TreeError>>>,
}

impl Wanted {
    /// What the cells of these numbers want. Of databases it is that of the whole plan: a disk is the same at each start.
    pub(super) fn of(cache: PathBuf, plan: &Plan, cells: &BTreeSet<usize>) -> Self {
        let workloads = cells.iter().filter_map(|&number| plan.cells.get(number));
        let workloads: Vec<&Workload> = workloads.map(|cell| &cell.workload).collect();
        let is_stored = workloads.iter().any(|workload| workload.oltp().is_some());
        let entries = workloads.iter().map(|workload| workload.tree_entries());
        Self {
            cache,
            kernel: plan.guest.kernel.clone(),
            database: is_stored.then(|| DatabaseDisk::of(plan).map_err(Arc::new)),
            database_bytes: plan.database_bytes(),
            trees: entries.filter(|entries| *entries > 0).collect(),
        }
    }

    /// Where it is kept.
    pub(super) fn cache(&self) -> &Path {
        &self.cache
    }

    /// Bytes that have to be free in the cache for what it lacks, with what guests boot from.
    pub(super) fn missing_bytes(&self) -> u64 {
        let boot = match kernel_image::cached(&self.cache, &self.kernel) {
            None => kernel_image::MAX_BYTES + initramfs::MAX_BYTES,
            Some(release) if initramfs::is_cached(&self.cache, &release) => 0,
            Some(_) => initramfs::MAX_BYTES,
        };
        boot + self.missing_data_bytes()
    }

    fn missing_data_bytes(&self) -> u64 {
        let is_missing = |name: &str| !self.cache.join(name).is_dir();
        let database = match &self.database {
            Some(Ok(disk)) if is_missing(&disk.name) => self.database_bytes,
            _ => 0,
        };
        let trees = self.trees.iter().copied();
        let trees = trees.filter(|&entries| is_missing(&tree::name(entries)));
        database + trees.map(Plan::tree_bytes).sum::<u64>()
    }

    /// Takes it from the cache, or makes it; `tell` hears which.
    ///
    /// # Errors
    /// Ctrl-C.
    pub(super) fn obtain(self, tell: &mut dyn FnMut(String)) -> Result<GuestData, Interrupted> {
        let cache = &self.cache;
        let mut announce = |what: &str, name: &str| {
            let place = cache.join(name);
            let how = if place.is_dir() {
                "as it lies in"
            } else {
                "made for"
            };
            tell(format!("{what}, {how} {}", place.display()));
        };
        let mut data = GuestData::default();
        if let Some(disk) = self.database {
            data.database = Some(disk.and_then(|disk| {
                announce("the disk with databases", &disk.name);
                disk.obtain(cache).map_err(Arc::new)
            }));
            interrupt::check()?;
        }
        for entries in self.trees {
            let what = format!("the tree of {entries} files");
            announce(&what, &tree::name(entries));
            let archive = tree::obtain(cache, entries).map_err(Arc::new);
            data.trees.insert(entries, archive);
            interrupt::check()?;
        }
        Ok(data)
    }
}

impl GuestData {
    /// Why a workload does not find what it wants, if it does not.
    pub(super) fn objection(&self, workload: &Workload) -> Option<LabError> {
        if let (Some(_), Some(Err(error))) = (workload.oltp(), &self.database) {
            return Some(Arc::clone(error).into());
        }
        match self.trees.get(&workload.tree_entries()) {
            Some(Err(error)) => Some(Arc::clone(error).into()),
            _ => None,
        }
    }

    /// The disk with databases.
    pub(super) fn disk(&self) -> Option<DiskSpec> {
        let image = self.database.as_ref()?.as_ref().ok()?;
        Some(database::database_spec(image))
    }

    /// Archives of trees: place in the guest and file of this machine.
    pub(super) fn files(&self) -> impl Iterator<Item = (String, PathBuf)> {
        let made = self.trees.iter();
        made.filter_map(|(&entries, archive)| {
            Some((workload::tree(entries), archive.as_ref().ok()?.clone()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workloads_of(workloads: &[&str]) -> Plan {
        let workloads: String = workloads
            .iter()
            .map(|name| format!("[[workload]]\nname = '{name}'\ndata_size = '1M'\n"))
            .collect();
        Plan::read(&format!("name = 'p'\n[axes]\nhost_fs = 'bd'\n{workloads}")).unwrap()
    }

    fn all(plan: &Plan) -> BTreeSet<usize> {
        (0..plan.cells.len()).collect()
    }

    #[test]
    fn a_tree_is_made_at_the_first_start_and_taken_at_the_next() {
        let cache = tempfile::tempdir().unwrap();
        let plan = workloads_of(&["unpack-tree"]);
        let wanted = || Wanted::of(cache.path().to_owned(), &plan, &all(&plan));
        let mut told = Vec::new();
        let mut obtain = || wanted().obtain(&mut |what| told.push(what));
        assert_eq!(wanted().missing_bytes(), plan.estimate().cache_bytes);
        assert_eq!(wanted().missing_data_bytes(), Plan::tree_bytes(64));
        let first: Vec<_> = obtain().unwrap().files().collect();
        assert_eq!(wanted().missing_data_bytes(), 0);
        let second: Vec<_> = obtain().unwrap().files().collect();
        assert_eq!(first, second);
        assert_eq!(first[0].0, "/lab-tree-64.tar");
        let place = cache.path().join(tree::name(64));
        let place = place.display();
        assert_eq!(
            told,
            [
                format!("the tree of 64 files, made for {place}"),
                format!("the tree of 64 files, as it lies in {place}"),
            ]
        );
        // Another plan with as much data has the same one, finished cells want none.
        let other = workloads_of(&["randread", "unpack-tree"]);
        let of_other = |cells: BTreeSet<usize>| Wanted::of(cache.path().to_owned(), &other, &cells);
        let wanted = of_other(all(&other));
        assert_eq!(wanted.missing_data_bytes(), 0);
        assert!(of_other(BTreeSet::from([0])).trees.is_empty());
    }

    #[test]
    fn what_guests_boot_from_has_its_room_until_it_is_there() {
        let cache = tempfile::tempdir().unwrap();
        let plan = workloads_of(&["randread"]);
        let missing = || Wanted::of(cache.path().to_owned(), &plan, &all(&plan)).missing_bytes();
        let make = |name: &str| std::fs::create_dir(cache.path().join(name)).unwrap();
        make("linux-image-6.12.1-amd64");
        let both = kernel_image::MAX_BYTES + initramfs::MAX_BYTES;
        assert_eq!((missing(), plan.estimate().cache_bytes), (both, both));
        make("linux-image-6.1.0-56-amd64");
        make("initramfs-6.12.1-amd64-00ff");
        assert_eq!(missing(), initramfs::MAX_BYTES);
        make("initramfs-6.1.0-56-amd64-00ff");
        assert_eq!(missing(), 0);
    }

    #[test]
    fn what_cannot_be_made_fails_its_own_workloads() {
        let plan = workloads_of(&["oltp-insert", "unpack-tree", "sysbench-rndrd"]);
        let said = |data: &GuestData| -> Vec<Option<String>> {
            let objections = plan.cells.iter().map(|cell| data.objection(&cell.workload));
            objections
                .map(|objection| objection.map(|error| error.to_string()))
                .collect()
        };
        let killed = DatabaseError::Server(String::from("it is killed"));
        let told = Some(String::from("start mariadbd: it is killed"));
        let data = GuestData {
            database: Some(Err(Arc::new(killed))),
            ..GuestData::default()
        };
        assert_eq!(said(&data), [told, None, None]);
        assert!(data.disk().is_none());
        let wanted = Wanted::of("/nonexistent".into(), &plan, &BTreeSet::from([1]));
        let data = wanted.obtain(&mut |_| {}).unwrap();
        let [None, Some(error), None] = &said(&data)[..] else {
            panic!("{:?}", said(&data));
        };
        assert!(
            error.contains("use the cache at /nonexistent/tree-64-"),
            "{error}"
        );
        assert_eq!(data.files().count(), 0);
    }
}
