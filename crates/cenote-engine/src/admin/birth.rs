//! The MOS of a new pool in its first txg (spec 01 §18.2, 04 §5).
//!
//! ```text
//!   directory (object 1)
//!     root_dataset      dir -- $MOS, $FREE, $ORIGIN@$ORIGIN -- root dataset
//!     free_bpobj, sync_bplist, history, config
//!     features_for_read, features_for_write, feature_descriptions, feature_enabled_txg
//!     vdev_zap_map      the objects with the properties of vdevs
//!     deflate, creation_version, checksum_salt
//! ```
//!
//! One transaction creates everything; space maps and the config's contents follow in the passes of
//! the same txg, as in any txg.

use cenote_dmu::bpobj::edit as bpobj;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::dsl::key;
use cenote_ondisk::feature::Feature;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::vdev_zap::ALLOCATION_BIAS;
use cenote_ondisk::zap::Value;
use cenote_pool::mos::DIRECTORY;
use cenote_vdev::create::{Created, VdevClass};

use crate::admin::aux;
use crate::admin::aux::Aux;
use crate::dsl;
use crate::dsl::{Context, create, features};

/// Block size of lists of freed blocks.
const BPOBJ_BLOCK: u64 = 128 << 10;
/// Block size of the list of deferred frees.
const SYNC_BPOBJ_BLOCK: u64 = 16 << 10;
/// Block size of the config.
pub(crate) const CONFIG_BLOCK: u64 = 16 << 10;

/// Pool directory entry: property objects of the vdevs.
pub(crate) const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";

/// The contents of a new MOS that differ between pools.
#[derive(Debug)]
pub(crate) struct NewPool<'a> {
    /// Features to enable, in the table's order.
    pub(crate) features: &'a [&'static Feature],
    /// The vdevs.
    pub(crate) vdevs: &'a Created,
    /// Salt of checksums.
    pub(crate) salt: [u8; 32],
}

/// Objects of a new MOS.
#[derive(Debug, Clone)]
pub(crate) struct NewMos {
    /// The root dataset.
    pub(crate) root_dataset: u64,
    /// The dir that is charged for the MOS.
    pub(crate) mos_dir: u64,
    /// The vdevs with their objects.
    pub(crate) root: VdevConfig,
}

/// Fills an empty MOS.
pub(crate) fn fill(tx: &mut Tx<'_>, ctx: &Context, new: &NewPool<'_>) -> TxResult<NewMos> {
    let directory = ObjectSpec::new(ObjectType::OBJECT_DIRECTORY, 0).with_number(DIRECTORY);
    zap::create(tx, &directory, ZapOptions::default())?;

    let root_dir = create::dir(tx, ctx, 0, "")?;
    let mos_dir = create::dir(tx, ctx, root_dir, key::MOS_DIR)?;
    create::dir(tx, ctx, root_dir, key::FREE_DIR)?;
    let free = bpobj::create(tx, BPOBJ_BLOCK, false)?;
    zap::insert(tx, DIRECTORY, key::FREE_BPOBJ, free)?;
    let origin = create::origin(tx, ctx, root_dir)?;

    for name in ["features_for_read", "features_for_write", "feature_descriptions"] {
        dsl::new_directory_zap(tx, name)?;
    }
    for feature in new.features {
        features::enable(tx, feature, ctx.txg)?;
    }
    let root_dataset = create::head(tx, ctx, root_dir, origin)?;

    let config = ObjectSpec::new(ObjectType::PACKED_NVLIST, CONFIG_BLOCK)
        .with_bonus(ObjectType::PACKED_NVLIST_SIZE, 8);
    let config = tx.allocate(&config)?;
    zap::insert(tx, DIRECTORY, "config", config)?;
    let deferred = bpobj::create(tx, SYNC_BPOBJ_BLOCK, false)?;
    zap::insert(tx, DIRECTORY, key::SYNC_BPOBJ, deferred)?;
    zap::insert(tx, DIRECTORY, "creation_version", 5000)?;
    zap::insert(tx, DIRECTORY, key::DEFLATE, 1)?;
    let salt = Value::bytes_of(&new.salt);
    zap::insert(tx, DIRECTORY, "org.illumos:checksum_salt", salt)?;

    aux::write(tx, Aux::Spares, &new.vdevs.spares)?;
    aux::write(tx, Aux::Caches, &new.vdevs.caches)?;
    let root = vdev_zaps(tx, new)?;
    if new.features.iter().any(|feature| feature.name == "vdev_zaps_v2") {
        features::add(tx, "vdev_zaps_v2", 1)?;
    }
    let is_special = |class: &&VdevClass| matches!(class, VdevClass::Special | VdevClass::Dedup);
    let special = new.vdevs.classes.iter().filter(is_special).count();
    if special > 0 {
        features::add(tx, "allocation_classes", special as i64)?;
    }
    let draids = new.vdevs.root.children.iter();
    let draids = draids.filter(|top| matches!(top.kind, VdevKind::Draid(_))).count();
    if draids > 0 {
        features::add(tx, "draid", draids as i64)?;
    }
    Ok(NewMos { root_dataset, mos_dir, root })
}

/// Creates the property objects of all vdevs, and lists them in the pool directory.
fn vdev_zaps(tx: &mut Tx<'_>, new: &NewPool<'_>) -> TxResult<VdevConfig> {
    let map = dsl::new_directory_zap(tx, VDEV_ZAP_MAP)?;
    let mut root = new.vdevs.root.clone();
    if new.features.iter().any(|feature| feature.name == "vdev_zaps_v2") {
        root.zap_root = Some(vdev_zap(tx, map)?);
    }
    for (top, class) in root.children.iter_mut().zip(&new.vdevs.classes) {
        add_vdev_zaps(tx, map, top, true)?;
        if let (Some(bias), Some(object)) = (class.bias(), top.top.zap_top) {
            zap::insert(tx, object, ALLOCATION_BIAS, Value::text(bias))?;
        }
    }
    Ok(root)
}

/// Creates the property objects of a vdev and its descendants.
pub(crate) fn add_vdev_zaps(
    tx: &mut Tx<'_>,
    map: u64,
    vdev: &mut VdevConfig,
    is_top: bool,
) -> TxResult<()> {
    if vdev.kind.is_leaf() {
        vdev.leaf.zap_leaf = Some(vdev_zap(tx, map)?);
    }
    if is_top {
        vdev.top.zap_top = Some(vdev_zap(tx, map)?);
    }
    vdev.children.iter_mut().try_for_each(|child| add_vdev_zaps(tx, map, child, false))
}

/// Creates the property object of a leaf that comes to an existing vdev.
pub(crate) fn add_leaf_zap(tx: &mut Tx<'_>, leaf: &mut VdevConfig) -> TxResult<()> {
    let map = dsl::need_directory_object(tx, VDEV_ZAP_MAP)?;
    add_vdev_zaps(tx, map, leaf, false)
}

/// Frees the property object of a leaf that goes.
pub(crate) fn remove_leaf_zap(tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
    let map = dsl::need_directory_object(tx, VDEV_ZAP_MAP)?;
    zap::remove_number(tx, map, object)?;
    tx.free(object)
}

fn vdev_zap(tx: &mut Tx<'_>, map: u64) -> TxResult<u64> {
    let object = dsl::new_zap(tx, ObjectType::ZAP_METADATA)?;
    zap::insert_number(tx, map, object)?;
    Ok(object)
}
