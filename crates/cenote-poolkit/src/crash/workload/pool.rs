//! Operations on the pool itself: vdevs, features, properties, guid, checkpoint.

use std::sync::Arc;

use cenote_engine::admin::PoolSetting;
use cenote_engine::{CheckpointState, DeviceSource, Engine, Stop, TrimOptions};
use cenote_ondisk::leaf_work::{LeafWorkKind, LeafWorkState};
use cenote_ondisk::zap::Value;
use cenote_pool::OpenOptions;
use cenote_rt::{Result, yield_now};
use cenote_vdev::create::{Guids, Redundancy, VdevClass};

use super::{Layout, Script};
use crate::builder::new_vdev;
use crate::crash::facts::{POOL, text};
use crate::crash::keys;
use crate::crash::model::UPGRADES;

/// Rounds after which the sequence restarts.
const CYCLE: u64 = 16;
/// How often other tasks run, some dozens of steps each time, while a leaf is initialized.
const STEPS: u64 = 2;

impl Script {
    /// One operation in each round; a device of each kind is added once.
    pub(super) async fn change_pool(&mut self, round: u64) -> Result<()> {
        if round == self.rounds / 3 {
            self.add(Redundancy::Single, VdevClass::Log, 1, "adding a log").await?;
        } else if round == self.rounds * 2 / 3 {
            self.add_for_data().await?;
        }
        match round % CYCLE {
            0..=2 => self.upgrade().await,
            3 => self.trim().await,
            4 | 6 | 8 | 10 | 14 => self.grant(round / 2).await,
            5 => self.initialize(Stop::Suspend).await,
            7 => self.keep_checkpoint().await,
            9 => self.describe(round).await,
            11 => self.discard_checkpoint().await,
            12 => self.destroy_later().await,
            13 => self.reguid().await,
            15 => self.import_again().await,
            _ => Ok(()),
        }
    }

    /// Enables the next missing features (`zpool upgrade`).
    async fn upgrade(&mut self) -> Result<()> {
        let has = |name: &str| self.state.facts.contains_key(&(POOL.into(), name.into()));
        let new: Vec<_> = UPGRADES.into_iter().filter(|name| !has(name)).take(2).collect();
        if new.is_empty() {
            return self.initialize(Stop::Cancel).await;
        }
        let features = new.iter().map(|name| cenote_ondisk::feature::by_name(name).unwrap());
        self.engine.admin().set(features.map(PoolSetting::Feature).collect()).await?;
        for name in &new {
            self.say(POOL, name, "enabled".into());
        }
        self.acknowledge("upgrade");
        Ok(())
    }

    /// Sets properties, and the comment.
    async fn describe(&mut self, round: u64) -> Result<()> {
        let (comment, note) = (format!("round {round}"), "y".repeat(round as usize));
        let settings = vec![
            PoolSetting::Comment(Some(comment.clone())),
            PoolSetting::User("org.example:of-pool".into(), Some(note.clone())),
        ];
        self.engine.admin().set(settings).await?;
        self.say(POOL, "comment", comment);
        self.say(POOL, "org.example:of-pool", note);
        self.acknowledge("properties of the pool");
        let (limit, value) = ("filesystem_limit", Value::U64(20 + round));
        self.engine.properties().set("tank", limit, value.clone()).await?;
        self.say("tank", limit, text(&value));
        self.acknowledge(limit);
        Ok(())
    }

    /// Adds a disk, or a mirror if the layout has redundancy.
    pub(super) async fn add_for_data(&mut self) -> Result<()> {
        let (redundancy, count) = match self.layout.spare_devices() {
            0 => (Redundancy::Single, 1),
            _ => (Redundancy::Mirror, 2),
        };
        self.add(redundancy, VdevClass::Normal, count, "adding a vdev").await
    }

    pub(super) async fn add(
        &mut self,
        redundancy: Redundancy,
        class: VdevClass,
        count: usize,
        what: &'static str,
    ) -> Result<()> {
        let devices: Vec<_> = (0..count).map(|_| self.new_device()).collect();
        let id = self.engine.admin().next_vdev_id();
        let rng = &mut self.rng;
        let mut guids = Guids::new(|| Ok(rng.next_u64()));
        let (top, ashift) = ((redundancy, class), self.layout.ashift());
        let new = new_vdev(&self.engine, top, ashift, &devices, &mut guids)?;
        self.engine.admin().add_vdevs(new).await?;
        self.say(POOL, &format!("top {id}"), Layout::in_words(redundancy, class, count));
        self.acknowledge(what);
        Ok(())
    }

    /// Trims all leaves.
    async fn trim(&mut self) -> Result<()> {
        for leaf in self.engine.leaves().data_guids() {
            self.engine.leaves().start_trim(&[leaf], TrimOptions::default()).await?;
            self.say_work("trim", leaf, LeafWorkState::Active);
            self.acknowledge("trim");
            // To its end: the next acknowledged operation must not have a concurrent sync.
            self.engine.leaves().wait_for_work(&[leaf], LeafWorkKind::Trim).await?;
            self.say_work("trim", leaf, LeafWorkState::Complete);
            self.acknowledge("the end of a trim");
        }
        Ok(())
    }

    /// Initializes a part of a leaf.
    async fn initialize(&mut self, stop: Stop) -> Result<()> {
        let (leaves, kind) = (self.engine.leaves().data_guids(), LeafWorkKind::Initialize);
        let leaf = leaves[self.rng.below(leaves.len() as u64) as usize];
        self.engine.leaves().start_initialize(&[leaf]).await?;
        self.say_work("initialize", leaf, LeafWorkState::Active);
        self.acknowledge("initialize");
        for _ in 0..STEPS {
            yield_now().await;
        }
        let is_running = self.engine.leaves().is_work_running(leaf, kind).await?;
        if is_running {
            self.engine.leaves().stop_work(&[leaf], kind, stop).await?;
        }
        let state = match stop {
            _ if !is_running => LeafWorkState::Complete,
            Stop::Cancel => LeafWorkState::Canceled,
            Stop::Suspend | Stop::Forget => LeafWorkState::Suspended,
        };
        self.say_work("initialize", leaf, state);
        self.acknowledge("the end of initialize");
        Ok(())
    }

    fn say_work(&mut self, what: &str, leaf: u64, state: LeafWorkState) {
        self.say(POOL, &format!("{what} {leaf}"), format!("{state:?}"));
    }

    /// For some rounds it holds freed space.
    async fn keep_checkpoint(&mut self) -> Result<()> {
        self.engine.space().take_checkpoint().await?;
        self.say(POOL, "checkpoint", String::new());
        self.acknowledge("checkpoint");
        Ok(())
    }

    async fn discard_checkpoint(&mut self) -> Result<()> {
        if let CheckpointState::Kept(_) = self.engine.space().checkpoint_state() {
            self.engine.space().discard_checkpoint().await?;
            self.unsay(POOL, "checkpoint");
            self.acknowledge("discarding a checkpoint");
        }
        Ok(())
    }

    async fn reguid(&mut self) -> Result<()> {
        if self.engine.space().checkpoint_state() != CheckpointState::None {
            return Ok(());
        }
        let guid = self.rng.next_u64();
        self.engine.admin().reguid(guid).await?;
        self.say(POOL, "guid", guid.to_string());
        self.acknowledge("reguid");
        Ok(())
    }

    /// Exports the pool, and opens it again.
    pub(super) async fn import_again(&mut self) -> Result<()> {
        let guid = self.engine.guid();
        self.engine.export().await?;
        self.acknowledge("export");
        self.history.note_opening(self.engine.uberblock().txg);
        let devices = self.devices.all();
        self.engine = Engine::open_devices(devices, guid, &OpenOptions::default()).await?;
        let devices = Arc::clone(&self.devices) as Arc<dyn DeviceSource>;
        self.engine.leaves().set_device_source(devices);
        keys::load_all(&self.engine.view().await?).await?;
        self.acknowledge("import");
        Ok(())
    }
}
