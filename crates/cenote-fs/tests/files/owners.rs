//! Compares the usage of owners that zdb counts from each object with the stored one.

use std::collections::BTreeMap;

/// Objects with the usage of users, groups and projects, as zdb numbers them.
const STORES: [(&str, &str); 3] = [("-1", "uid"), ("-2", "gid"), ("-3", "projid")];

/// Bytes and objects by owner: kind and number.
type Used = BTreeMap<(&'static str, u64), (u64, u64)>;

/// An object as zdb prints it with exact numbers.
#[derive(Default)]
struct Object<'a> {
    number: &'a str,
    size: u64,
    lines: Vec<&'a str>,
}

/// Returns the objects of the file system "tank" in the output of `zdb -P -dddd`.
fn objects(text: &str) -> Vec<Object<'_>> {
    let mut objects: Vec<Object<'_>> = Vec::new();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("Dataset tank [ZPL]"));
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("Object  lvl") {
            // Object, levels, sizes of indirect and data blocks, allocated bytes.
            let row: Vec<&str> = lines.next().unwrap_or("").split_whitespace().collect();
            let size = row.get(4).and_then(|size| size.parse().ok()).unwrap_or(0);
            objects.push(Object { number: row.first().unwrap_or(&""), size, lines: Vec::new() });
        } else if let Some(object) = objects.last_mut() {
            object.lines.push(line.trim());
        }
    }
    objects
}

/// Counts every file for its owners; a dnode counts half a kilobyte (spec 04 §18).
fn counted(objects: &[Object<'_>]) -> Used {
    let mut used = Used::new();
    for object in objects {
        let id = |owner: &str| {
            object.lines.iter().find_map(|line| {
                let (name, id) = line.split_once(char::is_whitespace)?;
                (name == owner).then(|| id.trim().parse::<u64>().ok()).flatten()
            })
        };
        if id("uid").is_none() {
            continue;
        }
        for (_, owner) in STORES {
            // Files without a project belong to project 0.
            let (bytes, count) = used.entry((owner, id(owner).unwrap_or(0))).or_default();
            *bytes += object.size + 512;
            *count += 1;
        }
    }
    used
}

/// Returns the stored usage: `id = bytes`, `obj-id = count`, numbers of owners in hexadecimal.
fn stored(objects: &[Object<'_>]) -> Used {
    let mut used = Used::new();
    for (number, owner) in STORES {
        let store = objects.iter().filter(|object| object.number == number);
        for line in store.flat_map(|object| &object.lines) {
            let Some((key, value)) = line.split_once(" = ") else { continue };
            let Ok(value) = value.trim().parse() else { continue };
            let id = key.strip_prefix("obj-");
            let Ok(owned) = u64::from_str_radix(id.unwrap_or(key), 16) else { continue };
            let (bytes, count) = used.entry((owner, owned)).or_default();
            *(if id.is_some() { count } else { bytes }) = value;
        }
    }
    used
}

/// Compares both.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let objects = objects(text);
    let (counted, stored) = (counted(&objects), stored(&objects));
    if counted.len() < 3 {
        return Err(format!("owners: only {counted:?} in {text}"));
    }
    if counted != stored {
        return Err(format!("owners by zdb: counted {counted:?}, stored {stored:?}"));
    }
    Ok(())
}
