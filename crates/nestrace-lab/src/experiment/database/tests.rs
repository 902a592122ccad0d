use super::*;

/// A plan with a test on databases of these sizes.
fn plan(test: &str, data_sizes: &[&str]) -> Plan {
    let workloads: String = data_sizes
        .iter()
        .map(|size| {
            format!("[[workload]]\nname = 'w-{size}'\nuse = '{test}'\ndata_size = '{size}'\n")
        })
        .collect();
    Plan::read(&format!(
        "name = 'p'\nimage_size = '512M'\n[axes]\nguest_fs = 'xfs'\n{workloads}"
    ))
    .unwrap()
}

/// Why databases cannot be filled here, if they cannot.
fn obstacle() -> Option<String> {
    let missing = PROGRAMS
        .iter()
        .find(|(program, _)| find_program(program).is_none());
    match missing {
        Some((program, _)) => Some(format!("{program} is not on this machine")),
        None if !nix::unistd::geteuid().is_root() => {
            Some(String::from("the lab fills them as root"))
        }
        None => None,
    }
}

#[test]
fn databases_of_other_sizes_or_programs_are_another_entry() {
    let folder = tempfile::tempdir().unwrap();
    let server = folder.path().join(SERVER);
    let files = BTreeMap::from([(PathBuf::from("bin").join(SERVER), server.clone())]);
    let name = |rows: &[u64]| name(&rows.iter().copied().collect(), &files);
    std::fs::write(&server, "10.11.6").unwrap();
    let first = match name(&[100]) {
        Err(DatabaseError::NoProgram(program)) => {
            eprintln!("skipped: {program} is not on this machine");
            return;
        }
        named => named.unwrap(),
    };
    assert_eq!(name(&[100]).unwrap(), first);
    assert_ne!(name(&[200]).unwrap(), first);
    assert_ne!(name(&[100, 200]).unwrap(), first);
    std::fs::write(&server, "10.11.14").unwrap();
    assert_ne!(name(&[100]).unwrap(), first);
    std::fs::remove_file(&server).unwrap();
    let error = name(&[100]).unwrap_err();
    assert!(matches!(error, DatabaseError::Cache(_)), "{error}");
}

#[test]
fn a_database_is_filled_once_and_shared_by_plans_of_its_size() {
    if let Some(obstacle) = obstacle() {
        eprintln!("skipped: {obstacle}");
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let disk = DatabaseDisk::of(&plan("oltp-insert", &["1M"])).unwrap();
    let image = disk.obtain(cache.path()).unwrap();
    let listing = |folder: &str| {
        let list = format!("ls -p /{folder}");
        let debugfs = Tool::new("debugfs").args(["-R", &list]).arg(&image);
        debugfs.run().unwrap()
    };
    let &rows = disk.rows.first().unwrap();
    let data = oltp::folder(rows);
    assert!(listing(&format!("{data}/sbtest")).contains("/sbtest4.ibd/"));
    assert!(listing("bin").contains(&format!("/{SERVER}/")));
    assert!(listing("lua").contains("/oltp_read_write.lua/"));
    assert!(listing("share/english").contains("/errmsg.sys/"));
    assert!(listing("share/charsets").contains("/Index.xml/"));
    // The image is all that is kept, and it needs no recovery.
    assert_eq!(image.parent().unwrap().read_dir().unwrap().count(), 1);
    assert_eq!(cache.path().read_dir().unwrap().count(), 1);
    Tool::new("e2fsck")
        .args(["-f", "-n"])
        .arg(&image)
        .run()
        .unwrap();

    // Another start, of another plan with the same sizes.
    let made = image.metadata().unwrap().modified().unwrap();
    let again = DatabaseDisk::of(&plan("oltp-read-write", &["1M"])).unwrap();
    assert_eq!(again.obtain(cache.path()).unwrap(), image);
    assert_eq!(image.metadata().unwrap().modified().unwrap(), made);
    let other = DatabaseDisk::of(&plan("oltp-insert", &["1M", "2M"])).unwrap();
    assert_ne!(other.name, disk.name);
    assert!(database_spec(&image).read_only);
}

#[test]
fn a_database_that_cannot_be_filled_leaves_nothing_in_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let disk = DatabaseDisk {
        name: String::from("database-0"),
        rows: BTreeSet::new(),
        files: BTreeMap::from([("bin/mariadbd".into(), cache.path().join("none"))]),
    };
    let error = disk.obtain(cache.path()).unwrap_err();
    assert!(matches!(error, DatabaseError::File { .. }), "{error}");
    assert_eq!(cache.path().read_dir().unwrap().count(), 0);
}
