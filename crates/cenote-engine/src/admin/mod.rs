//! Operations on the pool itself: its properties, features, guid and vdevs.
//!
//! ```text
//!   settings   pool_props, comment, compatibility, features      labels follow where they tell it
//!   vdevs      top-level vdevs, hot spares and cache devices that come
//!   aux        the lists of hot spares and cache devices
//!   command    what was typed, in the history
//! ```
//!
//! Each is a task of one sync: its changes of the MOS and of the config are committed together, or
//! none of them is.
//!
//! Sources: spec 01 §10-§15.

pub(crate) mod aux;
pub(crate) mod birth;
mod case;
mod command;
pub mod create;
pub(crate) mod damage;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod import;
mod layout;
mod memory;
mod recent;
pub(crate) mod settings;
pub(crate) mod told_history;
pub(crate) mod vdev_props;
mod vdevs;
pub(crate) mod view;

use std::sync::Arc;

use cenote_device::Device;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{PoolState, VdevConfig};
use cenote_ondisk::nvlist::NvString;
use cenote_rt::{BoxFuture, Result};
use cenote_vdev::labels;

use crate::admin::events::{Event, PoolEvent};
use crate::dsl::history::{self, PendingRecord};
use crate::dsl::{Context, Env};
use crate::space::checkpoint;
use crate::{Answer, Config, Engine, Scope, Task};
pub use command::{Command, Ioctl};
pub use settings::{PoolSetting, is_maintained};
pub use vdevs::NewVdevs;

/// Operations on the pool itself: its properties, name, guid and vdevs; made by [`Engine::admin`].
#[derive(Debug, Clone, Copy)]
pub struct Admin<'e> {
    pub(crate) engine: &'e Engine,
}

impl Admin<'_> {
    /// Changes the MOS and the config in the next sync, and waits for the commit.
    pub(crate) async fn change<T: Send + 'static>(
        self,
        change: impl FnMut(&mut Tx<'_>, &Context, &mut Config) -> TxResult<T> + Send + 'static,
    ) -> Result<T> {
        self.administer(change, true).await
    }

    /// Like [`change`](Self::change), for a change with records in the history.
    pub(crate) async fn change_recorded<T: Send + 'static>(
        self,
        mut change: impl FnMut(&mut Tx<'_>, &Env, &mut Config) -> TxResult<T> + Send + 'static,
    ) -> Result<T> {
        let mut env = self.engine.datasets().env(self.engine.open_txg());
        let change = move |tx: &mut Tx<'_>, context: &Context, config: &mut Config| {
            env.context = *context;
            change(tx, &env, config)
        };
        self.change(change).await
    }

    /// Changes the labels in the next sync, and waits for the commit.
    async fn change_labels(
        self,
        mut change: impl FnMut(&mut Config) + Send + 'static,
    ) -> Result<()> {
        let change = move |_: &mut Tx<'_>, _: &Context, config: &mut Config| {
            change(config);
            config.touch();
            Ok(())
        };
        self.administer(change, false).await
    }

    async fn administer<T: Send + 'static>(
        self,
        change: impl FnMut(&mut Tx<'_>, &Context, &mut Config) -> TxResult<T> + Send + 'static,
        may_change_objects: bool,
    ) -> Result<T> {
        let answer = Answer::new();
        let task = Administration { change, may_change_objects, answer: Arc::clone(&answer) };
        self.engine.run_task(Box::new(task)).await?;
        answer.take()
    }

    /// Changes the pool's guid, so that copies of its devices are another pool (spec 01 §14).
    ///
    /// # Errors
    /// A `CheckpointError` if the pool has a checkpoint; errors of a sync.
    pub async fn reguid(self, guid: u64) -> Result<()> {
        // The checkpoint's uberblock has the old guid sum.
        self.engine.space().check_no_checkpoint()?;
        self.change_recorded(move |tx, env, config| {
            checkpoint::check_none(tx)?;
            let text = format!("old={} new={guid}", config.facts.pool_guid);
            history::log_pool(tx, env, "guid change", &text)?;
            config.facts.pool_guid = guid;
            config.root.guid = guid;
            config.touch();
            Ok(())
        })
        .await?;
        self.engine.health.damage.note(Event::Pool(PoolEvent::Reguided));
        Ok(())
    }

    /// Renames the pool.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn rename(self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.change(move |_, _, config| {
            config.facts.name.clone_from(&name);
            config.stored_name = None;
            config.touch();
            Ok(())
        })
        .await
    }

    /// Sets a temporary name until the pool is closed; its name on disk does not change.
    pub async fn set_temporary_name(self, name: &str) {
        let change = |config: &mut Config| {
            let stored = std::mem::replace(&mut config.facts.name, name.to_owned());
            config.stored_name.get_or_insert(stored);
        };
        self.engine.change_config_between_syncs(change).await;
    }

    /// Stores the host that has the pool imported in the labels; `None` removes it.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn set_host(self, host: Option<(u64, String)>) -> Result<()> {
        self.change_labels(move |config| {
            config.facts.hostid = host.as_ref().map_or(0, |(id, _)| *id);
            config.facts.hostname = host.as_ref().map(|(_, name)| name.clone());
        })
        .await
    }

    /// Adds a record to the history that the administrator has imported the pool. It is written
    /// with the next operation on the pool, and lost if the history is damaged.
    pub fn note_import(self) {
        self.note_version("import");
    }

    /// Adds a pending record with the versions of the pool and the software.
    pub(crate) fn note_version(self, event: &'static str) {
        let version = self.engine.with_config(|config| config.facts.version);
        let text = history::version_text(version);
        self.engine.state().records.push(PendingRecord { event, text });
    }
}

/// Writes the label of a hot spare or cache device durably.
pub(crate) async fn write_aux_label(
    device: &Arc<dyn Device>,
    state: PoolState,
    config: &VdevConfig,
) -> Result<()> {
    let none = NvString::from_bytes(b"");
    let path = config.leaf.path.as_ref().or(none.as_ref());
    if let Some(path) = path {
        labels::write_aux(&**device, state, config.guid, path, config.top.ashift).await?;
    }
    device.flush().await
}

/// The task of [`Admin::change`].
struct Administration<F, T> {
    change: F,
    may_change_objects: bool,
    answer: Arc<Answer<T>>,
}

impl<F, T> Task for Administration<F, T>
where
    F: FnMut(&mut Tx<'_>, &Context, &mut Config) -> TxResult<T> + Send,
    T: Send,
{
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let before = engine.config();
            let change = &mut self.change;
            let result = engine
                .mos_apply(context.txg, |tx| {
                    // The closure may run several times: each time from the same state.
                    let mut config = before.clone();
                    let value = change(tx, context, &mut config)?;
                    Ok((value, config))
                })
                .await;
            if let Some((value, config)) = self.answer.unless_refused(result)? {
                scope.replace_config(config)?;
                engine.admin().apply_features().await?;
                self.answer.put(Ok(value));
            }
            Ok(())
        })
    }

    fn may_change_objects(&self) -> bool {
        self.may_change_objects
    }
}
