//! Devices smaller than the pool's data on them: they are not written at all.

use cenote_device::Image;
use cenote_pool::pool::OpenError;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::builder::redundancy_of;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::{Result, block_on};
use cenote_vdev::create::VdevClass;
use cenote_vdev::{VdevAux, VdevState, layout};

/// Size of a device. After the last whole metaslab some of it is unused.
const SIZE: u64 = 96 << 20;
/// Size of labels and boot area.
const RESERVED: u64 = (4 << 20) + (512 << 10);

/// Returns the minimum size of a device of a vdev: its share of all metaslabs, rounded up to a
/// whole label.
fn least((name, _, count): &(&str, VdevClass, usize)) -> u64 {
    let columns = if name.starts_with("raidz") { *count as u64 } else { 1 };
    let asize = (SIZE - RESERVED) * columns;
    let shift = layout::metaslab_shift(asize);
    let metaslabs = asize >> shift << shift;
    RESERVED + metaslabs.div_ceil(columns).next_multiple_of(256 << 10)
}

/// Returns an image truncated to `size` bytes, or extended with zeros.
fn resized(image: &Image, size: u64) -> Image {
    let mut other = Image::zeroed(size);
    let mut bytes = vec![0; 1 << 20];
    for at in (0..size.min(image.size())).step_by(bytes.len()) {
        let len = bytes.len().min((size.min(image.size()) - at) as usize);
        image.read_at(at, &mut bytes[..len]);
        other.write_at(at, &bytes[..len]);
    }
    other
}

fn is_same(one: &Image, other: &Image) -> bool {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    (0..one.size()).step_by(a.len()).all(|at| {
        let len = a.len().min((one.size() - at) as usize);
        one.read_at(at, &mut a[..len]);
        other.read_at(at, &mut b[..len]);
        a[..len] == b[..len]
    })
}

/// Creates a pool with some data, and closes it.
async fn make(tops: &[(&str, VdevClass, usize)], ashift: u64) -> Result<Vec<Image>> {
    let top = |(name, class, count): &(&str, _, _)| (redundancy_of(name), *class, *count);
    let builder = PoolBuilder::new(tops.iter().map(top).collect()).with_ashift(ashift);
    let (engine, devices) = builder.with_size(SIZE).create_in_memory().await;
    let head = engine.datasets().create(pools::dataset("tank/a")).await?;
    let object = pools::new_object(&engine, &head).await?;
    for block in 0..120 {
        pools::write(&engine, &head, object, block, 0).await?;
    }
    engine.export().await?;
    Ok(pools::images_of(&devices))
}

#[test]
fn devices_that_became_smaller_are_not_written() {
    use VdevClass::{Log, Normal};
    let one = |name, count| vec![(name, Normal, count)];
    let layouts = [
        (one("disk", 1), false),
        (one("mirror", 2), true),
        (one("raidz1", 3), true),
        (one("raidz2", 5), true),
        (vec![("disk", Normal, 1), ("disk", Log, 1)], false),
        (vec![("disk", Normal, 1), ("mirror", Log, 2)], true),
    ];
    for ((tops, is_redundant), ashift) in layouts.iter().zip([9, 12, 16].into_iter().cycle()) {
        block_on(2, shorten(tops, ashift, *is_redundant)).unwrap();
    }
}

async fn shorten(tops: &[(&str, VdevClass, usize)], ashift: u64, is_redundant: bool) {
    let name = format!("{tops:?}, ashift {ashift}");
    let images = make(tops, ashift).await.unwrap();
    let last = images.len() - 1;
    // Also sizes that are no multiple of a label.
    let least = least(&tops[tops.len() - 1]);
    let short = [least - 1, (64 << 20) + 12_345, 4 << 20, 300 << 10];
    for size in short {
        // Without any label no pool is found.
        if size < 1 << 20 && last == 0 {
            continue;
        }
        let mut images = images.clone();
        images[last] = resized(&images[last], size);
        let devices = pools::devices(images.clone());
        let opened = pools::open(as_devices(&devices)).await;
        if is_redundant {
            let engine = opened.unwrap();
            let config = engine.admin().vdev_config();
            let leaf = config.leaves().last().unwrap().guid;
            let vdev = engine.tree().vdev(leaf).unwrap();
            assert_eq!(vdev.state(), VdevState::CantOpen, "{name}, {size}");
            // A device too small for labels is not found at all.
            if size > 1 << 20 {
                let want = if size > 5 << 20 { VdevAux::BadLabel } else { VdevAux::TooSmall };
                assert_eq!(vdev.aux(), want, "{name}, {size}");
            }
            assert_eq!(engine.tree().root().state(), VdevState::Degraded);
            let head = engine.head("tank/a").await.unwrap();
            let object = pools::new_object(&engine, &head).await.unwrap();
            pools::write(&engine, &head, object, 0, 1).await.unwrap();
            engine.sync().await.unwrap();
            engine.leaves().online(leaf, None).await.unwrap_err();
            engine.leaves().clear(None).await.unwrap();
            assert_eq!(vdev.state(), VdevState::CantOpen, "{name}, {size}");
            engine.export().await.unwrap();
        } else {
            let error = opened.unwrap_err();
            let id = tops.len() as u64 - 1;
            let want =
                if id == 0 { OpenError::MissingVdevs(vec![0]) } else { OpenError::MissingLog(id) };
            assert_eq!(error.cause(), Some(&want), "{name}, {size}: {error:?}");
        }
        assert!(is_same(&devices[last].image(), &images[last]), "{name}, {size}: it was written");
    }
    // The minimum, the original size, and larger.
    for size in [least, SIZE, 2 * SIZE + 17] {
        let mut images = images.clone();
        images[last] = resized(&images[last], size);
        let devices = pools::devices(images.clone());
        let engine = pools::open(as_devices(&devices)).await.unwrap();
        assert_eq!(engine.tree().root().state(), VdevState::Healthy, "{name}, {size}");
        engine.sync().await.unwrap();
        engine.export().await.unwrap();
        let pool = pools::open_read_only(as_devices(&devices)).await.unwrap();
        let report = cenote_pool::leaks::check(&pool).await.unwrap();
        assert!(report.is_clean(), "{name}, {size}: {:?}", report.lines());
    }
}
