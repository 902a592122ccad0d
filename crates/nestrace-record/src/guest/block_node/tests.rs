//! Graphs as users and libvirt write them, and bad ones.

use super::*;

fn show(node: &BlockNode) -> String {
    let mut text = format!("{} ", node.format.as_deref().unwrap_or("?"));
    match &node.storage {
        Storage::Unknown => text.push_str("unknown"),
        Storage::Path(path) => text.push_str(path),
        Storage::Elsewhere(why) => text.push_str(&format!("<{why}>")),
    }
    if node.start > 0 {
        text.push_str(&format!(" from {}", node.start));
    }
    if node.shown_from > 0 {
        text.push_str(&format!(" shown from {}", node.shown_from));
    }
    if node.direct == Some(true) {
        text.push_str(" direct");
    }
    if let Some(aio) = &node.aio {
        text.push_str(&format!(" aio={aio}"));
    }
    if let Some(data) = &node.data_file {
        text.push_str(&format!(" +({})", show(data)));
    }
    for further in &node.further {
        text.push_str(&format!(" | {}", show(further)));
    }
    match &node.backing {
        Backing::FromHeader => {}
        Backing::Nothing => text.push_str(" <- nothing"),
        Backing::Node(below) => text.push_str(&format!(" <- {}", show(below))),
    }
    text
}

fn check(blockdevs: &[&str], top: &str, expected: &str) {
    let mut graph = BlockGraph::default();
    for blockdev in blockdevs {
        graph.add(&option_syntax::object(blockdev, Some("driver")).expect("options parse"));
    }
    let got = graph.resolve(top).map(|n| show(&n));
    assert_eq!(got.as_deref().unwrap_or("none"), expected);
}

#[test]
fn nodes_by_reference_and_inline() {
    let file = r#"{"driver":"file","filename":"/a.qcow2","node-name":"s","aio":"io_uring","cache":{"direct":true,"no-flush":false},"auto-read-only":true}"#;
    check(
        &[
            file,
            r#"{"node-name":"f","driver":"qcow2","file":"s","backing":null}"#,
        ],
        "f",
        "qcow2 /a.qcow2 direct aio=io_uring <- nothing",
    );
    check(
        &["driver=qcow2,node-name=f,file.driver=file,file.filename=/a,cache.direct=on"],
        "f",
        "qcow2 /a direct",
    );
    check(
        &["file,node-name=s,filename=/b,,c", "raw,node-name=f,file=s"],
        "f",
        "raw /b,c",
    );
    check(&["file,node-name=s,filename=/b"], "s", "raw /b");
    check(&["qcow2,node-name=f,file=gone"], "f", "qcow2 unknown");
    check(&[], "f", "none");
}

#[test]
fn chains_filters_and_members() {
    check(
        &[
            "file,node-name=s,filename=/t",
            "file,node-name=bs,filename=/b",
            "raw,node-name=b,file=bs",
            "qcow2,node-name=f,file=s,backing=b",
        ],
        "f",
        "qcow2 /t <- raw /b",
    );
    check(
        &[
            "throttle,node-name=t,throttle-group=g,file.driver=qcow2,file.file.driver=file,file.file.filename=/a",
        ],
        "t",
        "qcow2 /a",
    );
    check(
        &[
            "qcow2,node-name=f,file.driver=file,file.filename=/m,data-file.driver=file,data-file.filename=/d",
        ],
        "f",
        "qcow2 /m +(raw /d)",
    );
    check(
        &[
            "quorum,node-name=q,vote-threshold=1,children.0.driver=raw,children.0.file.driver=file,children.0.file.filename=/a,children.1.driver=raw,children.1.file.driver=file,children.1.file.filename=/b",
        ],
        "q",
        "raw /a | raw /b",
    );
    check(
        &[
            "raw,node-name=r,offset=512,file.driver=qcow2,file.file.driver=file,file.file.filename=/a",
        ],
        "r",
        "qcow2 /a shown from 512",
    );
    check(
        &["luks,node-name=l,key-secret=k,file.driver=host_device,file.filename=/dev/sdb"],
        "l",
        "luks /dev/sdb",
    );
}

#[test]
fn cycles_end() {
    check(
        &["qcow2,node-name=a,file=b", "qcow2,node-name=b,file=a"],
        "a",
        "qcow2 unknown",
    );
}

#[test]
fn references_that_fan_out_end() {
    let quorum = "quorum,node-name=a,children.0=a,children.1=a,children.2=a";
    let mut graph = BlockGraph::default();
    graph.add(&option_syntax::object(quorum, Some("driver")).expect("options parse"));
    assert!(graph.resolve("a").is_some());
    assert!(graph.visits.get() >= MAX_VISITS);
}

#[test]
fn names_with_protocols() {
    let name = |text: &str| show(&node_of_name(text));
    assert_eq!(name("/a/b.img"), "? /a/b.img");
    assert_eq!(name("b.img"), "? b.img");
    assert_eq!(name("./with:colon"), "? ./with:colon");
    assert_eq!(name("file:/a"), "? /a");
    assert_eq!(name("file:///a"), "? /a");
    assert_eq!(
        name("nbd:unix:/s:exportname=x"),
        "? <nbd: the data is in an NBD server, which another process or machine runs (nbd:unix:/s:exportname=x)>"
    );
    assert_eq!(
        name("nbd+unix:///x?socket=/s"),
        "? <nbd: the data is in an NBD server, which another process or machine runs (nbd+unix:///x?socket=/s)>"
    );
    assert_eq!(
        name(r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"/a"}}"#),
        "qcow2 /a"
    );
    assert_eq!(
        name(
            r#"json:{"driver":"raw","file":{"driver":"nbd","server":{"type":"inet","host":"h","port":"10809"},"export":"e"}}"#
        ),
        "raw <nbd: the data is in an NBD server, which another process or machine runs (e at h:10809)>"
    );
    assert_eq!(
        name("json:nonsense"),
        "? <json: the data is in a place that is not a file or block device of this host (json:nonsense)>"
    );
}

#[test]
fn storage_elsewhere() {
    check(
        &[r#"{"driver":"rbd","pool":"p","image":"i","node-name":"n"}"#],
        "n",
        "? <rbd: the data is in a Ceph cluster, reached by QEMU's own client (i)>",
    );
    check(
        &["nvme,node-name=n,device=0000:01:00.0,namespace=1"],
        "n",
        "? <nvme: the data is in an NVMe controller that QEMU drives itself, past the host's block layer (0000:01:00.0)>",
    );
    check(
        &["qcow2,node-name=n,file.driver=iscsi,file.target=iqn.x"],
        "n",
        "qcow2 <iscsi: the data is in an iSCSI target, reached by QEMU's own initiator (iqn.x)>",
    );
}

#[test]
fn parts_of_files_and_of_images() {
    check(
        &["driver=raw,node-name=f,offset=1M,size=32M,file.driver=file,file.filename=/a"],
        "f",
        "raw /a from 1048576",
    );
    // An image within an archive, and a part of what an image holds.
    check(
        &[
            r#"{"driver":"qcow2","node-name":"f","file":{"driver":"raw","offset":512,"file":{"driver":"file","filename":"/a.ova"}}}"#,
        ],
        "f",
        "qcow2 /a.ova from 512",
    );
    check(
        &[
            r#"{"driver":"raw","node-name":"f","offset":4096,"file":{"driver":"qcow2","file":{"driver":"raw","offset":512,"file":{"driver":"file","filename":"/a"}}}}"#,
        ],
        "f",
        "qcow2 /a from 512 shown from 4096",
    );
}
