//! Users and groups of this system, read from `/etc/passwd` and `/etc/group`.

use cenote_fs::access::accounts;
use cenote_pool::props::SpaceOwner;

/// Returns ids and names of the users or groups of this system; nothing for projects.
pub(crate) fn system_names(owner: SpaceOwner) -> Vec<(u64, String)> {
    let file = match owner {
        SpaceOwner::User => "/etc/passwd",
        SpaceOwner::Group => "/etc/group",
        SpaceOwner::Project => return Vec::new(),
    };
    accounts::names_in(file)
}
