//! Golden pools: made by OpenZFS's kernel module, with recorded outputs of its commands and
//! contents.
//!
//! [`Golden`] is a pool's folder; images are unpacked once and shared read-only
//! ([`Golden::images`]), a test that writes takes a [`PrivateCopy`], removed when dropped. Text
//! files may be compressed (`zfs-list.tsv.zst`), as the repository's fixtures are.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::manifest::{self, Entry, VolumeSum};
use crate::{place, skip, unpack};

/// One golden pool.
#[derive(Debug, Clone)]
pub struct Golden {
    name: String,
    folder: PathBuf,
}

/// The pool called `name`; if it is not available, reports that the running test is skipped, and
/// returns none.
pub fn golden(name: &str) -> Option<Golden> {
    let found = find(name);
    if found.is_none() {
        skip::skip(&skip::current_test(), &format!("golden pool {name} is not here"));
    }
    found
}

/// The pool called `name`, without a report if it is not available.
pub fn find(name: &str) -> Option<Golden> {
    let folder = place::golden_folder(name)?;
    Some(Golden { name: name.to_owned(), folder })
}

/// Golden pools that the comparisons of every pool exclude, and why: they show states that need
/// more than reading an idle pool. Tests for these open them by name ([`golden`]); each run lists
/// them among its skips.
const LEFT_OUT: [(&str, &str); 19] = [
    ("g-brt", "its figures are compared by name"),
    ("g-crypt-keys", "its keys are one for each encryption root"),
    ("g-ddt-legacy", "its figures are compared by name"),
    ("g-dtl", "a resilver is pending"),
    ("g-fdt", "its dedup logs have pending entries"),
    ("g-livelist", "its figures are compared by name"),
    ("g-rawrecv", "its keys were never loaded"),
    ("g-rebuild", "a rebuild is in progress"),
    ("g-recv-partial", "datasets are partly received"),
    ("g-redacted", "datasets are redacted"),
    ("g-reflow", "an expansion is in progress"),
    ("g-removing", "a removal is in progress"),
    ("g-replacing", "a replacement is in progress"),
    ("g-resilver", "a resilver is in progress"),
    ("g-scrub-errors", "a scrub left permanent errors"),
    ("g-scrub-paused", "a scrub is paused"),
    ("g-send2", "its keys are not beside it"),
    ("g-spare", "a spare is in use"),
    ("g-split", "the disks of two pools are in one folder"),
];

/// The names of all pools in all places, except the excluded ones, sorted.
pub fn golden_names() -> Vec<String> {
    let mut names = Vec::new();
    for folder in place::golden_folders() {
        let entries = fs::read_dir(&folder).expect("folder of golden pools");
        for entry in entries {
            let path = entry.expect("folder entry").path();
            if path.is_dir() && !unpack::packed_images(&path).is_empty() {
                let name = path.file_name().expect("a folder's name");
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    names.dedup();
    names.retain(|name| {
        let reason = LEFT_OUT.iter().find(|(left_out, _)| left_out == name);
        if let Some((name, reason)) = reason {
            skip::skip("comparisons of every golden pool", &format!("{name}: {reason}"));
        }
        reason.is_none()
    });
    names
}

/// All pools of all places; each test over "every golden pool" loops over this.
pub fn all() -> Vec<Golden> {
    golden_names().iter().filter_map(|name| find(name)).collect()
}

/// Runs a comparison on every golden pool, and reports all that differ.
pub fn on_each(mut difference: impl FnMut(&Golden) -> Option<String>) {
    let mut failures = String::new();
    for golden in all() {
        if let Some(difference) = difference(&golden) {
            failures.extend([golden.name(), ":\n", &difference]);
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// A text of the `wording` folder: recorded output of OpenZFS's commands.
pub fn wording(file: &str) -> Option<String> {
    let text = place::golden_folder("wording").and_then(|folder| text_in(&folder, file));
    if text.is_none() {
        skip::skip(&skip::current_test(), &format!("golden wording {file} is not here"));
    }
    text
}

impl Golden {
    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder with the packed images and the manifests.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder with the unpacked images, shared by all tests: never write there.
    pub fn images(&self) -> PathBuf {
        unpack::unpacked(&self.name, &self.folder)
    }

    /// The unpacked images themselves, sorted by their number: `d0.img`, `d1.img`, ...
    pub fn devices(&self) -> Vec<PathBuf> {
        images_in(&self.images())
    }

    /// A copy of the images that the test may write to, removed when dropped.
    pub fn private_copy(&self) -> PrivateCopy {
        let folder = PrivateFolder::create(&self.name);
        for image in self.devices() {
            let name = image.file_name().expect("an image has a name");
            unpack::copy_sparse(&image, &folder.path().join(name));
        }
        PrivateCopy { folder }
    }

    /// A text file of the folder, decompressed where needed: `zfs-list.tsv`, `history.txt`, ...
    pub fn text(&self, file: &str) -> Option<String> {
        text_in(&self.folder, file)
    }

    /// The labels of all file-system manifests, sorted: `lz4`, `lz4@one`, `gcm-child`, ...
    pub fn manifest_labels(&self) -> Vec<String> {
        self.labels("manifest.", ".jsonl")
    }

    /// The labels of all volume sums, sorted: `vol`, `v8K`, ...
    pub fn volume_labels(&self) -> Vec<String> {
        self.labels("manifest.vol-", ".sha256")
    }

    /// Every entry of the file system or snapshot `label`, from the kernel module's manifest.
    pub fn manifest(&self, label: &str) -> Vec<Entry> {
        let file = format!("manifest.{label}.jsonl");
        let text = self.text(&file).unwrap_or_else(|| panic!("{}: no {file}", self.name));
        manifest::parse(&text, &format!("{}/{file}", self.name))
    }

    /// Size and checksum of the volume `label`.
    pub fn volume_sum(&self, label: &str) -> VolumeSum {
        let file = format!("manifest.vol-{label}.sha256");
        let text = self.text(&file).unwrap_or_else(|| panic!("{}: no {file}", self.name));
        VolumeSum::parse(&text, &format!("{}/{file}", self.name))
    }

    /// A key file of the encrypted pool: `pass`, `hex`, `raw`.
    pub fn key_file(&self, name: &str) -> PathBuf {
        self.folder.join("keys").join(name)
    }

    /// The encryption roots, each with the content of its key file.
    pub fn keys(&self) -> Vec<(&'static str, Vec<u8>)> {
        let file = |name| fs::read(self.key_file(name)).expect("key file");
        match self.name() {
            "g-crypt" => vec![
                ("g-crypt/gcm", file("pass")),
                ("g-crypt/ccm", file("hex")),
                ("g-crypt/raw", file("raw")),
            ],
            "g-send" => vec![("g-send/e", b"secretsecret\n".to_vec())],
            _ => Vec::new(),
        }
    }

    /// The encryption roots as options of a command line: `-k`, `dataset=file`, ..., with files in
    /// `folder`.
    pub fn key_options(&self, folder: &PrivateFolder) -> Vec<String> {
        let mut options = Vec::new();
        for (number, (dataset, key)) in self.keys().into_iter().enumerate() {
            let file = folder.path().join(number.to_string());
            fs::write(&file, key).expect("key file");
            options.extend(["-k".to_owned(), format!("{dataset}={}", file.display())]);
        }
        options
    }

    fn labels(&self, before: &str, after: &str) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).expect("folder of a golden pool");
        let mut labels: Vec<String> = entries
            .filter_map(|entry| {
                let name = entry.expect("folder entry").file_name().into_string().ok()?;
                let name = name.strip_suffix(".zst").unwrap_or(&name);
                Some(name.strip_prefix(before)?.strip_suffix(after)?.to_owned())
            })
            .collect();
        labels.sort();
        labels
    }
}

fn text_in(folder: &Path, file: &str) -> Option<String> {
    let packed = folder.join(format!("{file}.zst"));
    if packed.is_file() {
        return Some(String::from_utf8_lossy(&unpack::decompress(&packed)).into_owned());
    }
    // Recordings of streams to a terminal are among the wordings, so not all is UTF-8.
    fs::read(folder.join(file)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The images of a folder, sorted by their number.
pub fn images_in(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("folder entry").path());
    let mut images: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "img")).collect();
    images.sort_by_key(|path| unpack::number(path));
    images
}

/// A test's own copy of images, removed when dropped.
#[derive(Debug)]
pub struct PrivateCopy {
    folder: PrivateFolder,
}

impl PrivateCopy {
    /// The folder with the images.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The images, sorted by their number.
    pub fn devices(&self) -> Vec<PathBuf> {
        images_in(self.path())
    }

    /// The image `dN.img`.
    pub fn device(&self, index: usize) -> PathBuf {
        self.path().join(format!("d{index}.img"))
    }
}

/// A fresh folder below the target folder, removed when dropped.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
}

impl PrivateFolder {
    /// A new folder with `stem` in its name.
    pub fn create(stem: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{stem}-{}-{number}", std::process::id());
        let path = place::target().join("test-tmp").join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // Set to keep what a test has written.
        if std::env::var_os("CENOTE_KEEP").is_none() {
            // A test that has already failed must not panic twice.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_unpacked_once_and_read_only() {
        let Some(golden) = golden("g-quota") else { return };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let golden = golden.clone();
                std::thread::spawn(move || golden.devices())
            })
            .collect();
        for thread in threads {
            let devices = thread.join().unwrap();
            assert_eq!(devices.len(), 1);
            let meta = fs::metadata(&devices[0]).unwrap();
            assert_eq!(meta.len(), 134_217_728);
            assert!(meta.permissions().readonly());
        }
    }

    #[test]
    fn a_private_copy_is_writable_and_goes_away() {
        let Some(golden) = golden("g-quota") else { return };
        let copy = golden.private_copy();
        let path = copy.path().to_path_buf();
        fs::write(copy.device(0), b"gone").unwrap();
        drop(copy);
        assert!(!path.exists());
        assert_eq!(fs::metadata(&golden.devices()[0]).unwrap().len(), 134_217_728);
    }

    #[test]
    fn every_manifest_parses() {
        for golden in all() {
            for label in golden.manifest_labels() {
                assert!(!golden.manifest(&label).is_empty(), "{} {label}", golden.name());
            }
            for label in golden.volume_labels() {
                assert!(golden.volume_sum(&label).size > 0, "{} {label}", golden.name());
            }
        }
    }
}
