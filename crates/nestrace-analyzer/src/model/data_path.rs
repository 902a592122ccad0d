//! How far a disk's I/O was seen below QEMU.

/// Why a layer below a disk was not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// No probe, or no event of it.
    NotRecorded,
    /// The disk has no file or device on this host that is known.
    Elsewhere,
    /// QEMU served requests and did no file I/O on the disk's images for them.
    NoFileIo,
    /// The image lies on no block device.
    NoDevice,
    /// A server has the image's data, so this host has no bios of it.
    OnServer,
}

impl Unseen {
    /// What a rule that needs the layer says.
    pub(crate) const fn missing(self) -> &'static str {
        match self {
            Self::NotRecorded => "QEMU, its file I/O or the host's bios were not recorded",
            Self::Elsewhere => "the disk's I/O cannot be followed on this host",
            Self::NoFileIo => "no file I/O on the disk's images was seen",
            Self::NoDevice => "the block device under the disk's image is unknown",
            Self::OnServer => "a server has the image's data, so this host has no bios of it",
        }
    }
}

/// Layers below a disk: why they were not seen, `None` where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataPath {
    /// QEMU's file I/O on the disk's images.
    pub file_io: Option<Unseen>,
    /// The host's bios and requests for it.
    pub host_bio: Option<Unseen>,
    /// A file of the disk serves others too, and it is not known whose its file I/O, bios and requests are.
    pub shared: bool,
}

impl DataPath {
    /// Names of the missing layers, as in `chains[].folded`. Bios that there are not are missing nowhere.
    pub(crate) fn folded(self) -> impl Iterator<Item = &'static str> {
        let layers = [(self.file_io, "file_io"), (self.host_bio, "host_bio")];
        let missing = layers
            .into_iter()
            .filter(|(unseen, _)| unseen.is_some_and(|why| why != Unseen::OnServer));
        missing.map(|(_, layer)| layer)
    }
}
