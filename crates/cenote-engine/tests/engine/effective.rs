//! Effective properties: a reader of a committed state and the engine give the same answers, for
//! arbitrary property ZAPs.

use cenote_dmu::zap::edit as zap;
use cenote_ondisk::zap::Value;
use cenote_pool::props::{DATASET_PROPERTIES, PropDefault, PropType, PropValue, Property};
use cenote_rt::{Rng, block_on};
use cenote_testkit::rng;

use crate::memory::MemoryPool;

/// Suffixes that have a meaning, and one that no software knows.
const SUFFIXES: [&str; 5] = ["", "$iuv", "$inherit", "$recvd", "$nosuch"];
const DATASETS: [&str; 3] = ["tank", "tank/a", "tank/a/b"];

/// Returns the inheritable properties that are stored as numbers, with their defaults.
fn stored() -> Vec<(&'static Property, u64)> {
    let with_default = |property: &'static Property| match (property.value_type, property.default) {
        (PropType::Index(_) | PropType::Number(_), PropDefault::Number(number)) => {
            Some((property, number))
        }
        _ => None,
    };
    let inheritable = DATASET_PROPERTIES.iter().filter(|property| property.is_inheritable);
    inheritable.filter_map(with_default).collect()
}

/// Returns a number that some property knows, or one that none knows.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 | 1 => rng.below(5),
        2 => 1 << rng.below(24),
        _ => rng.next_u64(),
    }
}

#[test]
fn effective_properties_are_equal_for_readers_and_the_engine() {
    let mut rng = rng::seeded("effective properties", 0x1e7);
    let stored = stored();
    let cases = rng::cases(12, 200);
    block_on(2, async {
        let pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        pool.create("tank/a/b").await;
        let reader = pool.reader().await;
        let mut zaps = Vec::new();
        for name in DATASETS {
            zaps.push(reader.dataset(name).await.unwrap().dir().phys.props_zapobj);
        }
        let mut unknown = 0;
        for case in 0..cases {
            let mut entries = Vec::new();
            for (property, _) in &stored {
                for object in &zaps {
                    for suffix in SUFFIXES {
                        let value = (rng.below(3) == 0).then(|| number(&mut rng));
                        let is_unknown = |value| property.index_name(value).is_none();
                        unknown += u64::from(suffix == "$iuv" && value.is_some_and(is_unknown));
                        entries.push((*object, format!("{}{suffix}", property.name), value));
                    }
                }
            }
            pool.engine
                .tamper(move |tx| {
                    entries.iter().try_for_each(|(object, key, value)| match value {
                        Some(value) => zap::update(tx, *object, key, Value::U64(*value)),
                        None => zap::take(tx, *object, key).map(drop),
                    })
                })
                .await
                .unwrap();
            let view = pool.engine.view().await.unwrap();
            let wanted: Vec<_> =
                stored.iter().map(|(property, default)| (property.name, *default)).collect();
            for name in DATASETS {
                let head = pool.engine.head(name).await.unwrap();
                let found = pool.engine.properties().numbers_of(&head, &wanted).await.unwrap();
                let props = view.dataset(name).await.unwrap().props().await.unwrap();
                for ((property, _), found) in stored.iter().zip(found) {
                    let (read, source) = props.chain().native(property);
                    let is_same = read == PropValue::Number(found);
                    assert!(
                        is_same,
                        "case {case}: {name} {}: {read:?}, from {source}, and {found}",
                        property.name
                    );
                }
            }
        }
        assert!(unknown > 0, "no case had a value of the kind that this software does not know");
    })
    .unwrap();
}
