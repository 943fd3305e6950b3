//! Operations on datasets, each task on a tree of its own.

use std::sync::Arc;

use cenote_dmu::live::ObjectSpec;
use cenote_engine::{ApplyOptions, Charge, Engine, GrantChange, NewDataset};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::dsl::deleg::Requester;
use cenote_poolkit::crash::model::{self, BLOCK};
use cenote_poolkit::pools;
use cenote_rt::{Kind, Result};

use super::{Ended, Outcome, Running, transfers};
use crate::model::datasets::{DatasetCall, TAG};
use crate::plan::Op;

/// The key of the permissions that creators get.
const CREATE_TIME: &str = "c-$";

/// Errors of limits, and of snapshots in use.
const ALLOWED: [Kind; 3] = [Kind::NoSpace, Kind::Quota, Kind::Busy];

pub(super) async fn perform(running: &Running, tree: usize, op: Op) -> Ended {
    if let Op::ReadDataset { which } = op {
        return read(running, tree, which).await;
    }
    let call = {
        let mut model = running.history.model();
        let stamp = model.stamp();
        let Some((states, _)) = model.trees.get_mut(&tree) else { return Ok(Outcome::Refused) };
        let Some((call, after)) = states.newest().effect(op, stamp) else {
            return Ok(Outcome::Refused);
        };
        states.begin(running.engine.open_txg(), (), after);
        call
    };
    let done = make(&running.engine, &call).await;
    let mut model = running.history.model();
    let now = model.tick();
    let Some((states, durable)) = model.trees.get_mut(&tree) else { return Ok(Outcome::Refused) };
    match done {
        // It was given up: nothing has changed.
        Ok(false) => {
            states.take_back();
            Ok(Outcome::Refused)
        }
        Ok(true) => {
            states.end(now, running.engine.open_txg());
            if call.is_durable() {
                *durable = states.len();
            }
            drop(model);
            running.acknowledge();
            Ok(Outcome::Done)
        }
        Err(error) => {
            let ended =
                running.judge(&error, &ALLOWED).map_err(|what| format!("{call:?}: {what}"))?;
            if ended == Outcome::Refused {
                states.take_back();
            }
            Ok(ended)
        }
    }
}

/// A dataset of a type that can be sent, without anything in it.
fn dataset(name: &str) -> NewDataset {
    NewDataset { kind: ObjSetType::Zvol, ..pools::dataset(name) }
}

/// Makes a call. Returns whether it was made, or given up on purpose.
async fn make(engine: &Arc<Engine>, call: &DatasetCall) -> Result<bool> {
    let (datasets, snapshots) = (engine.datasets(), engine.snapshots());
    let made = match call {
        DatasetCall::Create(name, 0) => datasets.create(dataset(name)).await.map(drop),
        DatasetCall::Create(name, uid) => {
            let user = Requester { uid: *uid, gids: Vec::new(), is_trusted: false };
            datasets.by(&user).create(dataset(name)).await.map(drop)
        }
        DatasetCall::Allow(name, permissions) => {
            let names = permissions.iter().map(|name| (*name).to_owned()).collect();
            datasets.allow(name, vec![GrantChange { key: CREATE_TIME.into(), names }]).await
        }
        DatasetCall::Unallow(name) => {
            let all = GrantChange { key: CREATE_TIME.into(), names: Vec::new() };
            datasets.unallow(vec![name.clone()], vec![all]).await
        }
        DatasetCall::NewObject(name, object) => {
            let head = engine.head(name).await?;
            let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
            let spec = spec.with_number(*object);
            let allocate = |tx: &mut cenote_dmu::Tx<'_>| tx.allocate(&spec);
            engine.apply(&head, ApplyOptions::new(), allocate).await.map(drop)
        }
        DatasetCall::Fill(name, object, blocks) => {
            let head = engine.head(name).await?;
            let charge = Charge::write(0).with_blocks(blocks.len() as u64, BLOCK as u64);
            let write = |tx: &mut cenote_dmu::Tx<'_>| {
                for (number, salt) in blocks {
                    let bytes = model::bytes(*number, *salt);
                    tx.write(*object, number * BLOCK as u64, &bytes)?;
                }
                Ok(())
            };
            engine.apply(&head, ApplyOptions::charged(charge), write).await.map(drop)
        }
        DatasetCall::Destroy(name) => datasets.destroy(name).await,
        DatasetCall::Snapshot(names) => snapshots.create(names.clone()).await,
        DatasetCall::DestroySnapshot(name, is_deferred) => {
            snapshots.destroy_all(vec![name.clone()], *is_deferred).await
        }
        DatasetCall::Clone(origin, name) => {
            datasets.clone_snapshot(origin, name, Vec::new()).await.map(drop)
        }
        DatasetCall::Promote(name) => datasets.promote(name).await,
        DatasetCall::Rollback(name) => datasets.rollback(name, None).await.map(drop),
        DatasetCall::Rename(from, to) => datasets.rename(from, to).await,
        DatasetCall::RenameSnapshot(head, old, new) => {
            snapshots.rename(head, old, new, false).await
        }
        DatasetCall::Hold(name) => snapshots.hold(vec![(name.clone(), TAG.into())], false).await,
        DatasetCall::Release(name) => snapshots.release(vec![(name.clone(), TAG.into())]).await,
        DatasetCall::Bookmark(mark, name) => {
            engine.bookmarks().create(vec![(mark.clone(), name.clone())]).await
        }
        DatasetCall::DestroyBookmark(mark) => {
            engine.bookmarks().destroy_all(vec![mark.clone()]).await
        }
        DatasetCall::Set(name, property, value) => {
            engine.properties().set(name, property, value.clone()).await
        }
        DatasetCall::Inherit(name, property) => {
            engine.properties().inherit(name, property, false).await
        }
        DatasetCall::Receive(transfer) => return transfers::run(engine, transfer).await,
    };
    made.map(|()| true)
}

/// Reads a snapshot of the tree, and compares it.
async fn read(running: &Running, tree: usize, which: u32) -> Ended {
    let chosen = {
        let model = running.history.model();
        let Some((states, _)) = model.trees.get(&tree) else { return Ok(Outcome::Refused) };
        let newest = states.newest();
        let names = newest.snapshots();
        let name = names.get(which as usize % names.len().max(1));
        name.map(|name| (name.clone(), newest.state.datasets[name].clone()))
    };
    let Some((name, objects)) = chosen else { return Ok(Outcome::Refused) };
    let open = match running.engine.snapshots().open(&name).await {
        Ok(open) => open,
        Err(error) => return running.judge(&error, &[]),
    };
    for (object, content) in &objects {
        match model::check_set(&name, open.contents(), *object, content).await {
            Ok(()) => {}
            Err(_) if running.is_ending() => return Ok(Outcome::Interrupted),
            Err(difference) => return Err(difference),
        }
    }
    Ok(Outcome::Done)
}
