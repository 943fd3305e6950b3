//! Keys of new and existing encrypted datasets (spec 08 §14, §15).
//!
//! Keys are generated and wrapped outside of the transaction that stores them, in the task that
//! runs it: no other task changes the datasets in between.
//!
//! Secrets: a wrapping key is kept by the pool's [`KeyStore`](cenote_pool::keys::KeyStore) until it
//! is unloaded; here only references to it are passed on.

use std::sync::Arc;

use cenote_codec::crypto::{
    BlockKeys, HMAC_KEY_BYTES, IV_BYTES, KeyFormat, MASTER_KEY_MAX_BYTES, Pbkdf2, SecretBytes,
    Suite, WrappingKey,
};
use cenote_dmu::{Tx, TxResult};
use cenote_pool::KeyError;
use cenote_rt::{Error, Kind, Result, secret_bytes};

use crate::Datasets;
use crate::dsl::crypto::{self, StoredKeys};
use crate::dsl::operation::Request;
use crate::dsl::{OpError, features, get_dataset, names};

/// The key that a user chose for an encryption root.
#[derive(Debug, Clone)]
pub struct UserKey {
    /// The key that wraps those of the datasets.
    pub key: Arc<WrappingKey>,
    /// The format from which it was derived.
    pub format: KeyFormat,
    /// Salt and iterations of a passphrase; 0 otherwise.
    pub pbkdf2: Pbkdf2,
    /// The property `keylocation`.
    pub location: String,
}

/// How a new dataset is encrypted.
#[derive(Debug, Clone, Default)]
pub enum NewEncryption {
    /// As its parent is, with the parent's encryption root.
    #[default]
    Inherited,
    /// With the parent's encryption root, and a cipher suite of its own.
    Suite(Suite),
    /// Not at all.
    Off,
    /// As an encryption root; without a suite, with that of the parent or the default.
    Root(Option<Suite>, UserKey),
}

/// A change of the key of a dataset.
#[derive(Debug, Clone)]
pub enum KeyChange {
    /// The dataset becomes, or stays, an encryption root with this key.
    Root(UserKey),
    /// It uses the key of its parent.
    Inherit,
    /// It becomes an encryption root, without knowing any key: its keys were wrapped with another
    /// key than its parent's (after a raw receive).
    ForceRoot,
    /// It uses the key of its parent, without knowing any key: its keys were wrapped with that.
    ForceInherit,
}

/// The keys of a dataset that is about to be created.
#[derive(Debug, Clone)]
pub(crate) struct KeyPlan {
    /// Dir of the encryption root; `None` if it is the dataset itself.
    root: Option<u64>,
    user: UserKey,
    stored: StoredKeys,
    pub(crate) keys: Arc<BlockKeys>,
}

impl KeyPlan {
    /// Makes a new dataset one with these keys; returns its dir and key object.
    pub(crate) fn install(&self, tx: &mut Tx<'_>, dataset: u64) -> TxResult<(u64, u64)> {
        let dir = get_dataset(tx, dataset)?.dir_obj;
        match self.root {
            Some(root) => crypto::create(tx, dir, root, &self.stored)?,
            None => crypto::make_root(tx, dir, &self.stored, &self.user.location)?,
        }
        crypto::mark(tx, dataset)?;
        let object = crypto::key_object(tx, dir)?;
        Ok((dir, object.ok_or(OpError::NotEncrypted)?))
    }
}

impl Datasets<'_> {
    /// Generates the keys of a new dataset below `parent`, which is `None` for the root file system
    /// of a new pool; `None` if the dataset is not to be encrypted.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if the key of the parent's encryption root is needed and not loaded;
    /// [`OpError::NoKey`], [`OpError::Unsupported`].
    pub(crate) async fn plan_keys(
        self,
        parent: Option<&str>,
        wanted: &NewEncryption,
    ) -> Result<Option<KeyPlan>> {
        let look = |tx: &mut Tx<'_>| {
            let dir = parent.map(|parent| names::dir(tx, parent)).transpose()?;
            let inherited = dir.map(|dir| crypto::inherited(tx, dir)).transpose()?.flatten();
            let is_supported =
                features::is_enabled(tx, "encryption")? && features::is_enabled(tx, "bookmark_v2")?;
            Ok((inherited, is_supported))
        };
        let (inherited, is_supported) = self.engine.mos.inspect(look).await?;
        let (root, suite, user) = match (wanted, inherited) {
            (NewEncryption::Off, _) | (NewEncryption::Inherited, None) => return Ok(None),
            (NewEncryption::Suite(_), None) => return Err(OpError::NoKey.into()),
            (NewEncryption::Root(suite, user), inherited) => {
                let of_parent = inherited.and_then(|keys| keys.suite());
                (None, suite.or(of_parent).unwrap_or(Suite::Aes256Gcm), user.clone())
            }
            (NewEncryption::Inherited | NewEncryption::Suite(_), Some(keys)) => {
                let suite = match wanted {
                    NewEncryption::Suite(suite) => Some(*suite),
                    _ => keys.suite(),
                };
                let suite = suite.ok_or_else(|| Error::from(OpError::Unsupported))?;
                (Some(keys.root), suite, self.user_key_of(&keys)?)
            }
        };
        if !is_supported {
            return Err(OpError::Unsupported.into());
        }
        let mut secrets = SecretBytes::new([0; MASTER_KEY_MAX_BYTES + HMAC_KEY_BYTES + 8]);
        secret_bytes(&mut *secrets)?;
        let (master, rest) = secrets.split_at(MASTER_KEY_MAX_BYTES);
        let (hmac, guid) = rest.split_at(HMAC_KEY_BYTES);
        let invalid = |error| Error::new(Kind::Invariant, error);
        let hmac: &[u8; HMAC_KEY_BYTES] =
            hmac.first_chunk().ok_or_else(|| Error::from(OpError::Value))?;
        let guid = guid.first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1));
        let master = master.get(..suite.key_bytes()).unwrap_or(master);
        let keys = BlockKeys::new(suite, guid, master, hmac).map_err(invalid)?;
        let wrapped = keys.wrap(&user.key, new_iv()?).map_err(KeyError::from)?;
        let stored = StoredKeys { wrapped, format: user.format.value(), pbkdf2: user.pbkdf2 };
        Ok(Some(KeyPlan { root, user, stored, keys: Arc::new(keys) }))
    }

    /// The key of an encryption root, if it is loaded.
    fn user_key_of(self, inherited: &crypto::Inherited) -> Result<UserKey> {
        let key = self.engine.views.keys.root_key(inherited.root).ok_or(KeyError::NotLoaded)?;
        let format = KeyFormat::from_value(inherited.format).map_err(KeyError::from)?;
        Ok(UserKey { key, format, pbkdf2: inherited.pbkdf2, location: String::new() })
    }

    /// Records the keys of a new dataset as loaded.
    pub(crate) fn note_keys(self, plan: &KeyPlan, dir: u64, object: u64) {
        self.engine.views.keys.add(object, Arc::clone(&plan.keys));
        if plan.root.is_none() {
            self.engine.views.keys.add_root(dir, Arc::clone(&plan.user.key));
        }
    }

    /// Changes the key of a dataset, and of the descendants that use the same one.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if a key that is needed is not loaded; [`OpError::NotEncrypted`],
    /// [`OpError::NotKeyRoot`], [`OpError::IsClone`], [`OpError::NoKey`].
    pub async fn change_key(self, name: &str, change: KeyChange) -> Result<()> {
        let (target, store) = (name.to_owned(), Arc::clone(&self.engine.views.keys));
        let work = change.clone();
        let request = Request::half(4).changing(&[name]);
        let dir = self
            .operate(request, move |tx, env, effects| {
                crypto::change(tx, env, effects, &target, &work, &store)
            })
            .await?;
        match change {
            KeyChange::Root(user) => self.engine.views.keys.add_root(dir, user.key),
            KeyChange::Inherit | KeyChange::ForceInherit | KeyChange::ForceRoot => {
                self.engine.views.keys.remove_root(dir);
            }
        }
        Ok(())
    }

    /// Closes the heads of the datasets whose encryption root has this dir, so that none keeps the
    /// keys that are about to be unloaded.
    ///
    /// # Errors
    /// `Kind::Busy` if one is in use; errors of a sync.
    pub async fn close_encrypted(self, root: u64) -> Result<()> {
        // Without changes, every head has the keys that are asked for when it is opened.
        if self.engine.is_read_only {
            return Ok(());
        }
        // Changes are written with the keys that they were made with, and a closed head has no log:
        // the next one to open it would not know where the log ends.
        let _logs = self.engine.intent_logs().drain().await?;
        let _between = self.engine.txgs.syncing.lock().await;
        let mut closed = Vec::new();
        for head in self.engine.heads.all().into_iter().filter(|head| head.is_encrypted()) {
            let look = |tx: &mut Tx<'_>| {
                let dir = get_dataset(tx, head.object())?.dir_obj;
                crypto::root_of(tx, dir)
            };
            if self.engine.mos.inspect(look).await? == Some(root) && !head.is_locked() {
                if head.is_owned() || head.live().has_changes() {
                    return Err(OpError::Busy.into());
                }
                closed.push(head.object());
            }
        }
        for object in closed {
            self.engine.heads.remove(object);
        }
        Ok(())
    }
}

/// A new IV for wrapping keys.
pub(crate) fn new_iv() -> Result<[u8; IV_BYTES]> {
    let mut iv = [0; IV_BYTES];
    secret_bytes(&mut iv)?;
    Ok(iv)
}
