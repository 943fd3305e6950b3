//! Tests of the cells and pictures of `cenote map`.

use cenote_lab::report::Chart;

use super::*;

fn vdev(cells: &[(u64, Option<u64>)]) -> VdevFigures {
    let metaslab =
        |(number, &(allocated, fragmentation)): (usize, &(u64, Option<u64>))| MetaslabFigures {
            start: number as u64 * 100,
            size: 100,
            space_map: 0,
            header: None,
            unflushed_txg: 0,
            allocated,
            fragmentation,
        };
    let metaslabs: Vec<_> = cells.iter().enumerate().map(metaslab).collect();
    VdevFigures {
        id: 0,
        guid: 1,
        class: AllocationClass::Normal,
        is_allocating: true,
        is_concrete: true,
        size: 100 * cells.len() as u64,
        allocated: cells.iter().map(|cell| cell.0).sum(),
        checkpoint: 0,
        expandable: 0,
        fragmentation: Some(7),
        ratio: 512,
        metaslab_shift: 29,
        metaslabs,
        embedded_log: None,
        damage: None,
    }
}

#[test]
fn cells_show_nothing_something_and_everything() {
    let cells: Vec<_> = (0..=10).map(|tenth| (tenth * 10, Some(100 - tenth * 10))).collect();
    let used = picture(&vdev(&cells), "disk", Figure::Used, false);
    let lines: Vec<_> = used.lines().collect();
    assert_eq!(lines[0], "disk, normal: 11 metaslabs of 512M, 50% used, 7% fragmented");
    assert_eq!(lines[1], "       0  .:-=+*#%%@");
    let free = picture(&vdev(&cells), "disk", Figure::Fragmentation, false);
    assert_eq!(free.lines().nth(1), Some("       0 @%%#*+=-:. "));
    let unknown = picture(&vdev(&[(0, None), (1, Some(0))]), "d", Figure::Fragmentation, false);
    assert!(unknown.ends_with("       0 ? \n"), "{unknown}");
    assert_eq!([shade(Some(0.001)), shade(Some(0.999))], ['.', '%']);
}

#[test]
fn rows_grow_with_the_number_of_metaslabs() {
    assert_eq!([16, 256, 257, 1024, 4096].map(row_of), [16, 16, 16, 32, 64]);
    let many = vdev(&vec![(50, None); 10_000]);
    let text = picture(&many, "disk", Figure::Used, false);
    assert!(text.contains("3 in a cell") && text.lines().count() < 70, "{text}");
    let coloured = picture(&many, "disk", Figure::Used, true);
    assert!(coloured.lines().count() < 36 && coloured.contains('\u{2580}'));
}

#[test]
fn metaslabs_are_chosen_by_vdev_and_number() {
    let one = [vdev(&[(0, None), (0, None)])];
    let two = [vdev(&[(0, None)]), VdevFigures { id: 3, ..vdev(&[(0, None)]) }];
    assert_eq!(chosen(&one, "1").unwrap().1, 1);
    assert_eq!(chosen(&two, "3:0").unwrap().0.id, 3);
    for (vdevs, wanted) in
        [(&one[..], "2"), (&one, "1:0"), (&two, "0"), (&two, "3:1"), (&one, "x"), (&one, "-1")]
    {
        assert!(chosen(vdevs, wanted).is_err(), "{wanted}");
    }
}

fn svg(vdevs: &[(&VdevFigures, String)], pool: &str) -> (String, usize) {
    let (charts, each) = drawing::charts(vdevs);
    (drawing::page(pool, 7, &charts, each).to_svg(), each)
}

#[test]
fn pictures_of_large_pools_are_bounded() {
    let many = |metaslabs: usize| vdev(&vec![(50, Some(20)); metaslabs]);
    let cells = |charts: &[Chart]| -> Vec<usize> {
        let of = |chart: &Chart| match chart {
            Chart::Maps { maps, .. } => maps.iter().map(|map| map.cells.len()).sum(),
            _ => 0,
        };
        charts.iter().map(of).collect()
    };
    for (vdevs, metaslabs, wanted_each) in
        [(1, 256, 1), (1, 4096, 1), (1, 10_000, 3), (1, 1 << 20, 256), (3, 4096, 2), (500, 200, 25)]
    {
        let one = many(metaslabs);
        let named: Vec<_> = (0..vdevs).map(|number| (&one, format!("disk-{number}"))).collect();
        let (charts, each) = drawing::charts(&named);
        assert_eq!(each, wanted_each, "{vdevs} vdevs of {metaslabs}");
        let counts = cells(&charts);
        assert!(counts.len() == 2 && counts.iter().all(|count| *count <= 8192), "{counts:?}");
        let (text, _) = svg(&named, "tank");
        assert!(text.len() < 3 << 20, "{}", text.len());
        let height = text.split("height=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert!(height.unwrap().parse::<f64>().unwrap() < 2500.0, "{height:?}");
        let says = format!("% free, {each} metaslabs in a cell");
        assert_eq!(text.contains(&says), each > 1, "{vdevs} vdevs of {metaslabs}");
    }
}

#[test]
fn names_cannot_inject_into_a_picture() {
    let one = vdev(&[(50, Some(20)), (1, None)]);
    let hostile = "\"/><script>alert(1)</script>]]>&x;<!--\u{1b}[2J\0\u{ffff}'";
    let (text, _) = svg(&[(&one, hostile.to_owned())], hostile);
    let (plain, _) = svg(&[(&one, "d".to_owned())], "tank");
    for part in ["<script", "<!--", "\u{1b}", "\0", "\u{ffff}", "]]>", "&x;"] {
        assert!(!text.contains(part), "{part:?} in {text}");
    }
    // A harmless name makes as many elements.
    let count = |text: &str| ["<", ">", "<text", "<rect"].map(|part| text.matches(part).count());
    assert_eq!(count(&text), count(&plain));
    // Long names end at the edge of their map.
    let named: Vec<_> = (0..40).map(|_| (&one, "x/".repeat(200))).collect();
    let (text, _) = svg(&named, &"y".repeat(255));
    assert!(!text.contains(&"x/".repeat(10)) && !text.contains(&"y".repeat(91)), "{text}");
}

#[test]
fn clients_write_the_files_of_pictures() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let found = picture_command(&words("--png a/b.png t --dark")).unwrap();
    assert_eq!((found.args, found.file), (words("--png - --dark -- t"), "a/b.png".into()));
    let found = picture_command(&words("--svg=x -- -t")).unwrap();
    assert_eq!((found.args, found.file), (words("--svg - -- -t"), "x".into()));
    for line in
        ["t", "--svg - t", "--svg x --png y t", "--svg x --dark t", "--wrong t", "-f --svg x t"]
    {
        assert_eq!(picture_command(&words(line)), None, "{line}");
    }
}
