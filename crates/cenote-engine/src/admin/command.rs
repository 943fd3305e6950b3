//! Records command lines in the pool's history (spec 01 §13).

use cenote_dmu::history;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::history::key;
use cenote_ondisk::nvlist::NvList;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::Result;

use crate::Admin;
use crate::dsl;

/// Pool directory entry: the history.
const HISTORY: &str = "history";
/// The zone that OpenZFS on Linux records.
const ZONE: &str = "linux";

/// Bytes of a command line that the history keeps, as in OpenZFS: a user must not be able to push
/// everything else out of the ring by long commands.
const LINE_MAX: usize = 8192;

/// A command that a user gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The command line.
    pub line: String,
    /// Uid of the user.
    pub who: u64,
    /// Name of the host.
    pub hostname: String,
}

impl Admin<'_> {
    /// Records a command in the history.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn record_command(self, command: Command) -> Result<()> {
        let space = self.engine.allocator().normal_space();
        self.change(move |tx, ctx, _| {
            let mut list = NvList::new();
            let end = command.line.floor_char_boundary(LINE_MAX);
            list.insert(key::COMMAND, command.line.get(..end).unwrap_or_default());
            list.insert(key::ZONE, ZONE);
            list.insert(key::WHO, command.who);
            list.insert(key::TIME, ctx.now);
            list.insert(key::HOSTNAME, command.hostname.as_str());
            let object = if let Some(object) = dsl::directory_object(tx, HISTORY)? {
                object
            } else {
                let object = history::create(tx, space)?;
                zap::update(tx, DIRECTORY, HISTORY, object)?;
                object
            };
            history::append(tx, object, &list)
        })
        .await
    }
}
