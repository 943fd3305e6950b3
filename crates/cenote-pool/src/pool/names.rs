//! Finds datasets by name, and names by object number.

use std::sync::Arc;

use cenote_rt::{Error, Kind, Result};

use super::Pool;
use crate::dsl::dataset::{get_dataset, load_phys, snapshots_of};
use crate::dsl::dir::{DEPTH_MAX, children_of, find_dir, get_dir};
use crate::dsl::{BadName, Bookmark, Dataset, DatasetName, Dir, DslError, Suffix, name};

impl Pool {
    /// Returns the dataset called `name`: `pool/a/b` or `pool/a/b@snapshot`.
    ///
    /// # Errors
    /// `Kind::NotFound` with a [`DslError`], `Kind::Invalid` with a
    /// [`BadName`](crate::dsl::BadName).
    pub async fn dataset(self: &Arc<Self>, name: &str) -> Result<Dataset> {
        let parsed = self.parse(name)?;
        let head = self.head(&parsed).await?;
        match parsed.suffix {
            Suffix::None => Ok(head),
            Suffix::Snapshot(short) => head.snapshot(short).await,
            Suffix::Bookmark(_) => {
                Err(Error::new(Kind::Invalid, BadName::Bookmark).in_dataset(name))
            }
        }
    }

    /// Returns the bookmark called `name`: `pool/a/b#bookmark`.
    pub async fn bookmark(self: &Arc<Self>, name: &str) -> Result<Bookmark> {
        let parsed = self.parse(name)?;
        let Suffix::Bookmark(short) = parsed.suffix else {
            return Err(Error::new(Kind::Invalid, BadName::NotBookmark).in_dataset(name));
        };
        self.head(&parsed).await?.bookmark(short).await
    }

    fn parse<'a>(&self, name: &'a str) -> Result<DatasetName<'a>> {
        let parsed = DatasetName::parse(name)
            .map_err(|error| Error::new(Kind::Invalid, error).in_dataset(name))?;
        if parsed.pool != self.name() {
            let cause = DslError::OtherPool { pool: self.name().to_owned() };
            return Err(Error::not_found(cause).in_dataset(name));
        }
        Ok(parsed)
    }

    async fn head(self: &Arc<Self>, name: &DatasetName<'_>) -> Result<Dataset> {
        let missing = || Error::not_found(DslError::NoDataset).in_dataset(name.dataset);
        let root = self.root_dir().object;
        let found = self.mos().read(|objects| find_dir(objects, root, name.components())).await?;
        let (object, phys) = found.ok_or_else(missing)?;
        let dir = Dir { object, name: name.dataset.to_owned(), phys };
        self.head_of(Arc::new(dir)).await?.ok_or_else(missing)
    }

    async fn head_of(self: &Arc<Self>, dir: Arc<Dir>) -> Result<Option<Dataset>> {
        match dir.phys.head_dataset_obj {
            0 => Ok(None),
            object => {
                let name = dir.name.clone();
                Dataset::load(self, object, dir, name).await.map(Some)
            }
        }
    }

    /// Returns the root dataset.
    pub async fn root_dataset(self: &Arc<Self>) -> Result<Dataset> {
        let missing = || Error::not_found(DslError::NoDataset).in_dataset(self.name());
        self.head_of(Arc::clone(self.root_dir())).await?.ok_or_else(missing)
    }

    /// Returns all file systems and volumes: each before its children, children in name order.
    pub async fn datasets(self: &Arc<Self>) -> Result<Vec<Dataset>> {
        let mut datasets = Vec::new();
        let mut pending = vec![self.root_dataset().await?];
        while let Some(dataset) = pending.pop() {
            pending.extend(dataset.children().await?.into_iter().rev());
            datasets.push(dataset);
        }
        Ok(datasets)
    }

    /// Returns the dataset in this MOS object, with its name.
    pub async fn dataset_by_object(self: &Arc<Self>, object: u64) -> Result<Dataset> {
        let phys = load_phys(self.mos(), object).await?;
        let dir_name = self.dir_name(phys.dir_obj).await?;
        let dir = Arc::new(Dir::load(self.mos(), phys.dir_obj, dir_name).await?);
        if phys.num_children == 0 {
            return Dataset::load(self, object, Arc::clone(&dir), dir.name.clone()).await;
        }
        let names = self
            .mos()
            .read(|objects| {
                let head = get_dataset(objects, dir.phys.head_dataset_obj)?;
                snapshots_of(objects, &head)
            })
            .await?;
        let short = names.into_iter().find(|(_, found)| *found == object);
        let (short, _) =
            short.ok_or_else(|| Error::not_found(DslError::NoSnapshot).in_object(0, object))?;
        let name = format!("{}@{short}", dir.name);
        Dataset::load(self, object, dir, name).await
    }

    /// Returns the name of the directory in a MOS object.
    pub async fn dir_name(&self, object: u64) -> Result<String> {
        let cache = || self.dir_names.lock();
        let mut below: Vec<String> = Vec::new();
        let mut siblings = None;
        let mut dir = object;
        let top = loop {
            if dir == self.root_dir().object {
                break self.name().to_owned();
            }
            if let Some(name) = cache().get(&dir).cloned() {
                break name;
            }
            if below.len() >= DEPTH_MAX {
                return Err(Error::corrupt(DslError::Loop { object }).in_object(0, object));
            }
            let (parent, entries) = self
                .mos()
                .read(|objects| {
                    let parent = get_dir(objects, dir)?.parent_obj;
                    Ok((parent, children_of(objects, parent)?))
                })
                .await?;
            let entry = entries.iter().find(|(_, child)| *child == dir);
            let (component, _) =
                entry.ok_or_else(|| Error::not_found(DslError::NoDataset).in_object(0, dir))?;
            below.push(component.clone());
            siblings.get_or_insert(entries);
            dir = parent;
        };
        let name =
            below.into_iter().rev().fold(top, |name, component| format!("{name}/{component}"));
        let mut cache = cache();
        // Names all siblings at once: naming thousands of datasets must not read the child map of
        // their parent thousands of times.
        if let Some((parent, _)) = name.rsplit_once('/') {
            let siblings = siblings.into_iter().flatten();
            cache.extend(siblings.map(|(component, dir)| (dir, format!("{parent}/{component}"))));
        }
        cache.insert(object, name.clone());
        Ok(name)
    }

    /// Whether a component is internal to the pool.
    pub fn is_internal(component: &str) -> bool {
        name::is_internal(component)
    }
}
