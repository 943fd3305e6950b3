//! Sends what an interrupted receive has received (`-S`), to be received elsewhere as a part: so a
//! receive that began over a slow line is continued over a fast one, or from another host.

use std::sync::Arc;

use cenote_pool::props::PropValue;
use cenote_rt::Error;
use cenote_stream::ResumeToken;
use cenote_stream::token::decode_list;

use super::command::Command;
use super::plan::{Part, Place, Plan};
use super::{cannot_send, failure, token};
use crate::io::{Exit, Io};
use crate::source::Source;
use crate::zfs::permits;
use crate::zfs::refuse::existing;

/// Plans the stream.
pub(super) async fn plan(
    command: &Command,
    source: &Source,
    io: &mut Io<'_>,
) -> Result<Plan, Exit> {
    let target = existing(source, &command.target).await?;
    permits::need(source, &target, &["send"], "send").await?;
    let name = target.name().to_owned();
    let failed = |error: Error| failure(&name, &error);
    let row = target.props().await.map_err(failed)?.get("receive_resume_token").await;
    let Some(PropValue::Text(text)) = row.map_err(failed)?.map(|row| row.value) else {
        return Err(cannot_send(&name, "it has no partially received state"));
    };
    let corrupt = |error| cannot_send(&name, &format!("{error}"));
    let saved = ResumeToken::decode(&text).map_err(corrupt)?;
    if command.has_estimate() {
        let list = decode_list(&text).map_err(corrupt)?;
        token::print(&list, super::reports(command, io))?;
    }
    let from = token::source_of(&saved, target.pool(), &name).await?;
    let part =
        Part { saved: Some(Arc::new(saved)), ..Part::new(name.clone(), target.phys().guid, from) };
    let place = Place::of(source, &target)?;
    Ok(Plan { place, options: command.options, header: None, parts: vec![part], held: Vec::new() })
}
