//! Import listings, compared with the output of `zpool import`.

use cenote_ondisk::config::VdevKind;
use cenote_pool::status::{VdevReport, examine, state_name};
use cenote_pool::{AllocationClass, Host, ScanOptions, import};
use cenote_testkit::{compare, golden};

/// Name and state of a vdev and its descendants, indented.
fn lines(vdev: &VdevReport, depth: usize, out: &mut Vec<String>) {
    let name = vdev.name.rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".img").unwrap_or(name);
    out.push(format!("{depth} {name} {}", state_name(vdev.state, vdev.aux)));
    for child in &vdev.children {
        let is_apart = depth == 0
            && (child.class.is_some_and(|class| class != AllocationClass::Normal)
                || matches!(child.kind, VdevKind::Hole));
        if !is_apart {
            lines(child, depth + 1, out);
        }
    }
}

fn section(status: &cenote_pool::PoolStatus, class: AllocationClass, out: &mut Vec<String>) {
    for vdev in status.root.children.iter().filter(|vdev| vdev.class == Some(class)) {
        lines(vdev, 1, out);
    }
}

/// The contents of a listing: id, state, message id, and the config's names and states.
fn wanted(text: &str, pool: &str) -> Vec<String> {
    let start = format!("## {pool}\n");
    let part = text.split_once(&start).map(|(_, rest)| rest).expect("the pool is listed");
    let part = part.split("\n## ").next().expect("split");
    let mut out = Vec::new();
    let mut in_config = false;
    for line in part.lines() {
        if let Some(id) = line.strip_prefix("    id: ") {
            out.push(format!("id {id}"));
        } else if let Some(state) = line.strip_prefix(" state: ") {
            out.push(format!("state {state}"));
        } else if let Some(url) = line.trim().strip_prefix("see: ") {
            out.push(format!("see {}", url.rsplit('-').next().expect("id")));
        } else if line == "config:" {
            in_config = true;
        } else if in_config && line.starts_with('\t') {
            let line = &line[1..];
            let depth = (line.len() - line.trim_start().len()) / 2;
            let mut words = line.split_whitespace();
            let name = words.next().expect("name").rsplit('/').next().expect("name");
            match words.next() {
                Some(state) => out.push(format!("{depth} {name} {state}")),
                None => out.push(format!("{depth} {name}")),
            }
        }
    }
    out
}

#[test]
fn import_listings_equal_openzfs() {
    let Some(text) = cenote_testkit::golden::wording("import-listings.txt") else { return };
    let host = Host::current();
    cenote_rt::block_on(2, async {
        for name in cenote_testkit::golden_names() {
            let Some(golden) = golden(&name) else { continue };
            let scan =
                import::scan(&ScanOptions { paths: vec![golden.images()] }).await.expect("scan");
            assert_eq!(scan.candidates.len(), 1, "{name}");
            let mut status = examine(&scan.candidates[0], &host).await;
            // The listing was made on the host that used the pool.
            if status.facts.hostid != 0 {
                let host = Host { hostid: status.facts.hostid, ..host.clone() };
                status = examine(&scan.candidates[0], &host).await;
            }
            assert_eq!(status.failure, None, "{name}");
            let mut ours = vec![
                format!("id {}", status.facts.pool_guid),
                format!("state {}", state_name(status.root.state, status.root.aux)),
            ];
            ours.extend(status.reason.message_id().map(|id| format!("see {id}")));
            lines(&status.root, 0, &mut ours);
            if !status.caches.is_empty() {
                ours.push("0 cache".to_owned());
                ours.extend(status.caches.iter().map(|cache| {
                    let name = cache.name.rsplit('/').next().unwrap_or_default();
                    format!("1 {}", name.strip_suffix(".img").unwrap_or(name))
                }));
            }
            if !status.spares.is_empty() {
                ours.push("0 spares".to_owned());
                ours.extend(status.spares.iter().map(|spare| format!("1 {}", spare.name)));
            }
            for (title, class) in [
                ("dedup", AllocationClass::Dedup),
                ("special", AllocationClass::Special),
                ("logs", AllocationClass::Log),
            ] {
                let mut part = Vec::new();
                section(&status, class, &mut part);
                if !part.is_empty() {
                    ours.push(format!("0 {title}"));
                    ours.extend(part);
                }
            }
            compare::assert_text(&name, &ours.join("\n"), &wanted(&text, &name).join("\n"));
        }
    })
    .expect("runtime");
}
