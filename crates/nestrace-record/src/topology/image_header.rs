//! The first bytes of a disk image: which format it has, and which other files belong to it.
//!
//! Pure, for hostile input: every offset is checked, lengths are bounded by the format's own limits.
//! A guest that writes a qcow2 header into a raw disk is why QEMU warns of probing; here a format
//! that QMP or the command line names always wins.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::vmdk;

/// What a header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageHeader {
    /// `raw` where no known magic is there.
    pub format: &'static str,
    /// Name of the backing file, in QEMU's syntax.
    pub backing_file: Option<String>,
    /// Its format, where the header names it.
    pub backing_format: Option<String>,
    /// qcow2's external data file.
    pub data_file: Option<String>,
    /// Bytes that the guest sees, where the header says so.
    pub virtual_size: Option<u64>,
    /// The files that hold parts of the disk, where those are others: vmdk's extents.
    pub extents: Vec<Extent>,
}

/// A file that holds a part of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its name, as the header has it.
    pub name: String,
    /// `raw` or `vmdk`.
    pub format: &'static str,
    /// Where in the file the part begins, in bytes.
    pub start: u64,
    /// Where on the disk the part begins, in bytes.
    pub disk_offset: u64,
}

/// Why a header is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The field lies behind the bytes that were given: ask again with at least this many.
    #[error("find {field} of the {format} header at {needed} bytes")]
    NeedsMore {
        /// Format.
        format: &'static str,
        /// Which field.
        field: &'static str,
        /// How many bytes from the start are needed.
        needed: usize,
    },
    /// A field is impossible.
    #[error("use {field} of the {format} header: {value}")]
    Invalid {
        /// Format.
        format: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The most bytes that a header may ask for: qcow2's largest cluster.
pub const MAX_HEADER: usize = 2 << 20;
/// QEMU's own limit for the name of a backing file.
const MAX_NAME: u64 = 1023;
/// qcow2: the data is in another file.
const INCOMPATIBLE_DATA_FILE: u64 = 1 << 2;
/// qcow2: a header extension with the backing file's format.
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
/// qcow2: a header extension with the data file's name.
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;

/// Magic bytes, their offset, and the format.
const MAGICS: &[(usize, &[u8], &str)] = &[
    (0, b"COWD", "vmdk"),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], "vdi"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vpc"),
    (0, b"LUKS\xba\xbe", "luks"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"Bochs Virtual HD Image", "bochs"),
];

/// How many bytes to read of an image that begins with these, where its header does not say it.
#[must_use]
pub fn at_least(bytes: &[u8]) -> Option<usize> {
    bytes
        .starts_with(vmdk::DESCRIPTOR)
        .then_some(vmdk::MAX_DESCRIPTOR)
}

/// Reads a header from the first bytes of an image.
///
/// # Errors
///
/// [`HeaderError::NeedsMore`] where `bytes` is too short for what the header refers to.
pub fn parse(bytes: &[u8]) -> Result<ImageHeader, HeaderError> {
    if bytes.starts_with(b"QFI\xfb") {
        return qcow(bytes);
    }
    if bytes.starts_with(b"QED\0") {
        return qed(bytes);
    }
    if bytes.starts_with(vmdk::DESCRIPTOR) {
        return Ok(vmdk::descriptor(bytes));
    }
    if bytes.starts_with(b"KDMV") {
        return vmdk::sparse(&Reader {
            bytes,
            format: "vmdk",
        });
    }
    let format = MAGICS
        .iter()
        .find(|(at, magic, _)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
        .map_or("raw", |(_, _, format)| *format);
    Ok(ImageHeader {
        format,
        ..ImageHeader::default()
    })
}

/// Reads fields of one format's header.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    format: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn take(
        &self,
        field: &'static str,
        at: u64,
        len: u64,
    ) -> Result<&'a [u8], HeaderError> {
        let invalid = HeaderError::Invalid {
            format: self.format,
            field,
            value: at,
        };
        let end = at
            .checked_add(len)
            .and_then(|end| usize::try_from(end).ok())
            .ok_or(invalid.clone())?;
        if end > MAX_HEADER {
            return Err(invalid);
        }
        let start = usize::try_from(at).map_err(|_| invalid)?;
        self.bytes.get(start..end).ok_or(HeaderError::NeedsMore {
            format: self.format,
            field,
            needed: end,
        })
    }

    fn array<const N: usize>(&self, field: &'static str, at: u64) -> Result<[u8; N], HeaderError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, at, N as u64)?);
        Ok(array)
    }

    fn be32(&self, field: &'static str, at: u64) -> Result<u32, HeaderError> {
        Ok(u32::from_be_bytes(self.array(field, at)?))
    }

    fn be64(&self, field: &'static str, at: u64) -> Result<u64, HeaderError> {
        Ok(u64::from_be_bytes(self.array(field, at)?))
    }

    fn le32(&self, field: &'static str, at: u64) -> Result<u32, HeaderError> {
        Ok(u32::from_le_bytes(self.array(field, at)?))
    }

    pub(super) fn le64(&self, field: &'static str, at: u64) -> Result<u64, HeaderError> {
        Ok(u64::from_le_bytes(self.array(field, at)?))
    }

    fn name(&self, field: &'static str, at: u64, len: u64) -> Result<Option<String>, HeaderError> {
        if at == 0 || len == 0 {
            return Ok(None);
        }
        if len > MAX_NAME {
            return Err(HeaderError::Invalid {
                format: self.format,
                field,
                value: len,
            });
        }
        let bytes = self.take(field, at, len)?;
        Ok(Some(
            String::from_utf8_lossy(bytes)
                .trim_end_matches('\0')
                .to_owned(),
        ))
    }
}

/// qcow2 (versions 2 and 3) and the older qcow.
fn qcow(bytes: &[u8]) -> Result<ImageHeader, HeaderError> {
    let reader = Reader {
        bytes,
        format: "qcow2",
    };
    let version = reader.be32("version", 4)?;
    let name_at = reader.be64("backing file offset", 8)?;
    let name_len = u64::from(reader.be32("backing file size", 16)?);
    let backing_file = reader.name("backing file name", name_at, name_len)?;
    let virtual_size = Some(reader.be64("size", 24)?);
    if version < 2 {
        return Ok(ImageHeader {
            format: "qcow",
            backing_file,
            virtual_size,
            ..ImageHeader::default()
        });
    }
    let mut header = ImageHeader {
        format: "qcow2",
        backing_file,
        virtual_size,
        ..ImageHeader::default()
    };
    let (extensions, incompatible) = if version >= 3 {
        (
            u64::from(reader.be32("header length", 100)?),
            reader.be64("incompatible features", 72)?,
        )
    } else {
        (72, 0)
    };
    let cluster_bits = reader.be32("cluster size", 20)?;
    if !(9..=21).contains(&cluster_bits) {
        return Err(HeaderError::Invalid {
            format: "qcow2",
            field: "cluster size",
            value: cluster_bits.into(),
        });
    }
    // Extensions end before the backing file's name, and with the first cluster.
    let end = if name_at == 0 {
        1 << cluster_bits
    } else {
        name_at.min(1 << cluster_bits)
    };
    qcow2_extensions(&reader, extensions, end, &mut header)?;
    if incompatible & INCOMPATIBLE_DATA_FILE == 0 {
        header.data_file = None;
    }
    Ok(header)
}

fn qcow2_extensions(
    reader: &Reader<'_>,
    from: u64,
    end: u64,
    header: &mut ImageHeader,
) -> Result<(), HeaderError> {
    let mut at = from;
    while at.saturating_add(8) <= end {
        let kind = reader.be32("header extension", at)?;
        let len = u64::from(reader.be32("header extension", at.saturating_add(4))?);
        if kind == 0 {
            break;
        }
        let data = at.saturating_add(8);
        if data.saturating_add(len) > end {
            return Err(HeaderError::Invalid {
                format: "qcow2",
                field: "header extension size",
                value: len,
            });
        }
        match kind {
            EXTENSION_BACKING_FORMAT => {
                header.backing_format = reader.name("backing format", data, len)?
            }
            EXTENSION_DATA_FILE => header.data_file = reader.name("data file name", data, len)?,
            _ => {}
        }
        at = data.saturating_add(len.next_multiple_of(8));
    }
    Ok(())
}

/// QED keeps its numbers little-endian.
fn qed(bytes: &[u8]) -> Result<ImageHeader, HeaderError> {
    let reader = Reader {
        bytes,
        format: "qed",
    };
    let features = reader.le64("features", 16)?;
    let mut header = ImageHeader {
        format: "qed",
        virtual_size: Some(reader.le64("image size", 48)?),
        ..ImageHeader::default()
    };
    if features & 1 != 0 {
        let at = u64::from(reader.le32("backing file offset", 56)?);
        let len = u64::from(reader.le32("backing file size", 60)?);
        header.backing_file = reader.name("backing file name", at, len)?;
        // Feature bit 2: the backing file is raw, do not probe.
        header.backing_format = (features & 4 != 0).then(|| "raw".to_owned());
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A qcow2 v3 header with a backing file, its format, and (flag) a data file.
    fn qcow2(backing: &str, format: &str, data_file: &str) -> Vec<u8> {
        let mut bytes = vec![0; 104];
        bytes[..4].copy_from_slice(b"QFI\xfb");
        bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
        bytes[20..24].copy_from_slice(&16u32.to_be_bytes());
        bytes[72..80].copy_from_slice(&(if data_file.is_empty() { 0u64 } else { 4 }).to_be_bytes());
        bytes[100..104].copy_from_slice(&104u32.to_be_bytes());
        for (kind, text) in [
            (EXTENSION_BACKING_FORMAT, format),
            (EXTENSION_DATA_FILE, data_file),
            (0, ""),
        ] {
            bytes.extend(kind.to_be_bytes());
            bytes.extend((text.len() as u32).to_be_bytes());
            bytes.extend(text.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        if !backing.is_empty() {
            let at = bytes.len() as u64;
            bytes[8..16].copy_from_slice(&at.to_be_bytes());
            bytes[16..20].copy_from_slice(&(backing.len() as u32).to_be_bytes());
            bytes.extend(backing.as_bytes());
        }
        bytes
    }

    fn check(bytes: &[u8], expected: &str) {
        let got = match parse(bytes) {
            Ok(h) => format!(
                "{} backing={} ({}) data={}",
                h.format,
                h.backing_file.unwrap_or_default(),
                h.backing_format.unwrap_or_default(),
                h.data_file.unwrap_or_default()
            ),
            Err(e) => e.to_string(),
        };
        assert_eq!(got, expected);
    }

    #[test]
    fn qcow2_headers() {
        check(&qcow2("", "", ""), "qcow2 backing= () data=");
        check(
            &qcow2("/base.img", "raw", ""),
            "qcow2 backing=/base.img (raw) data=",
        );
        check(
            &qcow2("nbd://h/x", "qcow2", "d.raw"),
            "qcow2 backing=nbd://h/x (qcow2) data=d.raw",
        );
    }

    #[test]
    fn other_formats() {
        check(b"", "raw backing= () data=");
        check(&[0; 512], "raw backing= () data=");
        check(b"KDMV\x01", "find capacity of the vmdk header at 20 bytes");
        check(b"COWD\x01", "vmdk backing= () data=");
        check(b"vhdxfile", "vhdx backing= () data=");
        let mut qed = vec![0; 80];
        qed[..4].copy_from_slice(b"QED\0");
        qed[16] = 5;
        qed[56] = 64;
        qed[60] = 2;
        qed[64..66].copy_from_slice(b"/b");
        check(&qed, "qed backing=/b (raw) data=");
    }

    #[test]
    fn damaged_headers_are_errors_that_name_the_field() {
        let whole = qcow2("/base.img", "raw", "");
        check(
            &whole[..20],
            "find cluster size of the qcow2 header at 24 bytes"
                .replace("cluster size", "backing file name")
                .replace("24", &whole.len().to_string())
                .as_str(),
        );
        let mut bits = whole.clone();
        bits[23] = 40;
        check(&bits, "use cluster size of the qcow2 header: 40");
        let mut far = whole.clone();
        far[8..16].copy_from_slice(&u64::MAX.to_be_bytes());
        check(
            &far,
            &format!("use backing file name of the qcow2 header: {}", u64::MAX),
        );
        let mut long = whole.clone();
        long[16..20].copy_from_slice(&2000u32.to_be_bytes());
        check(&long, "use backing file name of the qcow2 header: 2000");
        let mut extension = whole.clone();
        extension[108..112].copy_from_slice(&u32::MAX.to_be_bytes());
        check(
            &extension,
            &format!(
                "use header extension size of the qcow2 header: {}",
                u32::MAX
            ),
        );
    }

    #[test]
    fn no_cut_and_no_flipped_byte_panics() {
        let whole = qcow2("/base.img", "raw", "d");
        for cut in 0..whole.len() {
            let _ = parse(&whole[..cut]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = parse(&bytes);
            }
        }
    }
}
