//! Users and groups of this system, read from `/etc/passwd` and `/etc/group`.

/// Returns ids and names in such a file.
#[must_use]
pub fn names_in(file: &str) -> Vec<(u64, String)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(entry).collect()
}

/// Returns the groups of a user: `gid`, and the groups of `/etc/group` that list the user.
#[must_use]
pub fn groups_of(uid: u32, gid: u32) -> Vec<u32> {
    let users = names_in("/etc/passwd");
    let name = users.into_iter().find(|(id, _)| *id == u64::from(uid)).map(|(_, name)| name);
    let text = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let mut found = vec![gid];
    for line in text.lines() {
        let mut fields = line.split(':').skip(2);
        let (Some(id), Some(members)) = (fields.next(), fields.next()) else { continue };
        let is_member = members.split(',').any(|member| Some(member) == name.as_deref());
        if let (true, Ok(id)) = (is_member, id.parse()) {
            found.push(id);
        }
    }
    found
}
