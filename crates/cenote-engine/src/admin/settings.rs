//! Properties and features of a pool (spec 01 §11, §12).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use cenote_block::policy::PoolPolicy;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dsl::key;
use cenote_ondisk::feature::Feature;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::mos::{self, DIRECTORY};
use cenote_rt::Result;

use crate::Admin;
use crate::Config;
use crate::admin::import::MAINTAINED;
use crate::dsl;
use crate::dsl::errors::{self, HEAD_ERRLOG};
use crate::dsl::{Context, features, history, names};

/// Operation of the history: a property or feature was set.
pub(crate) const SET: &str = "set";
/// Behaviour of a suspended pool.
const FAILMODE: &str = "failmode";
/// Whether freed space is trimmed.
const AUTOTRIM: &str = "autotrim";
/// Whether vdevs become larger with their devices.
const AUTOEXPAND: &str = "autoexpand";
/// Whether new devices replace those in whose place they are.
const AUTOREPLACE: &str = "autoreplace";
/// Whether heartbeats show other hosts that the pool is in use.
const MULTIHOST: &str = "multihost";
/// The dataset to boot from, stored as its number.
const BOOTFS: &str = "bootfs";

/// Whether a pool on which the feature is active can be opened for writing.
#[must_use]
pub fn is_maintained(feature: &Feature) -> bool {
    MAINTAINED.contains(&feature.name)
}

/// A change of a property or feature.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolSetting {
    /// A number property.
    Property(&'static str, u64),
    /// A user property; `None` removes it.
    User(String, Option<String>),
    /// The dataset to boot from; `None` removes it.
    Bootfs(Option<String>),
    /// The property `comment`; `None` removes it.
    Comment(Option<String>),
    /// The property `compatibility`; `None` removes it.
    Compatibility(Option<String>),
    /// Enables a feature and its dependencies.
    Feature(&'static Feature),
}

impl Admin<'_> {
    /// Whether a feature is enabled.
    ///
    /// # Errors
    /// Errors of a device.
    pub async fn has_feature(self, name: &'static str) -> Result<bool> {
        self.engine.mos.inspect(|tx| features::is_enabled(tx, name)).await
    }

    /// Changes properties and features in one txg.
    ///
    /// # Errors
    /// `OpError::NotFound` if a named dataset does not exist; errors of a sync.
    pub async fn set(self, settings: Vec<PoolSetting>) -> Result<()> {
        let numbers: Vec<_> = settings
            .iter()
            .filter_map(|setting| match setting {
                PoolSetting::Property(name, value) => Some((*name, *value)),
                _ => None,
            })
            .collect();
        let births = self.births_of_lost_blocks(&settings).await?;
        self.change_recorded(move |tx, env, config| {
            let were_by_head = errors::are_by_head(tx)?;
            settings.iter().try_for_each(|setting| {
                let text = apply(tx, env, config, setting)?;
                history::log_pool(tx, env, SET, &text)
            })?;
            if !were_by_head && errors::are_by_head(tx)? {
                errors::split_by_head(tx, &births)?;
            }
            Ok(())
        })
        .await?;
        let is_expanding = numbers.contains(&(AUTOEXPAND, 1));
        for (name, value) in numbers {
            self.apply_property(name, value);
        }
        if is_expanding {
            self.engine.leaves().expand(None).await?;
        }
        Ok(())
    }

    /// Returns the births of the blocks in the error log, if `settings` enable the feature that
    /// records them. A block that cannot be looked up has none.
    async fn births_of_lost_blocks(
        self,
        settings: &[PoolSetting],
    ) -> Result<BTreeMap<Bookmark, u64>> {
        let mut births = BTreeMap::new();
        let enabling = PoolSetting::Feature(features::known(HEAD_ERRLOG));
        if !settings.contains(&enabling) || self.has_feature(HEAD_ERRLOG).await? {
            return Ok(births);
        }
        let view = self.engine.view().await?;
        for block in view.error_log().await? {
            let birth = mos::unless_interrupted(block.birth_in(&view).await)?;
            births.extend(birth.ok().flatten().map(|birth| (block.place, birth)));
        }
        Ok(births)
    }

    /// Applies the value of a property from now on.
    fn apply_property(self, name: &str, value: u64) {
        match name {
            FAILMODE => self.engine.health.suspension.set_mode(value),
            MULTIHOST => self.engine.set_multihost(value != 0),
            AUTOTRIM => self.engine.leaf.auto_trim.set(value != 0),
            AUTOEXPAND => self.engine.leaf.autoexpand.store(value != 0, Ordering::Relaxed),
            AUTOREPLACE => self.engine.leaf.autoreplace.store(value != 0, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Applies the features to the block policy, in the txg that enables them, so that each later
    /// one complies: a hole without birth would count as older than the feature (spec 02 §9.6).
    ///
    /// # Errors
    /// Errors of a device.
    pub(crate) async fn apply_features(self) -> Result<()> {
        let policy = |tx: &mut Tx<'_>| PoolPolicy::of(|name| features::is_active(tx, name));
        let policy = self.engine.mos.inspect(policy).await?;
        self.engine.config.set_policy(policy);
        self.engine.heads.all().iter().for_each(|head| head.set_pool_policy(policy));
        Ok(())
    }

    /// Applies all properties.
    ///
    /// # Errors
    /// Errors of a device.
    pub(crate) async fn apply_properties(self) -> Result<()> {
        for name in [FAILMODE, AUTOTRIM, AUTOEXPAND, AUTOREPLACE, MULTIHOST] {
            let value = self
                .engine
                .mos
                .inspect(|tx| match dsl::directory_object(tx, key::POOL_PROPS)? {
                    Some(object) => zap::lookup_u64(tx, object, name),
                    None => Ok(None),
                })
                .await?;
            self.apply_property(name, value.unwrap_or(0));
        }
        self.engine.leaves().apply_error_rates().await
    }
}

/// Applies a setting, and returns it as the history has it.
fn apply(
    tx: &mut Tx<'_>,
    ctx: &Context,
    config: &mut Config,
    setting: &PoolSetting,
) -> TxResult<String> {
    match setting {
        PoolSetting::Property(name, value) => put(tx, name, *value)?,
        PoolSetting::User(name, Some(text)) => put(tx, name, Value::text(text))?,
        PoolSetting::User(name, None) => remove(tx, name)?,
        PoolSetting::Bootfs(Some(dataset)) => {
            let object = names::head(tx, dataset)?;
            put(tx, BOOTFS, object)?;
            return Ok(format!("{BOOTFS}={object}"));
        }
        PoolSetting::Bootfs(None) => remove(tx, BOOTFS)?,
        PoolSetting::Comment(text) => {
            config.facts.comment.clone_from(text);
            config.touch();
        }
        PoolSetting::Compatibility(text) => {
            config.facts.compatibility.clone_from(text);
            config.touch();
        }
        // The sync updates the feature list in the labels.
        PoolSetting::Feature(feature) => features::enable(tx, feature, ctx.txg).map(drop)?,
    }
    Ok(text_of(setting))
}

/// Returns a setting as OpenZFS's history has it; a dataset to boot from as none.
pub(crate) fn text_of(setting: &PoolSetting) -> String {
    match setting {
        // OpenZFS prints numbers with a sign.
        PoolSetting::Property(name, value) => format!("{name}={}", value.cast_signed()),
        PoolSetting::User(name, text) => format!("{name}={}", text.as_deref().unwrap_or("")),
        PoolSetting::Bootfs(_) => format!("{BOOTFS}=0"),
        PoolSetting::Comment(text) => format!("comment={}", text.as_deref().unwrap_or("")),
        PoolSetting::Compatibility(text) => {
            format!("compatibility={}", text.as_deref().unwrap_or("off"))
        }
        PoolSetting::Feature(feature) => format!("feature@{}=enabled", feature.name),
    }
}

/// Returns the object of the properties, which is created with the first of them.
fn properties(tx: &mut Tx<'_>) -> TxResult<u64> {
    if let Some(object) = dsl::directory_object(tx, key::POOL_PROPS)? {
        return Ok(object);
    }
    let spec = ObjectSpec::new(ObjectType::POOL_PROPS, 0);
    let object = zap::create(tx, &spec, ZapOptions::default())?;
    zap::update(tx, DIRECTORY, key::POOL_PROPS, object)?;
    Ok(object)
}

fn put(tx: &mut Tx<'_>, name: &str, value: impl Into<Value>) -> TxResult<()> {
    let object = properties(tx)?;
    zap::update(tx, object, name, value)
}

fn remove(tx: &mut Tx<'_>, name: &str) -> TxResult<()> {
    match dsl::directory_object(tx, key::POOL_PROPS)? {
        Some(object) => zap::take(tx, object, name).map(drop),
        None => Ok(()),
    }
}
