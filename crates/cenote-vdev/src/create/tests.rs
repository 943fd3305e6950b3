use cenote_ondisk::config::{Audience, VdevKind as ConfigKind};
use cenote_rt::{Kind, Rng};

use super::*;

fn guids() -> Guids<impl FnMut() -> Result<u64>> {
    let mut rng = Rng::seeded(3);
    // The source yields zeros, and each number twice: the generator must skip both.
    let mut last = None;
    Guids::new(move || {
        if let Some(again) = last.take() {
            return Ok(again);
        }
        let guid = rng.next_u64() * rng.below(4).min(1);
        last = Some(guid);
        Ok(guid)
    })
}

fn leaves(count: u64, mib: u64) -> Vec<LeafSpec> {
    let leaf = |number| LeafSpec {
        path: NvString::from_bytes(format!("/d/{number}").as_bytes()).expect("no NUL"),
        is_disk: false,
        is_whole_disk: false,
        size: mib << 20,
        logical_ashift: 9,
        physical_ashift: 9,
    };
    (0..count).map(leaf).collect()
}

fn top_of(redundancy: Redundancy, class: VdevClass, count: u64, mib: u64) -> TopSpec {
    TopSpec { redundancy, class, leaves: leaves(count, mib) }
}

#[test]
fn names_of_layouts() {
    let draid = |nparity, ndata, children, nspares| {
        Ok(Some(Redundancy::Draid { nparity, ndata, children, nspares }))
    };
    for (name, want) in [
        ("mirror", Ok(Some(Redundancy::Mirror))),
        ("raidz", Ok(Some(Redundancy::Raidz(1)))),
        ("raidz3", Ok(Some(Redundancy::Raidz(3)))),
        ("draid", draid(1, None, None, 0)),
        ("draid2:4d:11c:1s", draid(2, Some(4), Some(11), 1)),
        ("draid3:1s:8d", draid(3, Some(8), None, 1)),
        ("raidz4", Ok(None)),
        ("/dev/sda", Ok(None)),
        ("log", Ok(None)),
    ] {
        assert_eq!(Redundancy::parse(name), want, "{name}");
    }
    for name in [
        "draid4",
        "draid0",
        "draid2:",
        "draid2:d",
        "draid2:+4d",
        "draid:4d:4d",
        "draid:4x",
        "draid:0d",
        "draid:256c",
        "draid:101s",
        "draidé",
    ] {
        assert_eq!(Redundancy::parse(name), Err(CreateError::Syntax(name.into())), "{name}");
    }
}

#[test]
fn a_pool_of_every_layout() {
    let draid = Redundancy::parse("draid2:4d:11c:1s").expect("right").expect("a layout");
    let spec = CreateSpec {
        tops: vec![
            top_of(Redundancy::Single, VdevClass::Normal, 1, 256),
            top_of(Redundancy::Mirror, VdevClass::Special, 2, 128),
            top_of(Redundancy::Raidz(2), VdevClass::Normal, 6, 96),
            top_of(draid, VdevClass::Normal, 11, 96),
            top_of(Redundancy::Single, VdevClass::Log, 1, 64),
        ],
        spares: leaves(1, 256),
        caches: leaves(1, 64),
        ashift: Some(12),
    };
    let created = pool(&spec, 4, &mut guids()).expect("possible");
    let got: Vec<_> = created
        .root
        .children
        .iter()
        .map(|top| (top.kind.name(), top.id, top.top.asize, top.top.metaslab_shift, top.top.is_log))
        .collect();
    let want = [
        ("file", 0, 263_716_864, 24, false),
        ("mirror", 1, 129_499_136, 24, false),
        ("raidz", 2, 575_668_224, 26, false),
        ("draid", 3, 503_316_480, 25, false),
        ("file", 4, 62_390_272, 24, true),
    ];
    assert_eq!(got, want);
    assert!(created.root.children.iter().all(|top| top.top.ashift == 12 && top.create_txg == 4));
    let all: Vec<u64> = created.root.walk().map(|vdev| vdev.guid).collect();
    let distinct: BTreeSet<u64> = all.iter().copied().collect();
    assert!(distinct.len() == all.len() && !distinct.contains(&0));
    let ConfigKind::Draid(keys) = &created.root.children[3].kind else { panic!("no dRAID") };
    assert_eq!((keys.ngroups, keys.ndata, keys.nspares), (5, 4, 1));
    // The encoded config decodes to the same tree.
    let list = created.root.encode(Audience::Full);
    assert_eq!(VdevConfig::decode(&list).as_ref(), Ok(&created.root));
    let [other, spare] = &created.spares[..] else { panic!("two spares") };
    let entry = spare.encode_aux();
    assert_eq!((entry.str("path"), entry.u64("spareid")), (Some("draid2-3-0"), Some(0)));
    assert_eq!(entry.u64("top_guid"), Some(created.root.children[3].guid));
    assert_eq!(other.encode_aux().str("path"), Some("/d/0"));
    assert_eq!(created.caches[0].encode_aux().u64("ashift"), Some(12));
}

#[test]
fn impossible_pools_are_refused() {
    use VdevClass::{Log, Normal, Special};
    let refused = |spec: TopSpec| {
        let spec = CreateSpec { tops: vec![spec], ..CreateSpec::default() };
        let error = pool(&spec, 4, &mut guids()).expect_err("impossible");
        assert_eq!(error.kind(), Kind::Invalid);
        error.cause::<CreateError>().expect("typed").clone()
    };
    let draid = |name: &str| Redundancy::parse(name).expect("right").expect("a layout");
    assert!(matches!(refused(top_of(Redundancy::Single, Log, 1, 64)), CreateError::NoData));
    assert!(matches!(
        refused(top_of(Redundancy::Mirror, Normal, 1, 64)),
        CreateError::Children { least: 2, count: 1, .. }
    ));
    assert!(matches!(
        refused(top_of(Redundancy::Raidz(3), Normal, 3, 64)),
        CreateError::Children { least: 4, .. }
    ));
    assert!(matches!(
        refused(top_of(Redundancy::Mirror, Normal, 2, 63)),
        CreateError::TooSmall { .. }
    ));
    assert!(matches!(
        refused(top_of(draid("draid:4d:12c"), Normal, 11, 96)),
        CreateError::ChildrenSaid { said: 12, count: 11, .. }
    ));
    assert!(matches!(
        refused(top_of(draid("draid2:8d"), Normal, 8, 96)),
        CreateError::Children { .. }
    ));
    assert!(matches!(
        refused(top_of(draid("draid2:4d"), Special, 8, 96)),
        CreateError::Class { .. }
    ));
    // The dRAID reserve and one row of each child exceed the devices.
    assert!(matches!(refused(top_of(draid("draid"), Normal, 3, 64)), CreateError::NoRoom { .. }));
    let spec = CreateSpec {
        tops: vec![top_of(Redundancy::Single, Normal, 1, 64)],
        ashift: Some(17),
        ..CreateSpec::default()
    };
    let error = pool(&spec, 4, &mut guids()).expect_err("impossible");
    assert_eq!(error.cause(), Some(&CreateError::Ashift));
}
