//! `zfs send` of packages and of interrupted streams, from pools made here.

use cenote_cli::{Io, run};
use cenote_ondisk::stream::Record;
use cenote_stream::{Package, ResumeToken, StreamReader};

use crate::Shed;

/// Runs `zfs send`: the stream, standard error and status.
fn send(shed: &Shed, args: &str) -> (Vec<u8>, String, i32) {
    let folder = shed.path().to_str().expect("UTF-8");
    let line = format!("cenote zfs --embedded -d {folder} send {args}");
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = run(&words, &mut Io { out: &mut out, err: &mut err });
    (out, String::from_utf8(err).expect("UTF-8"), status)
}

/// What a stream has: its header, and source guid and name of each substream.
fn contents(stream: &[u8]) -> (Option<Package>, Vec<(bool, String)>) {
    let (mut package, mut parts) = (None, Vec::new());
    for item in StreamReader::new(stream) {
        let item = item.expect("a valid stream");
        match item.record {
            Record::Begin(_) if item.is_package => {
                package = Package::decode(&item.payload).ok();
            }
            Record::Begin(begin) => {
                let name = String::from_utf8(begin.to_name).expect("UTF-8");
                parts.push((begin.from_guid != 0, name));
            }
            _ => {}
        }
    }
    (package, parts)
}

fn names(stream: &[u8]) -> Vec<String> {
    let show = |(is_increment, name)| if is_increment { format!("+{name}") } else { name };
    contents(stream).1.into_iter().map(show).collect()
}

/// `t/x/new` was made after the snapshot `a`; `t/x/old` was made before, and has it no more.
fn with_missing() -> Shed {
    let shed = Shed::new("send-missing", 1);
    for line in [
        "zpool create -O mountpoint=none t d0",
        "zfs create t/x",
        "zfs create t/x/old",
        "zfs create t/x/old/below",
        "zfs snapshot -r t/x@a",
        "zfs create t/x/new",
        "zfs snapshot -r t/x@b",
    ] {
        shed.succeeds(line);
    }
    shed
}

#[test]
fn datasets_without_the_snapshot_are_left_out_or_named() {
    let shed = with_missing();
    let (out, err, status) = send(&shed, "-v -R t/x@a");
    let all = ["t/x@a", "t/x/old@a", "t/x/old/below@a"];
    assert_eq!((names(&out), status), (all.map(str::to_owned).to_vec(), 0));
    let skipped: Vec<&str> = err.lines().filter(|line| line.starts_with("skipping d")).collect();
    assert_eq!(skipped, ["skipping dataset t/x/new: snapshot a does not exist"]);
    // New ones are sent whole in an increment.
    let (out, err, _) = send(&shed, "-R -I @a t/x@b");
    let increments = ["+t/x@b", "t/x/new@b", "+t/x/old@b", "+t/x/old/below@b"];
    assert_eq!((names(&out), err.as_str()), (increments.map(str::to_owned).to_vec(), ""));

    shed.succeeds("zfs destroy t/x/old@b");
    let (out, err, status) = send(&shed, "-R t/x@b");
    let told = "cannot send t/x@b recursively: snapshot t/x/old@b does not exist\n\
                warning: cannot send 't/x@b': backup failed\n";
    assert_eq!((out.len(), err.as_str(), status), (0, told, 1));
    let (out, err, status) = send(&shed, "-R -s -I @a t/x@b");
    let told = "WARNING: skipping dataset t/x/old and its children: snapshot b does not exist\n";
    assert_eq!((err.as_str(), status), (told, 0));
    assert_eq!(names(&out), ["+t/x@b", "t/x/new@b"]);
}

#[test]
fn headers_have_what_receivers_need() {
    let shed = Shed::new("send-header", 1);
    for line in [
        "zpool create -O mountpoint=none t d0",
        "zfs create -o compression=lz4 -o quota=20M -o a:b=c t/x",
        "zfs create t/x/kid",
        "zfs snapshot -r t/x@a",
        "zfs snapshot -o on:snap=yes t/x/kid@b",
        "zfs hold keep t/x@a",
        "zfs snapshot t/x@b",
        "zfs clone t/x/kid@a t/x/clone",
        "zfs snapshot t/x/clone@b",
    ] {
        shed.succeeds(line);
    }
    let (out, ..) = send(&shed, "-R -h t/x@b");
    let (package, parts) = contents(&out);
    let package = package.expect("a header");
    let order = ["t/x@a", "+t/x@b", "t/x/kid@a", "+t/x/kid@b", "+t/x/clone@b"];
    assert_eq!(names(&out), order, "{parts:?}");
    let listed: Vec<_> = package.datasets.iter().map(|set| set.name.to_str().unwrap()).collect();
    assert_eq!(listed, ["t/x", "t/x/clone", "t/x/kid"]);
    let [top, clone, kid] = &package.datasets[..] else { panic!("{listed:?}") };
    assert_eq!(top.props.u64("compression"), Some(15));
    assert_eq!(top.props.u64("quota"), Some(20 << 20));
    assert_eq!(top.props.str("a:b"), Some("c"));
    assert_eq!((kid.props.len(), top.parent_from_snap), (0, 0));
    let guid = |snaps: &[(_, u64)], index: usize| snaps[index].1;
    assert_eq!(clone.origin, Some(guid(&kid.snaps, 0)));
    assert_eq!(kid.parent_from_snap, guid(&top.snaps, 1));
    assert_eq!(kid.snap_props[1].1.str("on:snap"), Some("yes"));
    let holds = top.snap_holds.as_ref().expect("holds");
    assert_eq!(holds[0].holds.len() + holds[1].holds.len(), 1);
    // With a source the parent's is named, and origins between source and target are kept.
    let (out, ..) = send(&shed, "-R -i @a t/x@b");
    let package = contents(&out).0.expect("a header");
    assert_eq!(package.from_snap.as_ref().and_then(|name| name.to_str()), Some("a"));
    assert_eq!(package.datasets[2].parent_from_snap, guid(&package.datasets[0].snaps, 0));
    assert_eq!(names(&out), ["+t/x@b", "+t/x/kid@b", "+t/x/clone@b"]);
    // Nothing was ever received.
    let (out, ..) = send(&shed, "-b t/x@b");
    assert_eq!(contents(&out).0.expect("a header").datasets[0].props.len(), 0);
}

#[test]
fn tokens_find_what_was_renamed() {
    let shed = Shed::new("send-token", 1);
    for line in [
        "zpool create -O mountpoint=none t d0",
        "zfs create t/x",
        "zfs create t/other",
        "zfs snapshot t/x@a",
        "zfs bookmark t/x@a t/x#mark",
        "zfs snapshot t/x@b",
    ] {
        shed.succeeds(line);
    }
    let guid = |name: &str| -> u64 {
        shed.succeeds(&format!("zfs get -Hp -o value guid {name}")).trim().parse().unwrap()
    };
    let token = |to_guid, to_name: &str, from_guid| {
        let (object, bytes, to_name) = (1, 1000, to_name.into());
        ResumeToken { to_guid, to_name, from_guid, object, bytes, ..ResumeToken::default() }
    };
    let (a, b) = (guid("t/x@a"), guid("t/x@b"));
    let run = |token: &ResumeToken| send(&shed, &format!("-t {}", token.encode()));
    let increment = token(b, "t/x@b", Some(a));
    assert_eq!(names(&run(&increment).0), ["+t/x@b"]);
    // The source is found by its bookmark, and all under other names.
    for line in ["zfs destroy t/x@a", "zfs rename t/x@b t/x@c", "zfs rename t/x t/other/y"] {
        shed.succeeds(line);
    }
    let (out, err, status) = run(&increment);
    assert_eq!((names(&out), err.as_str(), status), (vec!["+t/other/y@c".to_owned()], "", 0));
    let whole = token(b, "t/other/y/gone@b", None);
    assert_eq!(names(&run(&whole).0), ["t/other/y@c"]);

    let message = |token: &ResumeToken| {
        let (out, err, status) = run(token);
        assert_eq!((out.len(), status), (0, 255), "{err}");
        err
    };
    let told = "cannot resume send: 't/x@b' used in the initial send no longer exists\n";
    assert_eq!(message(&token(7, "t/x@b", None)), told);
    assert_eq!(message(&token(7, "elsewhere@b", None)), told.replace("t/x@b", "elsewhere@b"));
    let told = "cannot resume send: 't/other/y@c' is no longer the same snapshot used in the \
                initial send\n";
    assert_eq!(message(&token(7, "t/other/y@c", None)), told);
    let told = "cannot resume send: incremental source 0x7 no longer exists\n";
    assert_eq!(message(&token(b, "t/other/y@c", Some(7))), told);
    let redacted = ResumeToken { redact_snaps: Some(vec![1]), ..whole };
    let told = "cannot resume send: no appropriate redaction bookmark exists\n";
    assert_eq!(message(&redacted), told);
}

/// Of a pool that nothing changes a file system itself can be sent.
#[test]
fn file_systems_themselves_are_sent() {
    let shed = Shed::new("send-head", 1);
    for line in ["zpool create -O mountpoint=none t d0", "zfs create t/x", "zfs snapshot t/x@a"] {
        shed.succeeds(line);
    }
    let (out, err, status) = send(&shed, "t/x");
    assert_eq!((names(&out), err.as_str(), status), (vec!["t/x@--head--".to_owned()], "", 0));
    assert_eq!(names(&send(&shed, "-i @a t/x").0), ["+t/x@--head--"]);
    shed.fails("zfs send -nv t/x", "warning: cannot send 't/x': Invalid argument");
}
