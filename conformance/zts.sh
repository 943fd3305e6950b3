#!/usr/bin/env bash
# OpenZFS's own test suite against this program: groups of it, on file vdevs.
#
# The suite is Debian's package zfs-test, as it is: its runner and its tests, without its script
# zfs-tests.sh, which wants a kernel module, a user that is not root and one that can sudo. What
# that script prepares is prepared here: a folder with three files for devices (for some groups loop
# devices on them), and the only folder in the tests' path, in which zfs, zpool, zdb, zinject and
# mount.zfs are links to this program. Everything runs in a mount and a process namespace of its own:
# there /sys/module/zfs/parameters holds the tunables of the daemon, and /etc can be changed.
#
# zts.sh [GROUP...]: these groups, or all of file systems, properties and imports.
# zts.sh --devices: all groups of device operations.
# zts.sh --files: all groups of what file systems keep: quotas, permissions, names, space, history.
#
# CENOTE: the program. ZTS_TIMEOUT: seconds that a test has (180). ZTS_KEEP=1 keeps logs and files.
# ZTS_TESTS="TEST...": of the groups only these. ZTS_ON_FAILURE: a command to run when a test fails.
# Tests of which zts.skip says why are left out; ZTS_ALL=1 runs them, too. Ends with 0 if every
# group has 85 % or more.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
: "${CENOTE:=$here/target/release/cenote}"
suite=/usr/share/zfs
die() { printf 'zts: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "tests create users and change what is mounted: run it as root"
[ -d "$suite/zfs-tests" ] || die "OpenZFS's test suite is not here (Debian's package zfs-test)"
for tool in ksh sudo python3; do
  command -v $tool >/dev/null || die "$tool is missing (Debian's package of that name)"
done
# Without it the suite compares empty sums of streams and files, which are equal.
command -v xxh128sum >/dev/null || die "xxh128sum is missing (Debian's package xxhash)"

groups=("$@")
case ${1:-} in
  "")
    groups=(zfs_create zfs_set zfs_get zfs_list zfs_snapshot zfs_rollback zfs_clone zfs_promote
      zfs_rename zfs_destroy zfs_mount zfs_diff zpool_create zpool_add zpool_get zpool_set
      zpool_status zpool_export zpool_import reservation quota) ;;
  --files)
    groups=(checksum snapshot delegate casenorm userquota projectquota history limits acl no_space
      refreserv nopwrite) ;;
  --devices)
    groups=(zpool_attach zpool_detach zpool_replace zpool_offline zpool_online zpool_split
      zpool_remove zpool_clear zpool_trim zpool_initialize zpool_scrub zpool_resilver zpool_wait
      zpool_expand zpool_events removal replacement redundancy raidz fault online_offline
      scrub_mirror events trim pool_checkpoint mmp deadman) ;;
esac

# Mounts and processes that are seen from here alone: what tests leave ends with the last of them.
if [ -z "${ZTS_INSIDE:-}" ]; then
  export ZTS_INSIDE=1 CENOTE
  status=0 ZTS_LAYER=$(mktemp -d /run/cenote-zts.XXXXXX)
  export ZTS_LAYER
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    bash "$here/conformance/zts.sh" "$@" || status=$?
  rmdir "$ZTS_LAYER"
  exit "$status"
fi
# Tests mount their pools at the root, and write host ids, users and names of devices in /etc. Two
# runs must not meet there (who removes a folder unmounts what others mounted on it): the root is a
# layer over the real one, in which all folders of data and of the kernel are themselves.
if [ -n "${ZTS_LAYER:-}" ]; then
  layer=$ZTS_LAYER
  mount -t tmpfs -o mode=755 tmpfs "$layer"
  mkdir "$layer/changed" "$layer/work" "$layer/root"
  mount -t overlay -o "lowerdir=/,upperdir=$layer/changed,workdir=$layer/work" overlay "$layer/root"
  for folder in /dev /proc /sys /tmp /var/tmp "$here" "$(dirname "$CENOTE")"; do
    mkdir -p "$layer/root$folder"
    mount --rbind "$folder" "$layer/root$folder"
  done
  unset ZTS_LAYER
  exec chroot "$layer/root" bash "$here/conformance/zts.sh" "$@"
fi
rm -f /etc/hostid
# mount(8) runs /sbin/mount.TYPE and nothing else.
helper=/sbin/mount.zfs
[ -e $helper ] && mount --bind "$CENOTE" $helper

work=$(mktemp -d /var/tmp/cenote-zts.XXXXXX)
chmod 1777 "$work"
# The groups of what a user can do run as this one, which is in the layer's /etc alone.
id zts > /dev/null 2>&1 || useradd --home-dir "$work" zts
results=$here/target/zts
mkdir -p "$results"

# Tests read and write tunables where the kernel module has its own. Folders can't be made there:
# a folder that has links to all others is laid over it.
mkdir "$work/sys-module"
mount --bind /sys/module "$work/sys-module"
mount -t tmpfs -o mode=755 tmpfs /sys/module
for module in "$work"/sys-module/*; do ln -s "$module" /sys/module/; done
export CENOTE_PARAMETERS_DIR=/sys/module/zfs/parameters
mkdir -p $CENOTE_PARAMETERS_DIR

# Ends the daemon, and what it or a test left mounted.
end_daemon() {
  env CENOTE_STATE_DIR="$work/state" "$CENOTE" daemon stop >/dev/null 2>&1 || true
  awk -v work="$work" 'index($2, work) == 1 || $3 == "fuse.zfs" { print $2 }' /proc/mounts |
    sort -r | while read -r at; do umount -l "$at" || true; done
}

# Groups that want disks which can be partitioned, or of which the kernel has statistics, get loop
# devices on the files.
on_loops=" zpool_status zpool_iostat zpool_export zpool_scrub zpool_trim trim zpool_expand fault zpool_wait zpool_resilver mmp pool_checkpoint "
loops=()
attach_loops() {
  local file
  for file in $FILES; do loops+=("$(losetup --find --show "$file")"); done
}
detach_loops() {
  local loop
  for loop in "${loops[@]}"; do losetup --detach "$loop"; done
  loops=()
}

leave() {
  local status=$?
  end_daemon
  detach_loops
  umount -l /sys/module || true
  [ -n "${ZTS_KEEP:-}" ] && printf 'kept: %s\n' "$work" || rm -rf "$work"
  exit "$status"
}
trap leave EXIT
trap 'exit 130' INT TERM

# The tests' path.
bin=$work/bin
mkdir "$bin" "$work/state" "$work/none"
for tool in zfs zpool zdb zstream zinject mount.zfs; do ln -s "$CENOTE" "$bin/$tool"; done
(
  # What the suite says that its tests need.
  . "$suite/zfs-tests/include/commands.cfg"
  for tool in $SYSTEM_FILES_COMMON $SYSTEM_FILES_LINUX $ZFS_FILES; do
    [ -e "$bin/$tool" ] && continue
    for folder in /usr/local/bin /usr/local/sbin /usr/bin /usr/sbin /bin /sbin; do
      [ -x "$folder/$tool" ] && { ln -s "$folder/$tool" "$bin/$tool"; break; }
    done
  done
  for tool in $ZFSTEST_FILES; do
    [ -e "$suite/zfs-tests/bin/$tool" ] && ln -s "$suite/zfs-tests/bin/$tool" "$bin/$tool"
  done
)
# Tests put their users into the group of this link: not into root's, which some must not be in.
chgrp -h users "$bin/zfs"
ln -sf /sbin/fsck.ext4 "$bin/fsck"
ln -sf /sbin/mkfs.ext4 "$bin/newfs"
ln -sf "$bin/gzip" "$bin/compress"
ln -sf "$bin/gunzip" "$bin/uncompress"

# The daemon runs the scripts of zed itself, and diagnoses devices and calls in spares as zed does.
# What tests start and kill as zed shows it the folder, and switches that on and off.
export CENOTE_ZEDLET_DIR=$work/zed-now
rm -f "$bin/zed" "$bin/ereports"
sed "s,@NOW@,$CENOTE_ZEDLET_DIR,g; s,@TUNABLES@,$CENOTE_PARAMETERS_DIR," \
  > "$bin/zed" <<'END'
#!/bin/bash
while getopts d:s:P:p:j:b:vFfhLVMIZ option; do
  case $option in d) /bin/ln -sfn "$OPTARG" @NOW@ ;; esac
done
switch() { for what in diagnosis spares; do echo "$1" > @TUNABLES@/cenote_${what}_auto; done; }
switch 1
trap '/bin/rm -f @NOW@; switch 0; exit 0' TERM INT HUP
while :; do /bin/sleep 1 & wait $!; done
END
# The suite's own asks a library that asks the kernel module.
cat > "$bin/ereports" <<'END'
#!/usr/bin/python3
# Prints the errors among the events: a line each, of what tells one from another.
import re, subprocess
told = "class zio_priority vdev_guid zio_objset zio_object zio_level zio_blkid zio_err zio_offset zio_size"
told = told.split()
events = subprocess.run(["zpool", "events", "-vH"], capture_output=True, text=True).stdout
for event in re.split(r"\n(?=\S)", events):
    fields = dict(re.findall(r"^\s+(\w+) = (.*?)\s*$", event, re.M))
    # Like the suite's own, without those of lost data, which are posted each time.
    if re.fullmatch(r'"ereport.fs.zfs.(?!data").*"', fields.get("class", "")):
        print(*(f"{name}={fields.get(name, '-')}" for name in told))
END
chmod +x "$bin/zed" "$bin/ereports"
# Its scripts are Debian's package zfs-zed, which would also install a service.
if [ ! -e /etc/zfs/zed.d/zed.rc ]; then
  zed=$here/target/zfs-zed
  version=$(dpkg-query -W -f '${Version}' zfs-test)
  if [ ! -e "$zed/etc/zfs/zed.d/zed.rc" ]; then
    (mkdir -p "$zed" && cd "$zed" && apt-get download -q "zfs-zed=$version" && dpkg-deb -x ./*.deb .) \
      >/dev/null 2>&1 || printf 'zts: no package zfs-zed: tests of its scripts will fail\n' >&2
  fi
  export ZEDLET_ETC_DIR=$zed/etc/zfs/zed.d ZEDLET_LIBEXEC_DIR=$zed/usr/lib/zfs-linux/zed.d
fi

# No service of the system, and no pool of anybody else, is in reach.
export CENOTE_STATE_DIR=$work/state
unset CENOTE_SOCKET
export STF_PATH=$bin STF_SUITE=$suite/zfs-tests STF_TOOLS=$suite/test-runner
export FILEDIR=$work TMPDIR=$work KEEP=rpool __ZFS_POOL_EXCLUDE=rpool
export TESTFAIL_CALLBACKS=${ZTS_ON_FAILURE:-}
export ZTS_DIR=$suite SCRIPT_DIR=$suite BIN_DIR=/usr/bin SBIN_DIR=/sbin
export ZDB=$bin/zdb ZFS=$bin/zfs ZPOOL=$bin/zpool
FILES="$work/file-vdev0 $work/file-vdev1 $work/file-vdev2"
export FILES DISKS=$FILES LOOPBACKS=
# The names of pools and folders that tests use. Without them their commands go elsewhere.
set +u; . "$STF_SUITE/include/default.cfg"; set -u
[ "$TESTDIR" = "$work/testdir" ] || die "the suite's names are not what they should be"

# The suite's run files, with less time for each test; a run file names what there is for Linux.
for name in common linux; do
  sed "s/^timeout = .*/timeout = ${ZTS_TIMEOUT:-180}/; s/^user =\$/user = zts/" "$suite/runfiles/$name.run" |
    python3 -c '
import os, re, sys
text = sys.stdin.read()
for line in open(sys.argv[1]) if not os.environ.get("ZTS_ALL") else []:
    name = re.escape(line.split("\t")[0].strip())
    text = re.sub(r"\x27%s(\.ksh)?\x27,?\s*" % name, "", text)
wanted = os.environ.get("ZTS_TESTS", "").split()
def chosen(tests):
    return "tests = [%s]" % ", ".join(t for t in re.findall(r"\x27.*?\x27", tests[0]) if t.strip("\x27") in wanted)
if wanted:
    text = re.sub(r"(?s)tests = \[.*?\]", chosen, text)
sys.stdout.write(text)' "$here/conformance/zts.skip" > "$work/$name.run"
done

# How many tests of a group are left out.
left_out() {
  [ -z "${ZTS_ALL:-}" ] || { echo 0; return; }
  find "$STF_SUITE/tests" -path "*/$1/*.ksh" -printf '%f\n' | sed 's/\.ksh$//' |
    grep -Fxc -f <(cut -f 1 "$here/conformance/zts.skip") || true
}

worst=100
printf '| group | tests | passed | failed | skipped | left out | |\n|---|---|---|---|---|---|---|\n'
for group in "${groups[@]}"; do
  # What one group leaves is not there for the next.
  end_daemon
  detach_loops
  rm -rf "$work/state" $FILES
  mkdir "$work/state"
  for file in $FILES; do truncate -s 4G "$file"; done
  disks=$FILES import_path=$work
  rm -rf "${CENOTE_PARAMETERS_DIR:?}"/* "$CENOTE_ZEDLET_DIR"
  if [[ $on_loops == *" $group "* ]]; then
    attach_loops
    disks=${loops[*]#/dev/}
    # Not the files below them.
    import_path=$work/none:$(IFS=:; echo "${loops[*]}")
  fi
  "$CENOTE" daemon start
  "$CENOTE" tunable set cenote_spares_auto=0
  "$CENOTE" tunable set cenote_diagnosis_auto=0
  # Tests of this group set primarycache=none, which the daemon's own cache does not know.
  if [ "$group" = fault ]; then "$CENOTE" tunable set zfs_arc_max=1048576; fi
  log=$results/$group.log
  # Where tests keep what stands for disks, as /dev is where disks are. Commands bring it with them.
  (cd "$work" && PATH=$bin DISKS=$disks ZPOOL_IMPORT_PATH=$import_path "$suite/test-runner/bin/test-runner.py" \
    -c "$work/common.run,$work/linux.run" -T "$group" -i "$STF_SUITE" -o "$work/results" < /dev/null) \
    > "$log" 2>&1 || true
  # "Test (Linux): …/zfs_create/zfs_create_001_pos (run as root) [00:01] [PASS]"
  sed -n "s,^Test[^:]*: .*/\([^/ ]*\) (run as .*) \[[0-9:]*\] \[\([A-Z]*\)\]\$,\1 \2,p" "$log" |
    grep -Ev '^(setup|cleanup|zfs_failsafe|zfs_dbgmsg|zfs_dmesg|zfs_mmp) ' > "$results/$group.tests" || true
  count() { grep -c " $1\$" "$results/$group.tests" || true; }
  passed=$(count PASS) skipped=$(count SKIP) all=$(wc -l < "$results/$group.tests")
  # What is skipped because the group could not begin has failed.
  if grep -q '/setup (run as .*\[FAIL\]$' "$log"; then skipped=0; fi
  failed=$((all - passed - skipped))
  share=$((all > 0 ? passed * 100 / all : 0))
  [ "$share" -ge "$worst" ] || worst=$share
  out=$(left_out "$group")
  printf '| %s | %s | %s | %s | %s | %s | %s %% |\n' \
    "$group" "$((all + out))" "$passed" "$failed" "$skipped" "$out" "$share"
  cat "$work"/results/2*/log > "$results/$group.details" 2>/dev/null || true
  rm -rf "$work/results"
done
printf '\nlogs: %s\n' "$results" >&2
for group in "${groups[@]}"; do
  awk -v group="$group" '$2 != "PASS" { print group ": " $1 " " $2 }' "$results/$group.tests" >&2
done
[ "$worst" -ge 85 ]
