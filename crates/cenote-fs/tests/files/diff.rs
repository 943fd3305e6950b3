//! Differences between two snapshots.

use cenote_fs::diff::{Change, Diff};
use cenote_fs::edit::{Rename, RenameMode};
use cenote_fs::mount::WriteOptions;
use cenote_fs::{FileKind, FileSystem};
use cenote_rt::block_on;

use crate::fixture::{Fixture, root};

async fn differences(fixture: &Fixture, from: &str, to: &str) -> Vec<String> {
    let open = async |name: &str| FileSystem::open_snapshot(&fixture.engine, name).await.unwrap();
    let mut diff = Diff::new(&open(from).await, &open(to).await);
    let mut lines = Vec::new();
    while let Some(change) = diff.next().await.unwrap() {
        let path = |seen: &cenote_fs::diff::NodeState| {
            let path = seen.path.as_ref().map_or("?".into(), |path| String::from_utf8_lossy(path));
            let end = if seen.kind == FileKind::Directory { "/" } else { "" };
            format!("{path}{end}")
        };
        lines.push(match &change {
            Change::Removed(seen) => format!("- {}", path(seen)),
            Change::Added(seen) => format!("+ {}", path(seen)),
            Change::Modified(seen) => format!("M {}", path(seen)),
            Change::Linked(seen, by) => format!("M {} ({by:+})", path(seen)),
            Change::Renamed(old, new) => format!("R {} {}", path(old), path(new)),
        });
    }
    lines.sort();
    lines
}

#[test]
fn diff_reports_every_change_and_nothing_else() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        // More than a block of dnodes, so that most blocks are shared.
        for number in 0..200 {
            fixture.file(dir, &format!("f{number}"), b"same").await.unwrap();
        }
        let moved = fixture.dir(top, "moved").await.unwrap().object;
        let inside = fixture.file(moved, "inside", b"x").await.unwrap().object;
        fixture.engine.snapshots().create(vec!["tank@a".to_owned()]).await.unwrap();
        let changed = mount.lookup(&root(), dir, b"f7").await.unwrap().object;
        mount.write(&root(), changed, 0, b"else", WriteOptions::default()).await.unwrap();
        mount.unlink(&root(), dir, b"f100").await.unwrap();
        let linked = mount.lookup(&root(), dir, b"f150").await.unwrap().object;
        mount.link(&root(), linked, top, b"again").await.unwrap();
        let rename = |from: &'static [u8], to: &'static [u8]| Rename {
            from: (top, from),
            to: (top, to),
            mode: RenameMode::Plain,
        };
        mount.rename(&root(), &rename(b"moved", b"there")).await.unwrap();
        mount.write(&root(), inside, 0, b"y", WriteOptions::default()).await.unwrap();
        fixture.file(top, "new", b"").await.unwrap();
        // Open, without a name: counts as removed.
        let open = mount.lookup(&root(), dir, b"f8").await.unwrap().object;
        let held = mount.hold(open).await.unwrap();
        mount.unlink(&root(), dir, b"f8").await.unwrap();
        fixture.engine.snapshots().create(vec!["tank@b".to_owned()]).await.unwrap();
        drop(held);
        let expected = [
            "+ /new",
            "- /dir/f100",
            "- /dir/f8",
            "M //",
            "M /dir/",
            "M /dir/f150 (+1)",
            "M /dir/f7",
            "R /moved/ /there/",
            "R /moved/inside /there/inside",
        ];
        assert_eq!(differences(&fixture, "tank@a", "tank@b").await, expected);
        assert_eq!(differences(&fixture, "tank@a", "tank@a").await, [""; 0]);
    })
    .unwrap();
}
