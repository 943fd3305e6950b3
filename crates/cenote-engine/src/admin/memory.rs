//! The status, the space and the properties of a pool from memory alone: for a suspended pool whose
//! metadata cannot be read.

use cenote_block::alloc::{Class, fragmentation};
use cenote_pool::accounting::{AllocationClass, VdevFigures, deflate};
use cenote_pool::props::{POOL_PROPERTIES, PropRow, PropValue, Source};
use cenote_pool::{PoolStatus, Space};

use crate::{FailMode, Health};

impl Health<'_> {
    /// Returns the states and errors of the devices, their space, and the reason of a suspension.
    /// Omits everything that is only on disk: scans, spares, cache devices, deduplication and the
    /// error log. Reads no device.
    #[must_use]
    pub fn status_from_memory(self) -> PoolStatus {
        let suspended = self.engine.presence().suspended();
        let (facts, root) = (self.engine.config().facts, self.engine.admin().vdev_config());
        let space = self.space_from_memory();
        PoolStatus::from_memory(
            facts,
            &root,
            self.engine.tree(),
            &self.engine.name(),
            space,
            suspended,
        )
    }

    /// Returns the native properties in the table's order, including hidden ones. Values that are
    /// only on disk are absent. Reads no device.
    #[must_use]
    pub fn properties_from_memory(self) -> Vec<PropRow> {
        let status = self.status_from_memory();
        let row = |property| {
            let name: &str = property;
            figure(&status, name).or_else(|| self.known(&status, name))
        };
        POOL_PROPERTIES
            .iter()
            .map(|property| {
                let (value, source) =
                    row(property.name).unwrap_or((PropValue::Absent, Source::None));
                PropRow::native(property, value, source)
            })
            .collect()
    }

    fn known(self, status: &PoolStatus, property: &str) -> Option<(PropValue, Source)> {
        let presence = self.engine.presence();
        Some(match property {
            "name" => (PropValue::Text(self.engine.name()), Source::None),
            "health" => (PropValue::Text(status.health_name().to_owned()), Source::None),
            "guid" => (PropValue::Number(self.engine.guid()), Source::None),
            "altroot" => text_or_default(presence.altroot()),
            "cachefile" => text_or_default(presence.cache_file()),
            "comment" => text_or_default(status.facts.comment.clone()),
            "readonly" => (PropValue::Number(u64::from(!presence.is_writable())), Source::None),
            "failmode" => match self.failmode() {
                FailMode::Wait => (PropValue::Number(0), Source::Default),
                FailMode::Continue => (PropValue::Number(1), Source::Local),
                FailMode::Panic => (PropValue::Number(2), Source::Local),
            },
            _ => return None,
        })
    }

    /// Returns the sizes and allocated bytes of the vdevs from the allocator, including allocations
    /// of the uncommitted txg. Reads no device.
    fn space_from_memory(self) -> Space {
        let config = self.engine.admin().vdev_config();
        let (mut space, mut groups, mut normal_size) = (Space::default(), Vec::new(), 0);
        for vdev in self.engine.allocator().vdev_figures() {
            let Some(top) = config.children.iter().find(|top| top.id == vdev.id) else { continue };
            let (size, allocated) = (vdev.space.space, vdev.space.allocated);
            let class = match vdev.class {
                Class::Normal | Class::EmbeddedLog => AllocationClass::Normal,
                Class::Log => AllocationClass::Log,
                Class::Special => AllocationClass::Special,
                Class::Dedup => AllocationClass::Dedup,
            };
            if class != AllocationClass::Log {
                space.size += size;
                space.allocated += allocated;
            }
            if class == AllocationClass::Normal {
                normal_size += size;
                groups.push((size, vdev.fragmentation));
            }
            space.vdevs.push(VdevFigures {
                id: vdev.id,
                guid: top.guid,
                class,
                is_allocating: !top.top.non_allocating,
                is_concrete: true,
                size,
                allocated,
                checkpoint: 0,
                expandable: 0,
                fragmentation: vdev.fragmentation,
                ratio: self.engine.tree().deflate_ratio(vdev.id).unwrap_or(deflate::RATIO_ONE),
                metaslab_shift: top.top.metaslab_shift as u32,
                metaslabs: Vec::new(),
                embedded_log: None,
                damage: None,
            });
        }
        space.rdspace = self.engine.allocator().normal_space();
        space.fragmentation = fragmentation::of_class(groups, normal_size);
        space
    }
}

fn text_or_default(text: Option<String>) -> (PropValue, Source) {
    match text {
        Some(text) => (PropValue::Text(text), Source::Local),
        None => (PropValue::Absent, Source::Default),
    }
}

fn figure(status: &PoolStatus, property: &str) -> Option<(PropValue, Source)> {
    let space = status.space.as_ref()?;
    let number = match property {
        "size" => space.size,
        "allocated" => space.allocated,
        "free" => space.free(),
        "capacity" => space.capacity(),
        "fragmentation" => space.fragmentation?,
        _ => return None,
    };
    Some((PropValue::Number(number), Source::None))
}
