//! Snapshots that are sent and received within the pool, record by record.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::Record;
use cenote_rt::{Kind, Result};
use cenote_stream::send::{From, Payload, RecordSink, SendOptions, SendPlan};
use cenote_stream::{Item, ReceiveError, ReceiveOptions, Receiver};

use crate::model::datasets::Transfer;

/// A receiver that takes the records of a sender.
struct Sink<'a> {
    engine: &'a Arc<Engine>,
    transfer: &'a Transfer,
    receiver: Option<Receiver>,
    /// Records that it takes before it gives up.
    left: u16,
    is_given_up: bool,
    offset: u64,
}

impl RecordSink for Sink<'_> {
    async fn put(&mut self, record: &Record, payload: Payload) -> Result<()> {
        let (record, payload, offset) = (record.clone(), payload.to_vec(), self.offset);
        let item = Item { record, payload, offset, is_package: false };
        self.offset += item.stored_len();
        let Some(receiver) = &mut self.receiver else {
            let target = self.transfer.target.clone();
            let options = ReceiveOptions { target, ..ReceiveOptions::default() };
            let receiver = Receiver::begin(self.engine, &item, Endian::Little, options).await?;
            self.receiver = Some(receiver);
            return Ok(());
        };
        if self.left == 0 {
            self.is_given_up = true;
            return Err(ReceiveError::NoEnd.into());
        }
        self.left -= 1;
        receiver.apply(item).await
    }
}

/// Sends and receives a snapshot. Returns false if it was given up.
pub(super) async fn run(engine: &Arc<Engine>, transfer: &Transfer) -> Result<bool> {
    let (receiver, left) = (None, transfer.records);
    let mut sink = Sink { engine, transfer, receiver, left, is_given_up: false, offset: 0 };
    let sent = send(engine, transfer, &mut sink).await;
    let Some(mut receiver) = sink.receiver else { return sent.map(|()| true) };
    let ended = match sent {
        Ok(()) => receiver.finish().await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(()) => Ok(true),
        Err(error) => {
            receiver.abort().await?;
            if sink.is_given_up { Ok(false) } else { Err(error) }
        }
    }
}

async fn send(engine: &Arc<Engine>, transfer: &Transfer, sink: &mut Sink<'_>) -> Result<()> {
    let open = engine.snapshots().open(&transfer.source).await?;
    let plan = loop {
        match plan(engine, transfer).await {
            // Another view is used if one was given up.
            Err(error) if error.kind() == Kind::Overtaken => {}
            plan => break plan?,
        }
    };
    plan.run(open.contents(), sink).await
}

async fn plan(engine: &Arc<Engine>, transfer: &Transfer) -> Result<SendPlan> {
    let Transfer { source, from, is_compressed, .. } = transfer;
    let view = engine.view().await?;
    let target = view.dataset(source).await?;
    let from = match from {
        Some(from) => Some(From::snapshot(&view.dataset(from).await?, &target).await?),
        None => None,
    };
    let options = SendOptions {
        compressed: *is_compressed,
        embedded: *is_compressed,
        ..SendOptions::default()
    };
    SendPlan::new(&target, from.as_ref(), None, &options, None).await
}
