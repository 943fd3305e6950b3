//! Pools with a file system, and checks of their contents.

use std::sync::Arc;

use cenote_device::ImageDevice;
use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::{Attributes, WriteOptions};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::Result;

/// A pool in memory with its root file system mounted.
pub(crate) struct Fixture {
    pub(crate) engine: Arc<Engine>,
    pub(crate) devices: Vec<Arc<ImageDevice>>,
    pub(crate) mount: Arc<Mount>,
}

pub(crate) fn root() -> Credentials {
    Credentials::root()
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::of(&PoolBuilder::file_system()).await
    }

    pub(crate) async fn of(builder: &PoolBuilder) -> Self {
        let (engine, devices) = builder.create_in_memory().await;
        let mount = Mount::open(&engine, "tank").await.unwrap();
        Self { engine, devices, mount }
    }

    /// Writes everything to disk, and opens the pool again.
    pub(crate) async fn reopen(self) -> Self {
        let Self { engine, devices, mount } = self;
        drop(mount);
        engine.export().await.unwrap();
        drop(engine);
        let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
        let mount = Mount::open(&engine, "tank").await.unwrap();
        Self { engine, devices, mount }
    }

    /// Exports the pool, and has OpenZFS check it.
    pub(crate) async fn judge(self, what: &str, options: &[&str]) -> Option<String> {
        let Self { engine, devices, mount } = self;
        drop(mount);
        engine.export().await.unwrap();
        drop(engine);
        pools::judge_devices(&devices, what, options)
    }

    pub(crate) async fn file(&self, parent: u64, name: &str, bytes: &[u8]) -> Result<Attributes> {
        let new = NewNode::new(NewKind::Regular, 0o644);
        let made = self.mount.create(&root(), parent, name.as_bytes(), &new).await?;
        if !bytes.is_empty() {
            let options = WriteOptions::default();
            self.mount.write(&root(), made.object, 0, bytes, options).await?;
        }
        self.mount.attributes(made.object).await
    }

    pub(crate) async fn dir(&self, parent: u64, name: &str) -> Result<Attributes> {
        let new = NewNode::new(NewKind::Directory, 0o755);
        self.mount.create(&root(), parent, name.as_bytes(), &new).await
    }

    pub(crate) async fn read_all(&self, object: u64) -> Result<Vec<u8>> {
        let size = self.mount.attributes(object).await?.size;
        let mut bytes = vec![0xee; size as usize + 10];
        let count = self.mount.read(object, 0, &mut bytes).await?;
        bytes.truncate(count);
        Ok(bytes)
    }
}
