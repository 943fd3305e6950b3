//! Pools converted to big-endian or mixed byte order have the same objects as their originals.

use cenote_testkit::foreign::{self, Options, Order};
use cenote_testkit::golden::{self, PrivateFolder, images_in};

use crate::facts_of;
use crate::pool::Pool;

#[test]
fn foreign_pools_show_the_same_objects() {
    for name in ["g-basic", "g-codecs", "g-legacy"] {
        let Some(golden) = golden::golden(name) else { continue };
        let ours = cenote_rt::block_on(2, async {
            facts_of(&Pool::open(&golden.devices()).await, name).await
        });
        let ours = ours.unwrap();
        for order in [Order::Big, Order::Mixed(5)] {
            let folder = PrivateFolder::create(name);
            let options = Options { order, ..Options::default() };
            let report = foreign::rewrite(&golden.devices(), folder.path(), options);
            assert!(report.dnodes > 50);
            let foreign = cenote_rt::block_on(2, async {
                facts_of(&Pool::open(&images_in(folder.path())).await, name).await
            });
            let foreign = foreign.unwrap();
            for (key, our) in &ours {
                assert_eq!(foreign.get(key), Some(our), "{name} {order:?}: {key:?}");
            }
            assert_eq!(foreign.len(), ours.len(), "{name} {order:?}");
        }
    }
}
