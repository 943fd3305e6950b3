//! Attributes of files, from system attributes or from old znodes.

use std::sync::Arc;

use cenote_dmu::{Dnode, ObjSet, Zap};
use cenote_ondisk::nvlist::{NvList, NvValue};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetFlags;
use cenote_ondisk::znode::{FileAttributes, Fuid, PFlags};

use super::dataset::Set;
use super::pool::Show;
use super::{path, text};
use crate::io::{CommandResult, Exit};
use crate::out;

/// Largest FUID domain table that is read.
const DOMAINS_LEN_MAX: u64 = 16 << 20;

/// Returns the domains of a file system's FUID table, by index; index 0 is empty.
pub(super) async fn load_domains(objset: &Arc<ObjSet>) -> cenote_rt::Result<Vec<String>> {
    let master = Zap::open(objset, 1).await?;
    let Some(object) = master.lookup_u64("FUID").await? else { return Ok(Vec::new()) };
    let dnode = objset.dnode(object).await?;
    let len = cenote_ondisk::words::u64_at(dnode.bonus()?, 0).unwrap_or(0);
    let bytes = cenote_dmu::read_bytes(&dnode, len, DOMAINS_LEN_MAX).await?;
    let list = NvList::decode(&bytes).map_err(cenote_rt::Error::corrupt)?;
    let mut domains = Vec::new();
    for entry in list.list_array("fuid_nvlist").unwrap_or_default() {
        let index = entry.u64("fuid_idx").unwrap_or(0) as usize;
        // An index far beyond the number of entries is corrupt.
        if index <= bytes.len() {
            domains.resize(domains.len().max(index + 1), String::new());
            domains[index] = entry.str("fuid_domain").unwrap_or_default().into();
        }
    }
    Ok(domains)
}

/// Returns the attributes of an object.
pub(super) async fn attributes(
    set: &Set,
    dnode: &Arc<Dnode>,
) -> CommandResult<Option<FileAttributes>> {
    let bytes = dnode.bonus()?;
    let corrupt = |error: cenote_ondisk::sa::CorruptSa| Exit::failed(error.to_string());
    if dnode.phys().bonus_type == ObjectType::ZNODE {
        return FileAttributes::from_znode(bytes).map(Some).map_err(corrupt);
    }
    let Some(registry) = &set.registry else { return Ok(None) };
    let spill = dnode.spill().await?;
    FileAttributes::from_sa(bytes, spill.as_deref(), registry).map(Some).map_err(corrupt)
}

/// Prints the attributes of an object.
pub(super) async fn print(show: &mut Show<'_, '_>, set: &Set, dnode: &Arc<Dnode>) -> CommandResult {
    let Some(attributes) = attributes(set, dnode).await? else { return Ok(()) };
    if show.options.count('d') >= 5 {
        let path = path::of_object(set, dnode.object()).await;
        let path = path.unwrap_or_else(|| format!("???<object#{}>", dnode.object()));
        out!(show.io, "\tpath\t{path}")?;
    }
    let is_old = dnode.phys().bonus_type == ObjectType::ZNODE;
    if let (Some(target), false) = (&attributes.symlink, is_old) {
        show.io.out.write_all(b"\ttarget\t")?;
        show.io.out.write_all(target)?;
        out!(show.io)?;
    }
    owner(show, set, "uid", attributes.uid)?;
    owner(show, set, "gid", attributes.gid)?;
    for (name, time) in [
        ("atime", attributes.atime),
        ("mtime", attributes.mtime),
        ("ctime", attributes.ctime),
        ("crtime", attributes.crtime),
    ] {
        out!(show.io, "\t{name}\t{}", text::time(time.seconds as u64))?;
    }
    out!(show.io, "\tgen\t{}", attributes.gen_)?;
    out!(show.io, "\tmode\t{:o}", attributes.mode)?;
    out!(show.io, "\tsize\t{}", attributes.size)?;
    out!(show.io, "\tparent\t{}", attributes.parent)?;
    out!(show.io, "\tlinks\t{}", attributes.links)?;
    out!(show.io, "\tpflags\t{:x}", attributes.flags)?;
    let counts_projects = set.objset.phys().flags.contains(ObjSetFlags::PROJECTQUOTA_COMPLETE);
    if counts_projects && attributes.flags & PFlags::PROJID.bits() != 0 {
        out!(show.io, "\tprojid\t{}", attributes.projid.unwrap_or(0))?;
    }
    // An old znode always has these two fields; system attributes may lack them.
    if is_old || attributes.xattr_obj != 0 {
        out!(show.io, "\txattr\t{}", attributes.xattr_obj)?;
    }
    if is_old || attributes.rdev.is_some() {
        out!(show.io, "\trdev\t{:#018x}", attributes.rdev.unwrap_or(0))?;
    }
    match &attributes.dxattr {
        Some(packed) => xattrs(show, packed),
        None => Ok(()),
    }
}

fn owner(show: &mut Show<'_, '_>, set: &Set, name: &str, id: Fuid) -> CommandResult {
    if id.domain() == 0 {
        return out!(show.io, "\t{name}     {}", id.0);
    }
    let domain = set.domains.get(id.domain() as usize).map_or("", String::as_str);
    out!(show.io, "\t{name}     {:x} [{domain}-{}]", id.0, id.rid() as i32)
}

/// Prints the extended attributes that are stored as a system attribute.
fn xattrs(show: &mut Show<'_, '_>, packed: &[u8]) -> CommandResult {
    if packed.is_empty() {
        return Ok(());
    }
    let list = NvList::decode(packed).map_err(|error| Exit::failed(error.to_string()))?;
    out!(show.io, "\tSA xattrs: {} bytes, {} entries\n", packed.len(), list.len())?;
    for (name, value) in list.iter() {
        let (NvValue::ByteArray(bytes) | NvValue::Uint8Array(bytes)) = value else { continue };
        write!(show.io.out, "\t\t{name} = ")?;
        let is_text = bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
        if is_text && !show.options.has('P') {
            show.io.out.write_all(bytes)?;
        } else {
            for byte in bytes {
                write!(show.io.out, "\\{byte:03o}")?;
            }
        }
        out!(show.io)?;
    }
    Ok(())
}
