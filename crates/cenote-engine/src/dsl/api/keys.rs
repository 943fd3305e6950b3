//! Keys of new and existing encrypted datasets (spec 08 §14, §15).
//!
//! Keys are generated and wrapped outside of the transaction that stores them, in the task that
//! runs it: no other task changes the datasets in between.
//!
//! Secrets: a wrapping key is kept by the pool's [`KeyStore`](cenote_pool::keys::KeyStore) until it
//! is unloaded; here only references to it are passed on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_codec::crypto::{
    BlockKeys, HMAC_KEY_BYTES, IV_BYTES, KeyFormat, MASTER_KEY_MAX_BYTES, Pbkdf2, SecretBytes,
    Suite, WrappingKey,
};
use cenote_dmu::{Tx, TxResult};
use cenote_pool::KeyError;
use cenote_pool::dsl::deleg::Requester;
use cenote_pool::keys::{KeyInfo, KeyPath, RootKey, key_paths, key_user};
use cenote_rt::{BoxFuture, Error, Kind, Result, secret_bytes};

use crate::dsl::changed::ChangedDatasets;
use crate::dsl::crypto::{self, Rekeying, StoredKeys};
use crate::dsl::room::{self, Reserve};
use crate::dsl::{Effects, Env, OpError, features, get_dataset, names};
use crate::{Answer, Datasets, Scope, Task};

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
        let object = match self.root {
            Some(root) => crypto::create(tx, dir, root, &self.stored)?,
            None => crypto::make_root(tx, dir, &self.stored, &self.user.location)?,
        };
        crypto::mark(tx, dataset)?;
        Ok((dir, object))
    }
}

/// The task of a change of a key. All of it is in one txg, but each key object is changed by a
/// transaction of its own: there may be thousands.
struct ChangeKey {
    name: String,
    change: KeyChange,
    requester: Requester,
    answer: Arc<Answer<()>>,
}

/// A change of a key before anything is changed.
struct PlannedChange {
    change: Rekeying,
    /// The key objects, with their keys as the new key wraps them.
    objects: BTreeMap<u64, Option<StoredKeys>>,
    effects: Effects,
}

impl Task for ChangeKey {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (engine, txg) = (scope.engine, scope.context.txg);
            let datasets = engine.datasets().by(&self.requester);
            let env = datasets.env(txg);
            let planned = datasets.plan_change(&env, self).await;
            let Some(planned) = self.answer.unless_failed(planned)? else { return Ok(()) };
            let PlannedChange { change, objects, effects } = planned;
            // From here on the MOS has changed: a failure is one of the txg.
            for (object, keys) in &objects {
                engine.mos_apply(txg, |tx| change.rekey(tx, *object, keys.as_ref())).await?;
            }
            engine.mos_apply(txg, |tx| change.finish(tx, &env)).await?;
            engine.views.changes.note(txg, &ChangedDatasets::below(&[self.name.as_str()]));
            datasets.take_effect(txg, &effects).await?;
            self.answer.put(Ok(()));
            Ok(())
        })
    }
}

impl Datasets<'_> {
    /// Generates the keys of a new dataset below `parent`, which is `None` for the root file system
    /// of a new pool; `None` if the dataset is not to be encrypted, or its parent does not exist:
    /// then the transaction refuses it.
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
        let (inherited, is_supported) = match self.engine.mos.inspect(look).await {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            found => found?,
        };
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
        let key = self.engine.views.keys.root_key(inherited.root, &inherited.tag);
        let key = key.ok_or(KeyError::NotLoaded)?;
        let format = KeyFormat::from_value(inherited.format).map_err(KeyError::from)?;
        Ok(UserKey { key, format, pbkdf2: inherited.pbkdf2, location: String::new() })
    }

    /// Records the keys of a new dataset as loaded.
    pub(crate) fn note_keys(self, plan: &KeyPlan, dir: u64, object: u64) {
        self.engine.views.keys.add(object, Arc::clone(&plan.keys));
        if plan.root.is_none() {
            let root = RootKey { key: Arc::clone(&plan.user.key), tag: plan.stored.wrapped.mac };
            self.engine.views.keys.add_root(dir, root);
        }
    }

    /// Changes the key of a dataset, and of the descendants that use the same one.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if a key that is needed is not loaded; [`OpError::NotEncrypted`],
    /// [`OpError::NotKeyRoot`], [`OpError::IsClone`], [`OpError::NoKey`].
    pub async fn change_key(self, name: &str, change: KeyChange) -> Result<()> {
        let answer = Answer::new();
        let (name, requester) = (name.to_owned(), self.requester.clone());
        let task = ChangeKey { name, change, requester, answer: Arc::clone(&answer) };
        self.engine.run_task(Box::new(task)).await?;
        answer.take()
    }

    /// Finds all that changes with the key of a dataset, and wraps the keys anew. Changes nothing.
    async fn plan_change(self, env: &Env, task: &ChangeKey) -> Result<PlannedChange> {
        let (mos, store) = (&self.engine.mos, &self.engine.views.keys);
        let check =
            |tx: &mut Tx<'_>| crypto::check_change(tx, env, &task.name, &task.change, store);
        let change = mos.inspect(check).await?;
        let (mut objects, mut tag, mut opened) = (BTreeMap::new(), None, Vec::new());
        for (dir, object) in self.users_of(change.old_root, change.dir).await? {
            // Clones have the key object of their origin.
            if objects.contains_key(&object) {
                continue;
            }
            let info = mos.inspect(|tx| KeyInfo::read(tx, object)).await?;
            if let Some(key) = &change.opening
                && let Ok(keys) = BlockKeys::unwrap(key, &info.wrapped)
            {
                opened.push((object, Arc::new(keys)));
            }
            let keys = match &change.wrap {
                None => None,
                Some((key, format, pbkdf2)) => {
                    let keys = store.block_keys(object, info.wrapped.guid);
                    let keys = keys.ok_or(KeyError::NotLoaded)?;
                    let wrapped = keys.wrap(key, new_iv()?).map_err(KeyError::from)?;
                    Some(StoredKeys { wrapped, format: *format, pbkdf2: *pbkdf2 })
                }
            };
            if dir == change.dir {
                tag = keys.as_ref().map(|keys| keys.wrapped.mac);
            }
            objects.insert(object, keys);
        }
        let blocks = 4 + objects.len() as u64;
        mos.inspect(|tx| room::check_pool(tx, env, Reserve::Half, blocks)).await?;
        let effects = Effects { new_keys: opened, ..change.effects(tag) };
        Ok(PlannedChange { change, objects, effects })
    }

    /// Returns the dirs that use an encryption root, from one of them on, with their key objects.
    /// Each is looked at on its own: a closure over all of them would begin again with each block
    /// that is not in memory.
    async fn users_of(self, root: u64, from: u64) -> Result<Vec<(u64, u64)>> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        let mut left = vec![KeyPath::First(from)];
        while let Some(path) = left.pop() {
            let look = |tx: &mut Tx<'_>| {
                let Some((dir, object)) = key_user(tx, root, path)? else { return Ok(None) };
                Ok(Some((dir, object, key_paths(tx, dir)?)))
            };
            if let Some((dir, object, paths)) = self.engine.mos.inspect(look).await?
                && seen.insert(dir)
            {
                found.push((dir, object));
                left.extend(paths);
            }
        }
        Ok(found)
    }

    /// Unloads the key of the encryption root with this dir for all that use it, and closes their
    /// heads.
    ///
    /// # Errors
    /// `Kind::Busy` if one is in use; errors of a sync.
    pub async fn unload_key(self, root: u64) -> Result<()> {
        // Changes are written with the keys that they were made with, and a closed head has no log:
        // the next one to open it would not know where the log ends.
        let _logs = self.engine.intent_logs().drain().await?;
        // No task creates a dataset with these keys meanwhile.
        let _between = self.engine.txgs.syncing.lock().await;
        let users = self.users_of(root, root).await?;
        let objects: Vec<u64> = users.into_iter().map(|(_, object)| object).collect();
        // Before heads are looked at: none is opened with these keys from here on.
        let store = &self.engine.views.keys;
        let taken = store.take(root, &objects);
        let closed = self.close_users(root).await;
        if closed.is_err() {
            store.put_back(taken);
        }
        closed
    }

    /// Closes the heads of the datasets that use an encryption root.
    async fn close_users(self, root: u64) -> Result<()> {
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
