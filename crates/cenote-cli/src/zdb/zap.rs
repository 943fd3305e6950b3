//! ZAPs: their statistics, and their entries formatted by object type.

use std::fmt::Write as _;
use std::sync::Arc;

use cenote_dmu::{Dnode, FatStats, Zap, ZapStats};
use cenote_ondisk::dsl::crypto;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::AttrInfo;
use cenote_ondisk::zap::fat::FAT_MAGIC;
use cenote_ondisk::zap::{BLOCK_HEADER, Key, Value};
use cenote_ondisk::znode::DirEntry;

use super::dataset::Set;
use super::pool::Show;
use super::text::histogram;
use crate::io::CommandResult;
use crate::out;

/// Types whose byte values are not text.
const BINARY: [&str; 5] =
    ["org.illumos:checksum_salt", crypto::HMAC_KEY, crypto::IV, crypto::MAC, crypto::MASTER_KEY];

/// File types by the number in a directory entry.
const FILE_TYPES: [&str; 16] = [
    "not specified",
    "FIFO",
    "Character Device",
    "3 (invalid)",
    "Directory",
    "5 (invalid)",
    "Block Device",
    "7 (invalid)",
    "Regular File",
    "9 (invalid)",
    "Symbolic Link",
    "11 (invalid)",
    "Socket",
    "Door",
    "Event Port",
    "15 (invalid)",
];

/// Prints a ZAP.
pub(super) async fn print(show: &mut Show<'_, '_>, set: &Set, dnode: &Arc<Dnode>) -> CommandResult {
    let kind = dnode.phys().object_type;
    let zap = Zap::of(Arc::clone(dnode)).await?;
    match zap.stats().await? {
        ZapStats::Micro { block_size, entry_count } => {
            out!(show.io, "\tmicrozap: {block_size} bytes, {entry_count} entries\n")?;
        }
        ZapStats::Fat(stats) => fat(show, &stats)?,
    }
    if kind == ObjectType::DDT_ZAP {
        // Entries of dedup tables are not text.
        return Ok(());
    }
    if !zap.is_micro() {
        out!(show.io)?;
    }
    let mut entries = zap.entries();
    while let Some(entry) = entries.next().await? {
        let line = line(kind, set.is_mos, &entry.key, &entry.value);
        show.io.out.write_all(&line)?;
    }
    Ok(())
}

fn fat(show: &mut Show<'_, '_>, stats: &FatStats) -> CommandResult {
    let header = &stats.header;
    out!(show.io, "\tFat ZAP stats:")?;
    out!(show.io, "\t\tPointer table:")?;
    out!(show.io, "\t\t\t{} elements", header.pointer_count())?;
    // A pointer table inside of the header has no blocks of its own.
    let (block, count) =
        if header.is_embedded() { (0, 0) } else { (header.table_block, header.table_block_count) };
    out!(show.io, "\t\t\tzt_blk: {block}")?;
    out!(show.io, "\t\t\tzt_numblks: {count}")?;
    out!(show.io, "\t\t\tzt_shift: {}", header.table_shift)?;
    out!(show.io, "\t\t\tzt_blks_copied: {}", header.table_blocks_copied)?;
    out!(show.io, "\t\t\tzt_nextblk: {}", header.next_table_block)?;
    out!(show.io, "\t\tZAP entries: {}", header.entry_count)?;
    out!(show.io, "\t\tLeaf blocks: {}", header.leaf_count)?;
    out!(show.io, "\t\tTotal blocks: {}", header.free_block)?;
    out!(show.io, "\t\tzap_block_type: {BLOCK_HEADER:#x}")?;
    out!(show.io, "\t\tzap_magic: {FAT_MAGIC:#x}")?;
    out!(show.io, "\t\tzap_salt: {:#x}", header.salt)?;
    for (title, buckets) in [
        ("Leafs with 2^n pointers", &stats.leaves_by_pointers),
        ("Blocks with n*5 entries", &stats.blocks_by_entries),
        ("Blocks n/10 full", &stats.blocks_by_fullness),
        ("Entries with n chunks", &stats.entries_by_chunks),
        ("Buckets with n entries", &stats.buckets_by_entries),
    ] {
        out!(show.io, "\t\t{title}:")?;
        histogram(show.io, buckets, 0)?;
    }
    Ok(())
}

/// Returns the line of an entry; names are bytes.
fn line(kind: ObjectType, is_mos: bool, key: &Key, value: &Value) -> Vec<u8> {
    let mut line = b"\t\t".to_vec();
    match key {
        Key::Name(name) => line.extend_from_slice(name),
        Key::Words(words) => {
            // The format string of the real zdb ends in a stray letter.
            let text = words.first().map(|word| format!("0x{word:010}x"));
            line.extend_from_slice(text.unwrap_or_default().as_bytes());
        }
    }
    line.extend_from_slice(b" = ");
    match kind {
        ObjectType::DIRECTORY_CONTENTS => {
            let entry = DirEntry::decode(value.first().unwrap_or(0));
            let kind = FILE_TYPES.get(usize::from(entry.file_type)).copied().unwrap_or_default();
            line.extend_from_slice(format!("{} (type: {kind})", entry.object).as_bytes());
        }
        ObjectType::SA_ATTR_REGISTRATION => {
            let word = value.first().unwrap_or(0);
            let info = AttrInfo::decode(word);
            let swap = (word >> 16) & 0xff;
            let text = format!(" {word:x} : [{}:{swap}:{}]", info.len, info.number);
            line.extend_from_slice(text.as_bytes());
        }
        ObjectType::SA_ATTR_LAYOUTS => {
            line.push(b'[');
            for number in value.words() {
                line.extend_from_slice(format!(" {number} ").as_bytes());
            }
            line.push(b']');
        }
        _ => plain(&mut line, is_mos, key, value),
    }
    line.push(b'\n');
    line
}

fn plain(line: &mut Vec<u8>, is_mos: bool, key: &Key, value: &Value) {
    let is_binary = is_mos
        && key.name().is_some_and(|name| BINARY.iter().any(|known| known.as_bytes() == name));
    match (value.as_bytes(), key) {
        (Some(bytes), _) if is_binary => {
            let mut text = String::new();
            for byte in bytes {
                let _ = write!(text, "{byte:02x}");
            }
            line.extend_from_slice(text.as_bytes());
        }
        (Some(bytes), Key::Name(_)) => {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            line.extend_from_slice(bytes.get(..end).unwrap_or(bytes));
        }
        _ => {
            let is_wide = value.integer_size() == 8;
            for word in value.words() {
                let text = if is_wide { (word as i64).to_string() } else { word.to_string() };
                line.extend_from_slice(text.as_bytes());
                line.push(b' ');
            }
        }
    }
}
