//! A disk's image and the files that belong to it: data file, extents, further members, backing files down to the last.

use std::io;

use nestrace_trace::manifest::{Image, Relation};

use super::block_node::{self, Backing, BlockNode, Storage};
use super::process::Process;
use crate::topology::Survey;
use crate::topology::image_file::{self, FileIdentity, ImageFile, Viewer};
use crate::topology::image_header::ImageHeader;

/// How many images a chain may have. QEMU's own limit is 200 in `qemu-img`, none at run time.
const MAX_IMAGES: usize = 256;

/// A chain that was followed.
#[derive(Clone, Debug, Default)]
pub struct ImageChain {
    /// Images, top first.
    pub images: Vec<Image>,
    /// Why the top image cannot be followed, if it cannot.
    pub not_followed: Option<String>,
}

/// Follows a chain of nodes; where a node does not say what lies behind it, the image's header does.
pub fn follow(
    survey: &mut Survey,
    process: &Process,
    viewer: Viewer<'_>,
    top: &BlockNode,
) -> ImageChain {
    let mut walk = Walk {
        survey,
        process,
        viewer,
        images: Vec::new(),
        seen: Vec::new(),
    };
    let disk = Place {
        above: None,
        origin: Origin::Node,
        relation: None,
        disk_offset: 0,
    };
    let not_followed = walk.node(top, disk);
    let not_followed = not_followed.filter(|_| walk.images.is_empty());
    ImageChain {
        images: walk.images,
        not_followed,
    }
}

/// Who names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// QMP, libvirt or the command line.
    Node,
    /// The header of the image above it.
    Header,
}

/// Where in the graph a node is.
#[derive(Clone, Copy, Debug)]
struct Place<'p> {
    /// Path of the image that it belongs to; `None` for the disk's own.
    above: Option<&'p str>,
    origin: Origin,
    relation: Option<Relation>,
    /// Where on the guest's disk the node's first byte is.
    disk_offset: i64,
}

struct Walk<'a, 'b> {
    survey: &'a mut Survey,
    process: &'a Process,
    viewer: Viewer<'b>,
    images: Vec<Image>,
    /// Identity of each image's file.
    seen: Vec<FileIdentity>,
}

impl Walk<'_, '_> {
    /// Adds a node's images; why it could not, if it could not.
    fn node(&mut self, node: &BlockNode, place: Place<'_>) -> Option<String> {
        if self.images.len() >= MAX_IMAGES {
            self.survey.note(
                place.above.unwrap_or("image"),
                format!("its chain is not followed beyond {MAX_IMAGES} images"),
            );
            return None;
        }
        let index = self.images.len();
        let reason = match &node.storage {
            Storage::Path(path) => self.file(node, path, place),
            Storage::Elsewhere(reason) => Some(reason.clone()),
            Storage::Unknown => {
                Some("neither QMP, libvirt nor the command line says where its data is".to_owned())
            }
        };
        if let (Some(reason), Some(above)) = (&reason, place.above) {
            self.survey
                .note(above, format!("its backing file is not followed: {reason}"));
        }
        let member = Relation::MemberOf(index as u32);
        let relation = (self.images.len() > index).then_some(member);
        for further in &node.further {
            let relation = relation.or(place.relation);
            self.node(further, Place { relation, ..place });
        }
        reason
    }

    /// The file of a name. A relative name counts from the overlay where its header has it, else from QEMU's working folder;
    /// what QEMU has open of the two is meant.
    fn look_for(
        &self,
        name: &str,
        place: Place<'_>,
    ) -> Result<(String, ImageFile), (String, io::Error)> {
        let look = |path: String| match image_file::find(self.viewer, &path) {
            Ok(file) => Ok((path, file)),
            Err(error) => Err((path, error)),
        };
        let from_folder = self.process.absolute(name);
        let Some(above) = place.above.filter(|_| !name.starts_with('/')) else {
            return look(from_folder);
        };
        let mut paths = [from_folder, beside(above, name)];
        if place.origin == Origin::Header {
            paths.reverse();
        }
        let [first, second] = paths.map(look);
        let is_meant = |found: &Result<(String, ImageFile), _>| {
            found.as_ref().is_ok_and(|(_, file)| !file.not_open)
        };
        let second_is_meant = is_meant(&second) && !is_meant(&first);
        if second_is_meant || (first.is_err() && second.is_ok()) {
            return second;
        }
        first
    }

    fn file(&mut self, node: &BlockNode, path: &str, place: Place<'_>) -> Option<String> {
        let (path, file) = match self.look_for(path, place) {
            Ok(found) => found,
            Err((path, error)) => return Some(format!("{path} cannot be examined: {error}")),
        };
        if file.not_open && place.above.is_none() {
            // Whatever has that name by now is not what the guest uses.
            return Some(format!(
                "QEMU does not have {path} open: it was unplugged, ejected or renamed"
            ));
        }
        if file.not_open {
            self.survey.note(
                &path,
                "QEMU does not have this file open; it may have been renamed or replaced"
                    .to_owned(),
            );
        }
        let known = self.seen.iter().position(|seen| *seen == file.identity());
        if let Some(known) = known.and_then(|known| self.images.get(known)) {
            if known.start != node.start {
                let more = format!(
                    "another part of it, from byte {} on, is not followed",
                    node.start
                );
                self.survey.note(&path, more);
            }
            return None;
        }
        let header = self.header(node, &path, &file);
        let probed = header.as_ref().map_or("", |h| h.format);
        let format = node.format.as_deref().unwrap_or(probed);
        let path = self.shown_path(path, &file);
        let shown_from = i64::try_from(node.shown_from).unwrap_or(i64::MAX);
        let disk_offset = place.disk_offset.saturating_sub(shown_from);
        let index = self.images.len() as u32;
        self.images.push(Image {
            relation: place.relation,
            start: node.start,
            disk_offset,
            ..self.survey.image(self.viewer, &path, format, &file)
        });
        self.seen.push(file.identity());
        let behind = |relation| Place {
            above: Some(&path),
            origin: Origin::Node,
            relation: Some(relation),
            disk_offset,
        };
        let header = header.filter(|h| node.format.as_deref().is_none_or(|f| f == h.format));
        let header = header.unwrap_or_default();
        self.data(node, &header, behind(Relation::DataFileOf(index)));
        self.extents(&header, behind(Relation::ExtentOf(index)));
        self.backing(node, header, behind(Relation::BackingOf(index)));
        None
    }

    /// A file that came as a descriptor is shown by its name, not by `/proc/self/fd/N`.
    fn shown_path(&self, path: String, file: &ImageFile) -> String {
        let open = self.viewer.open.into_iter().flat_map(|o| &o.files);
        match open
            .into_iter()
            .find(|f| path.starts_with("/proc/self/fd/") && f.identity == file.identity())
        {
            Some(open) => open.path.clone(),
            None => path,
        }
    }

    /// Reads the header where something in it is needed.
    fn header(&mut self, node: &BlockNode, path: &str, file: &ImageFile) -> Option<ImageHeader> {
        // The files of a vmdk's extents are named by its descriptor alone.
        let is_settled = match node.format.as_deref() {
            Some("raw") => true,
            Some("vmdk") | None => false,
            Some(_) => node.backing != Backing::FromHeader,
        };
        if is_settled {
            return None;
        }
        match file.header(node.start) {
            Ok(Ok(header)) => Some(header),
            Ok(Err(error)) => {
                self.survey.note(path, format!("failed to {error}"));
                None
            }
            Err(error) => {
                self.survey
                    .note(path, format!("its header cannot be read: {error}"));
                None
            }
        }
    }

    fn data(&mut self, node: &BlockNode, header: &ImageHeader, place: Place<'_>) {
        if let Some(data) = node.data_file.as_deref() {
            self.node(data, place);
        } else if let Some(name) = header.data_file.as_deref() {
            let data = BlockNode {
                format: Some("raw".to_owned()),
                ..block_node::node_of_name(name)
            };
            // QEMU takes a relative name from its working folder here (`qcow2_do_open`), unlike a backing file's.
            self.node(&data, place);
        }
    }

    fn extents(&mut self, header: &ImageHeader, place: Place<'_>) {
        for extent in &header.extents {
            let node = BlockNode {
                format: Some(extent.format.to_owned()),
                start: extent.start,
                backing: Backing::Nothing,
                ..block_node::node_of_name(&extent.name)
            };
            let on_disk = i64::try_from(extent.disk_offset).unwrap_or(i64::MAX);
            self.node(
                &node,
                Place {
                    origin: Origin::Header,
                    disk_offset: place.disk_offset.saturating_add(on_disk),
                    ..place
                },
            );
        }
    }

    fn backing(&mut self, node: &BlockNode, header: ImageHeader, place: Place<'_>) {
        match (&node.backing, header.backing_file) {
            (Backing::Node(below), _) => {
                self.node(below, place);
            }
            (Backing::FromHeader, Some(name)) => {
                let mut below = block_node::node_of_name(&name);
                below.format = below.format.or(header.backing_format);
                let origin = Origin::Header;
                self.node(&below, Place { origin, ..place });
            }
            _ => {}
        }
    }
}

/// `name` in the directory of `path`.
fn beside(path: &str, name: &str) -> String {
    match path.rsplit_once('/') {
        Some((directory, _)) => format!("{directory}/{name}"),
        None => name.to_owned(),
    }
}
