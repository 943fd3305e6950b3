//! Corrective receive (`-c`): the stream heals a snapshot that exists.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::stream::{Begin, Record};
use cenote_rt::monotonic;
use cenote_stream::{Healed, Healer, Item, ReceiveError};

use super::Command;
use super::failure::{self, Failure, What};
use super::naming::Sent;
use super::one::{Stream, next, print_rate, skip};
use super::place::{Context, refuse_deduplicated};
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::find;

/// Options that cannot be used with `-c`.
const OTHERS: [char; 7] = ['d', 'e', 'F', 'M', 's', 'u', 'h'];

impl Command {
    /// `-c`
    pub(super) fn heals(&self) -> bool {
        self.options.has('c')
    }

    /// Heals a snapshot with the substream that `begin` begins. Without an engine (`-n`), only
    /// reads it.
    pub(super) async fn heal(
        &self,
        engine: Option<&Arc<Engine>>,
        stream: &mut Stream,
        (begin, record): (Item, &Begin),
        context: Context<'_>,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let started = monotonic();
        let what = if record.from_guid == 0 { What::New } else { What::Increment };
        let kind = if record.from_guid == 0 { "full" } else { "incremental" };
        let name = self.to_heal(engine, record, (what, context)).await?;
        if self.is_verbose() {
            let action = if engine.is_some() { "receiving" } else { "would receive" };
            let sent = String::from_utf8_lossy(&record.to_name);
            out!(io, "{action} corrective {kind} stream of {sent} into {name}")?;
            self.source.deliver(io)?;
        }
        let Some(engine) = engine else { return skip(stream, what) };
        let at = begin.offset.saturating_add(begin.stored_len());
        let done = apply(engine, stream, &begin, &name).await.map_err(|error| match error {
            Failure::Exit(exit) => exit,
            Failure::Stream(error) => what.failed(failure::stream_words(&error)),
            Failure::Pool(error) => match error.cause() {
                Some(ReceiveError::OtherBlock { .. }) => {
                    what.failed(format_args!("stream is not compatible with the data in the pool."))
                }
                _ => failure::of_pool(&error, what, &name),
            },
        })?;
        let Healed { examined, healed, left } = done;
        if self.is_verbose() {
            out!(io, "healed {healed} of {examined} blocks")?;
            let bytes = stream.offset().saturating_sub(at);
            print_rate(bytes, monotonic().saturating_sub(started), io)?;
            self.source.deliver(io)?;
        }
        if left > 0 {
            let text =
                "corrective receive was not able to reconstruct the data needed for healing.";
            return Err(what.failed(format_args!("{text}\nBlocks that are still damaged: {left}")));
        }
        Ok(())
    }

    /// Returns the name of the snapshot to heal, if it is the one in the stream.
    async fn to_heal(
        &self,
        engine: Option<&Arc<Engine>>,
        record: &Begin,
        (what, context): (What, Context<'_>),
    ) -> Result<String, Exit> {
        if OTHERS.into_iter().any(|letter| self.options.has(letter)) {
            let text = "corrective recv can not be used when combined with this flag";
            return Err(what.failed(text));
        }
        let snapshot = String::from_utf8_lossy(&record.to_name);
        let Context { top, is_recursive, .. } = context;
        let sent = Sent { snapshot: &snapshot, top, is_recursive };
        let name = self.naming.name(&self.argument, sent).map_err(failure::cannot_receive)?;
        refuse_deduplicated(record)?;
        let pool = self.view(engine, &name).await?;
        let head = name.split('@').next().unwrap_or(&name);
        let missing = || what.failed("corrective recv must specify an existing snapshot to heal");
        let head = find(&pool, head).await?.ok_or_else(missing)?;
        self.may_receive_into(&head).await?;
        let found = find(&pool, &name).await?.ok_or_else(missing)?;
        if found.phys().guid != record.to_guid {
            let text = "local snapshot doesn't match the snapshot in the provided stream";
            return Err(what.failed(text));
        }
        Ok(name)
    }
}

/// Applies the records up to END.
async fn apply(
    engine: &Arc<Engine>,
    stream: &mut Stream,
    begin: &Item,
    name: &str,
) -> Result<Healed, Failure> {
    let mut healer = Healer::begin(engine, begin, stream.endian(), name).await?;
    let mut is_ended = false;
    let applied = async {
        while !is_ended {
            let item = next(stream)?;
            is_ended = matches!(item.record, Record::End(_));
            healer.apply(item).await?;
        }
        Ok(())
    };
    let applied: Result<(), Failure> = applied.await;
    let done = healer.finish().await;
    applied?;
    Ok(done?)
}
