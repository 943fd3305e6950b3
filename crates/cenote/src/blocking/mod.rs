//! The library without `async`: the same types and methods, each of which returns when its work is
//! done.
//!
//! A pool brings the threads along that its work runs on. They end with the pool's last handle,
//! whose drop waits until the pool is closed. These types cannot be used inside of asynchronous
//! code: their methods fail with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) there.
//!
//! [`File`] and [`Volume`] have a position, too, and implement `Read`, `Write` and `Seek`.

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

/// Turns a result of the asynchronous form into one of the blocking form.
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

/// Handles, which take the runtime along.
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

/// Methods that run their asynchronous form to its end.
macro_rules! forward {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => { $(
        #[doc = concat!("Blocking form of the asynchronous `", stringify!($name), "`.")]
        ///
        /// # Errors
        /// As there; `Kind::Invalid` inside of asynchronous code.
        pub fn $name(&self, $($arg: $kind),*) -> crate::Result<$out> {
            let done = self.runtime.block_on(self.inner.$name($($arg),*))??;
            Ok(crate::blocking::IntoBlocking::into_blocking(done, &self.runtime))
        }
    )* };
}

/// Like [`forward`], for methods that use their handle up.
macro_rules! forward_owned {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => { $(
        #[doc = concat!("Blocking form of the asynchronous `", stringify!($name), "`.")]
        ///
        /// # Errors
        /// As there; `Kind::Invalid` inside of asynchronous code.
        pub fn $name(self, $($arg: $kind),*) -> crate::Result<$out> {
            let done = self.runtime.block_on(self.inner.$name($($arg),*))??;
            Ok(crate::blocking::IntoBlocking::into_blocking(done, &self.runtime))
        }
    )* };
}

use {forward, forward_owned};
