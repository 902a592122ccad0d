//! Where a result goes: looked at before anything long is done.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
};

use crate::exit::{FAILURE, Failure, USAGE};

/// The folder in which `path` is to appear has to be there: a result in a folder whose name was mistyped is
/// not found again.
pub fn check(path: &Path) -> Result<(), Failure> {
    let Some(folder) = path.parent().filter(|it| !it.as_os_str().is_empty()) else {
        return Ok(());
    };
    if folder.is_dir() {
        return Ok(());
    }
    let (file, name) = (path.display(), folder.display());
    if folder.exists() {
        let message = format!("cannot write {file}: {name} is not a folder");
        return Err(Failure::new(USAGE, message));
    }
    let message = format!("cannot write {file}: there is no folder {name}");
    Err(Failure::new(USAGE, message).hint(format!("mkdir -p {name}")))
}

/// What the names of several files begin with is no folder: they would be hidden in it, or lie above it.
pub fn check_beginning(path: &Path) -> Result<(), Failure> {
    let has_name = !path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if has_name && path.file_name().is_some() {
        return Ok(());
    }
    let (shown, name) = (path.display(), path.join("NAME"));
    Err(
        Failure::new(USAGE, format!("{shown} is a folder")).hint(format!(
            "say what the files' names begin with: -o {}",
            name.display()
        )),
    )
}

/// Whether two results would go into one file. A device, /dev/null say, takes any number of them.
pub fn is_same(a: &Path, b: &Path) -> bool {
    if let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) {
        return a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino());
    }
    let place = |path: &Path| {
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    a == b || place(a).is_some_and(|a| Some(a) == place(b))
}

/// Opens a file to write it anew, or a device or pipe (`/dev/stdout`). It never waits: a FIFO without a reader is
/// refused.
pub fn open(path: &Path) -> Result<File, Failure> {
    let failed = |error: &io::Error| match error.raw_os_error() {
        Some(code) if code == Errno::ENXIO as i32 => {
            let message = format!("{} is a FIFO without a reader", path.display());
            Failure::new(USAGE, message).hint("choose another name, or start its reader first")
        }
        _ => Failure::new(FAILURE, format!("write {}: {error}", path.display())),
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(|error| failed(&error))?;
    // Opened, it may wait: a reader that is slower than the analysis is no error.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))
        .map_err(|error| failed(&io::Error::from(error)))?;
    Ok(file)
}

/// [`check`] of several files; each is optional.
pub fn check_all<'a>(paths: impl IntoIterator<Item = Option<&'a PathBuf>>) -> Result<(), Failure> {
    paths.into_iter().flatten().try_for_each(|path| check(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_with_a_name() {
        for (path, is_one) in [("a", true), ("a/b", true), ("a/", false), ("..", false)] {
            assert_eq!(check_beginning(Path::new(path)).is_ok(), is_one, "{path}");
        }
    }

    #[test]
    fn one_file_by_two_names_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("sub")).expect("a folder");
        assert!(is_same(&at("x"), &at("sub/../x")));
        assert!(!is_same(&at("x"), &at("y")));
        std::fs::write(at("x"), "").expect("a file");
        assert!(!is_same(&at("x"), &at("y")));
        std::os::unix::fs::symlink("x", at("y")).expect("a link");
        assert!(is_same(&at("x"), &at("y")));
        assert!(!is_same(Path::new("/dev/null"), Path::new("/dev/null")));
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "x").expect("a file");
        for (path, expected) in [
            (Path::new("out.nest").to_owned(), None),
            (folder.path().join("out.nest"), None),
            (
                folder.path().join("not/there/out.nest"),
                Some("there is no folder"),
            ),
            (file.join("out.nest"), Some("is not a folder")),
        ] {
            let told = check(&path).map_err(|failure| failure.message().to_owned());
            match expected {
                None => assert_eq!(told, Ok(()), "{}", path.display()),
                Some(why) => assert!(told.is_err_and(|it| it.contains(why)), "{}", path.display()),
            }
        }
    }
}
