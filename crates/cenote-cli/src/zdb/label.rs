//! `zdb -l`: the four labels of a device, each distinct config and uberblock once.
//!
//! Equal labels are shown once, with the numbers of all of them. With `-u` the uberblocks of the
//! rings follow, with `-ll` the usage of the config area.

use std::path::Path;

use cenote_ondisk::config::PoolState;
use cenote_ondisk::label::{
    CACHE_HEADER_MAGIC, CONFIG, LABEL_COUNT, LABEL_START_LEN, RING, TRAILER_LEN,
};
use cenote_ondisk::nvlist::{Encoding, NvList, NvPair, NvValue};
use cenote_ondisk::uberblock::{self, Uberblock};
use cenote_ondisk::words;
use cenote_pool::import::{DeviceError, DeviceLabels, Label, PoolDevice};

use super::{Options, text};
use crate::io::{CommandResult, Exit, Io, words};
use crate::out;

const RULE: &str = "------------------------------------";

/// Shows the labels of the device in the first operand.
pub(super) async fn run(options: &Options, io: &mut Io<'_>) -> CommandResult {
    let Some(path) = options.operands.first() else {
        return Err(Exit::usage(String::new()));
    };
    let device = match open(path).await {
        Ok(device) => device,
        Err(why) => {
            out!(io, "cannot open '{path}': {why}")?;
            return Err(Exit::Status(1));
        }
    };
    let labels = device.labels().await;
    let rings = if options.has('u') { read_rings(&device, &labels).await? } else { Vec::new() };
    let is_usable = show(&labels, &rings, options, io)?;
    if let Some(config) = labels.first_config()
        && config.raw.u64("state") == Some(PoolState::L2Cache.id())
    {
        cache_header(&device, io).await?;
    }
    if is_usable { Ok(()) } else { Err(Exit::Status(2)) }
}

async fn open(path: &str) -> Result<PoolDevice, String> {
    let found = std::fs::metadata(path)
        .or_else(|error| std::fs::metadata(format!("/dev/{path}")).map_err(|_| error));
    if let Err(error) = found {
        return Err(words(&error));
    }
    let opened = PoolDevice::open_for_reading(Path::new(path)).await;
    opened.map_err(|error: DeviceError| error.to_string())
}

/// Prints all labels; returns false if none has a config.
fn show(
    labels: &DeviceLabels,
    rings: &[Slots],
    options: &Options,
    io: &mut Io<'_>,
) -> CommandResult<bool> {
    let mut is_usable = false;
    for index in 0..LABEL_COUNT {
        let Some(label) = labels.labels.get(index) else {
            out!(io, "failed to read label {index}")?;
            continue;
        };
        let mut has_header = false;
        if !options.has('q') {
            match label.list() {
                Some(list) => {
                    is_usable = true;
                    let same = same_configs(labels, list);
                    if same.first() == Some(&index) || options.count('l') > 2 {
                        header(io, label, &mut has_header)?;
                        text::nvlist(io, list, 4)?;
                        numbers(io, "    ", &same)?;
                        if options.count('l') >= 2 {
                            statistics(io, list, options.count('l') > 2)?;
                        }
                    }
                }
                None => out!(io, "failed to unpack label {index}")?,
            }
        } else if label.list().is_some() {
            is_usable = true;
        }
        if options.has('u') {
            ring(rings, label, options, &mut has_header, io)?;
        }
    }
    Ok(is_usable)
}

fn header(io: &mut Io<'_>, label: &Label, done: &mut bool) -> CommandResult {
    if !std::mem::replace(done, true) {
        let verdict = if label.config_trailer.is_ok() { "" } else { "(Bad label cksum)" };
        out!(io, "{RULE}\nLABEL {} {verdict}\n{RULE}", label.index)?;
    }
    Ok(())
}

fn numbers(io: &mut Io<'_>, indent: &str, labels: &[usize]) -> CommandResult {
    write!(io.out, "{indent}labels = ")?;
    for label in labels {
        write!(io.out, "{label} ")?;
    }
    out!(io)
}

fn same_configs(labels: &DeviceLabels, list: &NvList) -> Vec<usize> {
    let is_same = |label: &&Label| label.list() == Some(list);
    labels.labels.iter().filter(is_same).map(|label| label.index).collect()
}

/// Returns the slots of each label's ring, without checking their trailers: a device that is not a
/// member of a pool has an uberblock of txg 0.
async fn read_rings(device: &PoolDevice, labels: &DeviceLabels) -> CommandResult<Vec<Slots>> {
    let ashift = labels.first_config().map_or(0, |config| config.ashift);
    let size = uberblock::slot_size(ashift) as usize;
    let mut rings = Vec::new();
    for label in &labels.labels {
        let ring = device.read(label.offset + RING.at, RING.len as usize).await?;
        rings.push(ring.chunks_exact(size).map(|slot| Uberblock::decode(slot).ok()).collect());
    }
    Ok(rings)
}

/// The uberblocks of one ring, by slot.
type Slots = Vec<Option<Uberblock>>;

/// Prints the uberblocks of one ring that no earlier label showed.
fn ring(
    rings: &[Slots],
    label: &Label,
    options: &Options,
    has_header: &mut bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let Some(slots) = rings.get(label.index) else { return Ok(()) };
    for (slot, uberblock) in slots.iter().enumerate() {
        let Some(uberblock) = uberblock else {
            if options.count('u') >= 2 {
                header(io, label, has_header)?;
                out!(io, "    Uberblock[{slot}] invalid")?;
            }
            continue;
        };
        let is_same = |ring: &Slots| ring.get(slot) == Some(&Some(*uberblock));
        let same: Vec<usize> =
            (0..rings.len()).filter(|index| rings.get(*index).is_some_and(is_same)).collect();
        if same.first() != Some(&label.index) && options.count('l') <= 2 && options.count('u') <= 2
        {
            continue;
        }
        if !options.has('q') {
            header(io, label, has_header)?;
        }
        out!(io, "    Uberblock[{slot}]")?;
        super::uberblock::print(io, uberblock)?;
        numbers(io, "        ", &same)?;
    }
    Ok(())
}

/// Bytes that the pairs of a config take in the config area, by type.
#[derive(Default)]
struct Usage {
    list_count: usize,
    integers: Vec<NvPair>,
    strings: Vec<NvPair>,
    booleans: Vec<NvPair>,
    leaves: Vec<usize>,
    /// Types of pairs that are not counted.
    skipped: Vec<u32>,
}

impl Usage {
    fn add(&mut self, list: &NvList) {
        self.list_count += 1;
        for pair in &list.pairs {
            match &pair.value {
                NvValue::Uint64(_) => self.integers.push(pair.clone()),
                NvValue::String(_) => self.strings.push(pair.clone()),
                NvValue::Boolean => self.booleans.push(pair.clone()),
                NvValue::List(inner) => self.add(inner),
                NvValue::ListArray(lists) => {
                    if pair.name == "children" {
                        self.leaves.extend(lists.iter().map(xdr_len));
                    }
                    for inner in lists {
                        self.add(inner);
                    }
                }
                other => self.skipped.push(other.type_code()),
            }
        }
    }
}

fn xdr_len(list: &NvList) -> usize {
    list.encode(Encoding::Xdr).len()
}

/// Returns the bytes of the pairs, without the list around them.
fn pairs_len(pairs: Vec<NvPair>) -> usize {
    let list = NvList { flags: 0, pairs };
    xdr_len(&list).saturating_sub(xdr_len(&NvList::default()))
}

fn statistics(io: &mut Io<'_>, config: &NvList, is_long: bool) -> CommandResult {
    let mut usage = Usage::default();
    usage.add(config);
    let total = xdr_len(config);
    let area = CONFIG.len as usize - TRAILER_LEN;
    let free = area.saturating_sub(total);
    let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    out!(io, "\n\nZFS Label NVList Config Stats:")?;
    let used = percent(total, area);
    out!(io, "  {total} bytes used, {free} bytes free (using {used:4.1}%)\n")?;
    for code in &usage.skipped {
        out!(io, "skip type {code}!")?;
    }
    let counts = (usage.integers.len(), usage.strings.len(), usage.booleans.len());
    let integers = pairs_len(usage.integers);
    let strings = pairs_len(usage.strings);
    let booleans = pairs_len(usage.booleans);
    let lists = total.saturating_sub(integers + strings + booleans);
    for (name, count, len) in [
        ("integers:", counts.0, integers),
        ("strings:", counts.1, strings),
        ("booleans:", counts.2, booleans),
        ("nvlists:", usage.list_count, lists),
    ] {
        out!(io, "{name:>12} {count:4} {len:6} bytes ({:5.2}%)", percent(len, total))?;
    }
    out!(io)?;
    if let Some(largest) = usage.leaves.iter().max() {
        let average = usage.leaves.iter().sum::<usize>() / usage.leaves.len();
        out!(io, "{:>12} {:4} {average:6} bytes average", "leaf vdevs:", usage.leaves.len())?;
        out!(io, "{largest:24} bytes largest")?;
        if is_long {
            out!(io, "  space for {} additional leaf vdevs", free / average.max(1))?;
        }
    }
    out!(io)
}

/// Prints the header that a cache device keeps for its log; readers do not need it.
async fn cache_header(device: &PoolDevice, io: &mut Io<'_>) -> CommandResult {
    let block = device.read(LABEL_START_LEN, 512).await?;
    let word = |index: usize| words::u64_at(&block, index * 8).unwrap_or(0);
    if word(0) != CACHE_HEADER_MAGIC {
        return out!(io, "L2ARC device header not found");
    }
    out!(io, "{RULE}\nL2ARC device header\n{RULE}")?;
    // Header words to show, with their names. Three block pointers of 64 bytes each are in words 10
    // to 25.
    for (name, index) in [
        ("magic", 0),
        ("version", 1),
        ("pool_guid", 2),
        ("flags", 6),
        ("start_lbps[0]", 10),
        ("start_lbps[1]", 18),
        ("log_blk_ent", 4),
        ("start", 7),
        ("end", 8),
        ("evict", 5),
        ("lb_asize_refcount", 26),
        ("lb_count_refcount", 27),
        ("trim_action_time", 28),
        ("trim_state", 29),
    ] {
        let value = if index == 1 { word(1) & 0xffff_ffff } else { word(index) };
        out!(io, "    {name}: {value}")?;
    }
    if word(10) == 0 {
        out!(io, "\n{RULE}\nL2ARC device log blocks\n{RULE}\nNo log blocks to read\n")?;
    }
    Ok(())
}
