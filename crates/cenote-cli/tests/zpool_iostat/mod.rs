//! `zpool iostat` on pools that the command opens itself.

use crate::Shed;

fn table(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split('\t').collect()).collect()
}

#[test]
fn iostat_shows_what_its_opening_read() {
    let shed = Shed::new("iostat", 4);
    shed.succeeds("zpool create -f t mirror d0 d1 log d2 cache d3");
    let text = shed.succeeds("zpool iostat t");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "              capacity     operations     bandwidth ",
            "pool        alloc   free   read  write   read  write",
            "----------  -----  -----  -----  -----  -----  -----",
        ]
    );
    assert!(lines.len() == 4 && lines[3].starts_with("t           ") && lines[3].len() == 52);

    // Devices below their pool, and exact numbers.
    let text = shed.succeeds("zpool iostat -vHp t");
    let rows = table(&text);
    let name = |name: &str| shed.path().join(name).to_string_lossy().into_owned();
    let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(names, ["t", "mirror-0", &name("d0"), &name("d1"), &name("d2"), &name("d3")]);
    let numbers = |row: &Vec<&str>| -> Vec<Option<u64>> {
        row[1..].iter().map(|cell| cell.parse().ok()).collect()
    };
    let [pool, mirror, d0, d1, log, cache] =
        rows.iter().map(numbers).collect::<Vec<_>>()[..].to_vec().try_into().expect("six rows");
    // The log device does not count towards the pool's capacity.
    assert!(pool[0] == mirror[0] && pool[0] > Some(0) && pool[1] == mirror[1], "{text}");
    assert_eq!((d0[0], d1[1], log[0].is_some(), cache[0]), (None, None, true, Some(0)));
    let reads = |row: &[Option<u64>]| row[2].expect("reads");
    // The periods since each device was opened differ: the rates are not ordered.
    assert!(reads(&mirror) > 0 && reads(&pool) > 0, "{text}");
    assert!(d0.len() == 6 && cache[2..].iter().all(|cell| *cell == Some(0)), "{text}");

    let text = shed.succeeds("zpool iostat -v t");
    let widest = 4 + name("d0").len();
    assert!(text.lines().nth(2).expect("dashes").starts_with(&"-".repeat(widest)), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("logs ")).count(), 1, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("cache ")).count(), 1, "{text}");
    assert_eq!(text.lines().last(), text.lines().nth(2), "{text}");

    // Every read is in one bucket of sizes, and in one of latencies.
    let sum = |text: &str, column: usize| -> u64 {
        let rows = table(text);
        rows.iter().filter_map(|row| row.get(column)?.parse::<u64>().ok()).sum()
    };
    for (line, column) in [("zpool iostat -rHp t", 1), ("zpool iostat -wHp t", 3)] {
        let text = shed.succeeds(line);
        assert!(text.starts_with("\nt\n") && sum(&text, column) > 0, "{line}: {text}");
    }
    let text = shed.succeeds("zpool iostat -lqHp t d0");
    assert_eq!((table(&text).len(), table(&text)[0].len()), (1, 7 + 11 + 14), "{text}");

    // Nothing is read between two reports.
    let text = shed.succeeds("zpool iostat -yHp t 0.01 2");
    let idle: Vec<_> = table(&text).iter().map(|row| row[3..].join(" ")).collect();
    assert_eq!(idle, ["0 0 0 0", "0 0 0 0"]);
    let text = shed.succeeds("zpool iostat -v t d0 d1 0.01 1");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("vdev ") && lines.len() == 6 && lines[5] == lines[2], "{text}");
}

#[test]
fn iostat_refuses_unsupported_combinations() {
    let shed = Shed::new("iostat-words", 1);
    let (_, err, status) = shed.run("zpool iostat");
    assert_eq!((err.as_str(), status), ("no pools available\n", 0));
    shed.succeeds("zpool create t d0");
    for (line, status, want) in [
        ("zpool iostat nope", 1, "Unable to parse pools/vdevs list.\n\n"),
        (
            "zpool iostat t d7",
            2,
            "Expected either a list of pools, or list of vdevs in \"t\", but got:\n\
             couldn't find device \"d7\" in pool \"t\"\n",
        ),
        ("zpool iostat -w -r", 2, "Only one of [-r|-w] can be passed at a time\nusage:\n"),
        ("zpool iostat -r -l", 2, "[-r|-w] isn't allowed with [-c|-l|-q]\nusage:\n"),
        ("zpool iostat t 0", 2, "interval cannot be zero\nusage:\n"),
    ] {
        let (_, err, was) = shed.run(line);
        assert!(was == status && err.starts_with(want), "{line}: {was}\n{err}");
    }
}
