#!/usr/bin/env bash
# OpenZFS's kernel module, in a virtual machine, takes over pools whose daemon was killed in the
# middle of a scan or a device operation: it goes on to the end, every file compares, a scrub finds
# nothing, and the pool is written. One pool is encrypted, with what is in its intent log too; one
# has damaged files, which the module must know; one was split, and both halves are taken over.
# CENOTE_ZVM: a program that runs a script as root in a machine with the module, where /out is the
# folder ZVM_OUT; it takes -m MIB of memory and -t SECONDS.
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ -x "${CENOTE_ZVM:-}" ] || die "CENOTE_ZVM names no program that runs a virtual machine"
house=$work/kernel
names="scrub paused resilver replace attach standby rebuild removal expansion distributed sealed"
names="$names errors condensing classes split half"
export CENOTE_STATE_DIR=$house/state
unset CENOTE_SOCKET
zpool() { "$CENOTE" zpool "$@"; }

go_away() {
  "$CENOTE" zpool export -a -f >/dev/null 2>&1 || true
  "$CENOTE" daemon stop >/dev/null 2>&1 || true
  # What a killed daemon had mounted.
  for name in $names; do umount -l "$house/at/$name" 2>/dev/null || true; done
}
go_away; rm -rf "$house"; mkdir -p "$house/out/pools"
trap go_away EXIT

# Makes the pool NAME of files, with data in it.
pool() { # NAME FILES LAYOUT...
  local name=$1 folder=$house/out/pools/$1 file
  mkdir -p "$folder"
  for file in $(seq 0 $(($2 - 1))); do truncate -s 256M "$folder/d$file"; done
  zpool create -R "$house/at" "${properties[@]}" "$name" "${@:3}"
  "$CENOTE" zfs set compression=lz4 "$name"
  cp -a "$here/crates" "$house/at/$name/tree"
  head -c 48M /dev/urandom > "$house/at/$name/random"
  "$CENOTE" zfs snapshot "$name@before"
  rm -r "$house/at/$name/tree/cenote-ondisk"
  sync -f "$house/at/$name/random"
  (cd "$house/at/$name" && find . -type f -print0 | xargs -0 sha256sum) > "$house/out/$name.sums"
}

properties=()
at() { printf '%s\n' "$house/out/pools/$1"; }
pool scrub 3 raidz "$(at scrub)"/d{0,1,2}
pool paused 2 mirror "$(at paused)"/d{0,1}
pool resilver 2 mirror "$(at resilver)"/d{0,1}
pool replace 4 raidz "$(at replace)"/d{0,1,2}
pool attach 2 "$(at attach)/d0"
pool standby 3 mirror "$(at standby)"/d{0,1} spare "$(at standby)/d2"
pool rebuild 2 "$(at rebuild)/d0"
pool removal 3 "$(at removal)"/d{0,1,2}
pool expansion 4 raidz "$(at expansion)"/d{0,1,2}
pool distributed 4 draid1:2d:4c:1s "$(at distributed)"/d{0,1,2,3}
head -c 32 /dev/urandom > "$house/out/key"
properties=(-O encryption=on -O keyformat=raw -O "keylocation=file://$house/out/key")
pool sealed 3 raidz "$(at sealed)"/d{0,1,2}
properties=()
pool errors 1 "$(at errors)/d0"
pool condensing 2 "$(at condensing)"/d{0,1}
properties=(-O special_small_blocks=32K)
pool classes 3 "$(at classes)"/d{0,1} special "$(at classes)/d2"
properties=()
pool split 4 mirror "$(at split)"/d{0,1} mirror "$(at split)"/d{2,3}
ln -s split "$(at half)"
cp "$house/out/split.sums" "$house/out/half.sums"
tunable() { "$CENOTE" tunable set "$1=$2" >/dev/null; }

# More is written while a device is away.
zpool offline resilver "$(at resilver)/d1"
head -c 32M /dev/urandom > "$house/at/resilver/later"
(cd "$house/at/resilver" && sha256sum ./later) >> "$house/out/resilver.sums"
sync -f "$house/at/resilver/later"

# Small blocks of a file are on the special device.
"$CENOTE" zfs set recordsize=32K classes
head -c 32M /dev/urandom > "$house/at/classes/later"
(cd "$house/at/classes" && sha256sum ./later) >> "$house/out/classes.sums"

# Two files are damaged in each block, a scrub finds that, and one of them is mended.
"$CENOTE" zfs set recordsize=16K errors
head -c 4M /dev/urandom > "$house/at/errors/mended"
head -c 4M /dev/urandom > "$house/at/errors/damaged"
(cd "$house/at/errors" && sha256sum ./mended) >> "$house/out/errors.sums"
zpool sync errors
cp "$(at errors)/d0" "$house/intact"
truncate -s 256M "$house/zeros"
take_from() { # IMAGE FILE: a sector of each block of the file is taken from an image of the disk.
  local byte
  for byte in $("$CENOTE" where -H errors "$2" | cut -f2); do
    dd if="$1" of="$(at errors)/d0" bs=512 skip=$((byte / 512)) seek=$((byte / 512)) count=1 \
      conv=notrunc status=none
  done
}
take_from "$house/zeros" mended
take_from "$house/zeros" damaged
zpool scrub -w errors
take_from "$house/intact" mended
rm "$house/zeros" "$house/intact"

# A removed disk has many segments, of which a part gets obsolete.
head -c 48M /dev/urandom > "$house/at/condensing/obsolete"
zpool sync condensing
tunable zfs_remove_max_segment 16384
zpool remove -w condensing "$(at condensing)/d1"
tunable zfs_remove_max_segment 16777216
tunable zfs_condense_min_mapping_bytes 0
tunable zfs_condense_indirect_obsolete_pct 5
tunable zfs_condense_indirect_commit_entry_delay_ms 100
rm "$house/at/condensing/obsolete"
zpool sync condensing

# Scans wait for 100 ms before each I/O, and removals copy a little in each transaction group.
tunable cenote_scan_throttle 1
tunable zfs_scan_idle 2000000000
tunable zfs_scrub_delay 10
tunable zfs_resilver_delay 10
tunable zfs_top_maxinflight 1
tunable cenote_removal_batch_bytes 262144
tunable raidz_expand_max_reflow_bytes 25165824
tunable zfs_scrub_error_blocks_per_txg 1
zpool scrub scrub
zpool scrub paused
zpool scrub sealed
zpool online resilver "$(at resilver)/d1"
zpool replace replace "$(at replace)"/d{1,3}
zpool attach attach "$(at attach)"/d{0,1}
zpool replace standby "$(at standby)"/d{1,2}
zpool attach -s rebuild "$(at rebuild)"/d{0,1}
zpool remove classes "$(at classes)/d2"
zpool remove removal "$(at removal)/d1"
zpool attach expansion raidz1-0 "$(at expansion)/d3"
zpool replace -s distributed "$(at distributed)/d1" draid1-0-0
tunable zfs_removal_suspend_progress 1
sleep 5
zpool scrub -p paused
zpool scrub -e errors
zpool sync errors
zpool scrub -p errors
zpool sync
zpool status > "$house/killed"
for name in $names; do
  [[ ! $name =~ ^(condensing|split|half)$ ]] || continue
  zpool status "$name" | grep -Eq 'in progress|scrub paused' || die "$name has ended: see $house/killed"
done
# The last file is in the intent log alone.
head -c 100K /dev/urandom | dd of="$house/at/sealed/logged" bs=100K iflag=fullblock conv=fsync status=none
(cd "$house/at/sealed" && sha256sum ./logged) >> "$house/out/sealed.sums"
zpool split split half
kill -KILL "$("$CENOTE" daemon status | sed -n 's/.*process \([0-9]*\).*/\1/p')"

{ echo "names='$names'"; cat <<'JOB'; } > "$house/job.sh"
modprobe zfs || exit 1
# Whether a mapping of a removed vdev is being condensed.
is_condensing() { zdb -e -p "$folder" -dddd "$name" 1 2>&1 | grep -q condensing_indirect; }
for name in $names; do
  folder=/out/pools/$name
  verdict() { echo "kernel: $name: $1"; }
  [ "$name" != condensing ] || is_condensing || verdict "nothing is being condensed"
  zpool import -f -d "$folder" -R "/mnt/$name" "$name" || { verdict "not imported"; continue; }
  [ "$name" != sealed ] || { zfs load-key -L file:///out/key sealed && zfs mount sealed; } ||
    verdict "key not loaded"
  zpool status "$name" > "/out/$name.begin"
  # It was not at its end when the daemon was killed; here it may be.
  [[ $name =~ ^(split|half)$ ]] ||
    grep -Eq 'in progress|scrub paused|remove:|scrub repaired|resilvered' "/out/$name.begin" ||
    verdict "no scan goes on"
  [ "$name" != paused ] || zpool scrub "$name"
  if [ "$name" = errors ]; then
    grep -q 'error scrub paused' "/out/$name.begin" || verdict "no error scrub is paused"
    # OpenZFS 2.3.2 leaves out what an error scrub does not read in its first transaction group.
    echo 60000 > /sys/module/zfs/parameters/zfs_scrub_min_time_ms
    zpool scrub -e "$name"
    # "zpool wait" does not know error scrubs.
    for _ in $(seq 120); do
      zpool status "$name" | grep -q 'scrubbed .* error blocks' && break
      sleep 1
    done
  fi
  zpool wait -t scrub,resilver,replace,remove,raidz_expand "$name"
  # A scrub follows a rebuild or an expansion.
  sleep 2; zpool wait -t scrub "$name"
  zpool status -v "$name" > "/out/$name.end"
  (cd "/mnt/$name/$name" && sha256sum --quiet -c "/out/$name.sums") || verdict "files differ"
  if [ "$name" = errors ]; then
    zpool status "$name" | grep -q '^errors: 256 data errors' || verdict "the errors are others"
    [ "$(sed -n 's|^ */mnt/errors/errors/||p' "/out/$name.end")" = damaged ] ||
      verdict "the damaged files are others"
    echo 1000 > /sys/module/zfs/parameters/zfs_scrub_min_time_ms
    rm "/mnt/$name/$name/damaged"
  fi
  zpool scrub -w "$name"
  zpool status -v "$name" > "/out/$name.scrub"
  grep -q 'scrub repaired 0B .* with 0 errors' "/out/$name.scrub" || verdict "the scrub found something"
  # OpenZFS 2.3.2 counts clones of blocks of a removed vdev wrongly; its zdb stops there.
  cp -a --reflink=never "/mnt/$name/$name/tree" "/mnt/$name/$name/copy" || verdict "not written"
  zpool export "$name" || verdict "not exported"
  [ "$name" != condensing ] || ! is_condensing || verdict "it is still being condensed"
  verdict "taken over"
done
JOB
ZVM_OUT=$house/out "$CENOTE_ZVM" -m 3072 -t 3000 "$house/job.sh" | tee "$house/machine.log"
failed=0
for name in $names; do
  said=$(grep -c "kernel: $name: " "$house/machine.log" || true)
  if [ "$said" = 1 ] && grep -q "kernel: $name: taken over" "$house/machine.log" &&
    "$CENOTE" verify --leaks -d "$(at "$name")" "$name" > "$house/$name.verify"; then
    row "$name" "taken over"
  else
    failed=1; row "$name" "NOT taken over"
  fi
done
exit "$failed"
