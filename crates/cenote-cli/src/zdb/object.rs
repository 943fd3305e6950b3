//! Objects: the table, and with `-dddd` the contents of each.

use std::fmt::Write as _;
use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::dnode::{DNODE_SLOT_LEN, DnodeFlags};
use cenote_ondisk::object_type::ObjectType;

use super::dataset::{ObjectRange, Set};
use super::pool::Show;
use super::{bonus, tree, zap};
use crate::io::{CommandResult, Exit};
use crate::out;

/// Dnodes of the smallest size per block of the meta-dnode.
const SLOTS_PER_BLOCK: u64 = 32;

/// Shows the selected objects.
pub(super) async fn ranges(
    show: &mut Show<'_, '_>,
    set: &Set,
    ranges: &[ObjectRange],
) -> CommandResult {
    let mut has_header = false;
    for range in ranges {
        if range.is_single {
            let dnode = match range.start {
                0 => Arc::clone(set.objset.meta_dnode()),
                object => match set.objset.dnode(object).await {
                    Ok(dnode) => dnode,
                    Err(error) => {
                        if !has_header {
                            header(show)?;
                        }
                        let text = match error.kind() {
                            cenote_rt::Kind::NotFound => "errno 2".to_owned(),
                            _ => error.to_string(),
                        };
                        return Err(Exit::failed(format!("dmu_object_info() failed, {text}")));
                    }
                },
            };
            one(show, set, &dnode, &mut has_header).await?;
            continue;
        }
        if range.start == 0 && range.takes(ObjectType::DNODE) {
            one(show, set, &Arc::clone(set.objset.meta_dnode()), &mut has_header).await?;
        }
        let mut dnodes = set.objset.dnodes_in(range.start..range.end.saturating_add(1));
        while let Some(dnode) = dnodes.next().await {
            let dnode = dnode?;
            if range.takes(dnode.phys().object_type) {
                let result = one(show, set, &dnode, &mut has_header).await;
                show.tolerate(result)?;
            }
        }
    }
    out!(show.io)
}

/// Shows all objects, then the usage of the dnode table.
pub(super) async fn all(show: &mut Show<'_, '_>, set: &Set) -> CommandResult {
    let mut has_header = false;
    let objset = &set.objset;
    one(show, set, objset.meta_dnode(), &mut has_header).await?;
    for special in [objset.user_used(), objset.group_used(), objset.project_used()] {
        if let Some(dnode) = special
            && dnode.phys().object_type != ObjectType::NONE
        {
            one(show, set, &dnode, &mut has_header).await?;
        }
    }
    let (mut used, mut max_used) = (0_u64, 0_u64);
    let mut dnodes = objset.dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let result = match dnode {
            Ok(dnode) => {
                let slots = (dnode.phys().len() / DNODE_SLOT_LEN) as u64;
                used += slots;
                max_used = dnode.object() + slots - 1;
                one(show, set, &dnode, &mut has_header).await
            }
            Err(error) => Err(error.into()),
        };
        show.tolerate(result)?;
    }
    let empty = match max_used {
        0 => 0.0,
        max => 100.0 * (max.saturating_sub(used)) as f64 / max as f64,
    };
    out!(show.io, "\n    Dnode slots:")?;
    out!(show.io, "\tTotal used:    {used:10}")?;
    out!(show.io, "\tMax used:      {max_used:10}")?;
    out!(show.io, "\tPercent empty: {empty:10.6}\n")
}

fn header(show: &mut Show<'_, '_>) -> CommandResult {
    out!(
        show.io,
        "\n{:>10}  {:>3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {:>6}  type",
        "Object",
        "lvl",
        "iblk",
        "dblk",
        "dsize",
        "dnsize",
        "lsize",
        "%full",
    )
}

/// Shows one object.
async fn one(
    show: &mut Show<'_, '_>,
    set: &Set,
    dnode: &Arc<Dnode>,
    has_header: &mut bool,
) -> CommandResult {
    let verbosity = show.options.count('d');
    if !std::mem::replace(has_header, true) {
        header(show)?;
    }
    row(show, dnode)?;
    if verbosity < 4 {
        return Ok(());
    }
    let phys = dnode.phys();
    if phys.bonus_type != ObjectType::NONE && phys.bonus_len > 0 {
        out!(
            show.io,
            "{:43}  {:>5}  {:>6}  {}",
            "",
            show.options.size(phys.bonus_len.into()),
            "bonus",
            phys.bonus_type,
        )?;
    }
    flags(show, dnode)?;
    let is_locked = |kind: ObjectType| set.objset.is_locked() && kind.is_encrypted();
    if is_locked(phys.bonus_type) {
        out!(show.io, "\t\t(bonus encrypted)")?;
    } else {
        bonus::print(show, set, dnode).await?;
    }
    if is_locked(phys.object_type) {
        out!(show.io, "\t\t(object encrypted)")?;
    } else {
        contents(show, set, dnode).await?;
    }
    if verbosity >= 5 {
        tree::print(show, set, dnode).await?;
    }
    *has_header = false;
    Ok(())
}

fn row(show: &mut Show<'_, '_>, dnode: &Dnode) -> CommandResult {
    let (phys, geometry) = (dnode.phys(), dnode.geometry());
    let fill: u64 = dnode.pointers().map(|pointer| pointer.fill()).sum();
    let per_block = if dnode.object() == 0 { SLOTS_PER_BLOCK } else { 1 };
    let bytes = phys.maxblkid.saturating_add(1).saturating_mul(geometry.block_size);
    let full = match bytes {
        0 => 0.0,
        bytes => 100.0 * fill as f64 * geometry.block_size as f64 / per_block as f64 / bytes as f64,
    };
    // In sectors, rounded to the nearest.
    let used = phys.used_bytes().saturating_add(256) / 512 * 512;
    let size = |bytes| show.options.size(bytes);
    out!(
        show.io,
        "{:10}  {:3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {full:6.2}  {}{}",
        dnode.object() as i64,
        phys.nlevels,
        size(geometry.indirect_size()),
        size(geometry.block_size),
        size(used),
        size(phys.len() as u64),
        size(bytes),
        phys.object_type,
        settings(phys.checksum, phys.compress, show.options.count('d')),
    )
}

/// Returns checksum and compression of an object, where they are set.
fn settings(checksum: u8, compress: u8, verbosity: usize) -> String {
    let mut text = String::new();
    if checksum != ChecksumType::Inherit.id() || verbosity >= 6 {
        let name = ChecksumType::from_id(checksum).map_or("unknown", ChecksumType::name);
        let _ = write!(text, " (K={name})");
    }
    if compress != CompressionType::Inherit.id() || verbosity >= 6 {
        let name = CompressionType::from_id(compress).map_or("unknown", CompressionType::name);
        let _ = write!(text, " (Z={name})");
    }
    text
}

fn flags(show: &mut Show<'_, '_>, dnode: &Dnode) -> CommandResult {
    let phys = dnode.phys();
    let names = [
        (DnodeFlags::USED_BYTES, "USED_BYTES "),
        (DnodeFlags::USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED "),
        (DnodeFlags::USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED "),
        (DnodeFlags::SPILL_BLKPTR, "SPILL_BLKPTR"),
    ];
    let flags: String = names
        .iter()
        .filter(|(flag, _)| phys.flags.contains(*flag))
        .map(|(_, name)| *name)
        .collect();
    out!(show.io, "\tdnode flags: {flags}")?;
    out!(show.io, "\tdnode maxblkid: {}", phys.maxblkid)
}

/// Prints the contents of an object of a supported type.
async fn contents(show: &mut Show<'_, '_>, set: &Set, dnode: &Arc<Dnode>) -> CommandResult {
    match dnode.phys().object_type {
        ObjectType::PACKED_NVLIST => {
            let list = cenote_dmu::read_nvlist(&set.objset, dnode.object()).await?;
            super::text::nvlist(show.io, &list, 8)
        }
        kind if kind.is_zap() => zap::print(show, set, dnode).await,
        kind if !kind.is_valid() || kind == ObjectType::UINT32_METADATA => {
            out!(show.io, "\tUNKNOWN OBJECT TYPE")
        }
        _ => Ok(()),
    }
}
