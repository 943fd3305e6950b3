//! Requests to a volume: each actor has every n-th slot.

use cenote_rt::{Buf, Result};

use super::{Ended, FULL, Outcome, Running};
use crate::model::slots::Request;
use crate::plan::Op;
use crate::plan::draw::{SLOT, VOLUME_ACTORS};

/// Name of the dataset of a volume.
pub(crate) fn volume_dataset(volume: usize) -> String {
    format!("tank/v{volume}")
}

pub(super) async fn perform(running: &Running, (volume, actor): (usize, usize), op: Op) -> Ended {
    let slots = running.history.plan.volumes[volume].slots as usize;
    let own = |slot: u32| {
        let count = (slots - actor).div_ceil(VOLUME_ACTORS).max(1);
        slot as usize % count * VOLUME_ACTORS + actor
    };
    match op {
        Op::VolumeFlush => flush(running, volume).await,
        Op::VolumeRead { slot, offset, len } => {
            // Any slot, also of other actors.
            read(running, volume, slot as usize % slots, (offset, len)).await
        }
        Op::VolumeWrite { slot, .. }
        | Op::VolumeZero { slot, .. }
        | Op::VolumeDiscard { slot, .. } => change(running, volume, own(slot), op).await,
        _ => Ok(Outcome::Refused),
    }
}

async fn change(running: &Running, volume: usize, slot: usize, op: Op) -> Ended {
    let open = &running.volumes[volume];
    let request = {
        let mut model = running.history.model();
        let stamp = model.stamp();
        let states = &mut model.volumes[volume].slots[slot].states;
        let effect = states.newest().effect(op, slot as u64, open.block_size(), stamp);
        let Some((request, after)) = effect else { return Ok(Outcome::Refused) };
        states.begin(running.engine.open_txg(), (), after);
        request
    };
    let done: Result<()> = match &request {
        Request::Write { offset, bytes, is_fua } => {
            open.write(*offset, vec![Buf::from(bytes.clone())], *is_fua).await
        }
        Request::Zero { offset, len, no_hole } => {
            open.write_zeroes(*offset, *len, *no_hole, false).await
        }
        Request::Discard { offset, len } => open.discard(*offset, *len).await,
    };
    let mut model = running.history.model();
    let now = model.tick();
    let volume = &mut model.volumes[volume];
    let is_fua = matches!(request, Request::Write { is_fua: true, .. }) && volume.has_sync;
    let is_durable = volume.is_always_sync || is_fua;
    let slot = &mut volume.slots[slot];
    match done {
        Ok(()) => {
            slot.states.end(now, running.engine.open_txg());
            if is_durable {
                slot.durable = slot.states.len();
            }
            Ok(Outcome::Done)
        }
        Err(error) => {
            let ended = running.judge(&error, &FULL)?;
            if ended == Outcome::Refused {
                slot.states.take_back();
            }
            Ok(ended)
        }
    }
}

async fn read(running: &Running, volume: usize, slot: usize, (offset, len): (u32, u32)) -> Ended {
    let first = {
        let mut model = running.history.model();
        let now = model.tick();
        model.volumes[volume].slots[slot].states.ended_before(now)
    };
    let start = slot as u64 * SLOT + u64::from(offset);
    let found = match running.volumes[volume].read(start, len as usize).await {
        Ok(found) => found,
        Err(error) => return running.judge(&error, &[]),
    };
    let model = running.history.model();
    let slot = &model.volumes[volume].slots[slot];
    slot.check(first..=slot.states.len(), offset as usize, &found)?;
    Ok(Outcome::Done)
}

async fn flush(running: &Running, volume: usize) -> Ended {
    let begin = running.history.model().tick();
    if let Err(error) = running.volumes[volume].flush().await {
        return running.judge(&error, &[]);
    }
    let mut model = running.history.model();
    let volume = &mut model.volumes[volume];
    if volume.has_sync {
        for slot in &mut volume.slots {
            slot.durable = slot.durable.max(slot.states.ended_before(begin));
        }
    }
    Ok(Outcome::Done)
}
