//! What layers above ask of datasets, as the last commit has them.

use cenote_rt::Result;

use crate::Engine;
use crate::dsl;
use crate::dsl::{names, props};

impl Engine {
    /// The number that stands in a head's own list of properties; 0 if there is none.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such dataset.
    pub async fn own_number(&self, name: &str, property: &str) -> Result<u64> {
        self.mos
            .inspect(|tx| {
                let head = names::head(tx, name)?;
                let dir = dsl::get_dataset(tx, head)?.dir_obj;
                let list = dsl::get_dir(tx, dir)?.props_zapobj;
                props::own_number(tx, list, property)
            })
            .await
    }

    /// The name of a head by its number.
    ///
    /// # Errors
    /// `Kind::NotFound` if it is gone.
    pub async fn dataset_name(&self, head: u64) -> Result<String> {
        let pool = self.config().facts.name;
        self.mos.inspect(|tx| names::name_below(tx, &pool, head)).await
    }
}
