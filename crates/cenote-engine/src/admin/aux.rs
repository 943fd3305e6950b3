//! The lists of hot spares and of cache devices, which are not in the vdev tree (spec 01 §10.2).

use cenote_dmu::nvlist;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::nvlist::NvList;
use cenote_pool::mos::DIRECTORY;

use crate::dsl;

/// One of the two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aux {
    /// Hot spares.
    Spares,
    /// Cache devices.
    Caches,
}

impl Aux {
    /// Returns its name in the pool directory, and of the list's entry there.
    const fn key(self) -> &'static str {
        match self {
            Self::Spares => "spares",
            Self::Caches => "l2cache",
        }
    }
}

/// Writes a list to the MOS; an empty one needs no object.
pub(crate) fn write(tx: &mut Tx<'_>, aux: Aux, vdevs: &[VdevConfig]) -> TxResult<()> {
    if vdevs.is_empty() {
        return Ok(());
    }
    add(tx, aux, vdevs)
}

/// Adds vdevs to a list.
pub(super) fn add(tx: &mut Tx<'_>, aux: Aux, vdevs: &[VdevConfig]) -> TxResult<()> {
    let object = if let Some(object) = dsl::directory_object(tx, aux.key())? {
        object
    } else {
        let object = nvlist::create(tx)?;
        zap::update(tx, DIRECTORY, aux.key(), object)?;
        object
    };
    let mut lists: Vec<NvList> = if tx.bonus(object)?.iter().all(|byte| *byte == 0) {
        Vec::new()
    } else {
        let there = nvlist::read(tx, object)?;
        there.list_array(aux.key()).unwrap_or_default().to_vec()
    };
    lists.extend(vdevs.iter().map(VdevConfig::encode_aux));
    put(tx, aux, object, lists)
}

/// Keeps the vdevs of a list that `keeps` accepts. One that cannot be decoded stays.
pub(crate) fn retain(
    tx: &mut Tx<'_>,
    aux: Aux,
    keeps: impl Fn(&VdevConfig) -> bool,
) -> TxResult<()> {
    let Some(object) = dsl::directory_object(tx, aux.key())? else { return Ok(()) };
    let there = nvlist::read(tx, object)?;
    let mut lists = there.list_array(aux.key()).unwrap_or_default().to_vec();
    lists.retain(|list| VdevConfig::decode(list).map_or(true, |vdev| keeps(&vdev)));
    put(tx, aux, object, lists)
}

/// Whether a list has the vdev with this guid.
pub(crate) fn contains(tx: &mut Tx<'_>, aux: Aux, guid: u64) -> TxResult<bool> {
    let Some(object) = dsl::directory_object(tx, aux.key())? else { return Ok(false) };
    let there = nvlist::read(tx, object)?;
    let lists = there.list_array(aux.key()).unwrap_or_default();
    Ok(lists.iter().any(|list| VdevConfig::decode(list).is_ok_and(|vdev| vdev.guid == guid)))
}

fn put(tx: &mut Tx<'_>, aux: Aux, object: u64, lists: Vec<NvList>) -> TxResult<()> {
    let mut list = NvList::new();
    list.insert(aux.key(), lists);
    nvlist::write(tx, object, &list)
}
