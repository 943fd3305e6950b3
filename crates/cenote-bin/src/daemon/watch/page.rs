//! What the socket of metrics shows: metrics, and a page for browsers.
//!
//! ```text
//!   /metrics, /metrics.json   metrics
//!   /                         the page, with its script and styles
//!   /watch.json               figures of all pools, from which the page makes rates
//!   /map/POOL.json            metaslabs of a pool
//!   /top.json, /top/POOL.json figures for `cenote top`, of all pools or of one
//!   /top/POOL/names/N,N.json  names of datasets by their object numbers
//!   /status/POOL.txt          what `zpool status POOL` prints
//!   /lab.json, /lab/NAME.svg  experiments stored in the folder `lab` of the state directory
//! ```
//!
//! All of it only reads, as a user without rights, and the page loads nothing from elsewhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_cli::{Caller, Host, Io, Session};
use cenote_engine::Engine;
use cenote_rt::Runtime;

use super::super::pools::Pools;
use super::http::Page;
use super::{figures, metrics, shown, top};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const SVG: &str = "image/svg+xml";

/// The files of the page. uPlot has its licence beside it.
const FILES: [(&str, &str, &str); 6] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/page.css", STYLE, include_str!("page/page.css")),
    ("/uplot.js", SCRIPT, include_str!("page/uplot.js")),
    ("/uplot.css", STYLE, include_str!("page/uplot.css")),
    ("/uplot-LICENSE", TEXT, include_str!("page/uplot-LICENSE")),
];
/// The user whose rights the page has.
const NOBODY: u32 = 65534;
/// Most metaslabs of a map.
const CELLS_MAX: usize = 1 << 16;
/// Longest time in which a map is read.
const MAP_TIME: Duration = Duration::from_secs(5);
/// Most experiments, and the longest picture.
const REPORTS_MAX: usize = 64;
const REPORT_MAX: u64 = 8 << 20;

/// Returns the pages of metrics, and those for browsers.
pub(super) fn page(pools: &Arc<Pools>, lab: PathBuf) -> Arc<Page> {
    let (runtime, pools) = (Runtime::here(), Arc::downgrade(pools));
    Arc::new(move |path| {
        if let Some((_, kind, body)) = FILES.iter().find(|(name, ..)| *name == path) {
            return Some((*kind, (*body).to_owned()));
        }
        if path == "/lab.json" {
            return Some((JSON, serde_json::Value::from(reports(&lab)).to_string()));
        }
        if let Some(name) = named(path, "/lab/", ".svg") {
            return Some((SVG, report(&lab, &name)?));
        }
        let pools = pools.upgrade()?;
        runtime.lend(|| of_pools(path, &pools))
    })
}

/// Returns a page with figures of pools.
fn of_pools(path: &str, pools: &Arc<Pools>) -> Option<(&'static str, String)> {
    if let Some(name) = named(path, "/status/", ".txt") {
        return Some((TEXT, status(pools, &name)?));
    }
    let engines = pools.pools();
    if path == "/top.json" {
        return Some((JSON, cenote_rt::block_on(0, top::json(&engines)).ok()?));
    }
    if let Some(asked) = named(path, "/top/", ".json") {
        return Some((JSON, top_of(&engines, &asked)?));
    }
    if let Some(name) = named(path, "/map/", ".json") {
        let engine = engines.iter().find(|engine| engine.name() == name)?;
        let map = cenote_rt::block_on(0, cenote_rt::until(MAP_TIME, map(engine)));
        return Some((JSON, map.ok()???));
    }
    let (kind, form): (_, fn(&[figures::PoolFigures]) -> String) = match path {
        "/metrics" => {
            ("text/plain; version=0.0.4", |pools| metrics::text(&metrics::families(pools)))
        }
        "/metrics.json" => (JSON, |pools| metrics::json(&metrics::families(pools))),
        "/watch.json" => (JSON, shown::json),
        _ => return None,
    };
    let figures = cenote_rt::block_on(0, figures::collect(&engines));
    Some((kind, form(&figures.ok()?)))
}

/// Returns the figures of a pool, `POOL`, or the names of some of its datasets,
/// `POOL/names/OBJECT,...`.
fn top_of(engines: &[Arc<Engine>], asked: &str) -> Option<String> {
    let (name, objects) = match asked.split_once("/names/") {
        Some((name, objects)) => (name, Some(objects)),
        None => (asked, None),
    };
    let engine = engines.iter().find(|engine| engine.name() == name)?;
    match objects {
        Some(objects) => cenote_rt::block_on(0, top::names(engine, objects)).ok()?,
        None => cenote_rt::block_on(0, top::json(std::slice::from_ref(engine))).ok(),
    }
}

async fn map(engine: &Arc<Engine>) -> Option<String> {
    let view = engine.view().await.ok()?;
    cenote_cli::map_document(&view, CELLS_MAX).await.ok()?
}

/// Returns what `zpool status` prints of a pool.
fn status(pools: &Arc<Pools>, name: &str) -> Option<String> {
    if !pools.pools().iter().any(|engine| engine.name() == name) {
        return None;
    }
    let caller = Caller::new(NOBODY, NOBODY, PathBuf::from("/"));
    let session = Session { host: Arc::<Pools>::clone(pools), caller };
    let args = ["zpool", "status", name].map(str::to_owned);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = cenote_cli::run_for(&session, &args, &mut Io { out: &mut out, err: &mut err });
    (status == 0).then(|| String::from_utf8_lossy(&out).into_owned())
}

/// Returns the name between a prefix and a suffix of a path, decoded.
fn named(path: &str, prefix: &str, suffix: &str) -> Option<String> {
    let name = path.strip_prefix(prefix)?.strip_suffix(suffix)?;
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(decoded).ok()
}

/// Returns the names of the stored experiments.
fn reports(lab: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(lab) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".svg")?.to_owned())
    });
    let mut names: Vec<_> = names.filter(|name| is_plain(name)).take(REPORTS_MAX).collect();
    names.sort_unstable();
    names
}

/// Returns the picture of a stored experiment.
fn report(lab: &Path, name: &str) -> Option<String> {
    let path = lab.join(format!("{name}.svg"));
    let is_file = |path: &Path| {
        let found = std::fs::symlink_metadata(path).ok()?;
        (found.is_file() && found.len() <= REPORT_MAX).then_some(())
    };
    is_file(&path).filter(|()| is_plain(name))?;
    std::fs::read_to_string(path).ok()
}

/// Whether a name is one of experiments, and not a path.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use cenote_testkit::golden::PrivateFolder;

    use super::*;

    #[test]
    fn names_are_decoded() {
        assert_eq!(named("/map/tank.json", "/map/", ".json").as_deref(), Some("tank"));
        assert_eq!(named("/map/a%3Ab%20c.json", "/map/", ".json").as_deref(), Some("a:b c"));
        for path in ["/map/tank", "/map/a%3", "/map/a%.json", "/map/a%zz.json", "/map/%ff.json"] {
            assert_eq!(named(path, "/map/", ".json"), None, "{path}");
        }
    }

    #[test]
    fn only_pictures_of_experiments_are_shown() {
        let folder = PrivateFolder::create("lab-pictures");
        std::fs::write(folder.path().join("pads.svg"), "<svg/>").unwrap();
        std::fs::write(folder.path().join("pads.json"), "{}").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link.svg")).unwrap();
        assert_eq!(reports(folder.path()), ["link", "pads"]);
        assert_eq!(report(folder.path(), "pads").as_deref(), Some("<svg/>"));
        for name in ["link", "../pads", "", "none"] {
            assert_eq!(report(folder.path(), name), None, "{name}");
        }
    }

    #[test]
    fn page_loads_nothing_from_elsewhere() {
        for (name, _, body) in FILES.iter().filter(|(name, ..)| *name != "/uplot-LICENSE") {
            let outside = body.match_indices("//").filter(|(at, _)| {
                body[..*at].ends_with("http:") || body[..*at].ends_with("https:")
            });
            let addresses: Vec<_> =
                outside.map(|(at, _)| body[at..].chars().take(40).collect::<String>()).collect();
            let is_told = |address: &&String| !address.starts_with("//github.com/leeoniya/uPlot");
            assert_eq!(addresses.iter().find(is_told), None, "{name}");
        }
    }
}
