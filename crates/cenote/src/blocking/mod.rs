//! The blocking form of the library: the same types and methods without `async`.
//!
//! A pool starts its own threads. They end with the pool's last handle, whose drop waits until the
//! pool is closed. These types cannot be used inside of asynchronous code: their methods fail with
//! [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) there.
//!
//! [`File`] and [`Volume`] also have a position, and implement `Read`, `Write` and `Seek`.

mod cursor;
mod datasets;
mod file_system;
mod pool;

use std::path::PathBuf;
use std::sync::Arc;

use cenote_rt::OwnRuntime;

pub use cursor::{File, Volume};
pub use datasets::{Dataset, Snapshot};
pub use file_system::FileSystem;
pub use pool::Pool;

/// Converts a result of the asynchronous form to the blocking form.
trait IntoBlocking {
    type Blocking;
    fn into_blocking(self, runtime: &Arc<OwnRuntime>) -> Self::Blocking;
}

/// Values that both forms share.
macro_rules! shared {
    ($($shared:ty),*) => { $(
        impl IntoBlocking for $shared {
            type Blocking = Self;
            fn into_blocking(self, _: &Arc<OwnRuntime>) -> Self {
                self
            }
        }
    )* };
}

shared!(
    (),
    bool,
    usize,
    String,
    PathBuf,
    Vec<u8>,
    Vec<crate::DirEntry>,
    crate::Metadata,
    crate::DatasetKind
);

/// Handles, which hold the runtime.
macro_rules! handles {
    ($($handle:ident),*) => { $(
        impl IntoBlocking for crate::$handle {
            type Blocking = $handle;
            fn into_blocking(self, runtime: &Arc<OwnRuntime>) -> $handle {
                $handle::over(self, Arc::clone(runtime))
            }
        }
    )* };
}

handles!(Pool, FileSystem, File, Volume, Dataset, Snapshot);

impl IntoBlocking for Vec<crate::Dataset> {
    type Blocking = Vec<Dataset>;
    fn into_blocking(self, runtime: &Arc<OwnRuntime>) -> Vec<Dataset> {
        self.into_iter().map(|handle| handle.into_blocking(runtime)).collect()
    }
}

impl IntoBlocking for Vec<crate::Snapshot> {
    type Blocking = Vec<Snapshot>;
    fn into_blocking(self, runtime: &Arc<OwnRuntime>) -> Vec<Snapshot> {
        self.into_iter().map(|handle| handle.into_blocking(runtime)).collect()
    }
}

/// Methods that block until their asynchronous form has finished.
macro_rules! forward {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => { $(
        #[doc = concat!("Blocking form of the asynchronous `", stringify!($name), "`.")]
        ///
        /// # Errors
        /// The errors of the asynchronous form; `Kind::Invalid` inside of asynchronous code.
        pub fn $name(&self, $($arg: $kind),*) -> crate::Result<$out> {
            let done = self.runtime.block_on(self.inner.$name($($arg),*))??;
            Ok(crate::blocking::IntoBlocking::into_blocking(done, &self.runtime))
        }
    )* };
}

/// Like [`forward`], for methods that consume their handle.
macro_rules! forward_owned {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => { $(
        #[doc = concat!("Blocking form of the asynchronous `", stringify!($name), "`.")]
        ///
        /// # Errors
        /// The errors of the asynchronous form; `Kind::Invalid` inside of asynchronous code.
        pub fn $name(self, $($arg: $kind),*) -> crate::Result<$out> {
            let done = self.runtime.block_on(self.inner.$name($($arg),*))??;
            Ok(crate::blocking::IntoBlocking::into_blocking(done, &self.runtime))
        }
    )* };
}

use {forward, forward_owned};
