//! Checks of a crashed pool by `zdb`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_device::Image;
use cenote_oracle::Tool;
use cenote_testkit::cuts;

/// `zdb`, and the directory for its images.
pub(crate) struct Judge {
    zdb: Option<Tool>,
    folder: PathBuf,
}

impl Judge {
    pub(crate) fn new(zdb: Option<Tool>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("cenote-crash-{}-{number}", std::process::id());
        Self { zdb, folder: std::env::temp_dir().join(folder) }
    }

    /// Returns whether it was checked; the error is the output of zdb.
    pub(crate) fn look(&self, images: &[Image]) -> Result<bool, String> {
        let Some(zdb) = &self.zdb else { return Ok(false) };
        cuts::unpack(images, &self.folder);
        let said = zdb.pool("tank", &self.folder, &["-bcc", "-h"]);
        std::fs::remove_dir_all(&self.folder).map_err(|error| error.to_string())?;
        if said.is_clean() { Ok(true) } else { Err(said.to_string()) }
    }
}
