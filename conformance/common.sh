# What the suites here share: their tools, and a pool of their own that this program mounts.
# Sourced. CENOTE: the program; CENOTE_TOOLS: where tools from crates.io go; CONFORMANCE_DIR: where
# pools go.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
: "${CENOTE:=$here/target/release/cenote}"
tools=${CENOTE_TOOLS:-$here/target/tools}
work=${CONFORMANCE_DIR:-$here/target/conformance}
mkdir -p "$work"

die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "this mounts for everybody, and changes users: run it as root"
[ -e /dev/fuse ] || die "no /dev/fuse here"

# A program of a Debian package.
need() { # PROGRAM PACKAGE...
  command -v "$1" >/dev/null 2>&1 && return
  [ -z "${CENOTE_NO_SETUP:-}" ] || die "$1 is missing"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${@:2}" >&2 ||
    { apt-get update -q >&2 &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${@:2}" >&2; } ||
    die "cannot install ${*:2}"
}

# A program of crates.io, into $tools/bin.
need_crate() { # NAME VERSION
  [ -x "$tools/bin/$1" ] && return
  [ -z "${CENOTE_NO_SETUP:-}" ] || die "$1 is missing"
  cargo install --locked --quiet --root "$tools" "$1@$2" || die "cannot install $1"
}

# Debian packages, unpacked without being installed, into $tools/NAME.
unpack() { # NAME PACKAGE...
  [ -d "$tools/$1" ] && return
  mkdir -p "$tools/debs" "$tools/$1.new"
  (cd "$tools/debs" && apt-get download -q "${@:2}" >&2) || die "cannot download ${*:2}"
  local package
  for package in "${@:2}"; do
    dpkg -x "$tools/debs/$package"_*.deb "$tools/$1.new"
  done
  mv "$tools/$1.new" "$tools/$1"
}

zfs_fuse() { # PROGRAM ARGUMENT...
  LD_LIBRARY_PATH=$tools/zfs-fuse/lib/$(uname -m)-linux-gnu "$tools/zfs-fuse/sbin/$1" "${@:2}"
}

# Starts zfs-fuse, which keeps its files in a folder; its pid is in $peer. It ends with this script,
# however that ends: it would call sync() for ever.
start_zfs_fuse() { # FOLDER
  unpack zfs-fuse zfs-fuse libfuse2
  mkdir -p /var/run/zfs
  (exec setpriv --pdeathsig KILL env \
    LD_LIBRARY_PATH="$tools/zfs-fuse/lib/$(uname -m)-linux-gnu" \
    "$tools/zfs-fuse/sbin/zfs-fuse" -n -p "$1/pid") > "$1/said" 2>&1 &
  peer=$!
  until zfs_fuse zpool list >/dev/null 2>&1; do
    kill -0 "$peer" 2>/dev/null || { cat "$1/said" >&2; die "zfs-fuse does not start"; }
    sleep 0.2
  done
}

# Takes everything out of the kernel's cache.
drop() { sync; echo 3 > /proc/sys/vm/drop_caches; }

# --- a pool, mounted ---------------------------------------------------------------------------

mounted=() # pids of `cenote mount`, and where

make_pool() { # NAME MIB PROPERTY=VALUE...
  local folder=$work/$1 options=() property
  rm -rf "$folder"; mkdir -p "$folder/pool" "$folder/at"; chmod 755 "$folder" "$folder/at"
  for property in "${@:3}"; do options+=(-O "$property"); done
  truncate -s "$2M" "$folder/pool/d0"
  "$CENOTE" zpool --embedded -d "$folder/pool" create "${options[@]}" t "$folder/pool/d0"
  "$CENOTE" zpool --embedded -d "$folder/pool" export t
}

start() { # NAME [OPTION...]
  local folder=$work/$1 tries=0
  rm -f "$folder/said"
  "$CENOTE" mount -d "$folder/pool" "${@:2}" t "$folder/at" > "$folder/said" 2>&1 &
  mounted=($! "$folder/at")
  until grep -qs "is mounted at" "$folder/said"; do
    kill -0 "${mounted[0]}" 2>/dev/null || { cat "$folder/said" >&2; die "it does not mount"; }
    tries=$((tries + 1)); [ $tries -lt 600 ] || die "it is not mounted after a minute"
    sleep 0.1
  done
}

# Unmounts, and judges the pool.
stop() { # NAME
  umount "${mounted[1]}" && wait "${mounted[0]}"
  mounted=()
  "$CENOTE" verify --leaks -d "$work/$1/pool" t >/dev/null || die "the pool of $1 is damaged"
  if command -v zdb >/dev/null; then
    zdb -e -p "$work/$1/pool" -bcc t > "$work/$1/zdb" 2>&1 || die "zdb: see $work/$1/zdb"
    grep -q "No leaks" "$work/$1/zdb" || die "zdb finds leaks: see $work/$1/zdb"
  fi
}

# Ends the program as a crash does. The dead mount goes with the next start.
crash() {
  kill -9 "${mounted[0]}"; wait "${mounted[0]}" 2>/dev/null || true
  mounted=()
}

leave() {
  [ ${#mounted[@]} = 0 ] && return
  kill -9 "${mounted[0]}" 2>/dev/null || true
  umount -l "${mounted[1]}" 2>/dev/null || true
}
trap leave EXIT

# One row of the table in docs/conformance.md.
row() { printf '| %s | %s |\n' "$1" "$2"; }
