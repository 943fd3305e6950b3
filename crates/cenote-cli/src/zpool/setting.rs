//! Values of pool properties and features as typed (spec 01 §11, §12).

use std::collections::BTreeSet;
use std::path::PathBuf;

use cenote_engine::admin::PoolSetting;
use cenote_pool::features::{self, compat};
use cenote_pool::import::Host;
use cenote_pool::props::{
    Access, POOL_PROPERTIES, PropType, property_named, quantity, text as dataset_text,
};

use crate::argument;

/// Longest comment.
const COMMENT_MAX: usize = 32;
/// Allowed values of `ashift`.
const ASHIFT: std::ops::RangeInclusive<u64> = 9..=16;

/// The requested properties of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wanted {
    /// Properties to store.
    pub(crate) settings: Vec<PoolSetting>,
    /// Sector size shift of the vdevs, if given.
    pub(crate) ashift: Option<u64>,
    /// Folder that mount points are relative to, and the cache file: both as long as the pool is
    /// imported.
    pub(crate) altroot: Option<String>,
    cache_file: Option<String>,
    /// Names of feature sets.
    pub(crate) compatibility: Option<String>,
    /// Features to enable or to leave disabled.
    features: Vec<(&'static str, bool)>,
}

impl Wanted {
    /// Returns the altroot, if `-R` or a property gives one; the inner error is a value that is not
    /// an absolute path.
    pub(crate) fn root(&self, short: Option<&str>) -> Result<Option<PathBuf>, String> {
        match short.or(self.altroot.as_deref()) {
            Some(folder) if !folder.starts_with('/') => Err(folder.to_owned()),
            folder => Ok(folder.map(argument::path)),
        }
    }

    /// Refuses a `bootfs` outside of the pool.
    pub(crate) fn check_bootfs(&self, pool: &str) -> Result<(), String> {
        let named = self.settings.iter().find_map(|setting| match setting {
            PoolSetting::Bootfs(dataset) => dataset.as_deref(),
            _ => None,
        });
        match named {
            Some(dataset) if dataset.split('/').next() != Some(pool) => {
                Err(format!("'{dataset}' is an invalid name"))
            }
            _ => Ok(()),
        }
    }

    /// Parses `property=value`. `is_new`: for a pool that is being created.
    ///
    /// # Errors
    /// OpenZFS's message about what is wrong.
    pub(crate) fn add(&mut self, name: &str, text: &str, is_new: bool) -> Result<(), String> {
        if let Some(feature) = name.strip_prefix("feature@") {
            return self.add_feature(feature, text, is_new);
        }
        if name.contains(':') {
            dataset_text::user(name, text)?;
            let text = (!text.is_empty()).then(|| text.to_owned());
            self.settings.push(PoolSetting::User(name.to_owned(), text));
            return Ok(());
        }
        let Some(property) = property_named(POOL_PROPERTIES, name) else {
            return Err(format!("invalid property '{name}'"));
        };
        let name = property.name;
        if property.access == Access::ReadOnly {
            return Err(format!("'{name}' is readonly"));
        }
        match name {
            "altroot" => {
                self.altroot = Some(text.to_owned());
                return Ok(());
            }
            "cachefile" if !matches!(text, "" | "none") && !text.starts_with('/') => {
                return Err(format!(
                    "property '{name}' must be empty, an absolute path, or 'none'"
                ));
            }
            "cachefile" => {
                self.cache_file = Some(text.to_owned());
                return Ok(());
            }
            "readonly" if is_new => return Err("'readonly' cannot be set at creation".to_owned()),
            "readonly" => {
                return Err(format!("property '{name}' can only be set at import time"));
            }
            "version" => return check_version(text),
            "comment" => return self.set_comment(text),
            "compatibility" => return self.set_compatibility(text),
            "bootfs" if text.contains(['@', '#']) => {
                return Err(format!("'{text}' is an invalid name"));
            }
            "bootfs" => {
                let dataset = (!matches!(text, "" | "-")).then(|| text.to_owned());
                self.settings.push(PoolSetting::Bootfs(dataset));
                return Ok(());
            }
            "multihost" if text == "on" && Host::current().hostid == 0 => {
                return Err("requires a non-zero system hostid".to_owned());
            }
            _ => {}
        }
        let value = match property.value_type {
            PropType::Index(names) => {
                let found = names.iter().find(|(there, _)| *there == text);
                let values = property.values.unwrap_or_default();
                found.ok_or_else(|| format!("'{name}' must be one of '{values}'"))?.1
            }
            _ if name == "dedup_table_quota" && text == "none" => 0,
            _ if name == "dedup_table_quota" && text == "auto" => u64::MAX,
            _ => quantity::parse(text)?,
        };
        if name == "ashift" {
            if value != 0 && !ASHIFT.contains(&value) {
                return Err(format!(
                    "property '{name}' number {value} is invalid, \
                     only values between 9 and 16 are allowed"
                ));
            }
            self.ashift = (value != 0).then_some(value);
        }
        self.settings.push(PoolSetting::Property(name, value));
        Ok(())
    }

    /// Returns the cache file if it is not the default one; empty for none. With `is_renamed` the
    /// pool has a temporary name, under which it would not be found again.
    pub(crate) fn cache_file(&self, is_renamed: bool) -> Option<PathBuf> {
        match self.cache_file.as_deref() {
            Some("none") => Some(PathBuf::new()),
            Some("") => None,
            Some(file) => Some(PathBuf::from(file)),
            None => is_renamed.then(PathBuf::new),
        }
    }

    fn add_feature(&mut self, name: &str, text: &str, is_new: bool) -> Result<(), String> {
        let feature = features::by_name(name).filter(|feature| features::is_in_identity(feature));
        let Some(feature) = feature else {
            return Err(format!("feature '{name}' unsupported by kernel"));
        };
        match text {
            "enabled" => self.features.push((feature.name, true)),
            "disabled" if is_new => self.features.push((feature.name, false)),
            _ if is_new => {
                let text = "can only be set to 'enabled' or 'disabled'";
                return Err(format!("property 'feature@{name}' {text}"));
            }
            _ => return Err(format!("property 'feature@{name}' can only be set to 'enabled'")),
        }
        if !is_new {
            self.settings.push(PoolSetting::Feature(feature));
        }
        Ok(())
    }

    fn set_comment(&mut self, text: &str) -> Result<(), String> {
        if text.chars().any(|c| !c.is_ascii_graphic() && c != ' ') {
            return Err("comment may only have printable characters".to_owned());
        }
        if text.len() > COMMENT_MAX {
            return Err(format!("comment must not exceed {COMMENT_MAX} characters"));
        }
        let text = (!text.is_empty()).then(|| text.to_owned());
        self.settings.push(PoolSetting::Comment(text));
        Ok(())
    }

    fn set_compatibility(&mut self, text: &str) -> Result<(), String> {
        if compat::allowed(Some(text)).is_none() {
            return Err(format!("compatibility property value '{text}' names no readable file"));
        }
        let text = (!matches!(text, "" | "off")).then(|| text.to_owned());
        self.compatibility.clone_from(&text);
        self.settings.push(PoolSetting::Compatibility(text));
        Ok(())
    }

    /// Returns the features of a new pool, in the order of the table; with `none` only the
    /// requested ones.
    pub(crate) fn new_features(&self, none: bool) -> Vec<&'static features::Feature> {
        let mut names = if none {
            BTreeSet::new()
        } else {
            compat::allowed(self.compatibility.as_deref()).unwrap_or_default()
        };
        for (name, is_wanted) in &self.features {
            if *is_wanted {
                names.insert(name);
            } else {
                names.remove(name);
            }
        }
        features::identity().filter(|feature| names.contains(feature.name)).collect()
    }
}

fn check_version(text: &str) -> Result<(), String> {
    match text {
        "5000" => Ok(()),
        _ => Err(format!("property 'version' number {text} is invalid.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_a_new_pool() {
        let mut wanted = Wanted::default();
        for (name, text) in [("ashift", "12"), ("feature@zstd_compress", "disabled")] {
            assert_eq!(wanted.add(name, text, true), Ok(()));
        }
        assert_eq!(wanted.ashift, Some(12));
        let all = wanted.new_features(false);
        assert!(all.iter().all(|feature| feature.name != "zstd_compress"));
        assert!(wanted.new_features(true).is_empty());
        for (name, text, want) in [
            ("size", "1", "'size' is readonly"),
            ("autotrim", "x", "'autotrim' must be one of 'on | off'"),
            ("nosuch", "1", "invalid property 'nosuch'"),
            ("cachefile", "x", "property 'cachefile' must be empty, an absolute path, or 'none'"),
        ] {
            assert_eq!(wanted.add(name, text, true), Err(want.to_owned()));
        }
    }
}
