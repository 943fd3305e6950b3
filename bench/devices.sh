#!/usr/bin/env bash
# devices: speed of the modelled disks, in simulated commands per second of this machine.
set -euo pipefail
cd "$(dirname "$(dirname "$(readlink -f "$0")")")"
exec cargo run --quiet --release -p cenote-bench --bin devices -- "$@"
