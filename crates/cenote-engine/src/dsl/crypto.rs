//! Key objects of encrypted datasets (spec 08 §2, §14, §15).
//!
//! ```text
//!   dir ── com.datto:crypto_key_obj ──> key object <── dir of a clone         REFCOUNT 2
//!                                           `── ROOT_DDOBJ ──> dir of the encryption root
//! ```
//!
//! Each encrypted dir has a key object; clones share that of their origin. Nothing here needs a
//! key: what is stored is wrapped.
//!
//! Invariants
//! * CR1  A key object counts the dirs that use it, and goes with the last of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_codec::crypto::{
    BlockKeys, KEY_VERSION_CURRENT, MAC_BYTES, Pbkdf2, Suite, WrappedKeys, WrappingKey,
};
use cenote_dmu::live::SentRoot;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{crypto as entry, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::KeyError;
use cenote_pool::dsl::dataset::origin_txg;
use cenote_pool::keys::{KeyInfo, KeyPath, KeyStore, RootKey, key_paths, key_user};
use cenote_pool::mos::extra_value;
use cenote_rt::Error;

use crate::dsl::api::keys::KeyChange;
use crate::dsl::{
    Context, Effects, Env, OpError, blocks, get_dataset, get_dir, history, names, new_zap, props,
};
use crate::invariant;

/// The property of an encryption root that says where its key is.
const KEYLOCATION: &str = "keylocation";

/// What a key object stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKeys {
    /// The wrapped keys, with cipher suite and id.
    pub wrapped: WrappedKeys,
    /// Number of the format of the user's key.
    pub format: u64,
    /// Salt and iterations of a passphrase; 0 otherwise.
    pub pbkdf2: Pbkdf2,
}

/// What a raw stream says of the keys and the root of its dataset (spec 07 B10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentKeys {
    /// The keys.
    pub keys: StoredKeys,
    /// The root.
    pub root: SentRoot,
    /// Identifies the IVs of the snapshot.
    pub to_ivset: Option<u64>,
    /// Identifies the IVs of the source of an increment.
    pub from_ivset: Option<u64>,
}

/// Returns the key object of a dir, if it is encrypted.
pub(crate) fn key_object(tx: &mut Tx<'_>, dir: u64) -> TxResult<Option<u64>> {
    Ok(extra_value(tx, dir, key::CRYPTO_KEY_OBJ)?.and_then(|value| value.first()))
}

/// Returns the dir of the encryption root of a dir, if it is encrypted.
pub(crate) fn root_of(tx: &mut Tx<'_>, dir: u64) -> TxResult<Option<u64>> {
    number_of(tx, dir, entry::ROOT_DDOBJ)
}

/// Returns the key object of a dir and the guid of its master key, if it is encrypted.
pub(crate) fn key_and_guid(tx: &mut Tx<'_>, dir: u64) -> TxResult<Option<(u64, u64)>> {
    let Some(object) = key_object(tx, dir)? else { return Ok(None) };
    Ok(Some((object, zap::require_u64(tx, object, entry::GUID)?)))
}

/// Returns the guid of the master key of a dir, if it is encrypted.
pub(crate) fn guid_of(tx: &mut Tx<'_>, dir: u64) -> TxResult<Option<u64>> {
    number_of(tx, dir, entry::GUID)
}

fn number_of(tx: &mut Tx<'_>, dir: u64, name: &str) -> TxResult<Option<u64>> {
    let object = key_object(tx, dir)?;
    object.map(|object| zap::require_u64(tx, object, name)).transpose()
}

/// Returns the number that identifies the IVs of a snapshot, if it has one.
pub(crate) fn ivset_of(tx: &mut Tx<'_>, snapshot: u64) -> TxResult<Option<u64>> {
    Ok(extra_value(tx, snapshot, key::IVSET_GUID)?.and_then(|value| value.first()))
}

/// Sets the number that identifies the IVs of a snapshot.
pub(crate) fn set_ivset(tx: &mut Tx<'_>, snapshot: u64, guid: u64) -> TxResult<()> {
    blocks::zapify(tx, snapshot)?;
    zap::update(tx, snapshot, key::IVSET_GUID, guid)
}

/// Gives the new snapshot of an encrypted dir a number of its own.
pub(crate) fn note_snapshot(
    tx: &mut Tx<'_>,
    ctx: &Context,
    dir: u64,
    snapshot: u64,
) -> TxResult<()> {
    if key_object(tx, dir)?.is_some() {
        set_ivset(tx, snapshot, ctx.guid(snapshot.wrapping_add(1 << 33)))?;
    }
    Ok(())
}

/// Lets the dir of a clone use the key object of its origin's dir.
pub(crate) fn share(tx: &mut Tx<'_>, origin_dir: u64, dir: u64) -> TxResult<()> {
    if let Some(object) = key_object(tx, origin_dir)? {
        change_count(tx, object, 1)?;
        set_key_object(tx, dir, object)?;
    }
    Ok(())
}

fn set_key_object(tx: &mut Tx<'_>, dir: u64, object: u64) -> TxResult<()> {
    blocks::zapify(tx, dir)?;
    zap::insert(tx, dir, key::CRYPTO_KEY_OBJ, object)
}

/// Takes the key object away from a dir that is destroyed.
pub(crate) fn release(tx: &mut Tx<'_>, effects: &mut Effects, dir: u64) -> TxResult<()> {
    let Some(object) = key_object(tx, dir)? else { return Ok(()) };
    effects.lost_roots.push(dir);
    if change_count(tx, object, -1)? == 0 {
        zap::destroy(tx, object)?;
        effects.lost_keys.push(object);
    }
    zap::remove(tx, dir, key::CRYPTO_KEY_OBJ)
}

fn change_count(tx: &mut Tx<'_>, object: u64, delta: i64) -> TxResult<u64> {
    let before = zap::require_u64(tx, object, entry::REFCOUNT)?;
    // Checks CR1.
    let after = before
        .checked_add_signed(delta)
        .ok_or_else(|| invariant(format!("key object {object}: count {before} and {delta}")))?;
    zap::update(tx, object, entry::REFCOUNT, after)?;
    Ok(after)
}

/// What a new dataset inherits from its parent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited {
    /// Dir of the encryption root.
    pub(crate) root: u64,
    /// Number of the parent's cipher suite.
    suite: u64,
    /// Number of the format of the root's key.
    pub(crate) format: u64,
    /// Its parameters.
    pub(crate) pbkdf2: Pbkdf2,
    /// The tag of the root's own wrapped keys.
    pub(crate) tag: [u8; MAC_BYTES],
}

impl Inherited {
    /// The parent's cipher suite, if it is known.
    pub(crate) fn suite(&self) -> Option<Suite> {
        Suite::from_value(self.suite)
    }
}

/// Returns what a dataset below this dir inherits, if the dir is encrypted.
pub(crate) fn inherited(tx: &mut Tx<'_>, dir: u64) -> TxResult<Option<Inherited>> {
    let Some(object) = key_object(tx, dir)? else { return Ok(None) };
    let KeyInfo { wrapped: own, root_dir: root, .. } = KeyInfo::read(tx, object)?;
    let Some(object) = key_object(tx, root)? else {
        return Err(invariant(format!("encryption root {root} has no key object")));
    };
    let KeyInfo { wrapped, format_value: format, pbkdf2, .. } = KeyInfo::read(tx, object)?;
    Ok(Some(Inherited { root, suite: own.suite, format, pbkdf2, tag: wrapped.mac }))
}

/// Creates the key object of a dir, and returns it.
pub(crate) fn create(tx: &mut Tx<'_>, dir: u64, root: u64, keys: &StoredKeys) -> TxResult<u64> {
    let object = new_zap(tx, ObjectType::ZAP_METADATA)?;
    zap::insert(tx, object, entry::REFCOUNT, 1)?;
    zap::insert(tx, object, entry::VERSION, KEY_VERSION_CURRENT)?;
    zap::insert(tx, object, entry::ROOT_DDOBJ, root)?;
    store(tx, object, keys)?;
    set_key_object(tx, dir, object)?;
    Ok(object)
}

/// Stores keys in a key object.
pub(crate) fn store(tx: &mut Tx<'_>, object: u64, keys: &StoredKeys) -> TxResult<()> {
    let StoredKeys { wrapped, format, pbkdf2 } = keys;
    let numbers = [
        (entry::SUITE, wrapped.suite),
        (entry::GUID, wrapped.guid),
        (entry::KEYFORMAT, *format),
        (entry::PBKDF2_SALT, pbkdf2.salt),
        (entry::PBKDF2_ITERS, pbkdf2.iterations),
    ];
    for (name, number) in numbers {
        zap::update(tx, object, name, number)?;
    }
    let bytes: [(&str, &[u8]); 4] = [
        (entry::IV, &wrapped.iv),
        (entry::MAC, &wrapped.mac),
        (entry::MASTER_KEY, &wrapped.master_key),
        (entry::HMAC_KEY, &wrapped.hmac_key),
    ];
    for (name, bytes) in bytes {
        zap::update(tx, object, name, Value::bytes_of(bytes))?;
    }
    Ok(())
}

/// Takes over the wrapped keys that a raw increment has, if they are others: the sender may have
/// changed the key that wraps them. The keys themselves are those that the dir has.
///
/// No key is lost here. The dir is an encryption root then, since nobody here knows whether the key
/// of another one is the sender's. Descendants that use its root cannot be reached through it any
/// more, or be wrapped with a key that nobody here knows: they become encryption roots with the key
/// that they have, until increments of them arrive.
pub(crate) fn wrap_as_sent(tx: &mut Tx<'_>, dir: u64, sent: &StoredKeys) -> TxResult<()> {
    let Some(object) = key_object(tx, dir)? else { return Ok(()) };
    let info = KeyInfo::read(tx, object)?;
    if info.wrapped.mac == sent.wrapped.mac {
        return Ok(());
    }
    // The dir and its clones, which share its key object.
    let (mut seen, mut left) = (BTreeSet::from([dir]), vec![dir]);
    while let Some(at) = left.pop() {
        for path in key_paths(tx, at)? {
            let Some((user, its_object)) = key_user(tx, info.root_dir, path)? else { continue };
            if its_object == object {
                if seen.insert(user) {
                    left.push(user);
                }
                continue;
            }
            for (_, object) in users(tx, info.root_dir, user)? {
                zap::update(tx, object, entry::ROOT_DDOBJ, user)?;
            }
            set_location(tx, user, Some("prompt"))?;
        }
    }
    if info.root_dir != dir {
        zap::update(tx, object, entry::ROOT_DDOBJ, dir)?;
        set_location(tx, dir, Some("prompt"))?;
    }
    store(tx, object, sent)
}

/// Marks a head as encrypted.
pub(crate) fn mark(tx: &mut Tx<'_>, head: u64) -> TxResult<()> {
    blocks::activate(tx, head, "encryption")
}

/// Makes a dir without a key an encryption root, and returns its key object.
pub(crate) fn make_root(
    tx: &mut Tx<'_>,
    dir: u64,
    keys: &StoredKeys,
    location: &str,
) -> TxResult<u64> {
    let object = create(tx, dir, dir, keys)?;
    set_location(tx, dir, Some(location))?;
    Ok(object)
}

/// Sets where the key of an encryption root is.
fn set_location(tx: &mut Tx<'_>, dir: u64, location: Option<&str>) -> TxResult<()> {
    let props = get_dir(tx, dir)?.props_zapobj;
    match location {
        Some(location) => props::set(tx, props, KEYLOCATION, &Value::text(location)),
        None => zap::take(tx, props, KEYLOCATION).map(drop),
    }
}

/// A change of the key of a dataset and of the descendants that use the same, found to be possible.
#[derive(Debug)]
pub(crate) struct Rekeying {
    head: u64,
    /// The dataset's dir.
    pub(crate) dir: u64,
    /// The encryption root before and after.
    pub(crate) old_root: u64,
    new_root: u64,
    /// The new key, unless the keys stay wrapped as they are.
    pub(crate) wrap: Option<(Arc<WrappingKey>, u64, Pbkdf2)>,
    /// A loaded key that opens the keys as they are wrapped.
    pub(crate) opening: Option<Arc<WrappingKey>>,
    location: Option<String>,
}

/// Checks that a key can be changed so.
pub(crate) fn check_change(
    tx: &mut Tx<'_>,
    env: &Env,
    name: &str,
    change: &KeyChange,
    store: &KeyStore,
) -> TxResult<Rekeying> {
    names::check_pool(env, name)?;
    let head = names::head(tx, name)?;
    let dir = get_dataset(tx, head)?.dir_obj;
    let old_root = root_of(tx, dir)?.ok_or(OpError::NotEncrypted)?;
    let phys = get_dir(tx, dir)?;
    if is_clone(tx, dir)? {
        return Err(OpError::IsClone.into());
    }
    let of_parent = match phys.parent_obj {
        0 => None,
        parent => inherited(tx, parent)?,
    };
    let is_to_inherit = matches!(change, KeyChange::Inherit | KeyChange::ForceInherit);
    if is_to_inherit && old_root != dir {
        return Err(OpError::NotKeyRoot.into());
    }
    let new_root = match (is_to_inherit, &of_parent) {
        (false, _) => dir,
        (true, Some(parent)) => parent.root,
        (true, None) => return Err(OpError::NoKey.into()),
    };
    let mut opening = None;
    if let (KeyChange::ForceInherit, Some(parent)) = (change, &of_parent) {
        let object = key_object(tx, dir)?.ok_or(OpError::NotEncrypted)?;
        let info = KeyInfo::read(tx, object)?;
        opening = store.root_key(parent.root, &parent.tag);
        let is_opened = opening.as_ref().is_none_or(|key| opens(key, &info));
        if (info.format_value, info.pbkdf2) != (parent.format, parent.pbkdf2) || !is_opened {
            // The parent's key is not the one that wraps the keys here.
            return Err(OpError::OtherKey.into());
        }
    }
    let wrap = match (change, of_parent) {
        (KeyChange::Root(user), _) => {
            Some((Arc::clone(&user.key), user.format.value(), user.pbkdf2))
        }
        (KeyChange::Inherit, Some(parent)) => {
            let key = store.root_key(parent.root, &parent.tag).ok_or_else(not_loaded)?;
            Some((key, parent.format, parent.pbkdf2))
        }
        _ => None,
    };
    let location = match change {
        KeyChange::Root(user) => Some(user.location.clone()),
        KeyChange::ForceRoot => Some("prompt".to_owned()),
        KeyChange::Inherit | KeyChange::ForceInherit => None,
    };
    Ok(Rekeying { head, dir, old_root, new_root, wrap, opening, location })
}

fn opens(key: &WrappingKey, info: &KeyInfo) -> bool {
    BlockKeys::unwrap(key, &info.wrapped).is_ok()
}

impl Rekeying {
    /// Gives the new root to a key object, and stores its keys as the new key wraps them.
    pub(crate) fn rekey(
        &self,
        tx: &mut Tx<'_>,
        object: u64,
        keys: Option<&StoredKeys>,
    ) -> TxResult<()> {
        if let Some(keys) = keys {
            store(tx, object, keys)?;
        }
        zap::update(tx, object, entry::ROOT_DDOBJ, self.new_root)
    }

    /// Records the change of the dataset itself.
    pub(crate) fn finish(&self, tx: &mut Tx<'_>, env: &Env) -> TxResult<()> {
        set_location(tx, self.dir, self.location.as_deref())?;
        let text = if self.new_root == self.dir { "new key" } else { "inherit" };
        history::log(tx, env, "change key", self.head, text)
    }

    /// The effects, once the dataset's keys have this tag.
    pub(crate) fn effects(&self, tag: Option<[u8; MAC_BYTES]>) -> Effects {
        let mut effects = Effects { settings_changed: vec![self.dir], ..Effects::default() };
        match (&self.wrap, tag) {
            (Some((key, ..)), Some(tag)) if self.new_root == self.dir => {
                effects.new_roots.push((self.dir, RootKey { key: Arc::clone(key), tag }));
            }
            _ => effects.lost_roots.push(self.dir),
        }
        effects
    }
}

fn not_loaded() -> Error {
    KeyError::NotLoaded.into()
}

fn is_clone(tx: &mut Tx<'_>, dir: u64) -> TxResult<bool> {
    let phys = get_dir(tx, dir)?;
    Ok(origin_txg(tx, &phys)? != 0)
}

/// Refuses to move a dataset that uses the key of another one away from that.
pub(crate) fn check_move(tx: &mut Tx<'_>, dir: u64, parent: u64) -> TxResult<()> {
    match root_of(tx, dir)? {
        Some(root) if root != dir && root_of(tx, parent)? != Some(root) => {
            Err(OpError::OtherKey.into())
        }
        _ => Ok(()),
    }
}

/// Whether the promotion of a clone makes it the encryption root in place of its origin's dir.
///
/// # Errors
/// [`OpError::OtherKey`] if the origin's dir uses the key of a parent, and the clone's parent uses
/// another one.
pub(crate) fn check_promotion(tx: &mut Tx<'_>, origin_dir: u64, dir: u64) -> TxResult<bool> {
    let Some(root) = root_of(tx, origin_dir)? else { return Ok(false) };
    let origin = get_dir(tx, origin_dir)?;
    if is_clone(tx, origin_dir)? {
        return Ok(false);
    }
    if root == origin_dir {
        return Ok(true);
    }
    let theirs = root_of(tx, origin.parent_obj)?;
    let parent = get_dir(tx, dir)?.parent_obj;
    if theirs.is_none() || root_of(tx, parent)? != theirs {
        return Err(OpError::OtherKey.into());
    }
    Ok(false)
}

/// Makes a promoted clone the encryption root of everything that used its origin's dir as that.
pub(crate) fn promote(
    tx: &mut Tx<'_>,
    effects: &mut Effects,
    origin_dir: u64,
    dir: u64,
) -> TxResult<()> {
    let (from, to) = (get_dir(tx, origin_dir)?.props_zapobj, get_dir(tx, dir)?.props_zapobj);
    if let Some(location) = zap::lookup(tx, from, KEYLOCATION)? {
        props::set(tx, to, KEYLOCATION, &location)?;
        zap::remove(tx, from, KEYLOCATION)?;
    }
    for (_, object) in users(tx, origin_dir, origin_dir)? {
        zap::update(tx, object, entry::ROOT_DDOBJ, dir)?;
    }
    effects.moved_roots.push((origin_dir, dir));
    Ok(())
}

/// Returns the dirs that use an encryption root, from one of them on, with their key objects.
fn users(tx: &mut Tx<'_>, root: u64, from: u64) -> TxResult<Vec<(u64, u64)>> {
    let (mut found, mut seen, mut left) = (Vec::new(), BTreeSet::new(), vec![KeyPath::First(from)]);
    while let Some(path) = left.pop() {
        if let Some((dir, object)) = key_user(tx, root, path)?
            && seen.insert(dir)
        {
            found.push((dir, object));
            left.extend(key_paths(tx, dir)?);
        }
    }
    Ok(found)
}
