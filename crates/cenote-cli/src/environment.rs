//! What commands read of the environment: that of whoever gives them.
//!
//! In a session it comes with the command and not from the daemon. A command runs on one thread
//! from its beginning to its end, which waits for the tasks that it starts; so its variables are
//! those of the thread, and functions as deep as the parser of options need not be handed them.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use jiff::tz::TimeZone;

/// Options end at the first operand.
pub(crate) const POSIX: &str = "POSIXLY_CORRECT";
/// Directories, with colons between them, to look for devices in.
pub(crate) const IMPORT_PATH: &str = "ZPOOL_IMPORT_PATH";
/// What `-g`, `-L` and `-P` of `zpool` say.
pub(crate) const BY_GUID: &str = "ZPOOL_VDEV_NAME_GUID";
pub(crate) const FOLLOWS_LINKS: &str = "ZPOOL_VDEV_NAME_FOLLOW_LINKS";
pub(crate) const HAS_PATHS: &str = "ZPOOL_VDEV_NAME_PATH";
/// The time zone.
const ZONE: &str = "TZ";
/// Where zones are, and the largest of them.
const DATABASE: &str = "/usr/share/zoneinfo";
const ZONE_MAX: u64 = 1 << 20;

/// All variables that count, which go with a command to whoever runs it.
pub const NAMES: [&str; 6] = [POSIX, IMPORT_PATH, BY_GUID, FOLLOWS_LINKS, HAS_PATHS, ZONE];

/// Variables of somebody else, by name.
pub type Variables = Vec<(OsString, OsString)>;

thread_local! {
    static LENT: RefCell<Option<Variables>> = const { RefCell::new(None) };
}

/// The variables of this process that count.
#[must_use]
pub fn own() -> Variables {
    let value = |name: &&str| Some((OsString::from(name), std::env::var_os(name)?));
    NAMES.iter().filter_map(value).collect()
}

/// Does something as if this process had been started with these variables.
pub(crate) fn lend<T>(variables: Variables, work: impl FnOnce() -> T) -> T {
    LENT.set(Some(variables));
    let done = work();
    LENT.set(None);
    done
}

/// The value of a variable.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    LENT.with_borrow(|lent| match lent {
        Some(lent) => {
            lent.iter().find(|(there, _)| there == OsStr::new(name)).map(|(_, value)| value.clone())
        }
        None => std::env::var_os(name),
    })
}

/// Where the daemon keeps what it remembers (docs/serving.md); none if the environment says nothing
/// and there is no home.
#[must_use]
pub fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(state) = folder("CENOTE_STATE_DIR") {
        return Some(state);
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/cenote".into());
    }
    match folder("XDG_STATE_HOME") {
        Some(states) => Some(states.join("cenote")),
        None => Some(folder("HOME")?.join(".local/state/cenote")),
    }
}

/// The cache file in it: the pools that the daemon has.
#[must_use]
pub fn cache_file(state: &Path) -> PathBuf {
    state.join("zpool.cache")
}

/// Whether a variable says yes, in the way in which OpenZFS asks: a number but 0, or `yes` or `on`.
pub(crate) fn is_on(name: &str) -> bool {
    let Some(value) = variable(name) else { return false };
    let value = value.to_string_lossy();
    let digits = value.trim_start().trim_start_matches('+');
    // Octal and hexadecimal digits: what matters is whether one of them counts.
    let has_hex = digits.starts_with("0x") || digits.starts_with("0X");
    let (digits, radix) = if has_hex { (&digits[2..], 16) } else { (digits, 10) };
    let is_number = digits.chars().take_while(|c| c.is_digit(radix)).any(|c| c != '0');
    is_number || value.eq_ignore_ascii_case("yes") || value.eq_ignore_ascii_case("on")
}

/// The zone that times are shown in.
pub(crate) fn time_zone() -> TimeZone {
    let Some(name) = variable(ZONE) else { return TimeZone::system() };
    let name = name.to_string_lossy();
    let name = name.trim_start_matches(':');
    // What the C library does not understand it takes for UTC.
    of_database(name).or_else(|| TimeZone::posix(name).ok()).unwrap_or(TimeZone::UTC)
}

/// A zone of the system's database. Not of any other file: whoever asks may not be whose process
/// this is.
fn of_database(name: &str) -> Option<TimeZone> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if name.is_empty() || !Path::new(name).components().all(is_plain) {
        return None;
    }
    let mut bytes = Vec::new();
    let file = File::open(Path::new(DATABASE).join(name)).ok()?;
    file.take(ZONE_MAX).read_to_end(&mut bytes).ok()?;
    TimeZone::tzif(name, &bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(variables: &[(&str, &str)], work: impl FnOnce() -> T) -> T {
        let own = |text: &str| OsString::from(text);
        lend(variables.iter().map(|(name, value)| (own(name), own(value))).collect(), work)
    }

    #[test]
    fn a_variable_says_yes_as_openzfs_asks() {
        for (value, wanted) in [
            ("1", true),
            ("0", false),
            ("", false),
            (" 12x", true),
            ("0x10", true),
            ("yes", true),
            ("YES", true),
            ("yes!", false),
            ("On", true),
            ("no", false),
        ] {
            assert_eq!(with(&[(BY_GUID, value)], || is_on(BY_GUID)), wanted, "'{value}'");
        }
        assert!(!with(&[], || is_on(BY_GUID)));
    }

    #[test]
    fn times_are_those_of_whoever_asks() {
        let hour = |zone: &str| with(&[(ZONE, zone)], || crate::zfs::value::date(0, "%H"));
        assert_eq!((hour("UTC"), hour(":UTC"), hour("")), ("00".into(), "00".into(), "00".into()));
        assert_eq!((hour("XYZ-5"), hour("../../../etc/passwd")), ("05".into(), "00".into()));
        if Path::new(DATABASE).join("Asia/Tokyo").exists() {
            assert_eq!(hour("Asia/Tokyo"), "09");
        }
        assert!(with(&[], || LENT.with_borrow(Option::is_some)));
        assert!(LENT.with_borrow(Option::is_none));
    }
}
