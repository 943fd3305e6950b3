//! Compares `zdb -bb` and `-mm` line by line with OpenZFS's zdb, on every golden pool.
//!
//! The real zdb runs where it is installed; stored texts of a few pools are compared everywhere. Of
//! the filter (docs/zdb.md) these options need one rule.

use cenote_testkit::{golden, rng};

/// Start of a line, and the reason why the text after its first number is not compared.
const FILTER: [(&str, &str); 1] =
    [("\ttimestamp = ", "local time, in the zone and words of the host; the number is compared")];

/// Pools with a stored text: with classes and clones, with a removed vdev and a checkpoint.
const STORED: [&str; 3] = ["g-basic", "g-classes", "g-removed"];

fn filtered(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| {
            let rule = FILTER.iter().find(|(start, _)| line.starts_with(start));
            match rule {
                Some((start, _)) => {
                    let number = line[start.len()..].split_whitespace().next().unwrap_or("");
                    format!("{start}{number}")
                }
                None => line.to_owned(),
            }
        })
        .collect()
}

/// Returns the output of `cenote zdb`, and its status.
fn ours(pool: &golden::Golden, option: &str) -> (String, i32) {
    let images = pool.images();
    let args = ["-e", "-p", &images.to_string_lossy(), option, pool.name()];
    let (text, errors, status) = crate::zdb::cenote(&args);
    assert!(errors.is_empty(), "{} {option}: {errors}", pool.name());
    (text, status)
}

fn assert_same(what: &str, ours: &str, theirs: &str) {
    let (ours, theirs) = (filtered(ours), filtered(theirs));
    for (number, (our, their)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(our, their, "{what}, line {}", number + 1);
    }
    assert_eq!(ours.len(), theirs.len(), "{what}: number of lines");
}

#[test]
fn blocks_and_metaslabs_are_those_of_zdb() {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let options: &[&str] = if rng::wants_all() {
        &["-b", "-bb", "-bbb", "-m", "-mm", "-mmm"]
    } else {
        &["-bb", "-mm"]
    };
    for pool in golden::all() {
        for option in options {
            let said = zdb.pool(pool.name(), &pool.images(), &[*option]);
            let (text, status) = ours(&pool, option);
            let what = format!("{} {option}", pool.name());
            assert_eq!(Some(status), said.code, "{what}");
            assert_same(&what, &text, &said.stdout);
        }
    }
}

#[test]
fn blocks_and_metaslabs_are_as_stored() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/zdb");
    for name in STORED {
        let Some(pool) = cenote_testkit::golden(name) else { continue };
        for option in ["bb", "mm"] {
            let stored = std::fs::read_to_string(folder.join(format!("{name}-{option}.txt")));
            let (text, status) = ours(&pool, &format!("-{option}"));
            assert_eq!(status, 0, "{name} -{option}");
            assert_same(&format!("{name} -{option}"), &text, &stored.unwrap());
        }
    }
}

#[test]
fn a_fragmented_pool_is_as_recorded_with_it() {
    let Some(pool) = cenote_testkit::golden("g-frag") else { return };
    for (option, file) in [("-mm", "zdb-mm.txt"), ("-bbb", "zdb-bbb.txt")] {
        let Some(recorded) = pool.text(file) else { continue };
        // The real zdb's progress was recorded in the same file, as the first line.
        let recorded = match recorded.split_once('\n') {
            Some((first, rest)) if first.contains("loading") => rest,
            _ => &recorded,
        };
        assert_same(file, &ours(&pool, option).0, recorded);
    }
}
