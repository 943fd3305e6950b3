use super::*;
use crate::nvlist::NvValue;

fn leaf(kind: &str, id: u64, guid: u64) -> NvList {
    NvList::from_iter([
        ("type", NvValue::from(kind)),
        ("id", id.into()),
        ("guid", guid.into()),
        ("path", "/dev/sda1".into()),
        ("DTL", 93_u64.into()),
        ("offline", 1_u64.into()),
    ])
}

fn raidz(children: Vec<NvList>) -> NvList {
    NvList::from_iter([
        ("type", NvValue::from("raidz")),
        ("id", 0_u64.into()),
        ("guid", 11_u64.into()),
        ("nparity", 1_u64.into()),
        ("raidz_expand_txgs", vec![43_u64].into()),
        ("metaslab_shift", 25_u64.into()),
        ("ashift", 9_u64.into()),
        ("is_log", 0_u64.into()),
        ("children", children.into()),
    ])
}

fn pool(tree: NvList) -> NvList {
    let features = NvList::from_iter([("com.delphix:hole_birth", NvValue::Boolean)]);
    NvList::from_iter([
        ("version", NvValue::from(5000_u64)),
        ("name", "tank".into()),
        ("state", 1_u64.into()),
        ("txg", 62_u64.into()),
        ("pool_guid", 10_u64.into()),
        ("top_guid", 11_u64.into()),
        ("guid", 20_u64.into()),
        ("vdev_tree", tree.into()),
        ("features_for_read", features.into()),
    ])
}

fn tree() -> NvList {
    raidz(vec![leaf("file", 0, 20), leaf("disk", 1, 21)])
}

#[test]
fn a_label() {
    let label = LabelConfig::decode(pool(tree())).unwrap();
    assert_eq!((label.state, label.guid, label.ashift), (PoolState::Exported, 20, 9));
    let member = label.member.unwrap();
    assert_eq!(member.facts.name, "tank");
    assert_eq!(member.facts.features_for_read.unwrap(), ["com.delphix:hole_birth"]);
    let raidz = RaidZ { nparity: 1, expanding: false, expand_txgs: vec![43] };
    assert_eq!(member.vdev_tree.kind, VdevKind::RaidZ(raidz));
    assert_eq!(member.vdev_tree.guid_sum(), 11 + 20 + 21);
    let leaf = &member.vdev_tree.find(21).unwrap().leaf;
    assert!(leaf.offline && !leaf.faulted);
    assert_eq!(
        (leaf.dtl_object, leaf.path.as_ref().unwrap().to_str()),
        (Some(93), Some("/dev/sda1"))
    );
    let guids: Vec<u64> = member.vdev_tree.leaves().map(|vdev| vdev.guid).collect();
    assert_eq!(guids, [20, 21]);
}

#[test]
fn a_spare() {
    let spare: NvList = [("version", 5000_u64), ("state", 3), ("guid", 5)].into_iter().collect();
    let label = LabelConfig::decode(spare).unwrap();
    assert_eq!((label.state, label.member), (PoolState::Spare, None));
}

#[test]
fn the_pool_config_starts_at_the_root() {
    let root = NvList::from_iter([
        ("type", NvValue::from("root")),
        ("guid", 10_u64.into()),
        ("children", vec![tree()].into()),
    ]);
    let config = PoolConfig::decode(pool(root)).unwrap();
    assert_eq!(config.vdev_tree.children.len(), 1);
    assert_eq!(config.raw.str("name"), Some("tank"));
    let kind = "raidz".to_owned();
    assert_eq!(PoolConfig::decode(pool(tree())), Err(CorruptConfig::VdevType { kind }));
}

#[test]
fn refusals() {
    let with = |key: &str, value: NvValue| {
        let mut list = tree();
        list.insert(key, value);
        VdevConfig::decode(&list)
    };
    let number = |value: u64| NvValue::Uint64(value);
    let value = |key, value| Err(CorruptConfig::Value { key, value });
    assert_eq!(with("ashift", number(17)), value("ashift", 17));
    assert_eq!(with("nparity", number(4)), value("nparity", 4));
    assert_eq!(with("metaslab_shift", number(64)), value("metaslab_shift", 64));
    assert_eq!(with("guid", number(0)), value("guid", 0));
    assert_eq!(with("guid", NvValue::Boolean), Err(CorruptConfig::Missing { key: "guid" }));
    let kind = "log".to_owned();
    assert_eq!(with("type", "log".into()), Err(CorruptConfig::VdevType { kind }));
    assert_eq!(
        with("nparity", number(2)),
        Err(CorruptConfig::Children { guid: 11, count: 2, needed: 3 })
    );
    let swapped = vec![leaf("file", 1, 20), leaf("file", 0, 21)];
    assert_eq!(
        with("children", swapped.into()),
        Err(CorruptConfig::ChildId { parent: 11, position: 0, id: 1 })
    );
    let mut deep = leaf("file", 0, 1);
    for _ in 0..VDEV_DEPTH_MAX {
        deep = NvList::from_iter([
            ("type", NvValue::from("mirror")),
            ("id", 0_u64.into()),
            ("guid", 2_u64.into()),
            ("children", vec![deep].into()),
        ]);
    }
    assert_eq!(VdevConfig::decode(&deep), Err(CorruptConfig::Depth));
}
