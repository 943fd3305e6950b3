//! Operations on datasets and snapshots, and their effects on the model.

use cenote_engine::{KeyChange, RedactionPart};
use cenote_ondisk::redaction::RedactionEntry;
use cenote_ondisk::zap::Value;
use cenote_rt::Result;

use super::{KEY_ROUNDS, Script, allowed, round_of};
use crate::crash::facts::{list_text, text};
use crate::crash::keys;
use crate::crash::model::BLOCK;
use crate::pools;

/// Values of `compression`: off, lz4, gzip-6.
const COMPRESSIONS: [u64; 3] = [2, 15, 10];
const MIB: u64 = 1 << 20;
/// A user property.
const USER: &str = "org.example:note";
/// Entries of a part of a redaction list: more than a block of it has.
const PART_ENTRIES: u64 = 5000;
/// Tag of all holds.
const TAG: &str = "tag";

impl Script {
    /// Runs a dataset operation, if there is a suitable dataset.
    pub(super) async fn administer(&mut self, round: u64) -> Result<()> {
        let heads = self.heads();
        let name = self.pick(&heads).unwrap();
        // One after the other, so that related operations are not adjacent.
        match round * 7 % 20 {
            0..=3 => self.snapshot(vec![format!("{name}@s{round}")], "snapshot").await,
            4 => {
                let names = heads.iter().map(|name| format!("{name}@s{round}")).collect();
                self.snapshot(names, "snapshots of all").await
            }
            5 | 6 => self.clone_one(round).await,
            7 | 8 => self.promote().await,
            9 | 10 => self.roll_back(&name).await,
            11 => self.rename(&name, &format!("tank/r{round}")).await,
            12 => self.rename_snapshot().await,
            13 => self.hold_one().await,
            14 => self.release_one().await,
            15 => self.bookmark_one(round).await,
            16 => self.forget_bookmark().await,
            17 => self.set_property(&name).await,
            18 => self.inherit_property().await,
            _ => self.set_user_property(round).await,
        }
    }

    async fn snapshot(&mut self, names: Vec<String>, what: &'static str) -> Result<()> {
        // A limit or reservation may prevent it.
        if allowed(self.engine.snapshots().create(names.clone()).await)?.is_none() {
            return Ok(());
        }
        for name in names {
            let head = name.split_once('@').unwrap().0;
            let content = self.state.datasets[head].clone();
            self.state.datasets.insert(name, content);
        }
        self.acknowledge(what);
        Ok(())
    }

    async fn clone_one(&mut self, round: u64) -> Result<()> {
        let snapshots = self.snapshots("");
        let Some(origin) = self.pick(&snapshots) else { return Ok(()) };
        if self.state.datasets[&origin].is_empty() {
            return Ok(());
        }
        let name = format!("tank/c{round}");
        self.engine.datasets().clone_snapshot(&origin, &name, Vec::new()).await?;
        self.state.datasets.insert(name.clone(), self.state.datasets[&origin].clone());
        self.clones.insert(name, origin);
        self.acknowledge("clone");
        Ok(())
    }

    /// The snapshots up to the origin change their owner.
    async fn promote(&mut self) -> Result<()> {
        let clones: Vec<_> = self.clones.keys().cloned().collect();
        let Some(clone) = self.pick(&clones) else { return Ok(()) };
        if allowed(self.engine.datasets().promote(&clone).await)?.is_none() {
            return Ok(());
        }
        let origin = self.clones.remove(&clone).unwrap();
        let parent = origin.split_once('@').unwrap().0.to_owned();
        for snapshot in self.snapshots(&parent) {
            if round_of(&snapshot) <= round_of(&origin) {
                let (_, name) = snapshot.split_once('@').unwrap();
                self.move_dataset(&snapshot, &format!("{clone}@{name}"));
            }
        }
        if let Some(older) = self.clones.remove(&parent) {
            self.clones.insert(clone.clone(), older);
        }
        let (_, name) = origin.split_once('@').unwrap();
        self.clones.insert(parent, format!("{clone}@{name}"));
        self.acknowledge("promote");
        Ok(())
    }

    /// Renames a dataset in the model.
    fn move_dataset(&mut self, from: &str, to: &str) {
        let content = self.state.datasets.remove(from).unwrap();
        self.state.datasets.insert(to.to_owned(), content);
        for origin in self.clones.values_mut().filter(|origin| *origin == from) {
            to.clone_into(origin);
        }
        if let Some(origin) = self.clones.remove(from) {
            self.clones.insert(to.to_owned(), origin);
        }
        let marks = format!("{from}#");
        let facts = std::mem::take(&mut self.state.facts).into_iter();
        self.state.facts = facts
            .map(|((whose, what), which)| {
                let whose = match whose.strip_prefix(&marks) {
                    Some(mark) => format!("{to}#{mark}"),
                    None if whose == from => to.to_owned(),
                    None => whose,
                };
                ((whose, what), which)
            })
            .collect();
    }

    /// Removes a dataset from the model.
    pub(super) fn forget(&mut self, name: &str) {
        let marks = format!("{name}#");
        self.state.datasets.remove(name);
        self.clones.remove(name);
        self.state.facts.retain(|(whose, _), _| whose != name && !whose.starts_with(&marks));
    }

    async fn roll_back(&mut self, name: &str) -> Result<()> {
        let Some(latest) = self.snapshots(name).pop() else { return Ok(()) };
        // A bookmark of a later, destroyed snapshot may prevent it.
        if allowed(self.engine.datasets().rollback(name, None).await)?.is_none() {
            return Ok(());
        }
        let content = self.state.datasets[&latest].clone();
        self.state.datasets.insert(name.to_owned(), content);
        self.acknowledge("rollback");
        Ok(())
    }

    async fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        if allowed(self.engine.datasets().rename(from, to).await)?.is_none() {
            return Ok(());
        }
        for snapshot in self.snapshots(from) {
            let (_, name) = snapshot.split_once('@').unwrap();
            self.move_dataset(&snapshot, &format!("{to}@{name}"));
        }
        self.move_dataset(from, to);
        self.acknowledge("rename");
        Ok(())
    }

    async fn rename_snapshot(&mut self) -> Result<()> {
        let snapshots: Vec<_> =
            self.snapshots("").into_iter().filter(|name| name.contains("@s")).collect();
        let Some(from) = self.pick(&snapshots) else { return Ok(()) };
        let (head, old) = from.split_once('@').unwrap();
        let new = format!("t{}", &old[1..]);
        self.engine.snapshots().rename(head, old, &new, false).await?;
        self.move_dataset(&from, &format!("{head}@{new}"));
        self.acknowledge("rename of a snapshot");
        Ok(())
    }

    /// Changes the key of an encryption root, or makes one if there is none. A clone has the key of
    /// its origin.
    pub(super) async fn change_key(&mut self, round: u64) -> Result<()> {
        let mut roots = Vec::new();
        for head in self.engine.view().await?.datasets().await? {
            let is_clone = self.clones.contains_key(head.name());
            if !is_clone && head.encryption_root().await?.as_deref() == Some(head.name()) {
                roots.push(head.name().to_owned());
            }
        }
        match self.pick(&roots) {
            None => {
                let new = keys::encrypted(pools::dataset(&format!("tank/e{round}")));
                self.create_head(new, "creating an encrypted head").await
            }
            Some(name) => {
                let change = KeyChange::Root(keys::key(round / KEY_ROUNDS));
                if allowed(self.engine.datasets().change_key(&name, change).await)?.is_some() {
                    self.acknowledge("changing a key");
                }
                Ok(())
            }
        }
    }

    /// Returns the datasets that have such a fact.
    fn with_fact(&self, what: &str) -> Vec<String> {
        let facts = self.state.facts.keys().filter(|(_, fact)| fact == what);
        facts.map(|(whose, _)| whose.clone()).collect()
    }

    async fn hold_one(&mut self) -> Result<()> {
        let held = self.with_fact(&format!("hold {TAG}"));
        let free: Vec<_> =
            self.snapshots("").into_iter().filter(|name| !held.contains(name)).collect();
        let Some(name) = self.pick(&free) else { return Ok(()) };
        self.engine.snapshots().hold(vec![(name.clone(), TAG.into())], false).await?;
        self.say(&name, &format!("hold {TAG}"), String::new());
        self.acknowledge("hold");
        Ok(())
    }

    async fn release_one(&mut self) -> Result<()> {
        let held = self.with_fact(&format!("hold {TAG}"));
        let Some(name) = self.pick(&held) else { return Ok(()) };
        self.engine.snapshots().release(vec![(name.clone(), TAG.into())]).await?;
        self.unsay(&name, &format!("hold {TAG}"));
        self.acknowledge("release");
        Ok(())
    }

    async fn bookmark_one(&mut self, round: u64) -> Result<()> {
        let snapshots = self.snapshots("");
        let Some(name) = self.pick(&snapshots) else { return Ok(()) };
        let mark = format!("{}#b{round}", name.split_once('@').unwrap().0);
        self.engine.bookmarks().create(vec![(mark.clone(), name)]).await?;
        self.say(&mark, "bookmark", String::new());
        self.acknowledge("bookmark");
        self.redact_one(round).await
    }

    /// The list of a redaction bookmark is built in parts.
    async fn redact_one(&mut self, round: u64) -> Result<()> {
        let clones = self.clones.keys().filter(|clone| !self.snapshots(clone).is_empty());
        let clones: Vec<_> = clones.cloned().collect();
        let Some(clone) = self.pick(&clones) else { return Ok(()) };
        let (origin, changed) =
            (self.clones[&clone].clone(), self.snapshots(&clone).pop().unwrap());
        let mark = format!("{}#l{round}", origin.split_once('@').unwrap().0);
        let begun = self.engine.bookmarks().begin_redaction(&mark, &origin, &[changed]).await?;
        self.say(&mark, "bookmark", list_text(0, false));
        self.acknowledge("redaction");
        for part in 0..2 {
            let entry = |index| RedactionEntry {
                object: 2 + part,
                blkid: 3 * index,
                block_size: BLOCK as u32,
                block_count: 2,
            };
            let before = part * PART_ENTRIES;
            let entries = (0..PART_ENTRIES).map(entry).collect();
            let is_last = part == 1;
            let part = RedactionPart { before, entries, is_last };
            self.engine.bookmarks().extend_redaction(&mark, begun.list, part).await?;
            self.say(&mark, "bookmark", list_text(before + PART_ENTRIES, is_last));
            self.acknowledge("a part of a redaction list");
        }
        Ok(())
    }

    async fn forget_bookmark(&mut self) -> Result<()> {
        for mark in self.with_fact("bookmark") {
            self.engine.bookmarks().destroy_all(vec![mark.clone()]).await?;
            self.unsay(&mark, "bookmark");
            self.acknowledge("destroying a bookmark");
        }
        Ok(())
    }

    async fn set_property(&mut self, name: &str) -> Result<()> {
        let (property, value) = match self.rng.below(3) {
            0 => ("compression", COMPRESSIONS[self.rng.below(3) as usize]),
            1 => ("copies", 1 + self.rng.below(3)),
            // sha256, fletcher4.
            _ => ("checksum", [8, 7][self.rng.below(2) as usize]),
        };
        self.engine.properties().set(name, property, Value::U64(value)).await?;
        self.say(name, property, text(&Value::U64(value)));
        self.acknowledge("property");
        Ok(())
    }

    async fn inherit_property(&mut self) -> Result<()> {
        let set = ["compression", "copies", "checksum", USER].map(|name| self.with_fact(name));
        let Some(name) = self.pick(&set.concat()) else { return Ok(()) };
        let mut own = self.state.facts.keys().filter(|(whose, _)| *whose == name);
        let is_one = |what: &str| ["compression", "copies", "checksum", USER].contains(&what);
        let property = own.find(|(_, what)| is_one(what)).unwrap().1.clone();
        self.engine.properties().inherit(&name, &property, false).await?;
        self.unsay(&name, &property);
        self.acknowledge("inheriting a property");
        Ok(())
    }

    /// For a head or a snapshot.
    async fn set_user_property(&mut self, round: u64) -> Result<()> {
        let names = [self.heads(), self.snapshots("")].concat();
        let name = self.pick(&names).unwrap();
        let value = "x".repeat(1 + round as usize * 7);
        self.engine.properties().set(&name, USER, Value::text(&value)).await?;
        self.say(&name, USER, value);
        self.acknowledge("user property");
        Ok(())
    }

    /// Quotas, reservations and snapshot limits: each head gets some, and loses them again.
    pub(super) async fn grant(&mut self, round: u64) -> Result<()> {
        let heads = self.heads();
        let name = self.pick(&heads).unwrap();
        let (what, value) = match round % 5 {
            0 => ("quota", 12 * MIB),
            1 => ("reservation", 3 * MIB),
            2 => ("refquota", 8 * MIB),
            3 => ("refreservation", 2 * MIB),
            _ => ("snapshot_limit", 4),
        };
        let key = (name.clone(), what.to_owned());
        let is_set = self.state.facts.get(&key) == Some(&text(&Value::U64(value)));
        // The value for none.
        let value = match (is_set, what) {
            (true, "snapshot_limit") => u64::MAX,
            (true, _) => 0,
            (false, _) => value,
        };
        let set = self.engine.properties().set(&name, what, Value::U64(value)).await;
        if allowed(set)?.is_none() {
            return Ok(());
        }
        self.say(&name, what, text(&Value::U64(value)));
        let of_dir = match what {
            "quota" => "dir quota",
            "reservation" => "dir reserved",
            _ => "",
        };
        if value == 0 {
            self.unsay(&name, of_dir);
        } else if !of_dir.is_empty() {
            self.say(&name, of_dir, value.to_string());
        }
        self.acknowledge(what);
        Ok(())
    }

    /// Limits the number of snapshots and heads.
    pub(super) async fn clear_away(&mut self) -> Result<()> {
        let held = self.with_fact(&format!("hold {TAG}"));
        let is_needed = |name: &String| {
            held.contains(name) || self.clones.values().any(|origin| origin == name)
        };
        let snapshots: Vec<_> =
            self.snapshots("").into_iter().filter(|name| !is_needed(name)).collect();
        if snapshots.len() > 4 {
            let victim = self.pick(&snapshots).unwrap();
            self.engine.snapshots().destroy(&victim).await?;
            self.forget(&victim);
            self.acknowledge("destroying a snapshot");
        }
        let heads = self.heads();
        let idle: Vec<_> =
            heads.iter().filter(|name| self.snapshots(name).is_empty()).cloned().collect();
        if heads.len() > 4
            && let Some(victim) = self.pick(&idle)
        {
            self.engine.datasets().destroy(&victim).await?;
            self.forget(&victim);
            self.acknowledge("destroying a head");
        }
        Ok(())
    }

    /// A held snapshot is destroyed with its last hold.
    pub(super) async fn destroy_later(&mut self) -> Result<()> {
        let idle = |script: &Self| {
            let mut held = script.with_fact(&format!("hold {TAG}"));
            held.retain(|name| !script.clones.values().any(|origin| origin == name));
            held
        };
        if idle(self).is_empty() {
            self.hold_one().await?;
        }
        let held = idle(self);
        let Some(name) = self.pick(&held) else { return Ok(()) };
        self.engine.snapshots().destroy_all(vec![name.clone()], true).await?;
        self.say(&name, "deferred", String::new());
        self.acknowledge("deferred destroy");
        self.engine.snapshots().release(vec![(name.clone(), TAG.into())]).await?;
        self.forget(&name);
        self.acknowledge("release");
        Ok(())
    }
}
