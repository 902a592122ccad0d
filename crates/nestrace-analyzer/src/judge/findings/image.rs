//! Rules about the image file and its format.

use super::subject::Subject;
use super::{Case, Judgement, Missing, device, threshold};
use crate::result::analysis::{Image, ImageRelation};
use crate::result::units::{of, percent, size};

/// Bytes written on the host, of them its journal and metadata, the image's tables and the guest's data.
struct Written {
    asked: u64,
    host: u64,
    file_system: u64,
    tables: Option<u64>,
    data: u64,
}

fn written(subject: &Subject<'_>) -> Result<Written, Missing> {
    let amplified = subject.amplified()?;
    let missing = "the host's block layer was not recorded";
    let classes = amplified.classes.ok_or(missing)?;
    Ok(Written {
        asked: amplified.write.qemu.ok_or(missing)?,
        host: amplified.write.host.ok_or(missing)?,
        file_system: classes.host_journal.write + classes.host_metadata.write,
        tables: classes.image_metadata.map(|tables| tables.write),
        data: classes.data.write,
    })
}

pub(super) fn qcow2_allocation(subject: &Subject<'_>) -> Judgement {
    if subject.disk.format != "qcow2" {
        return Ok(None);
    }
    let written = written(subject)?;
    if written.asked < threshold::BYTES {
        return Ok(None);
    }
    let Some(tables) = written.tables else {
        return Err("what lies where in the image is not known");
    };
    if written.data == 0 && tables > 0 {
        return Err("none of the image's data was seen on the host");
    }
    let share = tables as f64 / written.data.max(1) as f64;
    if share < threshold::IMAGE_TABLES {
        return Ok(None);
    }
    Case {
        title: format!("qcow2 writes {} more for its own tables", percent(share)),
        explanation: format!(
            "Writes hit clusters that the image does not have yet. QEMU allocates them: {} of L2 tables and \
             reference counts beside {} of data, in an order that it has to keep with syncs.",
            size(tables),
            size(written.data)
        ),
        advice: vec![
            String::from(
                "Make images with `qemu-img create -f qcow2 -o preallocation=metadata` (or `falloc`); an existing one \
                 with `qemu-img convert -O qcow2 -o preallocation=metadata`.",
            ),
            String::from("A raw image has no tables; it has no snapshots either."),
        ],
        evidence: [
            ("image_metadata_bytes", tables.into()),
            ("data_bytes", written.data.into()),
            ("written_bytes", written.asked.into()),
        ]
        .into(),
        share: share.min(1.0),
        information: false,
    }
    .fires()
}

pub(super) fn sparse_allocation(subject: &Subject<'_>) -> Judgement {
    let Some(image) = subject.disk.images.first().filter(|it| !it.is_block_device) else {
        return Ok(None);
    };
    // What is allocated can be a little more than the size: the file system's own blocks for it.
    let sparse = image.allocated < image.size;
    if image.format != "raw" || !sparse {
        return Ok(None);
    }
    let written = written(subject)?;
    let share = written.file_system as f64 / written.host.max(1) as f64;
    if written.asked < threshold::BYTES || share < threshold::ALLOCATION {
        return Ok(None);
    }
    device::written_alone(subject)?;
    Case {
        title: format!(
            "the image is sparse: {} of what the host writes is its own metadata",
            percent(share)
        ),
        explanation: format!(
            "{} of the image's {} were allocated when recording began. Each write to a hole makes the host's \
             file system allocate, and journal that.",
            size(image.allocated),
            size(image.size)
        ),
        advice: vec![format!("Preallocate it, with the guest shut down: `fallocate -l {} {}`.", image.size, image.path)],
        evidence: [
            ("allocated_bytes", image.allocated.into()),
            ("size_bytes", image.size.into()),
            ("host_written_bytes", written.host.into()),
            ("host_metadata_bytes", written.file_system.into()),
        ]
        .into(),
        share: share.min(1.0),
        information: false,
    }
    .fires()
}

pub(super) fn cow_on_cow(subject: &Subject<'_>) -> Judgement {
    if subject.host_fs() != Some("btrfs") {
        return Ok(None);
    }
    let written = written(subject)?;
    // Mirrors write the image's own as often as the trees, so they are no copies.
    let own = written.data + written.tables.unwrap_or(0);
    let ratio = written.host as f64 / own.max(1) as f64;
    if written.asked < threshold::BYTES || ratio < threshold::COPIES {
        return Ok(None);
    }
    device::written_alone(subject)?;
    Case {
        title: format!("btrfs writes {ratio:.1} bytes for each byte of the guest"),
        explanation: format!(
            "The image lies on a copy-on-write file system: every rewrite goes to a new place and the trees that \
             point there are written anew, {} of metadata for {} of the guest.",
            size(written.file_system),
            size(written.asked)
        ),
        advice: vec![
            String::from(
                "Make the image NOCOW: `chattr +C` has an effect on empty files and on what is made in a directory \
                 afterwards, none on an image that is there. So set it on a new directory and copy the image into that \
                 (`cp --reflink=never`). It then has neither checksums nor compression, and after each snapshot the \
                 first write to a block still copies it.",
            ),
            String::from("Or keep it on xfs, ext4 or a logical volume."),
        ],
        evidence: [
            ("host_written_bytes", written.host.into()),
            ("host_metadata_bytes", written.file_system.into()),
            ("written_bytes", written.asked.into()),
        ]
        .into(),
        share: 1.0 - 1.0 / ratio,
        information: false,
    }
    .fires()
}

pub(super) fn backing_chain(subject: &Subject<'_>) -> Judgement {
    let is_backing = |image: &&&Image| image.relation == ImageRelation::Backing;
    let backing_files = subject.images.iter().filter(is_backing).count() as u64;
    if backing_files == 0 {
        return Ok(None);
    }
    subject.whole()?;
    subject.seen_to_the_image()?;
    subject.files_alone()?;
    let read = |deep: bool| -> u64 {
        let images = subject
            .images
            .iter()
            .filter(|image| (image.depth > 0) == deep);
        images
            .filter_map(|image| Some(image.file_io.as_ref()?.bytes.read))
            .sum()
    };
    let of_jobs = subject
        .clues
        .map_or(0, |clues| clues.from_host.backing_reads_of_jobs);
    let (backing, top) = (read(true).saturating_sub(of_jobs), read(false));
    let share = backing as f64 / (backing + top).max(1) as f64;
    if backing + top < threshold::BYTES || share < threshold::BACKING {
        return Ok(None);
    }
    Case {
        title: format!(
            "{} of the bytes are read from {}",
            percent(share),
            of(backing_files, "backing file", "backing files")
        ),
        explanation: String::from(
            "The image is an overlay. What it does not have itself is read from the files beneath it, after a look \
             at the tables of each; a first write copies the rest of its cluster up.",
        ),
        advice: vec![String::from(
            "Flatten it: `qemu-img rebase -b ''` with the guest shut down, or `virsh blockpull` while it runs. It \
             then takes the whole space.",
        )],
        evidence: [
            ("backing_read_bytes", backing.into()),
            ("top_read_bytes", top.into()),
            ("depth", (1 + backing_files).into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn qcow2_l2_misses(subject: &Subject<'_>) -> Judgement {
    if subject.disk.format != "qcow2" || subject.images.iter().any(|image| image.depth > 0) {
        return Ok(None);
    }
    let amplified = subject.amplified_to_the_image()?;
    let (Some(image), Some(asked)) = (amplified.read.image, amplified.read.qemu) else {
        return Err("QEMU's file I/O was not recorded");
    };
    if amplified.by_class.image_metadata.is_none() {
        return Err("what lies where in the image is not known");
    }
    let tables = subject.gathered()?.from_host.table_reads;
    let share = tables as f64 / image.max(1) as f64;
    if image < threshold::BYTES || share < threshold::TABLES_READ {
        return Ok(None);
    }
    Case {
        title: format!("{} of what QEMU reads are qcow2's tables", percent(share)),
        explanation: format!(
            "QEMU read {} of L2 tables to find {} of data: they do not fit in its cache, and every jump of the guest \
             reads one again.",
            size(tables),
            size(asked)
        ),
        advice: vec![String::from(
            "Give the image `l2-cache-size` of its size / 8192 (64 KiB clusters), or make it with larger clusters \
             (`-o cluster_size=1M`), which makes each first write larger.",
        )],
        evidence: [
            ("table_read_bytes", tables.into()),
            ("asked_bytes", asked.into()),
            ("image_size_bytes", subject.disk.virtual_size.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}
