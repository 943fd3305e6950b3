//! A pool that a command shows: read from its last committed state, from memory where it is
//! suspended and its metadata cannot be read, or from its record where it could not be opened.

use std::sync::Arc;

use cenote_engine::{Engine, ScanPass};
use cenote_ondisk::config::{PoolFacts, VdevConfig};
use cenote_ondisk::master_node::VERSION_MAX;
use cenote_pool::Pool;
use cenote_pool::props::{POOL_PROPERTIES, PropRow, PropValue, Property, Source as Origin};
use cenote_pool::status::PoolStatus;
use serde_json::{Map, Value};

use super::json::Form;
use super::{Pools, in_time, is_impaired};
use crate::host::AbsentPool;
use crate::io::Exit;
use crate::source::Source;

/// A pool that a command shows.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shown<'a> {
    /// Its metadata can be read.
    Read(&'a Arc<Pool>),
    /// The pool is suspended, and its metadata cannot be read.
    FromMemory(&'a Arc<Engine>),
    /// The pool could not be opened.
    Absent(&'a AbsentPool),
}

/// Properties of a pool.
pub(super) struct Properties {
    /// All properties, for `all`.
    pub(super) all: Vec<PropRow>,
    /// The properties requested by name.
    pub(super) named: Vec<Option<PropRow>>,
}

impl Pools {
    /// All pools, the suspended ones that cannot be read, and those that could not be opened last.
    pub(super) fn shown(&self) -> impl Iterator<Item = Shown<'_>> {
        let from_memory = self.unread.iter().map(Shown::FromMemory);
        let absent = self.absent.iter().map(|pool| Shown::Absent(pool));
        self.open.iter().map(Shown::Read).chain(from_memory).chain(absent)
    }
}

impl<'a> Shown<'a> {
    /// The pool's name.
    pub(super) fn name(self) -> String {
        match self {
            Self::Read(pool) => pool.name().to_owned(),
            Self::FromMemory(engine) => engine.name(),
            Self::Absent(pool) => pool.name().to_owned(),
        }
    }

    /// The committed state, if it can be read.
    pub(super) fn pool(self) -> Option<&'a Arc<Pool>> {
        match self {
            Self::Read(pool) => Some(pool),
            Self::FromMemory(_) | Self::Absent(_) => None,
        }
    }

    /// The vdevs.
    pub(super) fn vdevs(self) -> VdevConfig {
        match self {
            Self::Read(pool) => pool.config().vdev_tree.clone(),
            Self::FromMemory(engine) => engine.admin().vdev_config(),
            Self::Absent(pool) => pool.root.clone(),
        }
    }

    /// The status; of a suspended pool from memory where it cannot be read in time.
    pub(super) async fn status(self, source: &Source) -> Result<PoolStatus, Exit> {
        let pool = match self {
            Self::Read(pool) => pool,
            Self::FromMemory(engine) => return Ok(engine.health().status_from_memory()),
            Self::Absent(pool) => return Ok(pool.status.clone()),
        };
        let engine = source.session.as_ref().and_then(|session| session.pool(pool.name()).ok());
        let Some(engine) = engine.filter(|engine| is_impaired(engine)) else {
            return Ok(Box::pin(pool.status()).await?);
        };
        let read = in_time(Box::pin(pool.status())).await;
        Ok(read.and_then(Result::ok).unwrap_or_else(|| engine.health().status_from_memory()))
    }

    /// What a scan did since the pool was opened; `None` if no process keeps the pool open.
    pub(super) fn scan_pass(self, source: &Source) -> Option<ScanPass> {
        let engine = match self {
            Self::Read(pool) => source.session.as_ref()?.pool(pool.name()).ok()?,
            Self::FromMemory(engine) => Arc::clone(engine),
            Self::Absent(_) => return None,
        };
        Some(engine.scans().pass())
    }

    /// The properties, with those of these names.
    pub(super) async fn properties(self, names: &[&str]) -> Result<Properties, Exit> {
        match self {
            Self::Read(pool) => {
                let props = pool.props().await?;
                let named = names.iter().map(|name| props.get(name)).collect();
                Ok(Properties { all: props.all(), named })
            }
            Self::FromMemory(_) | Self::Absent(_) => {
                let all = match self {
                    Self::FromMemory(engine) => engine.health().properties_from_memory(),
                    _ => self.recorded_properties(),
                };
                let row = |name: &&str| all.iter().find(|row| row.name == *name).cloned();
                let named = names.iter().map(row).collect();
                let is_hidden = |row: &PropRow| row.property.is_some_and(Property::is_hidden);
                let all = all.into_iter().filter(|row| !is_hidden(row)).collect();
                Ok(Properties { all, named })
            }
        }
    }

    /// The properties of a pool that could not be opened: few are known.
    fn recorded_properties(self) -> Vec<PropRow> {
        let Self::Absent(pool) = self else { return Vec::new() };
        let value = |name: &str| match name {
            "name" => PropValue::Text(pool.name().to_owned()),
            "health" => PropValue::Text(pool.status.health_name().to_owned()),
            "guid" => PropValue::Number(pool.guid()),
            _ => PropValue::Absent,
        };
        let row = |property: &'static Property| {
            PropRow::native(property, value(property.name), Origin::None)
        };
        POOL_PROPERTIES.iter().map(row).collect()
    }

    /// The start of a pool in JSON output.
    pub(super) fn json(self, form: Form, is_typed: bool) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("name".into(), self.name().into());
        if is_typed {
            map.insert("type".into(), "POOL".into());
        }
        let (state, guid, txg, version) = match self {
            Self::Read(pool) => {
                (pool.health_name(), pool.guid(), pool.config().facts.txg, pool.version())
            }
            Self::FromMemory(engine) => {
                let status = engine.health().status_from_memory();
                let version = engine.uberblock().version;
                (status.health_name(), engine.guid(), status.facts.txg, version)
            }
            Self::Absent(AbsentPool { status, .. }) => {
                let PoolFacts { pool_guid, txg, version, .. } = status.facts;
                (status.health_name(), pool_guid, txg, version)
            }
        };
        map.insert("state".into(), state.into());
        map.insert("pool_guid".into(), form.number(guid));
        map.insert("txg".into(), form.number(txg));
        map.insert("spa_version".into(), form.number(version));
        map.insert("zpl_version".into(), form.number(VERSION_MAX));
        map
    }

    /// The key of a pool in JSON output.
    pub(super) fn key(self, form: Form) -> String {
        if !form.is_keyed_by_guid {
            return self.name();
        }
        match self {
            Self::Read(pool) => pool.guid().to_string(),
            Self::FromMemory(engine) => engine.guid().to_string(),
            Self::Absent(pool) => pool.guid().to_string(),
        }
    }
}
