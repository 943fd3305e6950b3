//! Records command lines in the pool's history (spec 01 §13).

use cenote_dmu::history;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::history::key;
use cenote_ondisk::nvlist::{NvList, NvValue};
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
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// The command line.
    pub line: String,
    /// The ioctl of OpenZFS that the command stands for.
    pub ioctl: Option<Ioctl>,
    /// Uid of the user.
    pub who: u64,
    /// Name of the host.
    pub hostname: String,
}

/// An ioctl of OpenZFS, as its history has it before the command that made it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ioctl {
    /// Name.
    pub name: &'static str,
    /// Key of the names in its input; `None` if they are the input.
    pub key: Option<&'static str>,
    /// Names, each with its value.
    pub names: Vec<(String, NvValue)>,
}

impl Ioctl {
    /// Returns its input, up to [`LINE_MAX`] bytes of names.
    fn input(&self) -> NvList {
        let (mut names, mut len) = (NvList::new(), 0);
        for (name, value) in &self.names {
            len += name.len();
            if len > LINE_MAX {
                break;
            }
            names.insert(name.as_str(), value.clone());
        }
        let Some(key) = self.key else { return names };
        let mut input = NvList::new();
        input.insert(key, names);
        input
    }
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
            if let Some(ioctl) = &command.ioctl {
                let mut list = NvList::new();
                list.insert(key::IOCTL, ioctl.name);
                list.insert(key::INPUT, ioctl.input());
                list.insert(key::ZONE, ZONE);
                list.insert(key::WHO, command.who);
                list.insert(key::TIME, ctx.now);
                list.insert(key::HOSTNAME, command.hostname.as_str());
                history::append(tx, object, &list)?;
            }
            history::append(tx, object, &list)
        })
        .await
    }
}
