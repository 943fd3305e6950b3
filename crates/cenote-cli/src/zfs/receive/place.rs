//! The target of a substream: its name, whether it exists, and whether it may be received into
//! (spec 07 B9.1, B9.2). The engine checks again what can change until the receive begins.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::stream::{Begin, BeginFlags, StreamFeatures};
use cenote_pool::props::PropValue;
use cenote_pool::{Dataset, DatasetKind, Pool};
use cenote_rt::Kind;
use cenote_stream::PackageDataset;

use super::failure::{self, What};
use super::naming::{Naming, Sent};
use super::search::find_guid;
use super::{Command, permits};
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::find;

/// What the package of a substream says about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    /// Full name of the dataset that was given to `zfs send`.
    pub(super) top: &'a str,
    /// Whether the package has other datasets.
    pub(super) is_recursive: bool,
    /// The dataset of the substream, if the package has a header.
    pub(super) dataset: Option<&'a PackageDataset>,
}

impl Context<'_> {
    /// Guid of the snapshot of the parent, under which a new dataset belongs.
    fn parent(&self) -> Option<u64> {
        self.dataset.map(|dataset| dataset.parent_from_snap).filter(|guid| *guid != 0)
    }
}

/// State of a target before a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// Nothing.
    Missing,
    /// A dataset.
    Exists,
    /// A file system whose contents another one takes the place of.
    Replaced,
    /// A dataset that has the snapshot already.
    HasSnapshot,
}

/// The target of a substream.
#[derive(Debug)]
pub(super) struct Place {
    /// Full name of the snapshot.
    pub(super) name: String,
    pub(super) what: What,
    pub(super) origin: Option<String>,
    pub(super) kind: char,
    pub(super) is_top: bool,
    pub(super) target: Target,
    /// Ancestors to create first (`-d`).
    pub(super) missing: Vec<String>,
}

impl Place {
    pub(super) fn head(&self) -> &str {
        self.name.split('@').next().unwrap_or_default()
    }

    /// Short name of the snapshot.
    pub(super) fn short(&self) -> &str {
        self.name.split_once('@').map_or("", |(_, short)| short)
    }
}

impl Command {
    /// Returns a view of the pool, for lookups.
    pub(super) async fn view(
        &self,
        engine: Option<&Arc<Engine>>,
        name: &str,
    ) -> Result<Arc<Pool>, Exit> {
        match engine {
            Some(engine) => Ok(engine.view().await?),
            None => self.source.pool(name.split(['/', '@']).next().unwrap_or(name)).await,
        }
    }

    /// Finds the target, and checks what only names and snapshots decide.
    pub(super) async fn place(
        &self,
        engine: Option<&Arc<Engine>>,
        begin: &Begin,
        context: Context<'_>,
        io: &mut Io<'_>,
    ) -> Result<Place, Exit> {
        let snapshot = String::from_utf8_lossy(&begin.to_name);
        let (top, is_recursive) = (context.top, context.is_recursive);
        let sent = Sent { snapshot: &snapshot, top, is_recursive };
        let name = self.naming.name(&self.argument, sent).map_err(failure::cannot_receive)?;
        refuse_deduplicated(begin)?;
        let pool = self.view(engine, &name).await?;
        let origin = self.origin(&pool, begin, &name, io).await?;
        let is_resuming = begin.features.contains(StreamFeatures::RESUMING);
        let is_new = (begin.from_guid == 0 || origin.is_some()) && !is_resuming;
        let what = if is_new { What::New } else { What::Increment };
        let kind = if begin.objset_kind == ObjSetType::Zvol.id() as u32 { 'v' } else { 'f' };
        let mut place = Place {
            name,
            what,
            origin,
            kind,
            is_top: sent.is_top(),
            target: Target::Missing,
            missing: Vec::new(),
        };
        self.follow_renames(&pool, begin, context, &mut place).await?;
        match find(&pool, place.head()).await? {
            Some(target) => self.check_existing(begin, &target, &mut place).await?,
            None => self.check_new(&pool, &mut place).await?,
        }
        Ok(place)
    }

    /// Returns the origin of a clone: that of `-o origin`, or the snapshot here that the stream
    /// names.
    async fn origin(
        &self,
        pool: &Arc<Pool>,
        begin: &Begin,
        name: &str,
        io: &mut Io<'_>,
    ) -> Result<Option<String>, Exit> {
        if let Some(origin) = &self.overrides.origin {
            if !origin.contains('@') || find(pool, origin).await?.is_none() {
                let text = format!("specified origin fs ({origin}) does not exist");
                return Err(failure::cannot_receive(text));
            }
            if self.is_verbose() {
                out!(io, "using provided clone origin {origin}")?;
            }
            return Ok(Some(origin.clone()));
        }
        let is_clone = begin.flags.contains(BeginFlags::CLONE);
        // A resumed clone has its origin already.
        if !is_clone || begin.features.contains(StreamFeatures::RESUMING) {
            return Ok(None);
        }
        let head = name.split('@').next().unwrap_or(name);
        let Some(origin) = find_guid(pool, head, begin.from_guid).await? else {
            let text = format!("local origin for clone {name} does not exist");
            return Err(failure::cannot_receive(text));
        };
        if self.is_verbose() {
            out!(io, "found clone origin {origin}")?;
        }
        Ok(Some(origin))
    }

    /// Finds the target by the guids of snapshots if it, or its parent, was renamed here.
    async fn follow_renames(
        &self,
        pool: &Arc<Pool>,
        begin: &Begin,
        context: Context<'_>,
        place: &mut Place,
    ) -> CommandResult {
        let Some((head, short)) = place.name.split_once('@') else { return Ok(()) };
        let found = match place.what {
            What::New => {
                let Some((parent, last)) = head.rsplit_once('/') else { return Ok(()) };
                let Some(guid) = context.parent() else { return Ok(()) };
                if find(pool, parent).await?.is_some() {
                    return Ok(());
                }
                let found = find_guid(pool, parent, guid).await?;
                let new_parent = found.and_then(|name| Some(name.split_once('@')?.0.to_owned()));
                new_parent.map(|parent| format!("{parent}/{last}@{short}"))
            }
            What::Increment => {
                // The name that the command gives is exact.
                let is_exact = self.naming == Naming::BelowSent && place.is_top;
                if is_exact || find(pool, head).await?.is_some() {
                    return Ok(());
                }
                let found = find_guid(pool, head, begin.from_guid).await?;
                found.and_then(|name| Some(format!("{}@{short}", name.split_once('@')?.0)))
            }
        };
        if let Some(found) = found {
            place.name = found;
        }
        Ok(())
    }

    async fn check_existing(
        &self,
        begin: &Begin,
        target: &Dataset,
        place: &mut Place,
    ) -> CommandResult {
        let head = place.head().to_owned();
        self.may_receive_into(target).await?;
        place.target = match target.snapshot(place.short()).await {
            Ok(snapshot) if snapshot.phys().guid == begin.to_guid => Target::HasSnapshot,
            Ok(_) => Target::Exists,
            Err(error) if error.kind() == Kind::NotFound => Target::Exists,
            Err(error) => return Err(error.into()),
        };
        let is_resuming = begin.features.contains(StreamFeatures::RESUMING);
        let is_partial = !is_resuming
            && place.target != Target::HasSnapshot
            && token_of(target).await?.is_some();
        let what = place.what;
        let partial = || {
            what.failed(format_args!(
                "destination {head} contains partially-complete state from \"zfs receive -s\"."
            ))
        };
        if what == What::Increment {
            return if is_partial { Err(partial()) } else { Ok(()) };
        }
        if !self.is_forced() {
            return Err(place.what.failed(failure::exists(&head)));
        }
        if let Some(snapshot) = target.snapshots().await?.first() {
            let text = format!(
                "destination has snapshots (eg. {})\nmust destroy them to overwrite it",
                snapshot.name()
            );
            return Err(place.what.failed(text));
        }
        if place.kind == 'v' {
            if !head.contains('/') {
                return Err(place.what.failed(format_args!(
                    "destination {head} is the root dataset\ncannot overwrite with a ZVOL"
                )));
            }
            if let Some(child) = target.children().await?.first() {
                return Err(place.what.failed(format_args!(
                    "destination has children (eg. {})\ncannot overwrite with a ZVOL",
                    child.name()
                )));
            }
        }
        if target.origin().await?.is_some() {
            return Err(place.what.failed(format_args!(
                "destination '{head}' is a clone\nmust destroy it to overwrite it"
            )));
        }
        if is_partial {
            return Err(partial());
        }
        if target.kind().await? == DatasetKind::Filesystem {
            place.target = Target::Replaced;
        }
        Ok(())
    }

    /// Refuses a caller without the permission to receive, or to append if nothing is destroyed.
    pub(super) async fn may_receive_into(&self, target: &Dataset) -> CommandResult {
        let right = async |right| {
            let needed = [right, "mount", "create"];
            permits::need(&self.source, target, &needed, "receive").await
        };
        match right("receive").await {
            Err(_) if !self.is_forced() => right("receive:append").await,
            done => done,
        }
    }

    async fn check_new(&self, pool: &Arc<Pool>, place: &mut Place) -> CommandResult {
        let head = place.head().to_owned();
        if self.planned.borrow().contains(&head) {
            return Ok(());
        }
        let Some((parent, _)) = head.rsplit_once('/').filter(|_| place.what == What::New) else {
            return Err(place.what.failed(format_args!("destination '{head}' does not exist")));
        };
        let right = async |right| {
            let needed = [right, "mount", "create"];
            permits::need_above(&self.source, pool, &head, &needed, "receive").await
        };
        match right("receive").await {
            Err(_) if !self.is_forced() => right("receive:append").await?,
            done => done?,
        }
        if let Some(found) = find(pool, parent).await? {
            if found.kind().await? != DatasetKind::Filesystem {
                let why = format!("parent '{parent}' is not a filesystem");
                return Err(place.what.failed(why));
            }
            return Ok(());
        }
        if self.planned.borrow().contains(parent) {
            return Ok(());
        }
        if self.naming != Naming::BelowPool {
            return Err(failure::no_parent(parent));
        }
        // The dataset that the command names must exist; those below it are created.
        if find(pool, &self.argument).await?.is_none() {
            return Err(failure::no_parent(&self.argument));
        }
        for (end, _) in head.match_indices('/') {
            let ancestor = head.get(..end).unwrap_or_default();
            if ancestor.len() > self.argument.len() && find(pool, ancestor).await?.is_none() {
                place.missing.push(ancestor.to_owned());
            }
        }
        Ok(())
    }
}

/// Refuses a stream that has to be converted first.
pub(super) fn refuse_deduplicated(begin: &Begin) -> CommandResult {
    if begin.features.contains(StreamFeatures::DEDUP) {
        return Err(Exit::failed(
            "ERROR: \"zfs receive\" no longer supports deduplicated send streams.  Use\n\
             the \"zstream redup\" command to convert this stream to a regular,\n\
             non-deduplicated stream.",
        ));
    }
    Ok(())
}

/// Returns the token with which an interrupted receive of a dataset continues.
pub(super) async fn token_of(target: &Dataset) -> Result<Option<String>, Exit> {
    let row = target.props().await?.get("receive_resume_token").await?;
    Ok(match row.map(|row| row.value) {
        Some(PropValue::Text(token)) if !token.is_empty() => Some(token),
        _ => None,
    })
}
