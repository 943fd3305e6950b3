//! The data of an entry that is read before it is written: small contents and extended attributes.
//!
//! Tasks read ahead of the writer, so that a tree of small files does not cost a device's latency
//! per file. Larger files are streamed when the writer reaches them.

use std::collections::VecDeque;

use cenote_fs::{Extent, FileKind, Lost, Node};
use cenote_rt::{Buf, Error, JoinHandle, Kind, Result};

/// Files up to this size are read ahead as a whole.
const SMALL_FILE_BYTES: u64 = 256 << 10;
/// Entries read ahead.
const ENTRIES_AHEAD: usize = 64;

/// An entry with the data that was read ahead.
pub(super) struct Contents {
    /// Path below the start.
    pub(super) path: Vec<u8>,
    /// Node of the entry.
    pub(super) node: Node,
    /// All data of a small file.
    pub(super) pieces: Option<Vec<Result<Extent, Lost>>>,
    /// Target of a symbolic link.
    pub(super) target: Option<Result<Vec<u8>>>,
    /// Names and values of the extended attributes.
    pub(super) xattrs: Vec<(Vec<u8>, Buf)>,
    /// Extended attributes that cannot be read: name (if known) and error.
    pub(super) lost_xattrs: Vec<(Vec<u8>, Error)>,
}

impl Contents {
    /// Returns an entry of which nothing was read.
    fn nothing(path: Vec<u8>, node: Node) -> Self {
        let (xattrs, lost_xattrs) = (Vec::new(), Vec::new());
        Self { path, node, pieces: None, target: None, xattrs, lost_xattrs }
    }

    /// Reads small contents, link target and extended attributes.
    pub(super) async fn read(path: Vec<u8>, node: Node) -> Self {
        let mut read = Self::nothing(path, node);
        let node = &read.node;
        match node.kind() {
            FileKind::Symlink => read.target = Some(node.target().await),
            FileKind::Regular if node.size() <= SMALL_FILE_BYTES => {
                if let Ok(mut stream) = node.stream() {
                    let mut pieces = Vec::new();
                    while let Some(piece) = stream.next().await {
                        pieces.push(piece);
                    }
                    read.pieces = Some(pieces);
                }
            }
            _ => {}
        }
        if node.has_xattrs() {
            let names = match node.xattr_names().await {
                Ok(names) => names,
                Err(error) => {
                    read.lost_xattrs.push((Vec::new(), error));
                    Vec::new()
                }
            };
            for found in names {
                match node.xattr(&found.name).await {
                    Ok(Some(value)) => read.xattrs.push((found.name, value)),
                    Ok(None) => {}
                    Err(error) => read.lost_xattrs.push((found.name, error)),
                }
            }
        }
        read
    }
}

/// An item for the writer, in order.
pub(super) enum Item {
    /// An entry.
    Entry(Box<Contents>),
    /// The end of a directory's contents.
    Leave,
    /// Something unreadable: its path, and the error.
    Failed(Vec<u8>, Error),
}

enum Pending {
    Item(Item),
    Task(Vec<u8>, JoinHandle<Contents>),
}

/// Items that are being read for the writer.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Pending>);

impl Queue {
    /// Whether enough items are being read.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= ENTRIES_AHEAD
    }

    /// Starts reading an entry.
    pub(super) fn push(&mut self, path: Vec<u8>, node: Node) {
        let has_small_contents = match node.kind() {
            FileKind::Regular => (1..=SMALL_FILE_BYTES).contains(&node.size()),
            kind => kind == FileKind::Symlink,
        };
        self.0.push_back(if has_small_contents || node.has_xattrs() {
            let place = path.clone();
            Pending::Task(place, cenote_rt::spawn(Contents::read(path, node)))
        } else {
            Pending::Item(Item::Entry(Box::new(Contents::nothing(path, node))))
        });
    }

    /// Adds an item that needs no reading.
    pub(super) fn push_item(&mut self, item: Item) {
        self.0.push_back(Pending::Item(item));
    }

    /// Returns the next item, when it has been read.
    pub(super) async fn pop(&mut self) -> Option<Item> {
        Some(match self.0.pop_front()? {
            Pending::Item(item) => item,
            Pending::Task(path, task) => match task.await {
                Ok(read) => Item::Entry(Box::new(read)),
                Err(error) => Item::Failed(path, Error::new(Kind::Io, error)),
            },
        })
    }
}
