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
use std::sync::OnceLock;

use jiff::tz::TimeZone;

/// If set, option parsing stops at the first operand.
pub(crate) const POSIX: &str = "POSIXLY_CORRECT";
/// Directories to search for devices, separated by colons.
pub(crate) const IMPORT_PATH: &str = "ZPOOL_IMPORT_PATH";
/// Environment variables equivalent to the options `-g`, `-L` and `-P` of `zpool`.
pub(crate) const BY_GUID: &str = "ZPOOL_VDEV_NAME_GUID";
pub(crate) const FOLLOWS_LINKS: &str = "ZPOOL_VDEV_NAME_FOLLOW_LINKS";
pub(crate) const HAS_PATHS: &str = "ZPOOL_VDEV_NAME_PATH";
/// Whether `-c` of `zpool iostat` and `zpool status` may run scripts, and for root.
pub(crate) const SCRIPTS_ENABLED: &str = "ZPOOL_SCRIPTS_ENABLED";
pub(crate) const SCRIPTS_AS_ROOT: &str = "ZPOOL_SCRIPTS_AS_ROOT";
/// `on` for suggestions and short usage texts; if it is not set, they are for terminals.
const HINTS: &str = "CENOTE_HINTS";
/// Asks for colours, as OpenZFS's variable does. It is lent only if the output is a terminal.
const COLOUR: &str = "ZFS_COLOR";
/// The time zone.
const ZONE: &str = "TZ";
/// Directory of the time zone files, and the largest file that is read.
const DATABASE: &str = "/usr/share/zoneinfo";
const ZONE_MAX: u64 = 1 << 20;

/// All variables that commands read; they are sent along with a command to the process that runs
/// it.
pub const NAMES: [&str; 9] = [
    POSIX,
    IMPORT_PATH,
    BY_GUID,
    FOLLOWS_LINKS,
    HAS_PATHS,
    SCRIPTS_ENABLED,
    SCRIPTS_AS_ROOT,
    HINTS,
    ZONE,
];

/// Variables of another process, by name.
pub type Variables = Vec<(OsString, OsString)>;

thread_local! {
    static SUBSTITUTED: RefCell<Option<Variables>> = const { RefCell::new(None) };
}

/// Streams of this process that are terminals.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terminals {
    /// Standard output.
    pub output: bool,
    /// Standard error, for messages.
    pub messages: bool,
}

static TERMINALS: OnceLock<Terminals> = OnceLock::new();

/// Says once which streams of this process are terminals; unless it is called, none is.
pub fn set_terminals(terminals: Terminals) {
    TERMINALS.get_or_init(|| terminals);
}

/// Returns the streams of this process that are terminals.
#[must_use]
pub fn terminals() -> Terminals {
    TERMINALS.get().copied().unwrap_or_default()
}

/// Whether the environment of this process asks for colours, and its output can show them.
fn can_show_colours() -> bool {
    let is_set = |name| std::env::var_os(name).is_some();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    terminals().output && is_set(COLOUR) && !is_set("NO_COLOR") && !is_dumb
}

/// Returns the variables of this process that commands read.
#[must_use]
pub fn own() -> Variables {
    let value = |name: &&str| Some((OsString::from(name), std::env::var_os(name)?));
    let mut own: Variables = NAMES.iter().filter_map(value).collect();
    if terminals().messages && std::env::var_os(HINTS).is_none() {
        own.push((HINTS.into(), "on".into()));
    }
    if can_show_colours() {
        own.push((COLOUR.into(), "1".into()));
    }
    own
}

/// Whether messages are for a person, with suggestions and short usage texts: if `CENOTE_HINTS`
/// says so, or if it is not set and they go to a terminal.
pub(crate) fn wants_hints() -> bool {
    let is_own = SUBSTITUTED.with_borrow(Option::is_none);
    is_on(HINTS) || (is_own && variable(HINTS).is_none() && terminals().messages)
}

/// Whether output is to be coloured: `ZFS_COLOR` is set, and it goes to a terminal.
pub(crate) fn wants_colours() -> bool {
    let lent = SUBSTITUTED.with_borrow(Option::is_some);
    if lent { variable(COLOUR).is_some() } else { can_show_colours() }
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
