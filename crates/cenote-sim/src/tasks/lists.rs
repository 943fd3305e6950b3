//! Readers of directories that stop in the middle of a list, while actors change names.

use std::collections::BTreeSet;

use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_rt::Result;

use super::{Chosen, Ended, Outcome, Running, rest};

/// Entries that are read at a time.
const ENTRIES: usize = 3;

/// Lists a directory of an actor with pauses after the first entries.
///
/// Names that exist all the time are found exactly once. Names that come or go meanwhile may be
/// found or not.
pub(super) async fn perform(
    running: &Running,
    file_system: usize,
    (actor, dir): (u32, u32),
    pause: u32,
) -> Ended {
    if running.history.plan.file_systems[file_system].rolls_back {
        return Ok(Outcome::Refused);
    }
    let chosen = running.choose_node(file_system, actor, |tree| tree.dir(dir));
    let Some(Chosen { actor, id: dir, object, first }) = chosen else {
        return Ok(Outcome::Refused);
    };
    let listed = list(&running.mount(file_system), object, pause).await;
    let model = running.history.model();
    let states = &model.file_systems[file_system].actors[actor].states;
    let range = first..=states.len();
    // The directory was removed meanwhile, and its number may be that of another one.
    if range.clone().any(|index| states.state(index).node(dir).is_none()) {
        return Ok(Outcome::Refused);
    }
    let found = match listed {
        Ok(found) => found,
        Err(error) => return running.judge(&error, &[]),
    };
    let mut always = states.state(first).names_in(dir);
    let mut ever = BTreeSet::new();
    for index in range {
        let names = states.state(index).names_in(dir);
        always.retain(|name| names.contains(name));
        ever.extend(names);
    }
    let count = |wanted: &Vec<u8>| found.iter().filter(|name| *name == wanted).count();
    let wrong: Vec<_> = always.iter().filter(|name| count(name) != 1).collect();
    if wrong.is_empty() && found.iter().all(|name| ever.contains(name)) {
        return Ok(Outcome::Done);
    }
    let lossy = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
    let texts = |names: &BTreeSet<Vec<u8>>| names.iter().map(lossy).collect::<Vec<_>>();
    let found: Vec<_> = found.iter().map(lossy).collect();
    Err(format!("listed {found:?}, always {:?}, ever {:?}", texts(&always), texts(&ever)))
}

/// Returns the names of a directory.
async fn list(mount: &Mount, object: u64, pause: u32) -> Result<Vec<Vec<u8>>> {
    let root = Credentials::root();
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = mount.read_dir(&root, object, cookie, ENTRIES).await?;
        for entry in page.entries {
            cookie = entry.cookie;
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name);
            }
        }
        if page.is_end {
            return Ok(names);
        }
        // Long after the first entries, and for a moment after the others.
        rest(if names.len() < ENTRIES { pause } else { 200 }).await;
    }
}
