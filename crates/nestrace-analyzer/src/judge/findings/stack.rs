//! Rules about devices that stand on other devices: dm, md and loop.

use nestrace_trace::manifest;

use super::latency::part;
use super::subject::{Subject, journals};
use super::{Case, Judgement, threshold};
use crate::follow::image::has_parity;
use crate::result::analysis::{Chains, User, UserKind};
use crate::result::segments::SegmentKind;
use crate::result::units::percent;

/// Part of the latency that is the own time of layers.
fn share_of_layers(chains: &Chains, is_it: impl Fn(&str, &str) -> bool) -> f64 {
    let of_stacks = SegmentKind::OF_STACKS.map(SegmentKind::name);
    let segments = chains.segments.iter();
    let segments = segments.filter(|segment| of_stacks.contains(&segment.name));
    let layers = segments.flat_map(|segment| segment.layers.iter().flatten());
    let own = layers.filter(|layer| is_it(&layer.name, &layer.kind));
    let own_ns = own.fold(0.0, |sum, layer| sum + layer.mean_ns);
    if chains.q2c_mean_ns > 0.0 {
        own_ns / chains.q2c_mean_ns
    } else {
        0.0
    }
}

/// The devices under the disk's images that a driver makes.
fn made_by<'a>(subject: &'a Subject<'_>, driver: &str) -> Vec<&'a manifest::Device> {
    let stack = subject.stack.iter().map(|(about, _)| *about);
    let is_it = |device: &&manifest::Device| device.made_by().split('+').any(|it| it == driver);
    stack.filter(is_it).collect()
}

/// What a person calls a device.
fn named(device: &manifest::Device) -> &str {
    if device.mapped_name.is_empty() {
        &device.name
    } else {
        &device.mapped_name
    }
}

pub(super) fn raid_partial_stripe(subject: &Subject<'_>) -> Judgement {
    let mut stack = subject.stack.iter();
    let Some((array, device)) = stack.find(|(about, _)| has_parity(about)) else {
        return Ok(None);
    };
    let chains = subject.followed()?;
    let share = chains.stacks.map_or(0.0, |it| it.read_modify_write_share);
    if share < threshold::PARITY_READS {
        return Ok(None);
    }
    let name = named(array);
    let stripes = device.and_then(|device| device.stripes).unwrap_or_default();
    Case {
        title: format!(
            "writes wait for reads of {name} for {} of the latency",
            percent(share)
        ),
        explanation: format!(
            "{name} is a {}. A write of less than a stripe first reads old data or parity, and only then writes data and \
             parity: {} of each request on average. {} of {} writes of a stripe were such ones; for them it read {} blocks.",
            array.driver,
            part(chains, share),
            stripes.partial_writes,
            stripes.writes,
            stripes.extra_reads
        ),
        advice: vec![
            String::from(
                "Use RAID10 or RAID1 for images with small random writes. For large writes, use a smaller chunk, so that one \
                 write fills a stripe.",
            ),
            format!(
                "Raise `/sys/block/{}/md/stripe_cache_size`: then adjacent writes fill a stripe more often. It costs memory.",
                array.name
            ),
        ],
        evidence: [
            ("array", array.name.as_str().into()),
            ("level", array.driver.as_str().into()),
            ("read_modify_write_share", share.into()),
            ("stripe_writes", stripes.writes.into()),
            ("partial_writes", stripes.partial_writes.into()),
            ("extra_read_bytes", stripes.extra_read_bytes.into()),
            ("parity_write_bytes", stripes.parity_write_bytes.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn thin_allocation(subject: &Subject<'_>) -> Judgement {
    let Some(thin) = made_by(subject, "thin").first().copied() else {
        return Ok(None);
    };
    let chains = subject.followed()?;
    let own = share_of_layers(chains, |_, kind| kind == "thin");
    let metadata = chains.stacks.map_or(0.0, |it| it.metadata_share);
    let share = own + metadata;
    if share < threshold::THIN {
        return Ok(None);
    }
    let name = named(thin);
    Case {
        title: format!("thin provisioning of {name} takes {} of the latency", percent(share)),
        explanation: format!(
            "{name} is a thin volume. A write to a block that it does not have yet waits until the pool has given it one, and a \
             flush waits until the pool has committed its mappings: {} of each request on average.",
            part(chains, share)
        ),
        advice: vec![
            String::from(
                "Write the image once in full (`qemu-img create -o preallocation=full`), so that its blocks are allocated \
                 before they are needed. A snapshot of the volume undoes that.",
            ),
            String::from(
                "Use larger blocks (`lvcreate --chunksize`), switch off zeroing of new blocks (`lvchange --zero n POOL`), or \
                 put the pool's metadata on a faster device. Without zeroing, a guest can read what another volume of the pool \
                 had there before.",
            ),
        ],
        evidence: [
            ("volume", thin.name.as_str().into()),
            ("own_share", own.into()),
            ("metadata_share", metadata.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

/// Options with which dm-crypt does its work where the I/O is submitted or ends.
const WITHOUT_QUEUES: [&str; 2] = ["no_read_workqueue", "no_write_workqueue"];

pub(super) fn crypt_queue(subject: &Subject<'_>) -> Judgement {
    let crypt = made_by(subject, "crypt");
    let queued = |device: &&manifest::Device| {
        let has = |option: &&str| device.driver_options.iter().any(|it| it == option);
        !WITHOUT_QUEUES.iter().all(has)
    };
    let Some(crypt) = crypt.into_iter().find(queued) else {
        return Ok(None);
    };
    let chains = subject.followed()?;
    let share = share_of_layers(chains, |name, _| name == crypt.name);
    if share < threshold::CRYPT {
        return Ok(None);
    }
    let name = named(crypt);
    Case {
        title: format!("dm-crypt ({name}) takes {} of the latency", percent(share)),
        explanation: format!(
            "{name} hands each request to a queue of the kernel's workers (kcryptd), which encrypt or decrypt it, and writes to \
             one more thread (dmcrypt_write): {} of each request on average, for waiting there and for the work itself.",
            part(chains, share)
        ),
        advice: vec![format!(
            "Let dm-crypt do without these queues: `cryptsetup refresh --perf-no_read_workqueue --perf-no_write_workqueue {name}` \
             (with --persistent to keep it, LUKS2 only). On fast devices this shortens each request; where many processors \
             encrypt large requests in parallel, the queues may be faster.",
        )],
        evidence: [
            ("device", crypt.name.as_str().into()),
            ("options", crypt.driver_options.join(" ").as_str().into()),
            ("own_share", share.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn resync_beside(subject: &Subject<'_>) -> Judgement {
    let stack = subject.stack.iter().map(|(about, _)| *about);
    let arrays: Vec<&manifest::Device> = stack.filter(|device| device.kind == "md").collect();
    if arrays.is_empty() {
        return Ok(None);
    }
    subject.whole()?;
    subject.seen_device()?;
    let array_of = |user: &User| {
        let name = user
            .name
            .as_deref()
            .filter(|_| user.kind == UserKind::Process)?;
        let array = |it: &&&manifest::Device| {
            ["_resync", "_reshape", "_recovery"]
                .iter()
                .any(|work| name == format!("{}{work}", it.name))
        };
        arrays.iter().find(array).copied()
    };
    let devices = subject.beneath.iter().filter_map(|(_, device)| *device);
    let worked = devices.flat_map(|device| {
        let users = device.users.iter().flatten();
        users.filter_map(move |user| Some((device, array_of(user)?, user)))
    });
    let most = worked.max_by(|a, b| a.2.share.total_cmp(&b.2.share));
    let Some((device, array, user)) = most.filter(|it| it.2.share >= threshold::RESYNC) else {
        return Ok(None);
    };
    Case {
        title: format!(
            "{} is synchronised or checked, which takes {} of the time of {}",
            array.name,
            percent(user.share),
            device.name
        ),
        explanation: format!(
            "The array {} is synchronised, rebuilt or checked beside the guest's I/O. {} read and wrote for it as much as the \
             limits of md allow, and the guest's requests waited behind that.",
            array.name, device.name
        ),
        advice: vec![format!(
            "Lower `/sys/block/{0}/md/sync_speed_max` (KiB a second) while guests work, and raise it at night. \
             `/sys/block/{0}/md/sync_action` says what it does; a check can be moved to another time (`checkarray`, \
             `raid-check`). With an internal bitmap a resync after a crash takes seconds (`mdadm --grow --bitmap=internal`).",
            array.name
        )],
        evidence: [
            ("array", array.name.as_str().into()),
            ("device", device.name.as_str().into()),
            ("resync_share", user.share.into()),
            ("resync_bytes", user.bytes.into()),
        ]
        .into(),
        share: user.share,
        information: false,
    }
    .fires()
}

pub(super) fn stacked_journals(subject: &Subject<'_>) -> Judgement {
    let upper = subject.disk.images.iter().find_map(|image| {
        let mount = image.mount.as_ref()?;
        journals(&mount.fs_type).then_some(mount.fs_type.as_str())
    });
    let lower = subject.stack.iter().find_map(|(about, _)| {
        let mount = about.loop_file.as_ref()?.mount.as_ref()?;
        let is_stacked = !about.beneath.is_empty() && journals(&mount.fs_type);
        is_stacked.then_some((*about, mount.fs_type.as_str()))
    });
    let Some((upper, (device, lower))) = upper.zip(lower) else {
        return Ok(None);
    };
    let chains = subject.followed()?;
    let path = device
        .loop_file
        .as_ref()
        .map_or("", |file| file.path.as_str());
    let share = share_of_layers(chains, |name, _| name == device.name || name == path);
    if share < threshold::STACKED_JOURNALS {
        return Ok(None);
    }
    let cached = device.loop_file.as_ref().and_then(|file| file.direct) == Some(false);
    let direct = format!(
        "{} goes through the page cache: `losetup --direct-io=on` saves the second copy, and a flush then waits for its own \
         data alone.",
        device.name
    );
    let advice = [
        Some(String::from(
            "Put the image's file system on the device itself or on a logical volume, without a loop device.",
        )),
        cached.then_some(direct),
    ];
    Case {
        title: format!(
            "{} on a file of {lower} takes {} of the latency",
            device.name,
            percent(share)
        ),
        explanation: format!(
            "The image lies on {upper}, and that on the loop device {}, whose file lies on {lower}. Both file systems of the host \
             keep a journal, and each flush of the guest goes through both: {} of each request on average is time of {} and of \
             its file.",
            device.name,
            part(chains, share),
            device.name
        ),
        advice: advice.into_iter().flatten().collect(),
        evidence: [
            ("loop", device.name.as_str().into()),
            ("file_system", lower.into()),
            ("own_share", share.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}
