//! Entries whose names another user replaces between two calls.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use cenote_fs::FileKind;
use cenote_testkit::golden::PrivateFolder;

use super::*;

/// Attributes of a FIFO: mode 0640, times in 1970.
fn attributes() -> FileAttributes {
    let times = Time { seconds: 1000, nanoseconds: 5 };
    FileAttributes { mode: 0o010_640, atime: times, mtime: times, ..FileAttributes::default() }
}

fn made(target: &mut Target, folder: &Path, name: &[u8]) -> OwnedFd {
    let parent = open_directory(fs::CWD, folder.as_os_str().as_encoded_bytes(), OFlags::empty());
    target.special(FileKind::Fifo, None, parent.unwrap().as_fd(), name).unwrap().unwrap()
}

#[test]
fn attributes_reach_the_file_that_was_made() {
    let folder = PrivateFolder::create("swapped");
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "secret").unwrap();
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
    let before = std::fs::metadata(&victim).unwrap();
    let mut target = Target::new();
    let handle = made(&mut target, folder.path(), b"fifo");
    // Another user with write permission for the folder may do this here.
    std::fs::rename(folder.path().join("fifo"), folder.path().join("away")).unwrap();
    std::os::unix::fs::symlink(&victim, folder.path().join("fifo")).unwrap();
    // FIFOs take no user attributes; this one is omitted and counted.
    let value = cenote_rt::BufMut::zeroed(5).freeze();
    let xattrs = [(b"user.name".to_vec(), value)];
    target.attributes(Place::Handle(handle.as_fd()), &attributes(), &xattrs).unwrap();

    let after = std::fs::metadata(&victim).unwrap();
    assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
    let away = std::fs::symlink_metadata(folder.path().join("away")).unwrap();
    assert!(away.file_type().is_fifo());
    assert_eq!((away.mode() & 0o7777, away.mtime()), (0o640, 1000));
}

#[test]
fn a_swapped_name_is_not_taken_for_the_file_that_was_made() {
    let folder = PrivateFolder::create("taken");
    let parent =
        open_directory(fs::CWD, folder.path().as_os_str().as_encoded_bytes(), OFlags::empty());
    let parent = parent.unwrap();
    std::fs::write(folder.path().join("victim"), "secret").unwrap();
    std::os::unix::fs::symlink("victim", folder.path().join("name")).unwrap();
    let handle = Target::handle(parent.as_fd(), b"name", FileType::Fifo);
    assert_eq!(handle.err(), Some(Errno::STALE));
    // A second name of an older FIFO.
    drop(made(&mut Target::new(), folder.path(), b"older"));
    std::fs::hard_link(folder.path().join("older"), folder.path().join("second")).unwrap();
    let handle = Target::handle(parent.as_fd(), b"second", FileType::Fifo);
    assert_eq!(handle.err(), Some(Errno::STALE));
}

#[test]
fn attributes_of_links_are_their_own() {
    let folder = PrivateFolder::create("links");
    let parent =
        open_directory(fs::CWD, folder.path().as_os_str().as_encoded_bytes(), OFlags::empty());
    let parent = parent.unwrap();
    std::fs::write(folder.path().join("file"), "contents").unwrap();
    let before = std::fs::metadata(folder.path().join("file")).unwrap();
    let handle = Target::symlink(b"file", parent.as_fd(), b"link").unwrap();
    let attributes = FileAttributes { mode: 0o120_777, ..attributes() };
    Target::new().attributes(Place::Handle(handle.as_fd()), &attributes, &[]).unwrap();
    let after = std::fs::metadata(folder.path().join("file")).unwrap();
    assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
    assert_eq!(std::fs::symlink_metadata(folder.path().join("link")).unwrap().mtime(), 1000);
}

#[test]
fn hard_links_do_not_pass_through_links() {
    let folder = PrivateFolder::create("hard");
    let parent =
        open_directory(fs::CWD, folder.path().as_os_str().as_encoded_bytes(), OFlags::empty());
    let parent = parent.unwrap();
    std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
    std::fs::write(folder.path().join("elsewhere/file"), "secret").unwrap();
    std::os::unix::fs::symlink("elsewhere", folder.path().join("swapped")).unwrap();
    let linked = Target::link((parent.as_fd(), b"swapped/file"), (parent.as_fd(), b"second"));
    assert!(matches!(linked, Err(Errno::NOTDIR | Errno::LOOP)), "{linked:?}");
    Target::link((parent.as_fd(), b"elsewhere/file"), (parent.as_fd(), b"second")).unwrap();
    assert_eq!(std::fs::read(folder.path().join("second")).unwrap(), b"secret");
}
