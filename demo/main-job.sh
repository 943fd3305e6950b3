#!/usr/bin/env bash
# The main job, as a person would type it: a pool on six files with a daemon, mounted file systems
# with real files in them, snapshots, a volume, damage and its repair. `./x demo` runs it.
# Needs no root. CENOTE: the folder of the program. DEMO_TREES: what is copied in.
set -euo pipefail
folder=$(mktemp -d "${TMPDIR:-/tmp}/cenote.XXXXXX")
cd "$folder"
export PATH=${CENOTE:?the folder of the program}:$PATH
export CENOTE_STATE_DIR=$folder/state
unset CENOTE_SOCKET
LC_ALL=C.UTF-8

leave() {
  local status=$?
  cd /
  if cenote daemon status >/dev/null 2>&1; then
    cenote zpool export -a >/dev/null 2>&1 || cenote zpool export -f tank >/dev/null 2>&1 || true
    cenote daemon stop >/dev/null 2>&1 || true
  fi
  # What is still there after an interruption.
  for at in tank/lz4 tank/zstd far-lz4; do
    fusermount3 -uz "$folder/$at" 2>/dev/null || umount -l "$folder/$at" 2>/dev/null || true
  done
  rm -rf --one-file-system "$folder"
  exit "$status"
}
trap leave EXIT
trap 'exit 130' INT TERM

have() { command -v "$1" >/dev/null 2>&1; }
say() { printf '\n== %s\n' "$*"; }
note() { printf '(%s)\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }
# Runs what it prints. The folder is not printed: everything is in it.
run() {
  printf '$ %s\n' "${1//$folder/\$PWD}"
  eval "$1"
}

# As `./x install --links` makes them.
zpool() { cenote zpool "$@"; }
zfs() { cenote zfs "$@"; }

has_fuse=1
if [ ! -e /dev/fuse ]; then has_fuse=
elif [ "$(id -u)" != 0 ] && ! have fusermount3; then has_fuse=; fi
copier=
for tool in nbdcopy qemu-img; do have "$tool" && { copier=$tool; break; }; done
trees=(${DEMO_TREES:-})
if [ ${#trees[@]} = 0 ]; then
  have rustc && trees+=("$(rustc --print sysroot)/lib")
  [ -d /usr/share/doc ] && trees+=(/usr/share/doc)
fi

# What is in $1 and in the trees is the same.
compare() {
  local tree
  for tree in "${trees[@]}"; do
    run "diff -r --no-dereference $tree $1/$(basename "$tree") && echo equal"
  done
}

# The image, out of the volume again.
compare_volume() {
  rm -f copy
  if [ "$copier" = nbdcopy ]; then run "nbdcopy '$uri' copy"
  else run "qemu-img convert -f raw -O raw '$uri' copy"; fi
  run "cmp image copy && echo equal"
}

say "a pool: RAID-Z2 on six files, and who keeps it"
run "cenote daemon start"
run "mkdir disks; truncate -s 1G disks/d{0..5}"
if [ "$has_fuse" ]; then
  # Without root a mount cannot hold another one, unless /etc/fuse.conf has user_allow_other.
  run "zpool create -m $folder/tank -O canmount=off tank raidz2 $folder/disks/d{0..5}"
else
  note "nothing can be mounted here: /dev/fuse or fusermount3 is missing; volumes only"
  run "zpool create -m none tank raidz2 $folder/disks/d{0..5}"
fi
run "zfs create -o compression=lz4 tank/lz4"
run "zfs create -o compression=zstd -o recordsize=1M tank/zstd"

if [ "$has_fuse" ]; then
  say "real files: copied in, and compared"
  for dataset in lz4 zstd; do
    for tree in "${trees[@]}"; do run "cp -a $tree tank/$dataset/"; done
    compare "tank/$dataset"
  done
  run "zfs list -o name,used,refer,compressratio,recordsize,mounted,mountpoint"
  run "df -h tank/lz4"

  say "a snapshot, changes, what they are, and back"
  run "zfs snapshot -r tank@monday"
  victim=$(cd tank/lz4 && find . -type f -size -2M -printf '%P\n' | sort | sed -n 2p)
  other=$(cd tank/lz4 && find . -type f -size -2M -printf '%P\n' | sort | sed -n 3p)
  run "rm 'tank/lz4/$victim'"
  run "mv 'tank/lz4/$other' tank/lz4/moved"
  run "echo more > tank/lz4/new"
  run "zfs diff -F tank/lz4@monday"
  run "zfs rollback tank/lz4@monday"
  compare tank/lz4
fi

say "a volume, with a file system in it that mkfs made, through NBD"
run "zfs create -V 256M -o compression=lz4 -o cenote:nbd=on tank/vm"
uri="nbd+unix:///tank/vm?socket=$folder/state/nbd.sock"
mkfs=$(PATH=$PATH:/usr/sbin:/sbin command -v mkfs.ext4 || true)
if [ -z "$mkfs" ]; then
  note "no mkfs.ext4 here: noise instead of a file system"
  run "head -c 256M /dev/urandom > image"
else
  run "truncate -s 256M image"
  filling=/usr/share/zoneinfo
  [ -d $filling ] || filling=/etc/skel
  run "$mkfs -q -d $filling image"
fi
if [ -z "$copier" ]; then
  note "neither nbdcopy nor qemu-img is here: the volume stays empty"
else
  if [ "$copier" = nbdcopy ]; then run "nbdcopy image '$uri'"
  else run "qemu-img convert -n -f raw -O raw image '$uri'"; fi
  compare_volume
  if [ -n "$mkfs" ]; then run "${mkfs%/*}/fsck.ext4 -fn copy"; fi
  run "zpool sync tank"
  run "zfs list -t volume -o name,volsize,refer,compressratio"
fi

say "damage: 200 sectors of noise, in file data on two of the devices"
run "zpool export tank"
if [ "$has_fuse" ]; then
  victim=$(cd "${trees[0]%/*}" && find "$(basename "${trees[0]}")" -type f -printf '%s %p\n' |
    sort -n | tail -n 1 | cut -d' ' -f2-)
  source="tank/lz4 /$victim"
else
  source=tank/vm
fi
run "cenote where -d disks $source | sed -n 1,8p"
# A sector in each of so many columns, evenly over the file.
cenote where -H -d disks $source > map
for disk in d1 d4; do
  awk -F'\t' -v disk="disks/$disk" '$4 == "data" && index($5, disk) { print $2 }' map > places
  awk -v all="$(wc -l < places)" 'int(NR * 100 / all) != int((NR - 1) * 100 / all)' places |
    head -n 100 > chosen-$disk
  [ "$(wc -l < chosen-$disk)" = 100 ] || die "$source has not 100 columns on $disk"
  while read -r at; do
    dd if=/dev/urandom of=disks/$disk bs=512 seek=$((at / 512)) count=1 conv=notrunc status=none
  done < chosen-$disk
  first=$(($(head -n 1 chosen-$disk) / 512))
  note "100 times, like: dd if=/dev/urandom of=disks/$disk bs=512 seek=$first count=1 conv=notrunc"
done

say "everything is read back all the same, and what was wrong is counted and repaired"
read_back() {
  run "zpool import -d disks tank"
  if [ "$has_fuse" ]; then compare tank/lz4; compare tank/zstd; fi
  if [ "$copier" ]; then compare_volume; fi
  run "zpool status tank"
}
read_back
for disk in d0 d1 d2 d3 d4 d5; do
  case $disk in d1 | d4) expected=100 ;; *) expected=0 ;; esac
  counted=$(cenote zpool status -p tank | awk -v disk="disks/$disk" '$1 ~ disk { print $5 }')
  [ "$counted" = $expected ] || die "CKSUM of $disk is $counted, and not $expected"
done
note "CKSUM is 100 for both: the columns that were damaged, and were read"
run "zpool export tank"
note "once more: nothing is wrong any more"
read_back
cenote zpool status tank | grep -q "No known data errors" || die "there are errors"
cenote zpool status -p tank | awk '$1 ~ /disks/ { sum += $5 } END { exit sum != 0 }' ||
  die "something was not repaired"

say "a disk dies under load: a spare comes in, the disk is replaced, and all is scrubbed"
run "truncate -s 1G disks/spare disks/new"
run "zpool add tank spare $folder/disks/spare"
load=
if [ "$has_fuse" ]; then
  note "meanwhile: cp, again and again"
  (while [ ! -e stop ]; do cp -a "${trees[0]}" tank/zstd/load && rm -r tank/zstd/load; done) &
  load=$!
fi
run "zpool offline -f tank $folder/disks/d2"
# The daemon calls the spare in by itself.
for _ in $(seq 600); do
  cenote zpool status tank | grep -q "currently in use" && break
  sleep 0.1
done
run "zpool status tank"
run "zpool wait -t resilver tank"
run "zpool replace -w tank $folder/disks/d2 $folder/disks/new"
note "a throttle of 2012 that nobody has looked at since"
run "cenote tunable set cenote_scan_throttle=1 zfs_scrub_delay=100 zfs_scan_idle=100000"
run "zpool scrub tank"
if [ "$load" ]; then
  for _ in $(seq 300); do
    cenote zpool status tank | grep -q "waiting for: ordinary I/O" && break
    sleep 0.1
  done
  run "zpool status tank | sed -n '/scan:/,/config:/p'"
  cenote zpool status tank | grep -q "scrub in progress" || die "the scrub was not held back"
fi
note "status says why it crawls; the throttle is changed while it runs"
run "cenote tunable set cenote_scan_throttle=0 zfs_scrub_delay=4 zfs_scan_idle=50"
run "cenote tunable set zfs_vdev_scrub_max_active=8"
run "zpool wait -t scrub tank"
if [ "$load" ]; then
  touch stop
  wait "$load" || die "cp failed"
fi
run "zpool status tank"
cenote zpool status tank | grep -q "scrub repaired .* with 0 errors" || die "the scrub found errors"
cenote zpool status tank | grep -q "AVAIL" || die "the spare was not given back"
if [ "$has_fuse" ]; then compare tank/lz4; compare tank/zstd; fi

say "replication: into a second pool, then what has changed, with an interruption"
run "mkdir far; truncate -s 4G far/disk"
run "zpool create -m none far $folder/far/disk"
run "zfs snapshot -r tank@tuesday"
run "zfs send -R tank@tuesday | zfs receive -u far/tank"
changed=tank/vm
if [ "$has_fuse" ]; then
  changed=tank/lz4
  run "cp -a tank/lz4/$(basename "${trees[0]}") tank/lz4/again"
elif [ "$copier" = nbdcopy ]; then run "nbdcopy image '$uri'"
elif [ "$copier" ]; then run "qemu-img convert -n -f raw -O raw image '$uri'"; fi
run "zfs snapshot -r tank@wednesday"
note "the line is cut in the middle"
size=$(cenote zfs send -c -i @tuesday $changed@wednesday | wc -c)
run "zfs send -c -i @tuesday $changed@wednesday | head -c $((size / 2)) | zfs receive -s far/$changed || true"
token=$(cenote zfs get -H -o value receive_resume_token far/$changed)
[ "$token" != - ] || die "nothing is there to be resumed"
run "zfs send -nvt $token"
run "zfs send -t $token | zfs receive -s far/$changed"
run "zfs list -t all -o name,used,refer -r far"
if [ "$has_fuse" ]; then
  run "zfs set mountpoint=$folder/far-lz4 far/tank/lz4"
  compare far-lz4
  run "diff -r --no-dereference tank/lz4/again far-lz4/again && echo equal"
fi

say "exported, and judged"
run "zpool export tank"
run "zpool export far"
run "cenote daemon stop"
run "cenote verify --leaks -d disks tank"
run "cenote verify --leaks -d far far"
zdb=$(PATH=$PATH:/usr/sbin:/sbin command -v zdb || true)
if [ -n "$zdb" ]; then
  note "and by OpenZFS's own tool"
  run "$zdb -e -p disks -bcc tank > judged 2>&1; grep -A 6 'No leaks' judged"
  grep -q "No leaks" judged || die "zdb finds something: $(cat judged)"
  run "$zdb -e -p far -bcc far > judged 2>&1; grep -A 6 'No leaks' judged"
  grep -q "No leaks" judged || die "zdb finds something: $(cat judged)"
else
  note "OpenZFS's zdb is not here"
fi
say "done: $folder is removed"
