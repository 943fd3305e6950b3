//! `unpack-golden NAME DIR`: a golden pool's images into a folder, writable; for `./x demo`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use cenote_testkit::golden::{self, images_in};
use cenote_testkit::unpack;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = &arguments[..] else {
        eprintln!("usage: unpack-golden NAME DIR\nnames: {}", golden::golden_names().join(" "));
        return ExitCode::from(2);
    };
    let Some(pool) = golden::find(name) else {
        eprintln!("{name}: no such golden pool here");
        return ExitCode::FAILURE;
    };
    let folder = Path::new(folder);
    if let Err(error) = std::fs::create_dir_all(folder) {
        eprintln!("{}: {error}", folder.display());
        return ExitCode::FAILURE;
    }
    unpack::unpack_all(&unpack::packed_images(pool.folder()), folder);
    for image in images_in(folder) {
        let writable = std::fs::Permissions::from_mode(0o644);
        if let Err(error) = std::fs::set_permissions(&image, writable) {
            eprintln!("{}: {error}", image.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
