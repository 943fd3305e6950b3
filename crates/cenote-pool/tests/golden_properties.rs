//! Every property and figure of the golden pools, as OpenZFS's commands printed them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_pool::props::PropRow;
use cenote_pool::{AllocationClass, OpenOptions, Pool, ScanOptions, import};
use cenote_testkit::{Golden, compare, golden, tables};

/// Values that need not match, each with the reason: (pool or "*", property, reason).
const EXEMPT_DATASET: &[(&str, &str, &str)] = &[
    ("*", "mounted", "whether it is mounted is a fact of the host"),
    ("g-legacy", "snapshots_changed", "kept in memory only on pools without extensible_dataset"),
];

/// The same for properties of pools.
const EXEMPT_POOL: &[(&str, &str, &str)] = &[
    ("*", "load_guid", "a random number of each import"),
    ("*", "readonly", "how the pool was imported"),
];

async fn open(golden: &Golden) -> Arc<Pool> {
    let options = ScanOptions { paths: vec![golden.images()] };
    let scan = import::scan(&options).await.expect("scan");
    let candidate = scan.find(golden.name()).expect("the pool is found");
    let pool = Pool::open(candidate, &OpenOptions::default()).await.expect("the pool opens");
    assert_eq!(pool.warnings(), &[] as &[String]);
    for (dataset, key) in keys(golden) {
        let dataset = pool.dataset(dataset).await.expect("encryption root");
        pool.load_key(&dataset, &key).await.expect("key");
    }
    pool
}

fn keys(golden: &Golden) -> Vec<(&'static str, Vec<u8>)> {
    let file = |name: &str| std::fs::read(golden.key_file(name)).expect("key file");
    match golden.name() {
        "g-crypt" => {
            vec![
                ("g-crypt/gcm", file("pass")),
                ("g-crypt/ccm", file("hex")),
                ("g-crypt/raw", file("raw")),
            ]
        }
        "g-send" => vec![("g-send/e", b"secretsecret\n".to_vec())],
        _ => Vec::new(),
    }
}

fn is_exempt(list: &[(&str, &str, &str)], pool: &str, property: &str) -> bool {
    list.iter().any(|(on, name, _)| (*on == "*" || *on == pool) && *name == property)
}

fn line(name: &str, row: &PropRow) -> String {
    format!("{name}\t{}\t{}\t{}", row.name, row.literal(), row.source)
}

fn without_exempt(text: &str, list: &[(&str, &str, &str)], pool: &str) -> String {
    let keep = |line: &&str| {
        line.split('\t').nth(1).is_none_or(|property| !is_exempt(list, pool, property))
    };
    text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

/// Rows of every dataset, snapshot and bookmark, as `zfs get -Hp -t all -r all` orders them.
async fn dataset_rows(pool: &Arc<Pool>) -> BTreeMap<String, Vec<PropRow>> {
    let mut rows = BTreeMap::new();
    for dataset in pool.datasets().await.expect("datasets") {
        let mut all = vec![dataset.clone()];
        all.extend(dataset.snapshots().await.expect("snapshots"));
        for dataset in all {
            let props = dataset.props().await.expect("props");
            rows.insert(dataset.name().to_owned(), props.all().await.expect("all"));
        }
        for mark in dataset.bookmarks().await.expect("bookmarks") {
            rows.insert(mark.name.clone(), mark.all_props(pool).await.expect("all"));
        }
    }
    rows
}

fn on_each_pool(test: impl AsyncFn(&Golden)) {
    cenote_rt::block_on(2, async {
        for name in cenote_testkit::golden_names() {
            if let Some(golden) = golden(&name) {
                test(&golden).await;
            }
        }
    })
    .expect("runtime");
}

#[test]
fn dataset_properties() {
    on_each_pool(async |golden| {
        let Some(wanted) = golden.text("zfs-get-all.tsv") else { return };
        let pool = open(golden).await;
        let rows = dataset_rows(&pool).await;
        let mut ours = String::new();
        let mut names: Vec<&str> = Vec::new();
        for name in wanted.lines().filter_map(|line| line.split('\t').next()) {
            if names.last() != Some(&name) {
                names.push(name);
            }
        }
        for name in &names {
            let rows = rows.get(*name).unwrap_or_else(|| panic!("{name} is missing"));
            ours.extend(rows.iter().map(|row| line(name, row) + "\n"));
        }
        assert_eq!(rows.len(), names.len(), "{}", golden.name());
        compare::assert_text(
            golden.name(),
            &without_exempt(&ours, EXEMPT_DATASET, golden.name()),
            &without_exempt(&wanted, EXEMPT_DATASET, golden.name()),
        );
    });
}

#[test]
fn dataset_list() {
    on_each_pool(async |golden| {
        let Some(wanted) = golden.text("zfs-list.tsv") else { return };
        let pool = open(golden).await;
        let rows = dataset_rows(&pool).await;
        let mut ours = String::new();
        for name in wanted.lines().filter_map(|line| line.split('\t').next()) {
            let rows = rows.get(name).unwrap_or_else(|| panic!("{name} is missing"));
            let value = |property: &str| {
                let row = rows.iter().find(|row| row.name == property);
                row.map_or_else(|| "-".to_owned(), PropRow::literal)
            };
            let columns = ["type", "used", "available", "referenced", "mountpoint", "creation"];
            let columns: Vec<_> = columns.iter().map(|column| value(column)).collect();
            ours += &format!("{name}\t{}\n", columns.join("\t"));
        }
        compare::assert_text(golden.name(), &ours, &wanted);
    });
}

#[test]
fn pool_properties() {
    on_each_pool(async |golden| {
        let Some(wanted) = golden.text("zpool-get-all.tsv") else { return };
        let pool = open(golden).await;
        let rows = pool.props().await.expect("props").all();
        let ours: String = rows.iter().map(|row| line(golden.name(), row) + "\n").collect();
        compare::assert_text(
            golden.name(),
            &without_exempt(&ours, EXEMPT_POOL, golden.name()),
            &without_exempt(&wanted, EXEMPT_POOL, golden.name()),
        );
    });
}

/// SIZE ALLOC FREE CKPOINT FRAG CAP of each top-level vdev and of the pool.
#[test]
fn vdev_figures() {
    on_each_pool(async |golden| {
        let Some(wanted) = golden.text("zpool-list-v.tsv") else { return };
        let pool = open(golden).await;
        let status = pool.status().await.expect("status");
        let space = status.space.clone().expect("space");
        let mut rows = Vec::new();
        for row in tables::rows(&wanted) {
            let [name, size, alloc, free, checkpoint, _, frag, cap, ..] = row[..] else {
                let [_, name, size, alloc, free, checkpoint, _, frag, cap, ..] = row[..] else {
                    continue;
                };
                let vdev = status.root.children.iter().find(|vdev| {
                    let path = vdev.name.rsplit('/').next().unwrap_or_default();
                    let short = path.strip_suffix(".img").unwrap_or(path);
                    name == vdev.name || name.rsplit('/').next() == Some(short)
                });
                let Some(figures) = vdev.and_then(|vdev| vdev.figures.as_ref()) else { continue };
                if !figures.is_concrete {
                    continue;
                }
                let optional = |value: Option<u64>| value.map_or("-".to_owned(), |v| v.to_string());
                let held = Some(figures.checkpoint).filter(|_| space.checkpoint.is_some());
                // A log vdev has no fragmentation of its own.
                let percent = match figures.class {
                    AllocationClass::Log => Some(0),
                    _ => figures.fragmentation,
                };
                let ours = [
                    figures.size.to_string(),
                    figures.allocated.to_string(),
                    figures.free().to_string(),
                    optional(held),
                    optional(percent),
                    figures.capacity().to_string(),
                ];
                let wanted = [size, alloc, free, checkpoint, frag, cap].map(str::to_owned);
                rows.push((format!("{} {name}", golden.name()), ours, wanted));
                continue;
            };
            if name != golden.name() {
                continue;
            }
            let optional = |value: Option<u64>| value.map_or("-".to_owned(), |v| v.to_string());
            let ours = [
                space.size.to_string(),
                space.allocated.to_string(),
                space.free().to_string(),
                optional(space.checkpoint),
                optional(space.fragmentation),
                space.capacity().to_string(),
            ];
            let wanted = [size, alloc, free, checkpoint, frag, cap].map(str::to_owned);
            rows.push((golden.name().to_owned(), ours, wanted));
        }
        assert!(!rows.is_empty());
        compare::assert_rows(golden.name(), &rows);
    });
}

/// What every user, group and project has, and may have.
#[test]
fn space_by_owner() {
    use cenote_pool::props::SpaceOwner;
    let Some(golden) = golden("g-quota") else { return };
    let Some(wanted) = golden.text("userspace.tsv") else { return };
    cenote_rt::block_on(2, async {
        let pool = open(&golden).await;
        let dataset = pool.dataset("g-quota/a").await.expect("dataset");
        let mut ours = Vec::new();
        for (owner, title) in [
            (SpaceOwner::User, "POSIX User"),
            (SpaceOwner::Group, "POSIX Group"),
            (SpaceOwner::Project, "Project"),
        ] {
            for row in dataset.space_by_owner(owner).await.expect("space") {
                ours.push(format!(
                    "{title}\t{}\t{}\t{}\t{}",
                    row.used, row.quota, row.objects_used, row.objects_quota
                ));
            }
        }
        // Names of users are the host's business: compare the rest.
        let mut wanted: Vec<String> = tables::rows(&wanted)
            .into_iter()
            .map(|row| [&row[..1], &row[2..]].concat().join("\t"))
            .collect();
        ours.sort();
        wanted.sort();
        assert_eq!(ours, wanted);
    })
    .expect("runtime");
}
