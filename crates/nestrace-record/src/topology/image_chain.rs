//! A disk's image and its backing files, down to the last.

use std::io;

use nestrace_trace::manifest::Image;

use super::image_file::{self, ImageFile, Viewer};
use super::image_header::ImageHeader;
use super::survey::Survey;
use crate::guest::block_node::{self, Backing, BlockNode, Storage};
use crate::guest::process::Process;

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
    let not_followed = walk.node(top, None, Origin::Node);
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

struct Walk<'a, 'b> {
    survey: &'a mut Survey,
    process: &'a Process,
    viewer: Viewer<'b>,
    images: Vec<Image>,
    seen: Vec<(u64, u64)>,
}

impl Walk<'_, '_> {
    /// Adds a node's images; why it could not, if it could not. `above` is the path of the overlay.
    fn node(&mut self, node: &BlockNode, above: Option<&str>, origin: Origin) -> Option<String> {
        if self.images.len() >= MAX_IMAGES {
            self.survey.note(
                above.unwrap_or("image"),
                format!("its chain is not followed beyond {MAX_IMAGES} images"),
            );
            return None;
        }
        let reason = match &node.storage {
            Storage::Path(path) => self.file(node, path, above, origin),
            Storage::Elsewhere(reason) => Some(reason.clone()),
            Storage::Unknown => {
                Some("neither QMP, libvirt nor the command line says where its data is".to_owned())
            }
        };
        if let (Some(reason), Some(above)) = (&reason, above) {
            self.survey.note(
                above,
                format!("what lies behind it is not followed: {reason}"),
            );
        }
        for further in &node.further {
            self.node(further, above, origin);
        }
        reason
    }

    /// The file of a name. A relative name counts from the overlay where its header has it, else from QEMU's working folder;
    /// what QEMU has open of the two is meant.
    fn look_for(
        &self,
        name: &str,
        above: Option<&str>,
        origin: Origin,
    ) -> Result<(String, ImageFile), (String, io::Error)> {
        let mut places = vec![self.process.absolute(name)];
        if let Some(above) = above.filter(|_| !name.starts_with('/')) {
            places.push(beside(above, name));
        }
        if origin == Origin::Header {
            places.reverse();
        }
        let mut best = None;
        for place in places {
            let found = image_file::find(self.viewer, &place);
            let is_meant = found.as_ref().is_ok_and(|file| !file.not_open);
            let found = found
                .map(|file| (place.clone(), file))
                .map_err(|error| (place, error));
            if is_meant {
                return found;
            }
            let is_better = best
                .as_ref()
                .is_none_or(|known: &Result<_, _>| known.is_err());
            if is_better && (best.is_none() || found.is_ok()) {
                best = Some(found);
            }
        }
        best.unwrap_or_else(|| Err((name.to_owned(), io::ErrorKind::NotFound.into())))
    }

    fn file(
        &mut self,
        node: &BlockNode,
        path: &str,
        above: Option<&str>,
        origin: Origin,
    ) -> Option<String> {
        let (path, file) = match self.look_for(path, above, origin) {
            Ok(found) => found,
            Err((path, error)) => return Some(format!("{path} cannot be looked at: {error}")),
        };
        if file.not_open && above.is_none() {
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
        if self.seen.contains(&file.identity()) {
            return None;
        }
        self.seen.push(file.identity());
        let header = self.header(node, &path, &file);
        let probed = header.as_ref().map_or("", |h| h.format);
        let format = node.format.as_deref().unwrap_or(probed);
        let path = self.shown_path(path, &file);
        let image = self.survey.image(self.viewer, &path, format, &file);
        self.images.push(image);
        self.behind(
            node,
            header.filter(|h| node.format.as_deref().is_none_or(|f| f == h.format)),
            &path,
        );
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
        let settled = node.format.is_some() && node.backing != Backing::FromHeader;
        if settled || node.format.as_deref() == Some("raw") {
            return None;
        }
        match file.header() {
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

    /// The data file, then the backing chain.
    fn behind(&mut self, node: &BlockNode, header: Option<ImageHeader>, path: &str) {
        let header = header.unwrap_or_default();
        if let Some(data) = node.data_file.as_deref() {
            self.node(data, Some(path), Origin::Node);
        } else if let Some(name) = header.data_file.as_deref() {
            let data = BlockNode {
                format: Some("raw".to_owned()),
                ..block_node::node_of_name(name)
            };
            self.node(&data, Some(path), Origin::Header);
        }
        match (&node.backing, header.backing_file) {
            (Backing::Node(below), _) => {
                self.node(below, Some(path), Origin::Node);
            }
            (Backing::FromHeader, Some(name)) => {
                let mut below = block_node::node_of_name(&name);
                below.format = below.format.or(header.backing_format);
                self.node(&below, Some(path), Origin::Header);
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
