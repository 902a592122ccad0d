//! How the rows of each kind are written down.

use nestrace_abi::Source;

use super::{At, How, ProbeRow};

pub(super) const fn row(
    source: Source,
    how: How,
    at: At,
    name: &'static str,
    cost: &'static str,
) -> ProbeRow {
    ProbeRow {
        program: name,
        target: name,
        older_target: None,
        source,
        how,
        module: None,
        cost,
        at,
        where_preempted: false,
        images_only: false,
        by_mount: false,
    }
}

pub(super) const fn block(name: &'static str, cost: &'static str) -> ProbeRow {
    row(Source::Block, How::TpBtf, At::Full, name, cost)
}

pub(super) const fn light(program: &'static str, target: &'static str) -> ProbeRow {
    let cost =
        "There is no device latency: light detail has one record for each completed request.";
    ProbeRow {
        program,
        ..row(Source::Block, How::TpBtf, At::Light, target, cost)
    }
}

/// The second program on a tracepoint, which takes the completions that interrupt the first.
pub(super) const fn nested(program: &'static str, target: &'static str, at: At) -> ProbeRow {
    let cost = "Completions that interrupt the program for another one are lost (and counted).";
    ProbeRow {
        program,
        ..row(Source::Block, How::TpBtf, at, target, cost)
    }
}

/// Source, way and level of detail of a first program, for its second one.
pub(super) type Kin = (Source, How, At);
pub(super) const BLOCK_FULL: Kin = (Source::Block, How::TpBtf, At::Full);
pub(super) const BLOCK_LIGHT: Kin = (Source::Block, How::TpBtf, At::Light);
pub(super) const CALL: Kin = (Source::File, How::TpBtf, At::Both);
pub(super) const HOST_FS: Kin = (Source::HostFs, How::RawTp, At::Full);
pub(super) const FILE: Kin = (Source::File, How::RawTp, At::Both);

/// The second program on a tracepoint that threads come by.
pub(super) const fn of_threads(
    program: &'static str,
    target: &'static str,
    (source, how, at): Kin,
) -> ProbeRow {
    let cost = "What other threads do while the program is preempted is lost (and counted).";
    ProbeRow {
        program,
        where_preempted: true,
        ..row(source, how, at, target, cost)
    }
}

pub(super) const fn file(name: &'static str, cost: &'static str) -> ProbeRow {
    row(Source::File, How::RawTp, At::Both, name, cost)
}

/// A system call: every process's, so fields are read without a helper.
pub(super) const fn call(name: &'static str, cost: &'static str) -> ProbeRow {
    row(Source::File, How::TpBtf, At::Both, name, cost)
}

pub(super) const fn module_file(
    name: &'static str,
    module: &'static str,
    cost: &'static str,
) -> ProbeRow {
    ProbeRow {
        module: Some(module),
        ..file(name, cost)
    }
}

pub(super) const fn page_cache(name: &'static str, cost: &'static str) -> ProbeRow {
    ProbeRow {
        images_only: true,
        ..row(Source::HostFs, How::RawTp, At::Full, name, cost)
    }
}

/// A call of the NFS client.
pub(super) const fn rpc(name: &'static str) -> ProbeRow {
    let cost =
        "Of I/O on an image on NFS the client's time and the server's cannot be distinguished.";
    ProbeRow {
        images_only: true,
        module: Some("nfs"),
        ..row(Source::File, How::RawTp, At::Full, name, cost)
    }
}

/// A function of the SMB client: its tracepoints do not say which file and which request a call is for.
pub(super) const fn smb_call(function: &'static str) -> ProbeRow {
    let cost =
        "Of I/O on an image on SMB the client's time and the server's cannot be distinguished.";
    ProbeRow {
        images_only: true,
        module: Some("cifs"),
        ..row(Source::File, How::Kprobe, At::Full, function, cost)
    }
}

/// What happens to the files of a guest's mounts.
pub(super) const fn mount_fs(name: &'static str, cost: &'static str) -> ProbeRow {
    ProbeRow {
        by_mount: true,
        ..row(Source::HostFs, How::RawTp, At::Full, name, cost)
    }
}

pub(super) const fn mount_fs_of_threads(program: &'static str, target: &'static str) -> ProbeRow {
    ProbeRow {
        by_mount: true,
        ..of_threads(program, target, HOST_FS)
    }
}

pub(super) const fn module_fs(
    name: &'static str,
    module: &'static str,
    cost: &'static str,
) -> ProbeRow {
    ProbeRow {
        module: Some(module),
        ..row(Source::HostFs, How::RawTp, At::Full, name, cost)
    }
}

pub(super) const fn journal_commit(name: &'static str) -> ProbeRow {
    let cost = "Waiting for an ext4 journal commit cannot be distinguished from other waiting.";
    module_fs(name, "jbd2", cost)
}

pub(super) const fn journal_phase(name: &'static str) -> ProbeRow {
    let cost = "Which phase of an ext4 journal commit takes long stays unknown.";
    module_fs(name, "jbd2", cost)
}

/// For the files of a guest's mounts.
pub(super) const fn mount_module_fs(
    name: &'static str,
    module: &'static str,
    cost: &'static str,
) -> ProbeRow {
    ProbeRow {
        by_mount: true,
        ..module_fs(name, module, cost)
    }
}

pub(super) const fn log_space(name: &'static str) -> ProbeRow {
    let cost = "Waiting for space in the XFS log cannot be distinguished from other waiting.";
    mount_module_fs(name, "xfs", cost)
}

/// The entry of a module's function, for the files of a guest's mounts: where no tracepoint says it.
pub(super) const fn function(
    name: &'static str,
    module: &'static str,
    cost: &'static str,
) -> ProbeRow {
    ProbeRow {
        how: How::Kprobe,
        ..mount_module_fs(name, module, cost)
    }
}

/// The return of such a function.
pub(super) const fn function_return(
    program: &'static str,
    target: &'static str,
    module: &'static str,
    cost: &'static str,
) -> ProbeRow {
    ProbeRow {
        program,
        how: How::Kretprobe,
        ..function(target, module, cost)
    }
}

/// Without one of the two programs.
pub(super) const JOURNAL_SPACE: &str =
    "Waiting for space in the ext4 journal cannot be distinguished from other waiting.";

pub(super) const fn cpu(name: &'static str) -> ProbeRow {
    let cost = "Whether a thread ran, waited for a processor or slept in a segment stays unknown.";
    row(Source::Cpu, How::TpBtf, At::Full, name, cost)
}

pub(super) const fn qemu(name: &'static str, cost: &'static str) -> ProbeRow {
    row(Source::Qemu, How::Uprobe, At::Full, name, cost)
}
