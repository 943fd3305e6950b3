//! Encrypted file systems and volumes: each is an encryption root.

use std::sync::Arc;

use cenote_codec::crypto::Suite;
use cenote_engine::{Engine, NewEncryption};
use cenote_poolkit::pools::raw_key;
use cenote_rt::Result;

use crate::plan::Plan;
use crate::tasks::{dataset, volume_dataset};

/// The suites of the datasets, by their numbers.
const SUITES: [Suite; 3] = [Suite::Aes256Gcm, Suite::Aes128Ccm, Suite::Aes192Gcm];

/// Returns how the dataset with this number is created.
pub(crate) fn of(is_encrypted: bool, number: usize) -> NewEncryption {
    if !is_encrypted {
        return NewEncryption::Inherited;
    }
    let suite = SUITES.get(number % SUITES.len()).copied();
    NewEncryption::Root(suite, raw_key(material()))
}

/// Loads the keys of all encrypted datasets.
///
/// # Errors
/// Errors of reading the pool.
pub(crate) async fn load_keys(plan: &Plan, engine: &Arc<Engine>) -> Result<()> {
    let view = engine.view().await?;
    let file_systems = plan.file_systems.iter().enumerate();
    let encrypted = file_systems.filter(|(_, of)| of.is_encrypted).map(|(at, _)| dataset(at));
    let volumes = plan.volumes.iter().enumerate().filter(|(_, of)| of.is_encrypted);
    for name in encrypted.chain(volumes.map(|(at, _)| volume_dataset(at))) {
        view.load_key(&view.dataset(&name).await?, &material()).await?;
    }
    Ok(())
}

fn material() -> [u8; 32] {
    *b"the key of every encrypted one.."
}
