//! Create-time permissions (`zfs allow -c`) go to the user who creates a dataset, also when several
//! users create datasets in one sync.

use std::sync::Arc;

use cenote_engine::GrantChange;
use cenote_ondisk::dsl::deleg::Who;
use cenote_pool::dsl::deleg::Requester;
use cenote_rt::seeded::Bug;
use cenote_rt::{block_on, spawn};
use cenote_testkit::bugs;

use crate::memory::{MemoryPool, filesystem};

const USERS: [u32; 3] = [1000, 1001, 0];
const DATASETS_EACH: u64 = 12;

fn grant(key: &str, name: &str) -> GrantChange {
    GrantChange { key: key.into(), names: vec![name.into()] }
}

/// Returns the users with local grants on a dataset, and the grants.
async fn granted(pool: &MemoryPool, name: &str) -> Vec<(String, Vec<String>)> {
    let view = pool.engine.view().await.unwrap();
    let all = view.dataset(name).await.unwrap().delegations().await.unwrap();
    let own = all.into_iter().filter(|found| found.dataset == name);
    own.flat_map(|found| found.grants)
        .filter(|grant| grant.who == Who::User)
        .map(|grant| (grant.id, grant.permissions.into_keys().collect()))
        .collect()
}

#[test]
fn allow_c_grants_to_the_creator_of_each_dataset() {
    bugs::switch_on(&Bug::OF_CREATORS);
    block_on(2, async {
        let mut pool = MemoryPool::new().await;
        let grants = vec![grant("c-$", "destroy"), grant("c-$", "mount")];
        pool.engine.datasets().allow("tank", grants).await.unwrap();
        pool.create("tank/origin").await;
        pool.snap("tank/origin@s").await;
        // All requests are made at once, so that one sync runs requests of all users.
        let mut tasks = Vec::new();
        for round in 0..DATASETS_EACH {
            for user in USERS {
                let engine = Arc::clone(&pool.engine);
                let requester = Requester { uid: user, ..Requester::ROOT };
                tasks.push(spawn(async move {
                    let name = format!("tank/of-{user}-{round}");
                    let datasets = engine.datasets().by(&requester);
                    if round % 3 == 0 {
                        datasets.clone_snapshot("tank/origin@s", &name, Vec::new()).await.unwrap();
                    } else {
                        datasets.create(filesystem(&name)).await.unwrap();
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        let wanted = vec!["destroy".to_owned(), "mount".to_owned()];
        for user in USERS {
            for round in 0..DATASETS_EACH {
                let name = format!("tank/of-{user}-{round}");
                let found = granted(&pool, &name).await;
                assert_eq!(found, [(user.to_string(), wanted.clone())], "{name}");
            }
        }
        pool.check().await;
    })
    .unwrap();
}

/// Tests that the previous test finds each seeded bug.
#[test]
fn seeded_bugs_of_creators_are_found() {
    bugs::check_found(
        &Bug::OF_CREATORS,
        "tank/of-",
        |_| "creators::allow_c_grants_to_the_creator_of_each_dataset",
    );
}
