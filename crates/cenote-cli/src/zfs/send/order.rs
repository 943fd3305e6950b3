//! The order of a package: which substreams it has (spec 07 B7).
//!
//! ```text
//!   datasets: a parent before its children, an origin before its clones
//!   snapshots of a dataset, oldest first: the first whole, or from the origin; each other one
//!   from the one before
//! ```
//!
//! OpenZFS goes over the list of datasets, parents first, until all are sent, and leaves out a
//! clone whose origin has not been sent yet. [`order_of`] gives the same order in one go: the
//! number of rounds that each dataset is left out, then its place in the list.

use std::collections::{BTreeMap, BTreeSet};

use cenote_ondisk::nvlist::NvString;
use cenote_stream::{Package, PackageDataset};

use super::command::Command;
use super::increment::Source;
use super::plan::Part;

/// The datasets' origins are each other's clones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loop;

/// Returns the indexes of the datasets in the order in which they are sent.
///
/// # Errors
/// [`Loop`].
pub(super) fn order_of(datasets: &[PackageDataset]) -> Result<Vec<usize>, Loop> {
    let mut owner = BTreeMap::new();
    for (index, dataset) in datasets.iter().enumerate() {
        for (_, guid) in &dataset.snaps {
            owner.entry(*guid).or_insert(index);
        }
    }
    let mut dependents = vec![Vec::new(); datasets.len()];
    let mut missing = vec![0_usize; datasets.len()];
    for (index, dataset) in datasets.iter().enumerate() {
        for guid in dataset.origin.iter().chain(Some(&dataset.parent_from_snap)) {
            if let Some(before) = owner.get(guid)
                && let Some(list) = dependents.get_mut(*before)
            {
                list.push(index);
                missing[index] += 1;
            }
        }
    }
    let mut rounds = vec![0_usize; datasets.len()];
    let mut ready: Vec<usize> = (0..datasets.len()).filter(|index| missing[*index] == 0).collect();
    let mut order = Vec::with_capacity(datasets.len());
    while let Some(before) = ready.pop() {
        order.push((rounds[before], before));
        for index in std::mem::take(&mut dependents[before]) {
            // One that comes earlier in the list is sent in the next round.
            rounds[index] = rounds[index].max(rounds[before] + usize::from(before > index));
            missing[index] -= 1;
            if missing[index] == 0 {
                ready.push(index);
            }
        }
    }
    if order.len() < datasets.len() {
        return Err(Loop);
    }
    order.sort_unstable();
    Ok(order.into_iter().map(|(_, index)| index).collect())
}

/// The snapshots of a dataset that are sent.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) parts: Vec<Part>,
    /// The source of the increment, which is not sent.
    pub(super) from: Option<String>,
    /// Why the dataset cannot be sent.
    pub(super) warning: Option<String>,
}

/// Chooses the snapshots of a dataset, in order.
#[derive(Debug)]
pub(super) struct Chooser<'a> {
    command: &'a Command,
    /// Short name of the source of the increment.
    from: Option<&'a str>,
    to: &'a str,
    /// The clone is sent from its origin.
    is_from_origin: bool,
    /// Guids of the snapshots that datasets of the package were cloned from.
    origins: BTreeSet<u64>,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(
        command: &'a Command,
        (from, to): (Option<&'a str>, &'a str),
        is_from_origin: bool,
        package: &Package,
    ) -> Self {
        let origins = package.datasets.iter().filter_map(|dataset| dataset.origin).collect();
        Self { command, from, to, is_from_origin, origins }
    }

    /// Whether a snapshot between source and target is sent.
    fn is_wanted(&self, name: &str, guid: u64) -> bool {
        // Without `-I` only source and target are, but clones need their origins.
        self.command.has_all_snapshots()
            || name == self.to
            || (self.command.is_recursive() && self.origins.contains(&guid))
    }

    /// Returns the substreams of a dataset.
    pub(super) fn choose(&self, dataset: &PackageDataset) -> Chosen {
        let head = dataset.name.to_string_lossy();
        let is_excluded = self.command.is_excluded(&head);
        let short = |name: &NvString| name.to_string_lossy().into_owned();
        let is_from = |name: &NvString| self.from.is_some_and(|from| name.to_str() == Some(from));
        let has_from = dataset.snaps.iter().any(|(name, _)| is_from(name));
        let mut chosen = Chosen::default();
        // A new dataset in a recursive increment is sent whole.
        let mut has_begun = self.from.is_none() || (self.command.is_recursive() && !has_from);
        let (mut is_complete, mut previous) = (false, None);
        for (name, guid) in &dataset.snaps {
            let full = format!("{head}@{}", short(name));
            if !has_begun {
                if is_from(name) {
                    has_begun = true;
                    chosen.from = Some(full.clone());
                    previous = Some(Source::Named { name: full, guid: *guid });
                }
                continue;
            }
            let is_last = name.to_str() == Some(self.to);
            is_complete = is_complete || is_last;
            if self.is_wanted(&short(name), *guid) && !is_excluded {
                let from = previous.take().unwrap_or_else(|| self.first_source(dataset));
                chosen.parts.push(Part::new(full.clone(), *guid, from));
                previous = Some(Source::Named { name: full, guid: *guid });
            }
            if is_last {
                break;
            }
        }
        chosen.warning = self.warning(&head, has_begun, is_complete);
        chosen
    }

    /// The source of the first snapshot of a dataset that is sent.
    fn first_source(&self, dataset: &PackageDataset) -> Source {
        match dataset.origin {
            Some(guid) if self.is_from_origin || self.command.is_recursive() => {
                Source::Origin { guid }
            }
            _ => Source::Nothing,
        }
    }

    fn warning(&self, head: &str, has_begun: bool, is_complete: bool) -> Option<String> {
        let to = self.to;
        let why = match self.from {
            Some(from) if !has_begun => {
                format!("\nincremental source ({head}@{from}) does not exist")
            }
            Some(from) if !is_complete => {
                format!("\nincremental source ({head}@{from}) is not earlier than it")
            }
            None if !is_complete => " does not exist".to_owned(),
            _ => return None,
        };
        Some(format!("WARNING: could not send {head}@{to}:{why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::getopt;
    use crate::io::Io;

    fn dataset(name: &str, snaps: &[(&str, u64)]) -> PackageDataset {
        let snaps = snaps.iter().map(|(name, guid)| ((*name).into(), *guid)).collect();
        PackageDataset { name: name.into(), snaps, ..PackageDataset::default() }
    }

    fn linked(name: &str, guid: u64, parent: u64, origin: Option<u64>) -> PackageDataset {
        PackageDataset { parent_from_snap: parent, origin, ..dataset(name, &[("s", guid)]) }
    }

    fn command(line: &str) -> Command {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let parsed = getopt::parse(&args, super::super::OPTIONS, &super::super::LONGS).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        Command::check(parsed, &mut Io { out: &mut out, err: &mut err }).unwrap()
    }

    /// What OpenZFS does, in its own way.
    fn in_rounds(datasets: &[PackageDataset]) -> Vec<usize> {
        let owner = |guid: u64| {
            datasets.iter().position(|dataset| dataset.snaps.iter().any(|(_, own)| *own == guid))
        };
        let mut order: Vec<usize> = Vec::new();
        while order.len() < datasets.len() {
            for (index, dataset) in datasets.iter().enumerate() {
                let mut before = dataset.origin.into_iter().chain(Some(dataset.parent_from_snap));
                let is_late =
                    before.any(|guid| owner(guid).is_some_and(|before| !order.contains(&before)));
                if !order.contains(&index) && !is_late {
                    order.push(index);
                }
            }
        }
        order
    }

    #[test]
    fn origins_and_parents_come_first() {
        let datasets = [
            linked("p", 1, 0, None),
            // Each of the next three is a clone of the one after it.
            linked("p/a", 2, 1, Some(3)),
            linked("p/b", 3, 1, Some(4)),
            linked("p/c", 4, 1, None),
            linked("p/c/x", 5, 4, Some(2)),
            linked("p/d", 6, 1, Some(77)),
            linked("p/e", 7, 1, Some(2)),
        ];
        let order = order_of(&datasets).unwrap();
        assert_eq!(order, [0, 3, 5, 2, 1, 4, 6]);
        assert_eq!(order, in_rounds(&datasets));
    }

    /// A chain of ten thousand clones, each of the one behind it, takes no time that grows with the
    /// square of their number.
    #[test]
    fn ten_thousand_clones_are_put_in_order() {
        let count = 10_000;
        let clone = |number| linked("p", number, 0, Some(number + 1).filter(|n| *n <= count));
        let datasets: Vec<_> = (1..=count).map(clone).collect();
        let order = order_of(&datasets).unwrap();
        assert!(order.into_iter().eq((0..count as usize).rev()));
    }

    #[test]
    fn loops_are_found() {
        let datasets = [linked("p", 1, 0, Some(2)), linked("q", 2, 0, Some(1))];
        assert_eq!(order_of(&datasets), Err(Loop));
        assert_eq!(order_of(&[linked("p", 1, 0, Some(1))]), Err(Loop));
    }

    fn chosen(line: &str, from: Option<&str>, dataset: &PackageDataset) -> (Vec<String>, String) {
        let command = command(line);
        let package = Package { datasets: vec![dataset.clone()], ..Package::default() };
        let chosen = Chooser::new(&command, (from, "c"), false, &package).choose(dataset);
        let from = |source: &Source| match source {
            Source::Nothing => String::new(),
            Source::Named { name, .. } => format!("{name} "),
            Source::Origin { guid } => format!("origin {guid} "),
        };
        let show = |part: &Part| format!("{}{}", from(&part.from), part.name);
        (chosen.parts.iter().map(show).collect(), chosen.warning.unwrap_or_default())
    }

    #[test]
    fn snapshots_are_sent_one_from_the_other() {
        let plain = dataset("p", &[("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
        let parts = |line: &str, from: Option<&str>, of: &PackageDataset| {
            let (parts, warning) = chosen(line, from, of);
            assert_eq!(warning, "", "{line}");
            parts
        };
        let all = ["p@a", "p@a p@b", "p@b p@c"];
        assert_eq!(parts("-R p@c", None, &plain), all);
        assert_eq!(parts("-R -I @a p@c", Some("a"), &plain), all[1..]);
        assert_eq!(parts("-I @a p@c", Some("a"), &plain), all[1..]);
        assert_eq!(parts("-R -i @a p@c", Some("a"), &plain), ["p@a p@c"]);
        // A dataset without the source is new.
        assert_eq!(parts("-R -i @0 p@c", Some("0"), &plain), ["p@c"]);
        assert_eq!(parts("-R -I @0 p@c", Some("0"), &plain), all);
        let clone = PackageDataset { origin: Some(9), ..plain.clone() };
        assert_eq!(parts("-R -i @0 p@c", Some("0"), &clone), ["origin 9 p@c"]);
        assert_eq!(parts("-R p@c", None, &clone), ["origin 9 p@a", "p@a p@b", "p@b p@c"]);
        // `-I` with the origin as the source is decided by the caller.
        assert_eq!(parts("-I @0 p@c", None, &clone), all);
        // An origin between source and target is needed by its clones.
        let itself = PackageDataset { origin: Some(2), ..plain.clone() };
        assert_eq!(parts("-R -i @a p@c", Some("a"), &itself), ["p@a p@b", "p@b p@c"]);
        let below = PackageDataset { name: "p/x/y".into(), ..plain };
        assert!(parts("-R -X p/x p@c", None, &below).is_empty());
    }

    #[test]
    fn datasets_that_cannot_be_sent_are_named() {
        let (late, none) = (dataset("p", &[("c", 3), ("d", 4)]), dataset("p", &[("a", 1)]));
        let warning = |line, from, of| chosen(line, from, of).1;
        let missing = "WARNING: could not send p@c:\nincremental source (p@z) does not exist";
        assert_eq!(warning("-I @z p@c", Some("z"), &late), missing);
        let later = "WARNING: could not send p@c:\nincremental source (p@d) is not earlier than it";
        assert_eq!(warning("-R -i @d p@c", Some("d"), &late), later);
        assert_eq!(warning("-R p@c", None, &none), "WARNING: could not send p@c: does not exist");
    }
}
