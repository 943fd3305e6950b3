//! `zfs set` of properties with named values, and of `listsnapshots`.

use std::collections::BTreeMap;

use cenote_pool::props::{Access, DATASET_PROPERTIES, PropType};

use crate::Shed;

/// Properties with named values that depend on more than their value.
const EXCEPT: [&str; 7] =
    ["canmount", "dedup", "encryption", "keyformat", "mlslabel", "version", "zoned"];

/// Each value of each property with named values can be set on a file system, is stored, and is
/// shown with its source; `inherit` then removes it.
#[test]
fn every_property_value_is_stored_and_shown() {
    let shed = Shed::new("set-values", 1);
    shed.succeeds("zpool create -O mountpoint=none t d0");
    shed.succeeds("zfs create t/a");
    let properties: Vec<_> = DATASET_PROPERTIES
        .iter()
        .filter(|property| property.access == Access::ReadWrite && property.values.is_some())
        .filter(|property| property.types.contains('f') || property.is_inheritable)
        .filter(|property| !EXCEPT.contains(&property.name))
        .filter_map(|property| match property.value_type {
            PropType::Index(names) => Some((property.name, first_names(names))),
            _ => None,
        })
        .collect();
    let rounds = properties.iter().map(|(_, names)| names.len()).max().expect("a property");
    assert!(properties.len() > 25 && rounds > 8, "{properties:?}");
    for round in 0..rounds {
        let settings: Vec<String> = properties
            .iter()
            .filter_map(|(name, values)| Some(format!("{name}={}", values.get(round)?)))
            .collect();
        shed.succeeds(&format!("zfs set {} t/a", settings.join(" ")));
        let text = shed.succeeds("zfs get -H -o property,value,source -s local all t/a");
        let shown: BTreeMap<&str, &str> = text.lines().filter_map(|l| l.split_once('\t')).collect();
        for setting in &settings {
            let (name, value) = setting.split_once('=').expect("a value");
            assert_eq!(shown.get(name), Some(&format!("{value}\tlocal").as_str()), "{setting}");
        }
    }
    for (name, _) in &properties {
        shed.succeeds(&format!("zfs inherit {name} t/a"));
    }
    assert_eq!(shed.succeeds("zfs get -H -s local all t/a"), "");
    shed.judge("t");
}

/// Returns the first name of each value: several names of one value are aliases, and one is shown.
fn first_names(names: &[(&'static str, u64)]) -> Vec<&'static str> {
    let is_first = |(at, (_, value)): &(usize, &(&str, u64))| {
        names[..*at].iter().all(|(_, before)| before != value)
    };
    names.iter().enumerate().filter(is_first).map(|(_, (name, _))| *name).collect()
}

/// With `listsnapshots=on` a plain `zfs list` shows snapshots.
#[test]
fn listsnapshots_adds_snapshots_to_lists() {
    let shed = Shed::new("listsnaps", 1);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs snapshot t@one");
    let listed = || shed.succeeds("zfs list -H -o name");
    assert_eq!(listed(), "t\n");
    shed.succeeds("zpool set listsnapshots=on t");
    assert_eq!(listed(), "t\nt@one\n");
    assert_eq!(shed.succeeds("zfs list -H -o name -t filesystem"), "t\n");
    shed.succeeds("zpool set listsnaps=off t");
    assert_eq!(listed(), "t\n");
}
