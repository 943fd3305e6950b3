//! `zpool reopen` and `zpool online -e`: vdevs become larger with their devices.

use crate::Shed;

fn grow(shed: &Shed, name: &str, mib: u64) {
    let file = std::fs::File::options().write(true).open(shed.path().join(name)).expect("a device");
    file.set_len(mib << 20).expect("its size");
}

#[test]
fn messages_of_reopen_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("second.txt") else { return };
    let shed = Shed::new("reopen-words", 1);
    shed.succeeds("zpool create t d0");
    let from = all.iter().position(|there| there.command == "zpool reopen").expect("recorded");
    let mut rest = all[from..].iter();
    for command in ["zpool reopen", "zpool reopen nope", "zpool reopen -n t"] {
        shed.run_as_recorded(&mut rest, command);
    }
    assert!(shed.succeeds("zpool history t").contains("zpool reopen -n t\n"));
}

/// Each layout becomes larger when all of its devices have.
#[test]
fn devices_become_longer_in_every_layout() {
    for (layout, count) in [("", 1), ("mirror", 2), ("raidz1", 3), ("draid1:2d:4c:0s", 4)] {
        let shed = Shed::new("longer", count);
        let devices: Vec<_> = (0..count).map(|number| format!("d{number}")).collect();
        let vdevs = format!("{layout} {}", devices.join(" "));
        shed.succeeds(&format!("zpool create t {}", vdevs.trim_start()));
        shed.succeeds("zfs create t/a");
        let number = |property: &str| -> u64 {
            let value = shed.succeeds(&format!("zpool get -Hp -o value {property} t"));
            value.trim().parse().unwrap_or(0)
        };
        let before = number("size");
        for name in &devices {
            assert_eq!(number("expandsize"), 0, "{layout}");
            grow(&shed, name, 320);
        }
        let more = number("expandsize");
        assert!(more >= 160 << 20, "{layout}: {more}");
        shed.succeeds("zpool reopen t");
        assert_eq!(number("size"), before, "{layout}");
        shed.succeeds(&format!("zpool online -e t {}", devices.join(" ")));
        // Metaslabs of a dRAID vdev begin with a group, so they have a little less.
        let grown = number("size") - before;
        assert!(grown.abs_diff(more) < 1 << 20, "{layout}: {grown}, {more}");
        assert_eq!(number("expandsize"), 0, "{layout}");
        let history = shed.succeeds("zpool history -i t");
        let text = format!(" vdev online pool 't' size: {}(+{more})\n", before + more);
        assert!(history.contains(&text), "{text}: {history}");
        shed.judge("t");
    }
}

/// With `autoexpand` an import is enough.
#[test]
fn vdevs_become_larger_by_themselves() {
    let shed = Shed::new("autoexpand", 2);
    shed.succeeds("zpool create -o autoexpand=on t mirror d0 d1");
    let size = || shed.succeeds("zpool get -Hp -o value size t");
    let before = size();
    grow(&shed, "d0", 256);
    shed.succeeds("zpool reopen t");
    assert_eq!(size(), before);
    grow(&shed, "d1", 256);
    shed.succeeds("zfs create t/a");
    assert_ne!(size(), before);
    shed.judge("t");
}
