//! Parses values of dataset properties as users type them (spec 04 §7).

use cenote_ondisk::zap::Value;

use super::table::{Access, DATASET_PROPERTIES, Form, PropType, Property, property_named};
use super::{quantity, userspace};

/// Maximum length of the name of a user property.
const NAME_MAX: usize = 256;
const TEXT_MAX: usize = 8192;
/// Fewest iterations for a new passphrase.
const PBKDF2_MIN: u64 = 100_000;
/// Maximum length of a mount point.
const PATH_MAX: usize = 1024;

/// Parsed value of `refreservation=auto`: reserves all space that the volume can use.
pub const AUTO: u64 = u64::MAX;

/// Whether a property is set when its dataset is created or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// At creation, which permits set-once properties.
    Creation,
    /// On an existing dataset.
    Later,
}

/// Name of a property and the value to store.
pub type Setting = (String, Value);

/// Parses `name=text` for a dataset of type `kind`, a letter of [`Property::types`].
///
/// # Errors
/// OpenZFS's message: an unknown or read-only property, one of another type of dataset, or an
/// invalid value.
pub fn parse(name: &str, text: &str, kind: char, moment: Moment) -> Result<Setting, String> {
    if name.contains(':') {
        return user(name, text);
    }
    let Some(property) = property_named(DATASET_PROPERTIES, name) else {
        if userspace::parse(name).is_some() {
            return Err(format!("'{name}' does not apply to datasets of this type"));
        }
        return Err(format!("invalid property '{name}'"));
    };
    let name = property.name;
    match property.access {
        Access::ReadOnly => return Err(format!("'{name}' is readonly")),
        Access::SetOnce if moment == Moment::Later => return Err(format!("'{name}' is readonly")),
        _ => {}
    }
    // File systems can have properties that only volumes below them use.
    let is_for_volumes_below = property.is_inheritable && property.access != Access::SetOnce;
    let is_of_type = property.types.contains(kind) || is_for_volumes_below && kind == 'f';
    if !is_of_type {
        return Err(format!("'{name}' does not apply to datasets of this type"));
    }
    let value = match property.value_type {
        PropType::Index(names) => index(property, names, text)?,
        PropType::Number(_) if text == "auto" => Value::U64(auto(name, kind)?),
        PropType::Number(form) => Value::U64(number(property, form, text)?),
        PropType::Text => Value::text(text),
    };
    check(property, text, &value)?;
    Ok((name.to_owned(), value))
}

/// Checks the properties of a new file system together: normalized names are UTF-8.
///
/// # Errors
/// OpenZFS's message.
pub fn check_names(settings: &[Setting]) -> Result<(), String> {
    let value = |name: &str| settings.iter().find(|(there, _)| there == name)?.1.single();
    if value("normalization").is_some_and(|form| form != 0) && value("utf8only") == Some(0) {
        return Err("'utf8only' must be set 'on' if normalization chosen".to_owned());
    }
    Ok(())
}

/// Whether a property is stored in the property ZAP, and not in the object set.
#[must_use]
pub fn is_stored(name: &str) -> bool {
    let is_inside = matches!(
        name,
        "normalization" | "utf8only" | "casesensitivity" | "version" | "volsize" | "volblocksize"
    );
    let is_nothing = matches!(name, "encryption" | "keyformat" | "keylocation" | "pbkdf2iters");
    !is_inside && !is_nothing
}

/// Parses a user property (its name has a colon) of a dataset or a pool.
///
/// # Errors
/// OpenZFS's message: an illegal character, or a name or value that is too long.
pub fn user(name: &str, text: &str) -> Result<Setting, String> {
    let is_legal = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.' | ':');
    if !name.chars().all(is_legal) {
        return Err(format!("invalid property '{name}'"));
    }
    if name.len() >= NAME_MAX {
        return Err(format!("property name '{name}' is too long"));
    }
    if text.len() >= TEXT_MAX {
        return Err(format!("property value '{text}' is too long"));
    }
    Ok((name.to_owned(), Value::text(text)))
}

fn index(property: &Property, names: &[(&str, u64)], text: &str) -> Result<Value, String> {
    if property.name == "version" && text == "current" {
        return Ok(Value::U64(5));
    }
    // A value with several names is stored under the preferred one.
    let text = match (property.name, text) {
        ("compression", "gzip-6") => "gzip",
        ("compression", "zstd-fast-1") => "zstd-fast",
        ("aclinherit", "secure") => "restricted",
        ("acltype", "noacl") => "off",
        ("acltype", "posixacl") => "posix",
        _ => text,
    };
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, number)| Value::U64(*number)).ok_or_else(|| {
        let (name, values) = (property.name, property.values.unwrap_or_default());
        format!("'{name}' must be one of '{values}'")
    })
}

fn auto(name: &str, kind: char) -> Result<u64, String> {
    match (name, kind) {
        ("refreservation", 'v') => Ok(AUTO),
        ("refreservation", _) => Err(format!("'{name}=auto' only allowed on volumes")),
        _ => Err(format!("'auto' is invalid value for '{name}'")),
    }
}

fn number(property: &Property, form: Form, text: &str) -> Result<u64, String> {
    let name = property.name;
    if text == "none" {
        return match (form, name) {
            (Form::CountOrNone, _) => Ok(u64::MAX),
            (Form::BytesOrNone, _) => Ok(0),
            _ => Err(format!("'{name}' must be a number")),
        };
    }
    let number = quantity::parse(text)?;
    if number == 0 && matches!(name, "quota" | "refquota") {
        return Err(format!("use 'none' to disable {name}"));
    }
    Ok(number)
}

/// Checks rules beyond the type of the value.
fn check(property: &Property, text: &str, value: &Value) -> Result<(), String> {
    let name = property.name;
    let number = value.single().unwrap_or(0);
    let is_block = |number: u64| number.is_power_of_two() && (512..=16 << 20).contains(&number);
    match name {
        "recordsize" | "volblocksize" if !is_block(number) => {
            Err(format!("'{name}' must be power of 2 from 512B to 16M"))
        }
        "special_small_blocks" if number != 0 && !is_block(number) => Err(format!(
            "invalid '{name}={number}' property: must be zero or a power of 2 from 512B to 16M"
        )),
        "mountpoint" if !matches!(text, "none" | "legacy") && !text.starts_with('/') => {
            Err(format!("'{name}' must be an absolute path, 'none', or 'legacy'"))
        }
        "mountpoint" if text.len() > PATH_MAX => Err(format!("'{name}' is too long")),
        "sharenfs" if !is_share(text) => Err(format!("'{name}' cannot be set to invalid options")),
        "volsize" if number == 0 => Err(format!("'{name}' cannot be zero")),
        "keylocation" if !is_key_location(text) => Err(format!("invalid {name}")),
        "pbkdf2iters" if number < PBKDF2_MIN => {
            Err(format!("minimum pbkdf2 iterations is {PBKDF2_MIN}"))
        }
        "dedup" if number != 2 => {
            Err("deduplication is not supported by this version of cenote".to_owned())
        }
        "version" if number != 5 => {
            Err("versions below 5 are not supported by this version of cenote".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether a text is valid for `keylocation`.
#[must_use]
pub fn is_key_location(text: &str) -> bool {
    let prefixes = ["file:///", "https://", "http://"];
    matches!(text, "none" | "prompt")
        || prefixes.iter().any(|prefix| text.len() > prefix.len() && text.starts_with(prefix))
}

/// Whether a text is valid for `sharenfs`: on, off, or options of exports(5).
fn is_share(text: &str) -> bool {
    const OPTIONS: [&str; 37] = [
        "rw",
        "ro",
        "sec",
        "anon",
        "root",
        "insecure",
        "secure",
        "async",
        "sync",
        "no_wdelay",
        "wdelay",
        "nohide",
        "hide",
        "crossmnt",
        "no_subtree_check",
        "subtree_check",
        "insecure_locks",
        "secure_locks",
        "no_auth_nlm",
        "auth_nlm",
        "no_acl",
        "mountpoint",
        "mp",
        "fsuid",
        "refer",
        "replicas",
        "root_squash",
        "no_root_squash",
        "all_squash",
        "no_all_squash",
        "fsid",
        "anonuid",
        "anongid",
        "pnfs",
        "no_pnfs",
        "security_label",
        "xprtsec",
    ];
    let is_option = |option: &str| OPTIONS.contains(&option.split('=').next().unwrap_or_default());
    matches!(text, "on" | "off") || text.split(',').all(is_option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_values_are_parsed_and_refused_in_openzfs_words() {
        let parse = |text: &str, kind| {
            let (name, value) = text.split_once('=').expect("a setting");
            parse(name, value, kind, Moment::Creation)
        };
        let of = |name: &str, number| Ok((name.to_owned(), Value::U64(number)));
        assert_eq!(parse("compression=lz4", 'f'), of("compression", 15));
        assert_eq!(parse("recsize=1M", 'f'), of("recordsize", 1 << 20));
        assert_eq!(parse("quota=none", 'f'), of("quota", 0));
        assert_eq!(parse("refreservation=auto", 'v'), of("refreservation", AUTO));
        assert_eq!(parse("snapshot_limit=none", 'f'), of("snapshot_limit", u64::MAX));
        assert!(parse("sharenfs=rw=@10.0.0.0/8,no_root_squash", 'f').is_ok());
        for (text, want) in [
            ("nosuch=1", "invalid property 'nosuch'"),
            ("used=1", "'used' is readonly"),
            ("recordsize=3000", "'recordsize' must be power of 2 from 512B to 16M"),
            ("quota=x", "bad numeric value 'x'"),
            ("volsize=1G", "'volsize' does not apply to datasets of this type"),
            ("atime=maybe", "'atime' must be one of 'on | off'"),
            ("volblocksize=16K", "'volblocksize' does not apply to datasets of this type"),
            ("sharenfs=ON", "'sharenfs' cannot be set to invalid options"),
            ("refreservation=auto", "'refreservation=auto' only allowed on volumes"),
            ("reservation=auto", "'auto' is invalid value for 'reservation'"),
        ] {
            assert_eq!(parse(text, 'f'), Err(want.to_owned()), "{text}");
        }
    }
}
