//! Every property and space figure of the golden pools, compared with the output of OpenZFS.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_pool::props::{DATASET_PROPERTIES, PropRow};
use cenote_pool::{OpenOptions, Pool, ScanOptions, import};
use cenote_testkit::golden::on_each;
use cenote_testkit::tables::{EXEMPT_DATASET, EXEMPT_POOL, without_exempt};
use cenote_testkit::{Golden, compare, golden, tables};

/// Opens the pool at the txg of the tables: just before the export, which itself writes to the MOS
/// and changes the allocated and available space. Of several such txgs the first is taken: the
/// later ones are idle.
async fn open(golden: &Golden) -> Arc<Pool> {
    matching(golden).await.pop().expect("a txg at which the tables were printed")
}

/// Returns the pool at every txg with the allocated space of the tables, newest first.
async fn matching(golden: &Golden) -> Vec<Arc<Pool>> {
    let options = ScanOptions { paths: vec![golden.images()] };
    let scan = import::scan(&options).await.expect("scan");
    let candidate = scan.find(golden.name()).expect("the pool is found");
    let txgs = candidate.uberblocks().into_iter().map(|uberblock| uberblock.txg);
    let pools = tables::at_listing(golden, txgs, async |txg| {
        let options = OpenOptions { txg: Some(txg), ..OpenOptions::default() };
        let pool = Pool::open(candidate, &options).await.ok()?;
        let used = pool.root_dir().phys.used_bytes;
        Some((pool, used))
    })
    .await;
    for pool in &pools {
        assert_eq!(pool.warnings(), &[] as &[String]);
        for (dataset, key) in golden.keys() {
            let dataset = pool.dataset(dataset).await.expect("encryption root");
            pool.load_key(&dataset, &key).await.expect("key");
        }
    }
    pools
}

fn line(name: &str, row: &PropRow) -> String {
    format!("{name}\t{}\t{}\t{}", row.name, row.literal(), row.source)
}

/// Rows of every dataset, snapshot and bookmark, in the order of `zfs get -Hp -t all -r all`.
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
            let mut all = Vec::new();
            for property in DATASET_PROPERTIES {
                if property.types.contains('b') && !property.is_hidden() {
                    all.extend(mark.prop(pool, property).await.expect("a property"));
                }
            }
            rows.insert(mark.name.clone(), all);
        }
    }
    rows
}

/// Runs a comparison on every golden pool and reports all differences.
fn on_each_pool(test: &impl AsyncFn(&Golden) -> Option<String>) {
    on_each(|golden| cenote_rt::block_on(2, test(golden)).expect("runtime"));
}

#[test]
fn dataset_properties_equal_openzfs() {
    on_each_pool(&async |golden| {
        let wanted = golden.text("zfs-get-all.tsv")?;
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
        compare::text_difference(
            &without_exempt(&ours, EXEMPT_DATASET, golden.name()),
            &without_exempt(&wanted, EXEMPT_DATASET, golden.name()),
        )
    });
}

#[test]
fn dataset_list_equals_openzfs() {
    on_each_pool(&async |golden| {
        let wanted = golden.text("zfs-list.tsv")?;
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
            ours.extend([name, "\t", &columns.join("\t"), "\n"]);
        }
        compare::text_difference(&ours, &wanted)
    });
}

#[test]
fn pool_properties_equal_openzfs() {
    on_each_pool(&async |golden| {
        let wanted = golden.text("zpool-get-all.tsv")?;
        let pool = open(golden).await;
        let rows = pool.props().await.expect("props").all();
        let ours: String = rows.iter().map(|row| line(golden.name(), row) + "\n").collect();
        compare::text_difference(
            &without_exempt(&ours, EXEMPT_POOL, golden.name()),
            &without_exempt(&wanted, EXEMPT_POOL, golden.name()),
        )
    });
}

/// SIZE ALLOC FREE CKPOINT FRAG CAP.
fn figures(
    (size, allocated): (u64, u64),
    checkpoint: Option<u64>,
    fragmentation: Option<u64>,
) -> [String; 6] {
    let optional = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
    [
        size.to_string(),
        allocated.to_string(),
        (size - allocated).to_string(),
        optional(checkpoint),
        optional(fragmentation),
        (allocated * 100 / size).to_string(),
    ]
}

/// Figures of the pool and of each top-level vdev; one that is a device has its size in the first
/// column.
#[test]
fn list_figures_of_vdevs_equal_openzfs() {
    on_each_pool(&async |golden| {
        let wanted = golden.text("zpool-list-v.tsv")?;
        let mut difference = None;
        // Idle txgs may move metadata between vdevs; the sums are equal.
        for pool in matching(golden).await {
            difference = Some(vdev_difference(golden.name(), &pool, &wanted).await?);
        }
        difference
    });
}

async fn vdev_difference(name: &str, pool: &Arc<Pool>, wanted: &str) -> Option<String> {
    let status = pool.status().await.expect("status");
    let space = status.space.clone().expect("space");
    let (mut ours, mut theirs, mut count) = (String::new(), String::new(), 0);
    for row in tables::rows(wanted) {
        let row = if row[0].is_empty() { &row[1..] } else { &row[..] };
        let [line, size, alloc, free, checkpoint, _, frag, cap, ..] = *row else { continue };
        let short = line.rsplit('/').next().expect("name");
        let vdev = status.root.children.iter().find(|vdev| {
            let path = vdev.name.rsplit('/').next().expect("name");
            path.strip_suffix(".img").unwrap_or(path) == short
        });
        let mut figures = match vdev.and_then(|vdev| vdev.figures.as_ref()) {
            Some(vdev) if vdev.is_concrete => {
                let held = Some(vdev.checkpoint).filter(|_| space.checkpoint.is_some());
                figures((vdev.size, vdev.allocated), held, vdev.fragmentation)
            }
            None if line == name => {
                figures((space.size, space.allocated), space.checkpoint, space.fragmentation)
            }
            _ => continue,
        };
        if let Some(size) = vdev.and_then(|vdev| vdev.device.map(|device| device.size)) {
            figures[0] = size.to_string();
        }
        count += 1;
        // Deferred frees of the last two txgs count while the pool is imported.
        if name == "g-scan" {
            continue;
        }
        ours.extend([line, "\t", &figures.join("\t"), "\n"]);
        theirs.extend([&[line, size, alloc, free, checkpoint, frag, cap].join("\t"), "\n"]);
    }
    assert!(count >= 2, "{wanted}");
    compare::text_difference(&ours, &theirs)
}

/// Usage and quotas of every user, group and project.
#[test]
fn userspace_equals_openzfs() {
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
        // User names depend on the host: compare the other columns.
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
