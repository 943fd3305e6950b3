//! Output of `zfs create -n -v`, and reservations that it computes.

use crate::Shed;

/// A dry run prints nothing unless asked to; properties are printed as they were typed, followed by
/// their computed values.
#[test]
fn create_dry_run_prints_the_dataset_and_its_properties() {
    let shed = Shed::new("told", 1);
    shed.succeeds("zpool create t d0");
    for (line, want) in [
        ("zfs create -n t/a", ""),
        ("zfs create -n -V 100T t/a", ""),
        ("zfs create -nv -o compression=on t/a", "would create t/a\n\tcompression=on\n"),
        ("zfs create -Pn -o recsize=1M t/a", "create\tt/a\nproperty\trecsize\t1M\n"),
        ("zfs create -nvp t/a/b", "would create ancestors of t/a/b\nwould create t/a/b\n"),
        ("zfs create -Pnp t/a/b", "create_ancestors\tt/a/b\ncreate\tt/a/b\n"),
        (
            "zfs create -Pns -b 4K -V 2M t/v",
            "create\tt/v\nproperty\tvolsize\t2097152\nproperty\tvolblocksize\t4096\n",
        ),
        ("zfs create -Pns -V 10000 t/v", "create\tt/v\nproperty\tvolsize\t16384\n"),
    ] {
        assert_eq!(shed.succeeds(line), want, "{line}");
    }
    assert_eq!(shed.succeeds("zfs list -H -o name"), "t\n");
    assert_eq!(shed.succeeds("zfs create -vp t/a/b"), "create ancestors of t/a/b\ncreate t/a/b\n");
    assert_eq!(shed.succeeds("zfs list -H -o name"), "t\nt/a\nt/a/b\n");
    // What exists already need not be created, if it is what was wanted.
    shed.succeeds("zfs create -p t/a/b");
    shed.fails("zfs create -p -V 2M t/a/b", "cannot create 't/a/b': dataset already exists");
    shed.fails("zfs create -p -V 2M t", "cannot create 't': missing dataset name");
    shed.judge("t");
}

#[test]
fn normalization_needs_utf8only() {
    let shed = Shed::new("names", 1);
    let why = "'utf8only' must be set 'on' if normalization chosen";
    let refused = format!("cannot create 't': {why}");
    shed.fails("zpool create -O normalization=formC -O utf8only=off t d0", &refused);
    shed.succeeds("zpool create t d0");
    let refused = format!("cannot create 't/a': {why}");
    shed.fails("zfs create -o utf8only=off -o normalization=formC t/a", &refused);
    shed.succeeds("zfs create -o utf8only=off -o normalization=none t/none");
    shed.succeeds("zfs create -o normalization=formD t/a");
    shed.succeeds("zfs create t/a/b");
    shed.succeeds("zfs create -o utf8only=off t/a/bytes");
    for (name, wanted) in [
        ("t/a", "on formD"),
        ("t/a/b", "on formD"),
        ("t/a/bytes", "off none"),
        ("t/none", "off none"),
    ] {
        let shown = shed.succeeds(&format!("zfs get -H -o value utf8only,normalization {name}"));
        assert_eq!(shown.split_whitespace().collect::<Vec<_>>().join(" "), wanted, "{name}");
    }
    shed.succeeds("zfs set aclinherit=secure t/a");
    assert_eq!(shed.succeeds("zfs get -H -o value aclinherit t/a"), "restricted\n");
    shed.judge("t");
}

#[test]
fn refreservation_of_new_volumes_covers_all_their_blocks() {
    let shed = Shed::new("auto", 1);
    shed.succeeds("zpool create t d0");
    let reserved =
        |name: &str| shed.succeeds(&format!("zfs get -Hp -o value refreservation {name}"));
    let said = shed.succeeds("zfs create -P -V 2M t/thick");
    let all = reserved("t/thick");
    assert_eq!(
        said,
        format!("create\tt/thick\nproperty\tvolsize\t2097152\nproperty\trefreservation\t{all}")
    );
    assert!(all.trim_end().parse::<u64>().is_ok_and(|bytes| bytes > 2 << 20), "{all}");
    shed.succeeds("zfs create -s -V 2M t/thin");
    assert_eq!(reserved("t/thin"), "0\n");
    shed.succeeds("zfs create -s -V 2M -o refreservation=auto t/made");
    shed.succeeds("zfs snapshot t/thin@s");
    shed.succeeds("zfs clone t/thin@s t/sparse");
    shed.succeeds("zfs clone -o refreservation=auto t/thin@s t/cloned");
    shed.succeeds("zfs set refreservation=auto t/thin");
    for name in ["t/made", "t/cloned", "t/thin"] {
        assert_eq!(reserved(name), all, "{name}");
    }
    assert_eq!(reserved("t/sparse"), "0\n");
    let only = "'refreservation=auto' only allowed on volumes";
    shed.fails(
        "zfs create -o refreservation=auto t/files",
        &format!("cannot create 't/files': {only}"),
    );
    let (_, err, _) = shed.run("zfs set refreservation=auto t");
    assert_eq!(err, format!("cannot set property for 't': {only}\n"));
    shed.judge("t");
}

/// Properties with names and values of the maximum length can be stored.
/// A volume is listed by the types that it or something of it has; a file system may have any type
/// below it.
#[test]
fn list_refuses_a_volume_of_which_nothing_can_be_listed() {
    let shed = Shed::new("types", 1);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs create -s -V 2M t/v");
    shed.succeeds("zfs snapshot t/v@s");
    let refused = "cannot open 't/v': operation not applicable to datasets of this type";
    shed.fails("zfs list -t filesystem t/v", refused);
    shed.fails("zfs list -r -t filesystem t/v", refused);
    for (line, want) in [
        ("-r -t filesystem t", "t\n"),
        ("-r -t volume t", "t/v\n"),
        ("-r -t snapshot t/v", "t/v@s\n"),
        ("-r -t bookmark t/v", ""),
    ] {
        assert_eq!(shed.succeeds(&format!("zfs list -H -o name {line}")), want, "{line}");
    }
}

#[test]
fn set_stores_properties_of_the_maximum_length() {
    let shed = Shed::new("longest", 1);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs create -V 4M t/v");
    let (name, text) = (format!("x:{}", "a".repeat(253)), "A".repeat(8191));
    for dataset in ["t", "t/v"] {
        shed.succeeds(&format!("zfs set long:value={text} {dataset}"));
        for value in ["one", "two"] {
            shed.succeeds(&format!("zfs set {name}={value} {dataset}"));
            let said = shed.succeeds(&format!("zfs get -H -o value {name} {dataset}"));
            assert_eq!(said, format!("{value}\n"), "{dataset}");
        }
        let said = shed.succeeds(&format!("zfs get -H -o value long:value {dataset}"));
        assert_eq!(said.trim_end(), text, "{dataset}");
    }
    shed.succeeds(&format!("zfs inherit {name} t/v"));
    assert_eq!(shed.succeeds(&format!("zfs get -H -o source {name} t/v")), "inherited from t\n");
    let (_, err, _) = shed.run(&format!("zfs set {name}b=1 t"));
    assert!(err.contains("is too long"), "{err}");
    shed.judge("t");
}
