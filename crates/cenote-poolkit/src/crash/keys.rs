//! Keys of encrypted datasets. Each change of a key takes the next one of a few: which of them
//! opens a dataset after a cut is not predicted, but one of them does.

use std::sync::Arc;

use cenote_codec::crypto::Suite;
use cenote_engine::{NewDataset, NewEncryption, UserKey};
use cenote_pool::keys::KeyError;
use cenote_pool::{Dataset, Pool};
use cenote_rt::{Kind, Result};

use crate::pools::raw_key;

/// Number of keys.
const KEYS: u64 = 5;

fn material(number: u64) -> [u8; 32] {
    [number as u8; 32]
}

/// Returns a key; after the last one comes the first one again.
pub(super) fn key(number: u64) -> UserKey {
    raw_key(material(number % KEYS))
}

/// Returns the dataset as an encryption root.
pub(super) fn encrypted(new: NewDataset) -> NewDataset {
    NewDataset { encryption: NewEncryption::Root(Some(Suite::Aes256Gcm), key(0)), ..new }
}

/// Loads the key of every encryption root.
///
/// # Errors
/// `Kind::WrongKey` if no key opens a root; errors of reading the pool.
pub async fn load_all(pool: &Arc<Pool>) -> Result<()> {
    for dataset in pool.datasets().await? {
        if dataset.encryption_root().await?.as_deref() == Some(dataset.name()) {
            load(pool, &dataset).await?;
        }
    }
    Ok(())
}

async fn load(pool: &Arc<Pool>, root: &Dataset) -> Result<()> {
    let mut number = 0;
    loop {
        let Err(error) = pool.load_key(root, &material(number)).await else { return Ok(()) };
        number += 1;
        match error.cause::<KeyError>() {
            Some(KeyError::AlreadyLoaded) => return Ok(()),
            _ if error.kind() == Kind::WrongKey && number < KEYS => {}
            _ => return Err(error),
        }
    }
}
