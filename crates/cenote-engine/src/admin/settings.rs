//! Properties and features of a pool (spec 01 §11, §12).

use cenote_block::policy::PoolPolicy;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::feature::Feature;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::Result;

use crate::Admin;
use crate::Config;
use crate::admin::import::MAINTAINED;
use crate::dsl;
use crate::dsl::{Context, features, names};

/// Pool directory: properties that were set.
const POOL_PROPS: &str = "pool_props";
/// The property that says what becomes of those who want something of a suspended pool.
const FAILMODE: &str = "failmode";
/// The property that discards what becomes free.
const AUTOTRIM: &str = "autotrim";
/// The property that has other hosts told that the pool is in use.
const MULTIHOST: &str = "multihost";
/// The property that names a dataset, and is stored as its number.
const BOOTFS: &str = "bootfs";

/// Whether a pool on which the feature is active can be opened for writing.
#[must_use]
pub fn is_maintained(feature: &Feature) -> bool {
    MAINTAINED.contains(&feature.name)
}

/// A change of one property or feature.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolSetting {
    /// A property that is kept among the pool's; an empty text takes a user property away.
    Property(&'static str, u64),
    /// A user property; none takes it away.
    User(String, Option<String>),
    /// The dataset to boot from; none for no such.
    Bootfs(Option<String>),
    /// Words of the administrator; none takes them away.
    Comment(Option<String>),
    /// Names of feature sets; none for no restriction.
    Compatibility(Option<String>),
    /// A feature is enabled, with those that it needs.
    Feature(&'static Feature),
}

impl Admin<'_> {
    /// Whether a feature is enabled.
    ///
    /// # Errors
    /// A device's.
    pub async fn has_feature(self, name: &'static str) -> Result<bool> {
        self.engine.mos.inspect(|tx| features::is_enabled(tx, name)).await
    }

    /// Changes properties and features, all in one txg.
    ///
    /// # Errors
    /// `OpError::NotFound` if a dataset that is named is not there; those of a sync.
    pub async fn set(self, settings: Vec<PoolSetting>) -> Result<()> {
        let numbers: Vec<_> = settings
            .iter()
            .filter_map(|setting| match setting {
                PoolSetting::Property(name, value) => Some((*name, *value)),
                _ => None,
            })
            .collect();
        self.change(move |tx, ctx, config| {
            settings.iter().try_for_each(|setting| apply(tx, ctx, config, setting))
        })
        .await?;
        for (name, value) in numbers {
            self.apply_property(name, value);
        }
        Ok(())
    }

    /// Does what a property says, from now on.
    fn apply_property(self, name: &str, value: u64) {
        match name {
            FAILMODE => self.engine.health.suspension.set_mode(value),
            MULTIHOST => self.engine.set_multihost(value != 0),
            AUTOTRIM => self.engine.leaf.auto_trim.set(value != 0),
            _ => {}
        }
    }

    /// Takes over what the features mean for blocks. In the txg that enables them, so that each
    /// later one keeps to it: a hole without birth would count as one from before (spec 02 §9.6).
    ///
    /// # Errors
    /// A device's.
    pub(crate) async fn apply_features(self) -> Result<()> {
        let policy = |tx: &mut Tx<'_>| PoolPolicy::of(|name| features::is_active(tx, name));
        let policy = self.engine.mos.inspect(policy).await?;
        self.engine.config.set_policy(policy);
        self.engine.heads.all().iter().for_each(|head| head.set_pool_policy(policy));
        Ok(())
    }

    /// Takes over what the properties say.
    ///
    /// # Errors
    /// A device's.
    pub(crate) async fn apply_properties(self) -> Result<()> {
        for name in [FAILMODE, AUTOTRIM, MULTIHOST] {
            let value = self
                .engine
                .mos
                .inspect(|tx| match dsl::directory_object(tx, POOL_PROPS)? {
                    Some(object) => zap::lookup_u64(tx, object, name),
                    None => Ok(None),
                })
                .await?;
            self.apply_property(name, value.unwrap_or(0));
        }
        Ok(())
    }
}

fn apply(
    tx: &mut Tx<'_>,
    ctx: &Context,
    config: &mut Config,
    setting: &PoolSetting,
) -> TxResult<()> {
    match setting {
        PoolSetting::Property(name, value) => put(tx, name, *value),
        PoolSetting::User(name, Some(text)) => put(tx, name, Value::text(text)),
        PoolSetting::User(name, None) => remove(tx, name),
        PoolSetting::Bootfs(Some(dataset)) => {
            let object = names::head(tx, dataset)?;
            put(tx, BOOTFS, object)
        }
        PoolSetting::Bootfs(None) => remove(tx, BOOTFS),
        PoolSetting::Comment(text) => {
            config.facts.comment.clone_from(text);
            config.touch();
            Ok(())
        }
        PoolSetting::Compatibility(text) => {
            config.facts.compatibility.clone_from(text);
            config.touch();
            Ok(())
        }
        // The sync itself sees to the list of features in the labels.
        PoolSetting::Feature(feature) => features::enable(tx, feature, ctx.txg).map(drop),
    }
}

/// The object of the properties, made with the first of them.
fn properties(tx: &mut Tx<'_>) -> TxResult<u64> {
    if let Some(object) = dsl::directory_object(tx, POOL_PROPS)? {
        return Ok(object);
    }
    let spec = ObjectSpec::new(ObjectType::POOL_PROPS, 0);
    let object = zap::create(tx, &spec, ZapOptions::default())?;
    zap::update(tx, DIRECTORY, POOL_PROPS, object)?;
    Ok(object)
}

fn put(tx: &mut Tx<'_>, name: &str, value: impl Into<Value>) -> TxResult<()> {
    let object = properties(tx)?;
    zap::update(tx, object, name, value)
}

fn remove(tx: &mut Tx<'_>, name: &str) -> TxResult<()> {
    match dsl::directory_object(tx, POOL_PROPS)? {
        Some(object) => zap::take(tx, object, name).map(drop),
        None => Ok(()),
    }
}
