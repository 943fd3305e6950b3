//! A plan as text.

use std::fmt::Write;

use super::{Plan, Role};

/// Returns a plan as text, one line for each step.
pub(crate) fn text(plan: &Plan) -> String {
    let mut text = String::new();
    let layout = &plan.layout;
    let mut models: Vec<_> = (0..layout.disks()).map(|disk| layout.model(disk)).collect();
    models.dedup();
    let _ = writeln!(
        text,
        "seed {}: {} processors{}, interleaved {:?}; {}, ashift {}, {} disks of {} MiB ({}), {} \
         spare ones, {} hot spares, faults on disks {:?}",
        plan.seed,
        plan.processors,
        if plan.has_costs { " with costs" } else { "" },
        plan.interleave,
        layout.name,
        layout.ashift,
        layout.disks(),
        layout.mib,
        models.join(", "),
        layout.spares,
        layout.hot_spares,
        layout.victims
    );
    for (name, value) in &plan.tunables {
        let _ = writeln!(text, "  {name}={value}");
    }
    for (number, file_system) in plan.file_systems.iter().enumerate() {
        let _ = writeln!(
            text,
            "  tank/f{number}: {} actors, {:?}{}",
            file_system.actors,
            file_system.properties,
            if file_system.is_encrypted { ", encrypted" } else { "" }
        );
    }
    for (number, volume) in plan.volumes.iter().enumerate() {
        let _ = writeln!(
            text,
            "  tank/v{number}: {} slots, blocks of {}, {:?}{}",
            volume.slots,
            volume.block_size,
            volume.properties,
            if volume.is_encrypted { ", encrypted" } else { "" }
        );
    }
    for (number, life) in plan.lives.iter().enumerate() {
        let _ = writeln!(
            text,
            "  life {number}: ends by {:?} before command {}, then {} s, time of day {:+} s",
            life.end, life.end_at, life.gap, life.jump
        );
        if let Some(count) = life.end_at_label {
            let _ = writeln!(text, "    or before write {count} to labels");
        }
        for fault in &life.faults {
            let _ = writeln!(
                text,
                "    before command {}: disk {}: {:?}",
                fault.at, fault.disk, fault.fault
            );
        }
        if !life.missing.is_empty() {
            let _ = writeln!(text, "    missing disks: {:?}", life.missing);
        }
        for (at, seconds) in &life.clock {
            let _ = writeln!(text, "    before command {at}: time of day {seconds:+} s");
        }
        for task in &life.tasks {
            let _ = writeln!(text, "    {}", role(task.role));
            for step in &task.steps {
                let _ = writeln!(text, "      {:8} us {:?}", step.pause, step.op);
            }
        }
    }
    text
}

fn role(role: Role) -> String {
    match role {
        Role::Files { file_system, actor } => format!("actor {actor} of tank/f{file_system}"),
        Role::Home { file_system } => format!("owner of tank/f{file_system}"),
        Role::Volume { volume, actor } => format!("actor {actor} of tank/v{volume}"),
        Role::Datasets { tree } => format!("datasets below tank/d{tree}"),
        Role::Snapshots { file_system } => format!("snapshots of tank/f{file_system}"),
        Role::Reader => "reader".to_owned(),
        Role::Operator => "operator".to_owned(),
        Role::SpareAgent => "agent that calls in hot spares".to_owned(),
    }
}
