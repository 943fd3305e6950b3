//! OpenZFS's own checker on what a crash left.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_device::Image;
use cenote_oracle::Tool;

/// Bytes that are looked at and written at once.
const PIECE: usize = 64 << 10;

/// `zdb`, and the folder for its images.
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

    /// Whether it was looked at; the error is what zdb did not like.
    pub(crate) fn look(&self, images: &[Image]) -> Result<bool, String> {
        let Some(zdb) = &self.zdb else { return Ok(false) };
        std::fs::create_dir_all(&self.folder).map_err(|error| error.to_string())?;
        for (number, image) in images.iter().enumerate() {
            let path = self.folder.join(format!("d{number}.img"));
            store(image, &path).map_err(|error| error.to_string())?;
        }
        let said = zdb.pool("tank", &self.folder, &["-bcc"]);
        std::fs::remove_dir_all(&self.folder).map_err(|error| error.to_string())?;
        if said.is_clean() { Ok(true) } else { Err(said.to_string()) }
    }
}

/// Writes an image to a sparse file.
fn store(image: &Image, path: &PathBuf) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.set_len(image.size())?;
    let mut piece = vec![0; PIECE];
    for offset in (0..image.size()).step_by(PIECE) {
        image.read_at(offset, &mut piece);
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(&piece, offset)?;
        }
    }
    Ok(())
}
