//! Environment variables that commands read: those of the command's caller.
//!
//! In a session the variables arrive with the command and are not the daemon's own. A command runs
//! on one thread from start to end, and that thread waits for the tasks that the command starts.
//! Its variables are therefore thread-local, and deep functions such as the option parser need no
//! parameter for them.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use jiff::tz::TimeZone;

/// If set, option parsing stops at the first operand.
pub(crate) const POSIX: &str = "POSIXLY_CORRECT";
/// Directories to search for devices, separated by colons.
pub(crate) const IMPORT_PATH: &str = "ZPOOL_IMPORT_PATH";
/// Environment variables equivalent to the options `-g`, `-L` and `-P` of `zpool`.
pub(crate) const BY_GUID: &str = "ZPOOL_VDEV_NAME_GUID";
pub(crate) const FOLLOWS_LINKS: &str = "ZPOOL_VDEV_NAME_FOLLOW_LINKS";
pub(crate) const HAS_PATHS: &str = "ZPOOL_VDEV_NAME_PATH";
/// The time zone.
const ZONE: &str = "TZ";
/// Directory of the time zone files, and the largest file that is read.
const DATABASE: &str = "/usr/share/zoneinfo";
const ZONE_MAX: u64 = 1 << 20;

/// All variables that commands read; they are sent along with a command to the process that runs
/// it.
pub const NAMES: [&str; 6] = [POSIX, IMPORT_PATH, BY_GUID, FOLLOWS_LINKS, HAS_PATHS, ZONE];

/// Variables of another process, by name.
pub type Variables = Vec<(OsString, OsString)>;

thread_local! {
    static SUBSTITUTED: RefCell<Option<Variables>> = const { RefCell::new(None) };
}

/// Returns the variables of this process that commands read.
#[must_use]
pub fn own() -> Variables {
    let value = |name: &&str| Some((OsString::from(name), std::env::var_os(name)?));
    NAMES.iter().filter_map(value).collect()
}

/// Runs `work` as if this process had been started with these variables.
pub(crate) fn lend<T>(variables: Variables, work: impl FnOnce() -> T) -> T {
    SUBSTITUTED.set(Some(variables));
    let done = work();
    SUBSTITUTED.set(None);
    done
}

/// Returns the value of a variable.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    SUBSTITUTED.with_borrow(|lent| match lent {
        Some(lent) => {
            lent.iter().find(|(there, _)| there == OsStr::new(name)).map(|(_, value)| value.clone())
        }
        None => std::env::var_os(name),
    })
}

/// Returns the daemon's state folder (docs/serving.md); `None` if no variable names it and there is
/// no home directory.
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

/// Returns the cache file in the state folder: it lists the daemon's pools.
#[must_use]
pub fn cache_file(state: &Path) -> PathBuf {
    state.join("zpool.cache")
}

/// Whether a variable is set to yes, by OpenZFS's rule: a number other than 0, or `yes` or `on`.
pub(crate) fn is_on(name: &str) -> bool {
    let Some(value) = variable(name) else { return false };
    let value = value.to_string_lossy();
    let digits = value.trim_start().trim_start_matches('+');
    // Octal and hexadecimal digits: only whether one of them is nonzero matters.
    let has_hex = digits.starts_with("0x") || digits.starts_with("0X");
    let (digits, radix) = if has_hex { (&digits[2..], 16) } else { (digits, 10) };
    let is_number = digits.chars().take_while(|c| c.is_digit(radix)).any(|c| c != '0');
    is_number || value.eq_ignore_ascii_case("yes") || value.eq_ignore_ascii_case("on")
}

/// Returns the time zone that times are shown in.
pub(crate) fn time_zone() -> TimeZone {
    let Some(name) = variable(ZONE) else { return TimeZone::system() };
    let name = name.to_string_lossy();
    let name = name.trim_start_matches(':');
    // The C library treats a time zone that it does not understand as UTC.
    of_database(name).or_else(|| TimeZone::posix(name).ok()).unwrap_or(TimeZone::UTC)
}

/// Loads a zone of the system's database. No other file may be opened: the caller may be another
/// user than the owner of this process.
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
    fn environment_variables_are_true_for_the_values_that_openzfs_takes() {
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
    fn times_are_in_the_time_zone_of_the_caller() {
        let hour = |zone: &str| with(&[(ZONE, zone)], || crate::zfs::value::date(0, "%H"));
        assert_eq!((hour("UTC"), hour(":UTC"), hour("")), ("00".into(), "00".into(), "00".into()));
        assert_eq!((hour("XYZ-5"), hour("../../../etc/passwd")), ("05".into(), "00".into()));
        if Path::new(DATABASE).join("Asia/Tokyo").exists() {
            assert_eq!(hour("Asia/Tokyo"), "09");
        }
        assert!(with(&[], || SUBSTITUTED.with_borrow(Option::is_some)));
        assert!(SUBSTITUTED.with_borrow(Option::is_none));
    }
}
