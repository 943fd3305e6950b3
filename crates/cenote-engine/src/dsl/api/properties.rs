//! Properties of datasets and snapshots: effective values and changes.

use cenote_ondisk::zap::Value;
use cenote_pool::props::lookup::Settings;
use cenote_rt::Result;

use crate::dsl::operation::Request;
use crate::dsl::settings::{self, Change};
use crate::dsl::{self, names, props};
use crate::{Engine, Head};

/// Properties of datasets and snapshots; made by [`Engine::properties`].
#[derive(Debug, Clone, Copy)]
pub struct Properties<'e> {
    pub(crate) engine: &'e Engine,
}

impl Properties<'_> {
    /// Changes properties of a dataset or snapshot in one txg. Open heads adapt.
    pub async fn change(self, name: &str, changes: Vec<(String, Change)>) -> Result<()> {
        let name = name.to_owned();
        let is_charged = |(name, change): &&(String, Change)| {
            let is_limit =
                matches!(name.as_str(), "quota" | "refquota" | "reservation" | "refreservation");
            !is_limit && matches!(change, Change::Set(_) | Change::Receive(_))
        };
        let blocks = 2 * changes.iter().filter(is_charged).count() as u64;
        // A snapshot has only user properties, which do not affect mounts.
        let is_shown = changes.iter().any(|(property, _)| !property.contains(':'));
        let changing = if is_shown { &[name.as_str()][..] } else { &[] };
        let request = Request::half(blocks).changing(changing);
        self.engine
            .datasets()
            .operate(request, move |tx, env, effects| {
                settings::apply(tx, env, effects, &name, &changes)
            })
            .await
    }

    /// Sets a property (`zfs set`).
    pub async fn set(self, name: &str, property: &str, value: Value) -> Result<()> {
        self.change(name, vec![(property.to_owned(), Change::Set(value))]).await
    }

    /// Removes a property's local value (`zfs inherit`, with `-S` if `is_reverted`).
    pub async fn inherit(self, name: &str, property: &str, is_reverted: bool) -> Result<()> {
        let change = if is_reverted { Change::Revert } else { Change::Inherit };
        self.change(name, vec![(property.to_owned(), change)]).await
    }

    /// Returns the effective values of number properties; each is given with its default.
    ///
    /// # Errors
    /// Errors of reading the MOS; `Kind::NotFound` if the dataset was destroyed.
    pub async fn numbers_of(self, head: &Head, wanted: &[(&str, u64)]) -> Result<Vec<u64>> {
        let object = head.object();
        self.engine
            .mos
            .inspect(|tx| {
                let dir = dsl::get_dataset(tx, object)?.dir_obj;
                let settings = Settings::of_dir(tx, dir)?;
                let number = |(name, default): &(&str, u64)| settings.number(name, *default);
                Ok(wanted.iter().map(number).collect())
            })
            .await
    }

    /// Returns the number that a head's own property ZAP has, 0 if there is none.
    ///
    /// # Errors
    /// `Kind::NotFound` if the dataset does not exist.
    pub async fn own_number(self, name: &str, property: &str) -> Result<u64> {
        self.engine
            .mos
            .inspect(|tx| {
                let head = names::head(tx, name)?;
                let dir = dsl::get_dataset(tx, head)?.dir_obj;
                let list = dsl::get_dir(tx, dir)?.props_zapobj;
                props::own_number(tx, list, property)
            })
            .await
    }
}
