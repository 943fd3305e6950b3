//! Names of more than 255 bytes (feature and property `longname`).

use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode};
use cenote_fs::mount::errno;
use cenote_ondisk::zap::Value;
use cenote_poolkit::pools;
use cenote_rt::{Result, block_on};

use crate::fixture::{Fixture, root};

fn number<T>(result: Result<T>) -> std::result::Result<T, i32> {
    result.map_err(|error| errno::of(&error))
}

async fn set(fixture: &Fixture, value: u64) {
    fixture.engine.properties().set("tank", "longname", Value::U64(value)).await.unwrap();
}

async fn make(fixture: &Fixture, dir: u64, name: &str) -> std::result::Result<u64, i32> {
    let new = NewNode::new(NewKind::Regular, 0o644);
    let made = fixture.mount.create(&root(), dir, name.as_bytes(), &new).await;
    number(made).map(|made| made.object)
}

async fn rename(fixture: &Fixture, from: &str, to: &str) -> std::result::Result<(), i32> {
    let top = fixture.mount.root();
    let (from, to) = ((top, from.as_bytes()), (top, to.as_bytes()));
    number(fixture.mount.rename(&root(), &Rename { from, to, mode: RenameMode::Plain }).await)
}

async fn find(fixture: &Fixture, name: &str) -> std::result::Result<u64, i32> {
    let found = fixture.mount.lookup(&root(), fixture.mount.root(), name.as_bytes()).await;
    number(found).map(|found| found.object)
}

/// Returns how many datasets use the feature, as stored on disk.
async fn users(fixture: &Fixture) -> u64 {
    let pool = pools::open_copy(&fixture.devices).await.unwrap();
    let found = pool.features().iter().find(|(guid, _)| *guid == "org.zfsonlinux:longname");
    found.unwrap().1.refcount
}

#[test]
fn longname_limits_the_length_of_names() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let top = fixture.mount.root();
        let name = |len: usize, with: char| String::from(with).repeat(len);
        let (short, long, longest) = (name(255, 's'), name(256, 'l'), name(1023, 'm'));
        let file = make(&fixture, top, &short).await.unwrap();
        assert_eq!(make(&fixture, top, &long).await, Err(errno::ENAMETOOLONG));
        assert_eq!(rename(&fixture, &short, &long).await, Err(errno::ENAMETOOLONG));
        let link = fixture.mount.link(&root(), file, top, long.as_bytes()).await;
        assert_eq!(number(link).map(drop), Err(errno::ENAMETOOLONG));
        assert_eq!(find(&fixture, &long).await, Err(errno::ENAMETOOLONG));
        assert_eq!(find(&fixture, &name(1024, 'x')).await, Err(errno::ENAMETOOLONG));
        assert_eq!(fixture.mount.space().await.unwrap().name_max, 255);
        // The feature is not active before such a name exists.
        set(&fixture, 1).await;
        let other = make(&fixture, top, "other").await.unwrap();
        assert_eq!(fixture.mount.space().await.unwrap().name_max, 1023);
        let fixture = fixture.reopen().await;
        assert_eq!(users(&fixture).await, 0);
        let dir = make(&fixture, top, &long).await.unwrap();
        rename(&fixture, "other", &longest).await.unwrap();
        assert_eq!(make(&fixture, top, &name(1024, 'x')).await, Err(errno::ENAMETOOLONG));
        fixture.engine.sync().await.unwrap();
        assert_eq!(users(&fixture).await, 1);
        fixture.engine.snapshots().create(vec!["tank@with".to_owned()]).await.unwrap();
        assert_eq!(users(&fixture).await, 2);
        // Off again: existing names are found and removed, and no new ones are accepted.
        set(&fixture, 0).await;
        let fixture = fixture.reopen().await;
        assert_eq!(find(&fixture, &long).await, Ok(dir));
        assert_eq!(find(&fixture, &longest).await, Ok(other));
        assert_eq!(make(&fixture, top, &name(300, 'x')).await, Err(errno::ENAMETOOLONG));
        fixture.mount.unlink(&root(), top, long.as_bytes()).await.unwrap();
        rename(&fixture, &longest, "short again").await.unwrap();
        rename(&fixture, &short, &longest).await.unwrap_err();
        let page = fixture.mount.read_dir(&root(), top, 0, 100).await.unwrap();
        assert_eq!(page.entries.len(), 4);
        let printed = fixture.judge("longnames-made", &["-dddd"]).await;
        let Some(printed) = printed else { return };
        assert!(printed.contains("short again"), "{printed}");
    })
    .unwrap();
}

/// zdb finds long names, and its count of the feature's users equals the stored one.
#[test]
fn longname_is_read_by_zdb() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let top = fixture.mount.root();
        set(&fixture, 1).await;
        let names: Vec<String> =
            (0..400).map(|at| format!("{at:04}-{}", "n".repeat(250 + at * 19 % 768))).collect();
        for name in &names {
            make(&fixture, top, name).await.unwrap();
        }
        let Some(printed) = fixture.judge("longnames", &["-dddd"]).await else { return };
        for name in names {
            assert!(printed.contains(&format!("{name} = ")), "{name}");
        }
    })
    .unwrap();
}
