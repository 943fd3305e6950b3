#!/usr/bin/env bash
# codec: speed of checksums, compression and parity, vector code beside scalar code.
set -euo pipefail
cd "$(dirname "$(dirname "$(readlink -f "$0")")")"
exec cargo run --quiet --release -p cenote-bench --bin cenote-bench -- "$@"
