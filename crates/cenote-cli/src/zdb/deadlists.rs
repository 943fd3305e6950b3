//! Lists of freed blocks: of datasets, of the pool, of datasets being destroyed.

use cenote_dmu::{Bpobj, Deadlist};
use cenote_ondisk::blkptr::Compact;
use cenote_ondisk::dsl::{DatasetPhys, key};
use cenote_pool::Dataset;
use cenote_pool::dsl::Bookmark;
use cenote_pool::dsl::redaction::redaction_header;

use super::pool::Show;
use crate::io::CommandResult;
use crate::out;

/// Bonus length of a bpobj that counts freed entries (livelists).
const COUNTS_FREED_LEN: u16 = 56;

/// Prints the deadlist, livelist, remap deadlist and bookmarks of a dataset.
pub(super) async fn of_dataset(show: &mut Show<'_, '_>, dataset: &Dataset) -> CommandResult {
    let is_listed = show.options.count('d') >= 3;
    if is_listed {
        deadlist(show, dataset.phys().deadlist_obj, "Deadlist").await?;
    }
    if is_listed && !dataset.is_snapshot() {
        let mos = std::sync::Arc::clone(show.pool.mos());
        if let Some(livelist) = dataset.dir().extra(&mos, key::LIVELIST).await? {
            deadlist(show, livelist, "Livelist").await?;
        }
    }
    if let Some(object) = dataset.extra(key::REMAP_DEADLIST).await? {
        // The heading is printed even without a list.
        out!(show.io, "ds_remap_deadlist:")?;
        if is_listed {
            deadlist(show, object, "Deadlist").await?;
        }
    }
    if show.options.count('d') >= 4 && !dataset.is_snapshot() {
        let level = show.options.count('d');
        for found in dataset.bookmarks().await? {
            bookmark(show, &found, level >= 5, level >= 6).await?;
        }
    }
    Ok(())
}

/// Prints a bookmark, its redaction if that is wanted, and the list of the blocks that it leaves
/// out.
pub(super) async fn bookmark(
    show: &mut Show<'_, '_>,
    bookmark: &Bookmark,
    has_redaction: bool,
    has_list: bool,
) -> CommandResult {
    let phys = &bookmark.phys;
    out!(
        show.io,
        "\t#{}: {{guid: {:x} creation_txg: {} creation_time: {} redaction_obj: {}}}",
        bookmark.short_name(),
        phys.guid,
        phys.creation_txg,
        phys.creation_time,
        phys.redaction_obj,
    )?;
    if has_redaction && phys.redaction_obj != 0 {
        redaction(show, phys.redaction_obj, has_list).await?;
    }
    Ok(())
}

async fn redaction(show: &mut Show<'_, '_>, object: u64, has_list: bool) -> CommandResult {
    use cenote_ondisk::redaction::{REDACTION_ENTRY_LEN, entries};
    let (dnode, phys) = redaction_header(show.pool.mos(), object).await?;
    out!(show.io, "\tRedacted:")?;
    if phys.is_complete() {
        out!(show.io, "\t\tProgress: complete")?;
    } else {
        out!(show.io, "\t\tProgress: {} {} (incomplete)", phys.last_object, phys.last_blkid)?;
    }
    let guids: Vec<String> = phys.guids.iter().map(u64::to_string).collect();
    out!(show.io, "\t\tSnapshots: [{}]", guids.join(", "))?;
    out!(show.io, "\t\tLength: {}", phys.num_entries)?;
    if !has_list {
        return Ok(());
    }
    write!(show.io.out, "\t\tRedaction List: [")?;
    let len = phys.num_entries.saturating_mul(REDACTION_ENTRY_LEN as u64);
    let (mut offset, mut between) = (0, "");
    while offset < len {
        // A piece holds a whole number of entries.
        let piece = (len - offset).min(1 << 17);
        let bytes = dnode.read_at(offset, piece as usize).await?;
        for entry in entries(&bytes) {
            write!(
                show.io.out,
                "{between}{{object: {:x}, offset: {:x}, blksz: {:x}, count: {:x}}}",
                entry.object, entry.blkid, entry.block_size, entry.block_count,
            )?;
            between = ",\n\t\t";
        }
        offset += piece;
    }
    out!(show.io, "]\n")
}

async fn deadlist(show: &mut Show<'_, '_>, object: u64, name: &str) -> CommandResult {
    if object == 0 {
        return Ok(());
    }
    let list = Deadlist::open(show.pool.mos(), object).await?;
    let Some(entries) = list.entries() else {
        let bpobj = Bpobj::open(show.pool.mos(), object).await?;
        return full_bpobj(show, &bpobj, "old-format deadlist", 0).await;
    };
    let sums = list.sums();
    let size = |bytes| show.options.size(bytes);
    let (used, comp, uncomp) = (size(sums.used), size(sums.comp), size(sums.uncomp));
    let count = size(entries.len() as u64);
    out!(show.io, "\n    {name}: {used} ({comp}/{uncomp} comp), {count} entries")?;
    if show.options.count('d') < 4 {
        return Ok(());
    }
    out!(show.io)?;
    for (txg, object) in entries {
        let line = format!("mintxg {txg} -> obj {object}");
        if show.options.count('d') >= 5 {
            let bpobj = Bpobj::open(show.pool.mos(), *object).await?;
            full_bpobj(show, &bpobj, &line, 0).await?;
            out!(show.io)?;
        } else {
            out!(show.io, "{line}")?;
        }
    }
    Ok(())
}

/// Prints a list of block pointers with its sums; sublists are indented; entries with `-ddddd`.
async fn full_bpobj(
    show: &mut Show<'_, '_>,
    bpobj: &Bpobj,
    name: &str,
    indent: usize,
) -> CommandResult {
    let phys = *bpobj.phys();
    let object = bpobj.dnode().object();
    let size = |bytes| show.options.size(bytes);
    let (bytes, comp, uncomp) = (size(phys.bytes), size(phys.comp), size(phys.uncomp));
    let count = phys.num_blkptrs;
    // Only the newest form counts freed entries.
    let counts_freed = bpobj.dnode().phys().bonus_len >= COUNTS_FREED_LEN;
    let freed = if counts_freed { format!(" {} freed,", phys.num_freed) } else { String::new() };
    let subobjs = bpobj.subobjs().await?;
    let columns = indent * 8;
    if phys.subobjs != 0 {
        out!(
            show.io,
            "    {name:>columns$}: object {object}, {count} local blkptrs,{freed} {} subobjs in \
             object {}, {bytes} ({comp}/{uncomp} comp)",
            phys.num_subobjs,
            phys.subobjs,
        )?;
        let mos = std::sync::Arc::clone(show.pool.mos());
        for subobj in subobjs {
            match Bpobj::open(&mos, subobj).await {
                Ok(inner) => Box::pin(full_bpobj(show, &inner, "subobj", indent + 1)).await?,
                Err(error) => {
                    out!(show.io, "ERROR {error} while trying to open subobj id {subobj}")?;
                }
            }
        }
    } else {
        out!(show.io, "    {name:>columns$}: object {object}, {count} blkptrs,{freed} {bytes}")?;
    }
    if show.options.count('d') < 5 {
        return Ok(());
    }
    let mut lines = Vec::new();
    bpobj
        .for_each_own(&mut |pointer| {
            // Livelists have frees among their entries, marked by the fill count.
            let entry = Compact { is_freed: pointer.fill() == 1, ..pointer.compact(false) };
            lines.push(format!("\t{entry}"));
            Ok(())
        })
        .await?;
    for line in &lines {
        out!(show.io, "{line}")?;
    }
    Ok(())
}

impl Show<'_, '_> {
    /// Prints the pool's own lists.
    pub(super) async fn pool_lists(&mut self) -> CommandResult {
        let lists = [
            (key::SYNC_BPOBJ, "Deferred frees"),
            (key::FREE_BPOBJ, "Pool snapshot frees"),
            (key::OBSOLETE_BPOBJ, "Pool obsolete blocks"),
        ];
        for (entry, name) in lists {
            let Some(object) = self.pool.directory_object(entry) else { continue };
            let bpobj = Bpobj::open(self.pool.mos(), object).await?;
            full_bpobj(self, &bpobj, name, 0).await?;
        }
        if let Some(object) = self.pool.directory_object(key::BPTREE_OBJ) {
            let tree = cenote_dmu::Bptree::open(self.pool.mos(), object).await?;
            let phys = tree.phys();
            let count = phys.end.saturating_sub(phys.begin);
            let size = self.options.size(phys.bytes);
            out!(self.io, "\n    Pool frees: {count} datasets, {size}")?;
        }
        Ok(())
    }

    /// Prints the deadlists of the hidden origin dataset of all file systems.
    pub(super) async fn origin_deadlists(&mut self) -> CommandResult {
        let mos = std::sync::Arc::clone(self.pool.mos());
        let Some(dir) = self.pool.root_dir().child(&mos, key::ORIGIN_DIR).await? else {
            return Ok(());
        };
        let mut object = dir.phys.head_dataset_obj;
        // The head, then its one snapshot.
        for _ in 0..2 {
            if object == 0 {
                break;
            }
            let dnode = mos.dnode(object).await?;
            let phys = DatasetPhys::decode(dnode.bonus()?)
                .map_err(|error| crate::Exit::failed(error.to_string()))?;
            deadlist(self, phys.deadlist_obj, "Deadlist").await?;
            object = phys.prev_snap_obj;
        }
        Ok(())
    }
}
