//! Uses of the library on pools in files; OpenZFS's `zdb` checks the pools.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use cenote::blocking::{FileSystem, Pool};
use cenote::{
    DatasetKind, DatasetOptions, ErrorKind, FileType, Layout, OpenOptions, PoolOptions,
    VolumeOptions,
};
use cenote_testkit::rng;

/// Size of each device.
const SIZE: u64 = 128 << 20;

/// A folder for devices, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cenote-lib-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn devices(&self, count: usize) -> Vec<PathBuf> {
        (0..count).map(|number| self.0.join(format!("d{number}.img"))).collect()
    }

    fn mirror(&self) -> Layout {
        Layout::mirror(self.devices(2)).file_size(SIZE)
    }

    /// Checks the pool with `zdb`.
    fn judge(&self) {
        let Some(zdb) = cenote_oracle::zdb() else { return };
        let said = zdb.pool("tank", &self.0, &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn names(files: &FileSystem, path: &str) -> Vec<String> {
    let mut names: Vec<_> = files
        .read_dir(path)
        .expect("a directory")
        .iter()
        .map(|entry| entry.file_name().to_str().expect("plain names").to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn pool_is_created_closed_opened_and_imported() {
    let folder = Folder::new("pool");
    let options = PoolOptions::new()
        .ashift(12)
        .comment("a test")
        .property("compression", "zstd")
        .property("casesensitivity", "insensitive");
    let pool = Pool::create_with("tank", folder.mirror(), &options).unwrap();
    let files = pool.file_system("tank").unwrap();
    files.write("/greeting", "hello").unwrap();
    assert_eq!(pool.property("comment").unwrap(), "a test");
    assert_eq!(pool.property("ashift").unwrap(), "12");
    assert_eq!(pool.property("nosuch").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(files.dataset().property("compression").unwrap(), "zstd");
    // Fixed at creation, stored in the file system, and inherited.
    assert_eq!(files.dataset().property("casesensitivity").unwrap(), "insensitive");
    assert_eq!(files.read("/GREETING").unwrap(), b"hello");
    let child = pool.create_file_system("tank/child").unwrap().dataset();
    assert_eq!(child.property("casesensitivity").unwrap(), "insensitive");
    // While the pool is open, it cannot be opened again.
    let twice = Pool::open(folder.devices(2)).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Busy, "{twice}");
    let guid = pool.guid();
    pool.close().unwrap();
    // Other handles of a closed pool fail, and do not hang or write.
    assert_eq!(files.write("/late", "x").unwrap_err().kind(), ErrorKind::Closed);
    drop(files);
    folder.judge();

    let pool = Pool::open(folder.devices(2)).unwrap();
    assert_eq!((pool.name(), pool.guid()), ("tank".to_owned(), guid));
    assert_eq!(pool.file_system("tank").unwrap().read("/greeting").unwrap(), b"hello");
    // The last handle closes it.
    drop(pool);
    let pool = Pool::import(&guid.to_string(), [&folder.0]).unwrap();
    pool.destroy().unwrap();
    assert_eq!(Pool::open(folder.devices(2)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn pool_creation_refuses_names_devices_and_properties() {
    let folder = Folder::new("refused");
    let create = |name: &str, layout: Layout, options: &PoolOptions| {
        Pool::create_with(name, layout, options).map(drop).map_err(|error| error.kind())
    };
    let plain = PoolOptions::new();
    for name in ["", "1tank", "mirror", "a/b", "a@b"] {
        assert_eq!(create(name, folder.mirror(), &plain), Err(ErrorKind::Invalid), "{name}");
    }
    let wrong = PoolOptions::new().property("compression", "nosuch");
    assert_eq!(create("tank", folder.mirror(), &wrong), Err(ErrorKind::Invalid));
    let missing = Layout::mirror(folder.devices(2));
    assert_eq!(create("tank", missing, &plain), Err(ErrorKind::NotFound));
    let small = Layout::stripe([folder.0.join("small.img")]).file_size(1 << 20);
    assert_eq!(create("tank", small, &plain), Err(ErrorKind::Invalid));
    // Devices of a pool are taken with force only.
    Pool::create("tank", folder.mirror()).unwrap().close().unwrap();
    assert_eq!(create("other", folder.mirror(), &plain), Err(ErrorKind::Busy));
    assert_eq!(create("other", folder.mirror(), &plain.clone().force(true)), Ok(()));
    assert_eq!(Pool::import("tank", [&folder.0]).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn files_have_names_directories_links_and_attributes() {
    let folder = Folder::new("files");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let files = pool.file_system("tank").unwrap();
    files.create_dir_all("/a/b/c").unwrap();
    files.create_dir_all("/a/b/c").unwrap();
    files.write("/a/b/file", b"one").unwrap();
    files.symlink("b/file", "/a/link").unwrap();
    files.hard_link("/a/b/file", "/a/second").unwrap();
    assert_eq!(files.read("/a/link").unwrap(), b"one");
    assert_eq!(files.read("a/b/../second").unwrap(), b"one");
    assert_eq!(files.read_link("/a/link").unwrap(), Path::new("b/file"));
    let facts = files.metadata("/a/second").unwrap();
    assert_eq!((facts.len(), facts.links(), facts.file_type()), (3, 2, FileType::File));
    assert_eq!(files.symlink_metadata("/a/link").unwrap().file_type(), FileType::Symlink);
    assert_eq!(names(&files, "/a"), ["b", "link", "second"]);
    files.rename("/a/second", "/moved").unwrap();
    files.remove_file("/a/link").unwrap();
    files.remove_dir("/a/b/c").unwrap();
    assert!(!files.exists("/a/link").unwrap());
    for (error, want) in [
        (files.remove_dir("/a").unwrap_err(), ErrorKind::Exists),
        (files.read("/nosuch").unwrap_err(), ErrorKind::NotFound),
        (files.read("/moved/x").unwrap_err(), ErrorKind::Invalid),
        (files.create_dir("/a").unwrap_err(), ErrorKind::Exists),
        (files.remove_file("/").unwrap_err(), ErrorKind::Invalid),
        (files.open_with("/moved", OpenOptions::new()).unwrap_err(), ErrorKind::Invalid),
    ] {
        assert_eq!(error.kind(), want, "{error}");
    }
    // `as_user` applies the permissions of that user.
    files.set_mode("/moved", 0o600).unwrap();
    let other = files.as_user(1000, 1000, Vec::new());
    assert_eq!(other.read("/moved").unwrap_err().kind(), ErrorKind::Permission);
    files.set_owner("/moved", 1000, 1000).unwrap();
    assert_eq!(other.read("/moved").unwrap(), b"one");
    assert_eq!(files.metadata("/moved").unwrap().uid(), 1000);
    drop((files, other));
    pool.close().unwrap();
    folder.judge();
}

#[test]
fn file_has_a_position_and_outlives_its_name() {
    let folder = Folder::new("cursor");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let files = pool.file_system("tank").unwrap();
    let mut file = files.create_file("/f").unwrap();
    file.write_all(b"0123456789").unwrap();
    file.seek(SeekFrom::Start(3)).unwrap();
    let mut three = [0; 3];
    file.read_exact(&mut three).unwrap();
    assert_eq!(&three, b"345");
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(b"ab").unwrap();
    assert_eq!(files.read("/f").unwrap(), b"012345678ab");
    file.set_len(4).unwrap();
    file.sync_all().unwrap();
    // Two handles append: both parts are in the file.
    let append = OpenOptions::new().append(true).create(true);
    let mut first = files.open_with("/f", append).unwrap();
    let mut second = files.open_with("/f", append).unwrap();
    first.write_all(b"-one").unwrap();
    second.write_all(b"-two").unwrap();
    assert_eq!(files.read("/f").unwrap(), b"0123-one-two");
    let refused = files.open_with("/f", OpenOptions::new().write(true).create_new(true));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Exists);
    let reader = files.open_file("/f").unwrap();
    assert_eq!(reader.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::Permission);
    files.remove_file("/f").unwrap();
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "0123-one-two");
}

#[test]
fn datasets_have_properties_snapshots_clones_and_children() {
    let folder = Folder::new("datasets");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let options = DatasetOptions::new().property("recordsize", "16K").owner(7, 8);
    let home = pool.create_file_system_with("tank/home", &options).unwrap();
    assert_eq!(home.metadata("/").unwrap().gid(), 8);
    home.write("/f", b"before").unwrap();
    let monday = home.snapshot("monday").unwrap();
    home.write("/f", b"after").unwrap();
    let old = monday.file_system().unwrap();
    assert_eq!(old.read("/f").unwrap(), b"before");
    assert_eq!(old.write("/f", b"x").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(names(&old, "/"), ["f"]);
    // An open snapshot cannot be destroyed.
    let busy = pool.snapshot("tank/home@monday").unwrap().destroy().unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    drop(old);
    let clone = monday.clone_to("tank/clone").unwrap();
    assert_eq!(clone.property("origin").unwrap(), "tank/home@monday");
    assert_eq!(pool.file_system("tank/clone").unwrap().read("/f").unwrap(), b"before");
    clone.promote().unwrap();
    assert_eq!(pool.dataset("tank/home").unwrap().property("origin").unwrap(), "tank/clone@monday");

    let dataset = home.dataset();
    assert_eq!(dataset.property("recordsize").unwrap(), "16384");
    dataset.set_property("org.example:note", "kept").unwrap();
    assert_eq!(dataset.property("org.example:note").unwrap(), "kept");
    dataset.inherit_property("recordsize").unwrap();
    assert_eq!(dataset.property("recordsize").unwrap(), "131072");
    assert_eq!(dataset.set_property("used", "1").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(dataset.kind().unwrap(), DatasetKind::Filesystem);

    home.snapshot("tuesday").unwrap();
    home.write("/f", b"wrong").unwrap();
    let tuesday = pool.snapshot("tank/home@tuesday").unwrap();
    assert_eq!(tuesday.rollback().unwrap_err().kind(), ErrorKind::Busy);
    drop(home);
    tuesday.rollback().unwrap();
    assert_eq!(pool.file_system("tank/home").unwrap().read("/f").unwrap(), b"after");
    let renamed = dataset.rename("tank/house").unwrap();
    let all: Vec<_> = pool.datasets().unwrap().iter().map(|one| one.name().to_owned()).collect();
    assert_eq!(all, ["tank", "tank/clone", "tank/house"]);
    assert_eq!(renamed.snapshots().unwrap()[0].name(), "tank/house@tuesday");
    assert_eq!(renamed.destroy().unwrap_err().kind(), ErrorKind::Busy);
    pool.snapshot("tank/house@tuesday").unwrap().destroy().unwrap();
    pool.dataset("tank/house").unwrap().destroy().unwrap();
    assert_eq!(pool.dataset("tank").unwrap().children().unwrap().len(), 1);
    pool.close().unwrap();
    folder.judge();
}

#[test]
fn volume_keeps_bytes_through_snapshots_and_changes_of_its_size() {
    let folder = Folder::new("volume");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let options = VolumeOptions::new().block_size(8 << 10).sparse(true);
    let mut disk = pool.create_volume_with("tank/disk", 16 << 20, &options).unwrap();
    let mut seed = rng::seeded("library volume", 1);
    let mut bytes = vec![0; 100_000];
    seed.fill(&mut bytes);
    disk.seek(SeekFrom::Start(12_345)).unwrap();
    disk.write_all(&bytes).unwrap();
    disk.flush().unwrap();
    let before = disk.snapshot("before").unwrap();
    disk.discard(0, 1 << 20).unwrap();
    let mut read = vec![1; 100_000];
    disk.read_at(&mut read, 1 << 13).unwrap();
    assert!(read[..16 << 10].iter().all(|byte| *byte == 0));
    before.volume().unwrap().read_at(&mut read, 12_345).unwrap();
    assert_eq!(read, bytes);
    let frozen = before.volume().unwrap();
    assert_eq!(frozen.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(disk.write_at(b"xx", (16 << 20) - 1).unwrap_err().kind(), ErrorKind::Invalid);
    disk.dataset().set_property("volsize", "32M").unwrap();
    assert_eq!((disk.len(), disk.block_size()), (32 << 20, 8 << 10));
    disk.seek(SeekFrom::End(0)).unwrap();
    assert_eq!(disk.write(b"x").unwrap(), 0);
    for (name, value) in [("volsize", "64M"), ("recordsize", "1M"), ("refreservation", "auto")] {
        let options = DatasetOptions::new().property(name, value);
        let refused = before.clone_with("tank/twin", &options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{name}: {refused}");
    }
    let twin =
        before.clone_with("tank/twin", &DatasetOptions::new().property("snapdev", "visible"));
    assert_eq!(twin.unwrap().property("snapdev").unwrap(), "visible");
    drop((disk, frozen));
    pool.close().unwrap();
    folder.judge();
}

#[test]
fn pool_opened_read_only_writes_nothing() {
    let folder = Folder::new("readonly");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    pool.file_system("tank").unwrap().write("/f", b"kept").unwrap();
    pool.close().unwrap();
    let before = std::fs::read(&folder.devices(1)[0]).unwrap();
    let pool = Pool::open_with(folder.devices(2), &PoolOptions::new().read_only(true)).unwrap();
    let files = pool.file_system("tank").unwrap();
    assert_eq!(files.read("/f").unwrap(), b"kept");
    assert_eq!(files.write("/f", b"x").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(pool.create_file_system("tank/a").unwrap_err().kind(), ErrorKind::ReadOnly);
    drop((files, pool));
    assert!(before == std::fs::read(&folder.devices(1)[0]).unwrap());
}

#[test]
fn damage_of_one_mirror_side_is_repaired_and_of_both_reported() {
    let folder = Folder::new("damage");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let files = pool.file_system("tank").unwrap();
    let mut bytes = vec![0; 1 << 20];
    rng::seeded("library damage", 2).fill(&mut bytes);
    files.write("/f", &bytes).unwrap();
    drop(files);
    pool.close().unwrap();
    let damage = |device: &Path| {
        // Everything between the labels at the start and at the end.
        let mut file = std::fs::File::options().write(true).open(device).unwrap();
        file.seek(SeekFrom::Start(8 << 20)).unwrap();
        file.write_all(&vec![0xa5; (SIZE - (16 << 20)) as usize]).unwrap();
    };
    damage(&folder.devices(2)[1]);
    let pool = Pool::open(folder.devices(2)).unwrap();
    assert!(pool.file_system("tank").unwrap().read("/f").unwrap() == bytes);
    drop(pool);
}

#[test]
fn threads_share_a_pool() {
    let folder = Folder::new("threads");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let files = pool.file_system("tank").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (files, pool) = (files.clone(), pool.clone());
            scope.spawn(move || {
                for number in 0..50 {
                    let text = format!("{thread} {number}");
                    files.write(format!("/{thread}-{number}"), &text).unwrap();
                    assert_eq!(files.read(format!("/{thread}-{number}")).unwrap(), text.as_bytes());
                }
                files.snapshot(&format!("of-{thread}")).unwrap();
                assert!(pool.dataset("tank").unwrap().snapshots().is_ok());
            });
        }
    });
    assert_eq!(files.read_dir("/").unwrap().len(), 400);
    assert_eq!(files.dataset().snapshots().unwrap().len(), 8);
    drop(files);
    pool.close().unwrap();
    folder.judge();
}

#[test]
fn ten_thousand_files_are_listed_once_each() {
    let folder = Folder::new("many");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let files = pool.file_system("tank").unwrap();
    for number in 0..10_000 {
        files.create_file(format!("/{number}")).unwrap();
    }
    let mut found = names(&files, "/");
    found.dedup();
    assert_eq!(found.len(), 10_000);
}

/// Environment variable that makes this program the one to be killed: its folder.
const VICTIM: &str = "CENOTE_LIBRARY_VICTIM";

#[test]
fn killed_program_keeps_what_was_synced() {
    if let Some(folder) = std::env::var_os(VICTIM) {
        let devices = ["d0.img", "d1.img"].map(|name| Path::new(&folder).join(name));
        let pool = Pool::create("tank", Layout::mirror(devices).file_size(SIZE)).unwrap();
        let files = pool.file_system("tank").unwrap();
        let mut file = files.create_file("/kept").unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
        std::process::abort();
    }
    let folder = Folder::new("killed");
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "killed_program_keeps_what_was_synced", "--nocapture"]);
    let ended = victim.env(VICTIM, &folder.0).output().unwrap();
    assert!(!ended.status.success());
    // A pool of this host that no process has open.
    let pool = Pool::open(folder.devices(2)).unwrap();
    assert_eq!(pool.file_system("tank").unwrap().read("/kept").unwrap(), b"synced");
    pool.close().unwrap();
    folder.judge();
}

#[test]
fn blocking_calls_are_refused_inside_of_asynchronous_code() {
    let folder = Folder::new("nested");
    let pool = Pool::create("tank", folder.mirror()).unwrap();
    let handle = pool.clone();
    let refused = cenote_rt::block_on(2, async move {
        let error = handle.file_system("tank").unwrap_err();
        drop(handle);
        error.kind()
    });
    assert_eq!(refused.unwrap(), ErrorKind::Invalid);
    // The last handle may be dropped there and closes the pool.
    cenote_rt::block_on(2, async move { drop(pool) }).unwrap();
    Pool::open(folder.devices(2)).unwrap().close().unwrap();
}

#[test]
fn asynchronous_form_closes_a_pool_that_is_dropped() {
    let folder = Folder::new("async");
    cenote_rt::block_on(2, async {
        let pool = cenote::Pool::create("tank", folder.mirror()).await.unwrap();
        let files = pool.file_system("tank").await.unwrap();
        let file = files.create_file("/f").await.unwrap();
        file.write_all_at(b"text", 0).await.unwrap();
        // The file is a handle of the pool, too.
        drop((pool, files));
        let mut text = [0; 4];
        assert_eq!(file.read_at(&mut text, 0).await.unwrap(), 4);
        drop(file);
        // Closing continues in the background.
        for _ in 0..1000 {
            match cenote::Pool::open(folder.devices(2)).await {
                Ok(pool) => {
                    let files = pool.file_system("tank").await.unwrap();
                    assert_eq!(files.read("/f").await.unwrap(), b"text");
                    drop(files);
                    return pool.close().await.unwrap();
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
            }
            cenote_rt::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("the pool was not closed");
    })
    .unwrap();
}
