//! Rules about the image file and its format.

use nestrace_trace::manifest;

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
        return Err("the image map is unknown");
    };
    if written.data == 0 && tables > 0 {
        return Err("none of the image's data was seen on the host");
    }
    let share = tables as f64 / written.data.max(1) as f64;
    if share < threshold::IMAGE_TABLES {
        return Ok(None);
    }
    Case {
        title: format!("qcow2 writes {} more than the data, for its own tables", percent(share)),
        explanation: format!(
            "The guest writes to clusters that the image does not have yet, so QEMU allocates them. It wrote {} of L2 \
             tables and reference counts for {} of data, and syncs to keep them in order.",
            size(tables),
            size(written.data)
        ),
        advice: vec![
            String::from(
                "Preallocate the image (`preallocation=metadata` or `falloc`). For a new image: `qemu-img create -f qcow2 \
                 -o preallocation=metadata`. For an existing one: `qemu-img convert -O qcow2 -o \
                 preallocation=metadata`.",
            ),
            String::from("Or use a raw image. It has no tables, and no snapshots."),
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
    // A file system that copies allocates for each write, also in a preallocated image.
    if image.format != "raw" || !sparse || copies_on_write(subject) {
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
            "the image is sparse: {} of the bytes that the host writes are its own metadata",
            percent(share)
        ),
        explanation: format!(
            "When the recording began, {} of the image's {} were allocated. Each write to a hole makes the host's \
             file system allocate blocks and journal the change.",
            size(image.allocated),
            size(image.size)
        ),
        advice: vec![format!("Preallocate the image. With the guest shut down: `fallocate -l {} {}`.", image.size, image.path)],
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

/// Whether the image is on btrfs, which writes nothing of it in place. Older recordings say no more than the mount option.
fn copies_on_write(subject: &Subject<'_>) -> bool {
    let in_place = |image: &manifest::Image| {
        let mount = image.mount.as_ref();
        let has_option =
            || mount.is_some_and(|it| it.options.split(',').any(|it| it == "nodatacow"));
        image.nocow.unwrap_or_else(has_option)
    };
    subject.host_fs() == Some("btrfs") && !subject.disk.images.iter().any(in_place)
}

pub(super) fn cow_on_cow(subject: &Subject<'_>) -> Judgement {
    // Else what is written more is no copy: the metadata of a sparse image, a journal.
    if !copies_on_write(subject) {
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
        title: format!("btrfs writes {ratio:.1} bytes for each byte that the guest writes"),
        explanation: format!(
            "The image lies on a copy-on-write file system. Every rewrite goes to a new place, and btrfs rewrites the \
             trees that point to it: {} of metadata for {} that the guest wrote.",
            size(written.file_system),
            size(written.asked)
        ),
        advice: vec![
            String::from(
                "Make the image NOCOW and give it all of its blocks: one without the other helps little. `chattr +C` has no \
                 effect on an existing image, so set it on a new directory and, with the guest shut down, copy the image \
                 into it (`cp --reflink=never --sparse=never`). Risk: the image loses checksums and compression; after a \
                 snapshot, the first write to a block still copies it.",
            ),
            String::from("Or keep the image on xfs, ext4 or a logical volume."),
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
            "{} of the bytes read come from {}",
            percent(share),
            of(backing_files, "backing file", "backing files")
        ),
        explanation: String::from(
            "The image is an overlay. QEMU reads clusters that it lacks from the backing files, and looks at the \
             tables of each file in turn. The first write to a cluster copies the rest of it into the overlay.",
        ),
        advice: vec![String::from(
            "Flatten the image (`qemu-img rebase` or `virsh blockpull`). With the guest shut down: `qemu-img rebase -b \
             ''`. While it runs: `virsh blockpull`. The image then needs space for all of its data.",
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
        return Err("the image map is unknown");
    }
    let tables = subject.gathered()?.from_host.table_reads;
    let share = tables as f64 / image.max(1) as f64;
    if image < threshold::BYTES || share < threshold::TABLES_READ {
        return Ok(None);
    }
    Case {
        title: format!("{} of the bytes that QEMU reads are qcow2 tables", percent(share)),
        explanation: format!(
            "QEMU read {} of L2 tables to find {} of data. The tables do not fit in its cache, so each jump of the \
             guest reads one again.",
            size(tables),
            size(asked)
        ),
        advice: vec![String::from(
            "Raise `l2-cache-size` to the image's size / 8192 (for 64 KiB clusters). Or make the image with larger \
             clusters (`-o cluster_size=1M`); each first write to a cluster is then larger.",
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
