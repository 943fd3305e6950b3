#!/usr/bin/env bash
# Programs that other people wrote to replicate datasets with `zfs send` and `zfs receive`, as they
# are, with their own tests, on pools of the daemon: syncoid (of sanoid), zfs-autobackup and bzfs.
# Usage: replication.sh [syncoid [TEST...] | over_ssh | autobackup [TEST...] | bzfs [TEST...]]
#
# The script runs in a mount namespace of its own, so that the mount points and the password file
# that the tests need are seen by no other process. Tests that need ssh reach this machine through
# an sshd that listens nowhere: ssh starts it as its proxy command.
#
# CENOTE_SOURCES: a folder with the git repositories `sanoid` and `zfs_autobackup`, for a machine
# that cannot clone them. What cannot be had is told, and left out.
[ "${CENOTE_PRIVATE_MOUNTS:-}" ] || CENOTE_PRIVATE_MOUNTS=1 exec unshare -m bash "$0" "$@"
. "$(dirname "$(readlink -f "$0")")/common.sh"
house=$work/replication
rm -rf "$house"; mkdir -p "$house"/{bin,state,tmp} "$tools"; chmod 755 "$house"
# Names of sockets in it have a limit.
home=$(mktemp -d /tmp/hXXXXXX); mkdir -m 700 "$home/.ssh"
for tool in zfs zpool zdb zstream; do ln -s "$CENOTE" "$house/bin/$tool"; done
ssh_program=$(command -v ssh || true)
export PATH=$house/bin:$PATH CENOTE_STATE_DIR=$house/state HOME=$home TMPDIR=$house/tmp
unset CENOTE_SOCKET
failed=0

go_away() {
  "$CENOTE" zpool export -a -f >/dev/null 2>&1 || true
  "$CENOTE" daemon stop >/dev/null 2>&1 || true
  [ "${KEEP:-}" ] || rm -rf "$house" "$home"
}
trap go_away EXIT

# Reports a test that failed: with its reason, if it is known to fail.
fails() { # CLIENT TEST LOG
  local why
  why=$(sed -n "s/^$1 $2 //p" "$here/conformance/replication.known")
  [ "$why" ] || failed=1
  printf 'replication: %s: %s failed: %s\n' "$1" "$2" "${why:-see $3}" >&2
}
without() { printf 'replication: without %s: %s\n' "$1" "$2" >&2; }

# Copies the files of a commit into $house/NAME.
sources() { # NAME ADDRESS COMMIT
  local repository=${CENOTE_SOURCES:-$tools/sources}/$1
  if ! git -C "$repository" cat-file -e "$3^{commit}" 2>/dev/null; then
    [ -z "${CENOTE_NO_SETUP:-}" ] && [ -z "${CENOTE_SOURCES:-}" ] || return 1
    git init -q --bare "$repository" &&
      git -C "$repository" fetch -q --depth 1 "$2" "$3" 2>"$work/log-fetch-$1" || return 1
  fi
  mkdir -p "$house/$1" && git -C "$repository" archive "$3" | tar -x -C "$house/$1"
}

# --- programs that the clients call ------------------------------------------------------------

# Of Debian, unpacked and not installed: an installed sshd would listen.
helpers() {
  unpack replication libcapture-tiny-perl libconfig-inifiles-perl pv mbuffer lzop pigz rsync \
    libpopt0 liblzo2-2 libmhash2 libwrap0 openssh-server || return 1
  local root=$tools/replication
  export PATH=$PATH:$root/usr/bin PERL5LIB=$root/usr/share/perl5
  export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
  # All tests run as root already.
  printf '#!/bin/sh\n[ "$1" != -n ] || shift\nexec "$@"\n' > "$house/bin/sudo"
  chmod 755 "$house/bin/sudo"
  # Some tests run login shells.
  printf 'export PATH=%s\n' "$PATH" > "$home/.bash_profile"
}

# Makes `mount -t zfs` call this program.
mount_helper() {
  mkdir "$house/sbin" && ln -s "$CENOTE" "$house/sbin/mount.zfs" &&
    mount -t overlay cenote -o "lowerdir=$house/sbin:/usr/sbin" /usr/sbin
}

# Makes ssh to any host name reach this machine, as root, with the same commands.
ssh_to_here() {
  [ "$ssh_program" ] || return 1
  local ssh=$home/.ssh sshd=$tools/replication/usr/sbin/sshd
  { printf 'root:x:0:0:root:%s:/bin/bash\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n' \
      "$home"
    grep -v '^\(root\|sshd\):' /etc/passwd; } > "$house/passwd"
  mount --bind "$house/passwd" /etc/passwd || return 1
  mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N '' -f "$ssh/host"
  ssh-keygen -q -t rsa -N '' -f "$ssh/id_rsa"
  printf '%s\n' "HostKey $ssh/host" "AuthorizedKeysFile $ssh/id_rsa.pub" \
    "PermitRootLogin prohibit-password" "StrictModes no" "UsePAM no" "PidFile none" \
    "MaxSessions 100" "SetEnv PATH=$PATH CENOTE_STATE_DIR=$CENOTE_STATE_DIR \
LD_LIBRARY_PATH=$LD_LIBRARY_PATH" > "$ssh/sshd_config"
  printf '%s\n' "#!/bin/sh" "exec $ssh_program \
-o 'ProxyCommand=$sshd -i -f $ssh/sshd_config 2>>$ssh/log' -o IdentityFile=$ssh/id_rsa \
-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \"\$@\"" \
    > "$house/bin/ssh"
  chmod 755 "$house/bin/ssh"
  [ "$(ssh localhost 'command -v zfs')" = "$house/bin/zfs" ]
}

# Makes an environment of Python with packages of PyPI.
python_with() { # NAME PACKAGE...
  [ -x "$tools/$1/bin/python" ] && return
  [ -z "${CENOTE_NO_SETUP:-}" ] || return 1
  python3 -m venv "$tools/$1" && "$tools/$1/bin/pip" install -q "${@:2}" >&2 ||
    { rm -rf "${tools:?}/$1"; return 1; }
}

# The row of a suite of Python's unittest, from what it printed with -v.
unittest_row() { # CLIENT WHAT LOG
  local all skipped bad name
  all=$(sed -n 's/^Ran \([0-9]*\) tests\? .*/\1/p' "$3" | tail -1)
  bad=$(sed -nE 's/^(FAIL|ERROR): ([A-Za-z0-9_]+) .*/\2/p' "$3" | sort -u)
  skipped=$(sed -n 's/^\(OK\|FAILED\).*skipped=\([0-9]*\).*/\2/p' "$3" | tail -1)
  row "$1 $2" "$((${all:-0} - $(wc -w <<< "$bad") - ${skipped:-0})) of ${all:-0}, \
${skipped:-0} left out by itself"
  for name in $bad; do fails "$1" "$name" "$3"; done
  [ "${all:-0}" != 0 ] || failed=1
}

# --- syncoid -----------------------------------------------------------------------------------

have_syncoid() {
  [ ! -d "$house/sanoid" ] || return 0
  if ! command -v perl >/dev/null || ! command -v shasum >/dev/null; then
    without syncoid "no perl"; return 1
  fi
  if ! sources sanoid https://github.com/jimsalterjrs/sanoid \
    8e1d11e0b243de5b9e262f7d0875d4127b263ff2; then
    without syncoid "its tests cannot be had"; return 1
  fi
}

syncoid() { # [TEST...]
  have_syncoid || return 0
  local test name passed=0 all=0 left=0 status
  for test in "$house"/sanoid/tests/syncoid/*/run.sh; do
    name=$(basename "$(dirname "$test")")
    [ $# = 0 ] || [[ " $* " = *" $name "* ]] || continue
    # The files of pools and the mount points of the tests.
    sed -i "s,/tmp/syncoid-test,$house/tmp/syncoid-test,g" "$test"
    status=0
    (cd "$(dirname "$test")" && timeout 300 bash run.sh) > "$work/log-syncoid-$name" 2>&1 \
      </dev/null || status=$?
    case $status in
      0) passed=$((passed + 1)) all=$((all + 1));;
      130) left=$((left + 1));;
      *) all=$((all + 1)); fails syncoid "$name" "$work/log-syncoid-$name";;
    esac
  done
  row "syncoid 2.3.0-53, its tests" "$passed of $all, $left left out by itself"
}

# --- syncoid over ssh --------------------------------------------------------------------------

# Reaches both pools through ssh, or one; the other is local.
syncoid_runs() {
  perl "$house/sanoid/syncoid" --no-privilege-elevation "$@"
}
same_files() { # FOLDER FOLDER
  (cd "$1" && find . -xdev -type f -exec sha256sum {} + | sort) > "$house/tmp/one"
  (cd "$2" && find . -xdev -type f -exec sha256sum {} + | sort) > "$house/tmp/other"
  [ -s "$house/tmp/one" ] && cmp "$house/tmp/one" "$house/tmp/other"
}

ssh_pushes() {
  zfs create -o compression=zstd s/data
  zfs create s/data/below
  cp -r "$house/sanoid" "$house/s/data/below/files"
  head -c 1M /dev/urandom > "$house/s/data/first"
  syncoid_runs -r --compress=zstd-fast s/data root@localhost:d/pushed
  same_files "$house/s/data/below" "$house/d/pushed/below"
}
ssh_pushes_increments() {
  rm -r "$house/s/data/below/files/tests"
  head -c 3M /dev/urandom > "$house/s/data/new"
  zfs snapshot -r s/data@more
  syncoid_runs -r --compress=lzop s/data root@localhost:d/pushed
  same_files "$house/s/data" "$house/d/pushed"
  same_files "$house/s/data/below" "$house/d/pushed/below"
  zfs list -H d/pushed/below@more
}
ssh_pulls() {
  zfs create -V 4M s/volume
  syncoid_runs --compress=none --sendoptions="Lce" root@localhost:s/data d/pulled
  syncoid_runs --compress=gzip root@localhost:s/volume d/volume
  same_files "$house/s/data" "$house/d/pulled"
  [ "$(zfs list -H -t snapshot -o guid s/volume)" = "$(zfs list -H -t snapshot -o guid d/volume)" ]
}
ssh_goes_between_two_hosts() {
  syncoid_runs --create-bookmark --no-sync-snap root@localhost:s/data root@localhost:d/between
  zfs destroy -r s/data@more
  zfs snapshot -r s/data@last
  syncoid_runs --no-sync-snap root@localhost:s/data root@localhost:d/between
  same_files "$house/s/data" "$house/d/between"
}
ssh_resumes() {
  zfs create s/large
  head -c 24M /dev/urandom > "$house/s/large/file"
  zfs snapshot s/large@one
  # It ends in the middle of the stream.
  if (zfs send s/large@one || true) | head -c 8M | ssh root@localhost zfs receive -s d/large; then
    return 1
  fi
  [ "$(zfs get -H -o value receive_resume_token d/large)" != - ]
  syncoid_runs --debug root@localhost:s/large d/large 2>&1 | tee "$house/tmp/said"
  grep "Resuming interrupted zfs send/receive" "$house/tmp/said"
  same_files "$house/s/large" "$house/d/large"
}

over_ssh() {
  have_syncoid || return 0
  if [ ! -x "$house/bin/ssh" ]; then without "syncoid over ssh" "ssh does not work"; return 0; fi
  local pool step status passed=0 all=0
  for pool in s d; do
    truncate -s 256M "$house/pool-$pool"
    zpool create -m "$house/$pool" "$pool" "$house/pool-$pool"
  done
  for step in ssh_pushes ssh_pushes_increments ssh_pulls ssh_goes_between_two_hosts ssh_resumes; do
    all=$((all + 1))
    # Not as a condition: the shell would ignore `set -e` in the step.
    set +e; (set -e; "$step") > "$work/log-$step" 2>&1; status=$?; set -e
    if [ $status = 0 ]; then passed=$((passed + 1)); else fails ssh "$step" "$work/log-$step"; fi
  done
  row "syncoid 2.3.0-53, to this host over ssh" "$passed of $all"
  for pool in s d; do
    zpool export "$pool"
    "$CENOTE" verify --leaks -d "$house" "$pool" > "$work/log-verify-$pool" 2>&1 ||
      { failed=1; cat "$work/log-verify-$pool" >&2; }
  done
}

# --- zfs-autobackup ----------------------------------------------------------------------------

autobackup() { # [TEST...]
  if ! sources zfs_autobackup https://github.com/psy0rz/zfs_autobackup \
    a805889cd9ab3c8e419f72294a9d4aa378c3c049; then
    without zfs-autobackup "its tests cannot be had"; return 0
  fi
  if ! python_with autobackup colorama argparse unittest2 mock; then
    without zfs-autobackup "no python3 with venv, or no network"; return 0
  fi
  local number
  for number in 0 1 2; do truncate -s 500M "$house/ram$number"; done
  # Its pools are on three RAM disks of the kernel's; here, on files of that size.
  sed -i "s,/dev/ram,$house/ram,g" "$house/zfs_autobackup/tests/basetest.py"
  [ $# != 0 ] || set -- discover tests
  (cd "$house/zfs_autobackup" && PYTHONPATH=tests timeout 5400 "$tools/autobackup/bin/python" \
    -m unittest "$@" -v) > "$work/log-autobackup" 2>&1 </dev/null || true
  unittest_row zfs-autobackup "3.3-6, its tests" "$work/log-autobackup"
}

# --- bzfs --------------------------------------------------------------------------------------

bzfs() { # [PART OF A TEST'S NAME, OR local, OR pull-push...]
  if [ ! -d "$tools/bzfs-1.25.0" ]; then
    if [ "${CENOTE_NO_SETUP:-}" ] || ! python3 -m pip download -q --no-deps --no-binary bzfs \
      -d "$tools/debs" bzfs==1.25.0 >&2; then
      without bzfs "no python3 with pip, or no network"; return 0
    fi
    tar -xzf "$tools/debs/bzfs-1.25.0.tar.gz" -C "$tools"
  fi
  cp -r "$tools/bzfs-1.25.0" "$house/bzfs"
  cat > "$house/bzfs/run_here.py" <<'END'
# What bzfs_tests/test_all.py sets before it runs tests.
import os, sys, unittest
from bzfs_main import loggers
from bzfs_main.util.utils import UMASK
os.umask(UMASK)
loggers.set_logging_runtime_defaults()

def flat(suite):
    for test in suite:
        yield from flat(test) if isinstance(test, unittest.TestSuite) else [test]

def suite():
    """The integration tests, without those of encrypted datasets: none can be created here."""
    from bzfs_tests.itest import test_integrations
    def is_encrypted(test):
        return (getattr(test, "param", None) or {}).get("encrypted_dataset", False)
    tests = list(flat(test_integrations.suite()))
    left = [test for test in tests if is_encrypted(test)]
    print("left out, on encrypted datasets:", len(left))
    names = sys.argv[1:]
    def is_named(test):
        text = test.id() + " " + (getattr(test, "param", None) or {}).get("ssh_mode", "")
        return not names or any(name in text for name in names)
    return unittest.TestSuite(
        test for test in tests if is_named(test) and not is_encrypted(test))

unittest.TextTestRunner(verbosity=2).run(suite())
END
  (cd "$house/bzfs" && timeout 14400 python3 run_here.py "$@") > "$work/log-bzfs" 2>&1 \
    </dev/null || true
  unittest_row bzfs "1.25.0, its integration tests" "$work/log-bzfs"
}

# --- all of them -------------------------------------------------------------------------------

helpers || die "the programs that the clients call cannot be had"
mount_helper || without "mount -t zfs" "overlays cannot be mounted here"
ssh_to_here || { rm -f "$house/bin/ssh"; without ssh "no ssh, or sshd does not run here"; }
printf '| client | |\n|---|---|\n'
case ${1:-all} in
  all) syncoid; over_ssh; autobackup; bzfs;;
  syncoid | over_ssh | autobackup | bzfs) "$@";;
  *) die "no client $1";;
esac
[ $failed = 0 ]
