//! Receives one substream.
//!
//! ```text
//!   BEGIN ── names, checks on a view of the pool ──> Place
//!            Receiver::begin ── properties of a new dataset
//!            records ──> Receiver::apply
//!   END ──── Receiver::finish ── properties, holds
//! ```
//!
//! No view of the pool is held while the stream is read: a sender may take as long as it likes
//! (docs/design/rules.md, rule 1). Until END the target is as before; if the stream ends early,
//! what was received is destroyed, or kept to be resumed (`-s`).

use std::sync::Arc;
use std::time::Duration;

use cenote_engine::{Engine, NewEncryption, PropertyChange};
use cenote_ondisk::stream::{Begin, Record, StreamFeatures};
use cenote_pool::props::PropRow;
use cenote_rt::monotonic;
use cenote_stream::{Item, ReceiveOptions, Receiver, StreamError, StreamReader};

use super::failure::{self, Failure, What};
use super::input::Input;
use super::place::{Context, Place, Target, token_of};
use super::props::{self, Plan, Receiving};
use super::{Command, permits};
use crate::io::{CommandResult, Exit, Io};
use crate::source::find;
use crate::zfs::create::{FileSystemOptions, wording};
use crate::zfs::encryption::{self, KeyInput};
use crate::{err, nicenum, out};

/// A stream on standard input.
pub(super) type Stream = StreamReader<Input>;

/// Changes of properties, in order.
type Changes = Vec<(String, PropertyChange)>;

impl Command {
    /// Receives the substream that `begin` begins. Without an engine (`-n`), only reads it.
    pub(super) async fn substream(
        &self,
        engine: Option<&Arc<Engine>>,
        stream: &mut Stream,
        begin: Item,
        context: Context<'_>,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let Record::Begin(record) = &begin.record else {
            return Err(failure::cannot_receive("invalid stream (bad record type)"));
        };
        let record = record.clone();
        if self.heals() {
            return Box::pin(self.heal(engine, stream, (begin, &record), context, io)).await;
        }
        let started = monotonic();
        let place = self.place(engine, &record, context, io).await?;
        if self.is_verbose() {
            let action = if engine.is_some() { "receiving" } else { "would receive" };
            let kind = if record.from_guid == 0 { "full" } else { "incremental" };
            let sent = String::from_utf8_lossy(&record.to_name);
            out!(io, "{action} {kind} stream of {sent} into {}", place.name)?;
            self.source.deliver(io)?;
        }
        let Some(engine) = engine else {
            self.planned.borrow_mut().insert(place.head().to_owned());
            return skip(stream, place.what);
        };
        let at = begin.offset.saturating_add(begin.stored_len());
        let is_new = if place.target == Target::HasSnapshot {
            false
        } else {
            self.receive(engine, stream, (begin, &record), (&place, context), io).await?
        };
        if is_new {
            self.finish_snapshot(engine, &record, (&place, context), io).await?;
        } else {
            if self.is_verbose() {
                out!(io, "snap {} already exists; ignoring", place.name)?;
            }
            skip(stream, place.what)?;
        }
        if self.is_verbose() {
            let bytes = if is_new { stream.offset().saturating_sub(at) } else { 0 };
            print_rate(bytes, monotonic().saturating_sub(started), io)?;
            self.source.deliver(io)?;
        }
        Ok(())
    }

    /// Receives the snapshot of a substream, with the properties of its dataset. Returns false if
    /// it exists, and nothing was read.
    async fn receive(
        &self,
        engine: &Arc<Engine>,
        stream: &mut Stream,
        (begin, record): (Item, &Begin),
        (place, context): (&Place, Context<'_>),
        io: &mut Io<'_>,
    ) -> Result<bool, Exit> {
        let head = place.head();
        self.make_ancestors(engine, place).await?;
        let in_stream = context.dataset.map(|dataset| &dataset.props);
        let before = match in_stream.filter(|_| place.target != Target::Missing) {
            Some(_) => props_of(engine, head).await?,
            None => Vec::new(),
        };
        let at = Receiving {
            kind: place.kind,
            is_top: place.is_top,
            is_recursive: context.is_recursive,
            before: &before,
        };
        let is_raw = record.features.contains(StreamFeatures::RAW);
        // A package may have increments of a dataset that it creates.
        let is_new = record.from_guid == 0 || in_stream.is_some();
        let is_allowed = self.overrides.check_encryption(is_raw, is_new);
        is_allowed.map_err(|why| place.what.failed(why))?;
        let mut plan = props::plan(head, at, &self.overrides, in_stream)?;
        self.keep_permitted(engine, head, &mut plan).await?;
        let Plan { changes, local, notes } = plan;
        // Properties of an existing dataset change when its contents do.
        let is_late = |name: &str| place.target != Target::Missing || props::is_late(name);
        let (late, early): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|(name, _)| is_late(name));
        let (late_local, early_local): (Vec<_>, Vec<_>) =
            local.into_iter().partition(|(name, _)| is_late(name));
        let set = late_local.into_iter();
        let set = set.map(|(name, value)| (name, PropertyChange::Set(value)));
        let late: Changes = late.into_iter().chain(set).collect();
        let encryption = match place.target {
            Target::Missing if !is_raw && place.origin.is_none() => {
                self.encryption(engine, head, in_stream.is_some(), io).await?
            }
            _ => NewEncryption::Inherited,
        };
        let options = ReceiveOptions {
            target: head.to_owned(),
            snapshot: Some(place.short().to_owned()),
            origin: place.origin.clone(),
            is_forced: self.is_forced(),
            is_resumable: self.options.has('s'),
            encryption,
            requester: self.source.requester(),
            props: early_local,
        };
        let mut is_new = true;
        let work = async {
            let receiver = Receiver::begin(engine, &begin, stream.endian(), options).await;
            drop(begin);
            let mut receiver = match receiver {
                Ok(receiver) => receiver,
                Err(error) => {
                    is_new = !has_guid(engine, head, record.to_guid).await?;
                    let failed = || failure::of_pool(&error, place.what, &place.name);
                    return if is_new { Err(failed()) } else { Ok(()) };
                }
            };
            let done = self.apply(engine, stream, &mut receiver, (place, early), io).await;
            if let Err(failed) = done {
                return Err(give_up(engine, receiver, failed, place).await);
            }
            drop(receiver);
            change_props(engine, head, late, io).await
        };
        if place.target == Target::Replaced {
            let names = [head.to_owned()];
            Box::pin(self.source.without_mounts(&names, self.unmounts_by_force(), work)).await?;
        } else {
            Box::pin(work).await?;
        }
        for note in notes {
            err!(io, "{note}")?;
        }
        Ok(is_new)
    }

    /// How a new dataset is encrypted that is not received raw: as `-o` says, else like its parent;
    /// not at all if properties come with it, since those of an encrypted dataset would come raw.
    async fn encryption(
        &self,
        engine: &Arc<Engine>,
        head: &str,
        has_props: bool,
        io: &mut Io<'_>,
    ) -> Result<NewEncryption, Exit> {
        let failed = |why: &str| What::New.failed(why);
        let is_excluded = self.overrides.is_excluded("encryption");
        let settings = self.overrides.of_key().map_err(|why| failed(&why))?;
        if settings.is_empty() && has_props && !is_excluded {
            return Ok(NewEncryption::Off);
        }
        let view = engine.view().await?;
        let parent = match head.rsplit_once('/') {
            Some((parent, _)) => find(&view, parent).await?,
            None => None,
        };
        let wanted = encryption::Wanted::of(&settings);
        let has_feature = encryption::has_feature(&view);
        let found = wanted.for_new(&self.source, parent.as_ref(), has_feature, KeyInput::InUse, io);
        found.await.map_err(|why| failed(&why))
    }

    /// Takes out the changes of properties for which the caller has no permission, with a note. For
    /// those of `-o` the receive is refused.
    async fn keep_permitted(
        &self,
        engine: &Arc<Engine>,
        head: &str,
        plan: &mut Plan,
    ) -> CommandResult {
        if self.source.is_trusted() {
            return Ok(());
        }
        let view = engine.view().await?;
        let target = find(&view, head).await?;
        let may_set = async |name: &str| {
            let right = permits::of_property(name);
            match &target {
                Some(target) => {
                    permits::need_for(&self.source, target, &[&right], ("receive", head)).await
                }
                None => permits::need_above(&self.source, &view, head, &[&right], "receive").await,
            }
        };
        for (name, _) in &plan.local {
            may_set(name).await?;
        }
        for (name, change) in std::mem::take(&mut plan.changes) {
            if may_set(&name).await.is_ok() {
                plan.changes.push((name, change));
            } else {
                let text = format!("cannot receive {name} property on {head}: permission denied");
                plan.notes.push(text);
            }
        }
        Ok(())
    }

    async fn make_ancestors(&self, engine: &Arc<Engine>, place: &Place) -> CommandResult {
        let Some(first) = place.missing.first() else { return Ok(()) };
        let view = engine.view().await?;
        let options = FileSystemOptions::below(&self.source, &view, first).await?;
        drop(view);
        for ancestor in &place.missing {
            options.make(engine, ancestor, &[], NewEncryption::Inherited).await?;
        }
        Ok(())
    }

    /// Applies the records up to END, and ends the receive.
    async fn apply(
        &self,
        engine: &Arc<Engine>,
        stream: &mut Stream,
        receiver: &mut Receiver,
        (place, early): (&Place, Changes),
        io: &mut Io<'_>,
    ) -> Result<(), Failure> {
        change_props(engine, place.head(), early, io).await?;
        let mut is_ended = false;
        while !is_ended {
            let item = next(stream)?;
            is_ended = matches!(item.record, Record::End(_));
            receiver.apply(item).await?;
        }
        if matches!(place.target, Target::Missing | Target::Replaced) {
            return Ok(receiver.finish().await?);
        }
        self.source.close_unused_snapshots(place.head());
        // A committed state has everything that was applied: the new contents are compared with
        // those of the mount.
        engine.sync().await?;
        let dataset = receiver.reception().dataset().to_owned();
        let mut finished = Ok(());
        let work = async {
            finished = receiver.finish().await;
            Ok(())
        };
        Box::pin(self.source.suspended(place.head(), (&dataset, "receive"), work)).await?;
        Ok(finished?)
    }

    /// Sets properties and holds of the received snapshot.
    async fn finish_snapshot(
        &self,
        engine: &Arc<Engine>,
        record: &Begin,
        (place, context): (&Place, Context<'_>),
        io: &mut Io<'_>,
    ) -> CommandResult {
        let Some(dataset) = context.dataset else { return Ok(()) };
        let sent = String::from_utf8_lossy(&record.to_name);
        let short = sent.split_once('@').map_or("", |(_, short)| short);
        if let Some(list) = dataset.props_of_snapshot(short) {
            change_props(engine, &place.name, props::of_snapshot(list), io).await?;
        }
        let holds = dataset.snap_holds.as_ref().filter(|_| !self.options.has('h'));
        let holds = holds.into_iter().flatten().filter(|holds| holds.snap.to_str() == Some(short));
        let tags = holds.flat_map(|holds| &holds.holds).map(|(tag, _)| tag.to_string_lossy());
        let wanted: Vec<_> = tags.map(|tag| (place.name.clone(), tag.into_owned())).collect();
        if !wanted.is_empty()
            // The snapshot was received, whether or not it can be held.
            && let Err(error) = engine.snapshots().hold(wanted, false).await
        {
            err!(io, "cannot hold snapshot '{}': {}", place.name, wording(&error))?;
        }
        Ok(())
    }
}

/// Gives a receive up, and returns what to report.
async fn give_up(engine: &Arc<Engine>, receiver: Receiver, failed: Failure, place: &Place) -> Exit {
    let is_kept = receiver.reception().is_resumable();
    let aborted = receiver.abort().await;
    let exit = match failed {
        Failure::Exit(exit) => return exit,
        Failure::Pool(error) => return failure::of_pool(&error, place.what, &place.name),
        Failure::Stream(error) => place.what.failed(failure::stream_words(&error)),
    };
    if !is_kept || aborted.is_err() {
        return exit;
    }
    let token = async {
        let target = find(&engine.view().await?, place.head()).await?;
        let Some(target) = target else { return Ok::<_, Exit>(None) };
        token_of(&target).await
    };
    match token.await {
        Ok(Some(token)) => place.what.failed(failure::saved(&token)),
        _ => exit,
    }
}

/// Changes properties: one that cannot be changed is reported, and the others are changed.
pub(super) async fn change_props(
    engine: &Arc<Engine>,
    name: &str,
    changes: Changes,
    io: &mut Io<'_>,
) -> CommandResult {
    if changes.is_empty() || engine.properties().change(name, changes.clone()).await.is_ok() {
        return Ok(());
    }
    for (property, change) in changes {
        let one = vec![(property.clone(), change)];
        if let Err(error) = engine.properties().change(name, one).await {
            err!(io, "cannot receive {property} property on {name}: {}", wording(&error))?;
        }
    }
    Ok(())
}

/// Returns the properties of a dataset.
async fn props_of(engine: &Arc<Engine>, head: &str) -> Result<Vec<PropRow>, Exit> {
    let Some(target) = find(&engine.view().await?, head).await? else { return Ok(Vec::new()) };
    Ok(target.props().await?.all().await?)
}

/// Whether a dataset exists and has a snapshot with this guid.
async fn has_guid(engine: &Arc<Engine>, head: &str, guid: u64) -> Result<bool, Exit> {
    let Some(target) = find(&engine.view().await?, head).await? else { return Ok(false) };
    Ok(target.snapshots().await?.iter().any(|snapshot| snapshot.phys().guid == guid))
}

/// Reads the rest of a substream.
pub(super) fn skip(stream: &mut Stream, what: What) -> CommandResult {
    loop {
        let item = next(stream).map_err(|error| what.failed(failure::stream_words(&error)))?;
        if matches!(item.record, Record::End(_)) {
            return Ok(());
        }
    }
}

/// Returns the next record of a substream; blocks as long as the sender is silent.
pub(super) fn next(stream: &mut Stream) -> Result<Item, StreamError> {
    let item = stream.next().transpose()?;
    item.ok_or_else(|| StreamError::Truncated { offset: stream.offset() })
}

pub(super) fn print_rate(bytes: u64, time: Duration, io: &mut Io<'_>) -> CommandResult {
    let seconds = time.as_secs_f64();
    let rate = if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 };
    let (bytes, rate) = (nicenum::bytes_b(bytes), nicenum::bytes_b(rate as u64));
    out!(io, "received {bytes} stream in {seconds:.2} seconds ({rate}/sec)")
}
