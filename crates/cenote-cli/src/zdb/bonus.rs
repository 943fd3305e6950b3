//! Contents of bonus buffers.

use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_ondisk::blkptr::{BlockPtr, Compact};
use cenote_ondisk::bpobj::{BPOBJ_ENTRY_LEN, BpobjPhys};
use cenote_ondisk::dsl::{DatasetPhys, DirPhys};
use cenote_ondisk::history::HistoryPhys;
use cenote_ondisk::object_type::ObjectType;

use super::dataset::Set;
use super::pool::Show;
use super::{text, znode};
use crate::io::{CommandResult, Exit};
use crate::out;

fn corrupt(error: impl std::fmt::Display) -> Exit {
    Exit::failed(error.to_string())
}

/// Prints the bonus buffer of an object, if its type is supported.
pub(super) async fn print(show: &mut Show<'_, '_>, set: &Set, dnode: &Arc<Dnode>) -> CommandResult {
    let bytes = dnode.bonus()?;
    match dnode.phys().bonus_type {
        ObjectType::DSL_DIR => dir(show, &DirPhys::decode(bytes).map_err(corrupt)?),
        ObjectType::DSL_DATASET => dataset(show, &DatasetPhys::decode(bytes).map_err(corrupt)?),
        ObjectType::BPOBJ_HDR => {
            let phys = BpobjPhys::decode(bytes).map_err(corrupt)?;
            bpobj(show, &phys)?;
            if show.options.count('d') >= 5 { entries(show, dnode, &phys).await } else { Ok(()) }
        }
        ObjectType::SPA_HISTORY_OFFSETS => {
            history(show, &HistoryPhys::decode(bytes).map_err(corrupt)?)
        }
        ObjectType::SA | ObjectType::ZNODE => znode::print(show, set, dnode).await,
        _ => Ok(()),
    }
}

fn dir(show: &mut Show<'_, '_>, phys: &DirPhys) -> CommandResult {
    let size = |bytes| show.options.size(bytes);
    let mut lines = vec![
        ("creation_time", text::time(phys.creation_time)),
        ("head_dataset_obj", phys.head_dataset_obj.to_string()),
        ("parent_dir_obj", phys.parent_obj.to_string()),
        ("origin_obj", phys.origin_obj.to_string()),
        ("child_dir_zapobj", phys.child_dir_zapobj.to_string()),
        ("used_bytes", size(phys.used_bytes)),
        ("compressed_bytes", size(phys.compressed_bytes)),
        ("uncompressed_bytes", size(phys.uncompressed_bytes)),
        ("quota", size(phys.quota)),
        ("reserved", size(phys.reserved)),
        ("props_zapobj", phys.props_zapobj.to_string()),
        ("deleg_zapobj", phys.deleg_zapobj.to_string()),
        ("flags", format!("{:x}", phys.flags)),
    ];
    let parts = &phys.breakdown;
    lines.extend([
        ("used_breakdown[HEAD]", size(parts.head)),
        ("used_breakdown[SNAP]", size(parts.snap)),
        ("used_breakdown[CHILD]", size(parts.child)),
        ("used_breakdown[CHILD_RSRV]", size(parts.child_reserved)),
        ("used_breakdown[REFRSRV]", size(parts.refreserved)),
        ("clones", phys.clones.to_string()),
    ]);
    print_lines(show, &lines)
}

fn dataset(show: &mut Show<'_, '_>, phys: &DatasetPhys) -> CommandResult {
    let size = |bytes| show.options.size(bytes);
    let lines = [
        ("dir_obj", phys.dir_obj.to_string()),
        ("prev_snap_obj", phys.prev_snap_obj.to_string()),
        ("prev_snap_txg", phys.prev_snap_txg.to_string()),
        ("next_snap_obj", phys.next_snap_obj.to_string()),
        ("snapnames_zapobj", phys.snapnames_zapobj.to_string()),
        ("num_children", phys.num_children.to_string()),
        ("userrefs_obj", phys.userrefs_obj.to_string()),
        ("creation_time", text::time(phys.creation_time)),
        ("creation_txg", phys.creation_txg.to_string()),
        ("deadlist_obj", phys.deadlist_obj.to_string()),
        ("used_bytes", size(phys.referenced_bytes)),
        ("compressed_bytes", size(phys.compressed_bytes)),
        ("uncompressed_bytes", size(phys.uncompressed_bytes)),
        ("unique", size(phys.unique_bytes)),
        ("fsid_guid", phys.fsid_guid.to_string()),
        ("guid", phys.guid.to_string()),
        ("flags", format!("{:x}", phys.flags.bits())),
        ("next_clones_obj", phys.next_clones_obj.to_string()),
        ("props_obj", phys.props_obj.to_string()),
        ("bp", phys.bp.verbose().to_string()),
    ];
    print_lines(show, &lines)
}

fn bpobj(show: &mut Show<'_, '_>, phys: &BpobjPhys) -> CommandResult {
    let size = |bytes| show.options.size(bytes);
    let lines = [
        ("num_blkptrs", phys.num_blkptrs.to_string()),
        ("bytes", size(phys.bytes)),
        ("comp", size(phys.comp)),
        ("uncomp", size(phys.uncomp)),
        ("subobjs", phys.subobjs.to_string()),
        ("num_subobjs", phys.num_subobjs.to_string()),
        ("num_freed", phys.num_freed.to_string()),
    ];
    print_lines(show, &lines)
}

/// Prints the block pointers on a list, first to last.
async fn entries(show: &mut Show<'_, '_>, dnode: &Arc<Dnode>, phys: &BpobjPhys) -> CommandResult {
    let end = phys.num_blkptrs.saturating_mul(BPOBJ_ENTRY_LEN as u64);
    let end = end.min(dnode.geometry().byte_count());
    let mut offset = 0;
    while offset < end {
        let len = (end - offset).min(dnode.geometry().block_size);
        let block = dnode.read_at(offset, len as usize).await?;
        for pointer in BlockPtr::all_in(&block) {
            let entry = Compact { is_freed: pointer.fill() == 1, ..pointer.compact(false) };
            out!(show.io, "\t{entry}")?;
        }
        offset += len;
    }
    Ok(())
}

fn history(show: &mut Show<'_, '_>, phys: &HistoryPhys) -> CommandResult {
    let lines = [
        ("pool_create_len", phys.create_len.to_string()),
        ("phys_max_off", phys.phys_max_off.to_string()),
        ("bof", phys.bof.to_string()),
        ("eof", phys.eof.to_string()),
        ("records_lost", phys.records_lost.to_string()),
    ];
    print_lines(show, &lines)
}

fn print_lines(show: &mut Show<'_, '_>, lines: &[(&str, String)]) -> CommandResult {
    for (name, value) in lines {
        out!(show.io, "\t\t{name} = {value}")?;
    }
    Ok(())
}
