//! Labels that we write, shown by `zdb -l`.

use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode};
use cenote_ondisk::config::{PoolFacts, PoolState, label_list};
use cenote_ondisk::nvlist::NvString;
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::words;
use cenote_rt::Rng;
use cenote_vdev::create::{self, CreateSpec, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};
use cenote_vdev::labels::{self, Pair};

const SIZE: u64 = 96 << 20;

fn facts(txg: u64, pool_guid: u64, tops: u64) -> PoolFacts {
    PoolFacts {
        version: 5000,
        name: "ours".into(),
        state: PoolState::Exported,
        txg,
        pool_guid,
        errata: 0,
        comment: Some("no kernel was asked".into()),
        compatibility: None,
        hostid: 0,
        hostname: None,
        vdev_children: Some(tops),
        hole_array: Vec::new(),
        features_for_read: Some(vec!["com.delphix:hole_birth".into()]),
        split_guid: None,
        split_leaves: Vec::new(),
    }
}

fn uberblock(txg: u64, guid_sum: u64) -> Uberblock {
    let mut words = vec![0; 27];
    words[..5].copy_from_slice(&[0xba_b10c, 5000, txg, guid_sum, 1_700_000_000]);
    words[21..23].copy_from_slice(&[5000, 0xa11c_ea11]);
    Uberblock::decode(&words::to_bytes(&words)).expect("the magic is right")
}

#[test]
fn zdb_shows_the_labels_that_we_write() {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let folder = cenote_testkit::golden::PrivateFolder::create("labels");
    let leaves: Vec<LeafSpec> = (0..11)
        .map(|number| {
            let path = folder.path().join(format!("d{number}"));
            let file = std::fs::File::create(&path).expect("a file");
            file.set_len(SIZE).expect("room");
            LeafSpec {
                path: NvString::from_bytes(path.as_os_str().as_encoded_bytes()).expect("no NUL"),
                is_disk: false,
                is_whole_disk: false,
                size: SIZE,
                logical_ashift: 9,
                physical_ashift: 9,
            }
        })
        .collect();
    let redundancy = Redundancy::parse("draid2:4d:11c:1s").expect("right").expect("a layout");
    let top = TopSpec { redundancy, class: VdevClass::Normal, leaves: leaves.clone() };
    let spec = CreateSpec { tops: vec![top], ashift: Some(12), ..CreateSpec::default() };
    let mut rng = Rng::seeded(5);
    let mut guids = Guids::new(move || Ok(rng.next_u64()));
    let created = create::pool(&spec, 4, &mut guids).expect("possible");
    let tree = &created.root;
    let sum = tree.guid_sum();
    cenote_rt::block_on(1, async {
        for (spec, leaf) in leaves.iter().zip(tree.leaves()) {
            let path = spec.path.to_str().expect("a folder of ours");
            let device: Arc<dyn Device> =
                FileDevice::open(path, OpenMode::Exclusive).expect("writable");
            let list = |txg| label_list(&facts(txg, tree.guid, 1), &tree.children[0], leaf.guid);
            labels::write_initial(&*device, &list(0)).await.expect("written");
            labels::write_config(&*device, Pair::Even, &list(4)).await.expect("written");
            let slot = labels::slot_of(4, 12, false);
            labels::write_uberblock(&*device, &uberblock(4, sum), 12, slot).await.expect("written");
            labels::write_config(&*device, Pair::Odd, &list(4)).await.expect("written");
            device.flush().await.expect("flushed");
        }
    })
    .expect("runtime");
    for (spec, leaf) in leaves.iter().zip(tree.leaves()) {
        let path = spec.path.to_str().expect("a folder of ours");
        let said = zdb.run(&["-lu", path]);
        assert!(said.is_success() && !said.stdout.contains("Bad label"), "{said:?}");
        for line in [
            "    name: 'ours'\n",
            "    state: 1\n",
            "    txg: 4\n",
            "    comment: 'no kernel was asked'\n",
            "        type: 'draid'\n",
            "        draid_ngroups: 5\n",
            "        metaslab_shift: 25\n",
            "        asize: 503316480\n",
            "        com.delphix:hole_birth\n",
            "    labels = 0 1 2 3 \n",
            &format!("    guid: {}\n", leaf.guid),
            &format!("            path: '{path}'\n"),
            "Uberblock[4]\n",
            &format!("	guid_sum = {sum}\n"),
        ] {
            assert!(said.stdout.contains(line), "{line:?} is not in {}", said.stdout);
        }
        assert_eq!(said.stdout.matches("LABEL 0").count(), 1, "all four are one");
    }
}
