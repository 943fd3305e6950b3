#!/usr/bin/env bash
# Programs that other people wrote to replicate datasets with `zfs send` and `zfs receive`, as they
# are, with their own tests, on pools of the daemon: syncoid (of sanoid), zfs-autobackup and bzfs.
# Usage: replication.sh [syncoid | ssh | autobackup | bzfs [TEST...]]
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
rm -rf "$house"; mkdir -p "$house"/{bin,state,tmp,home/.ssh} "$tools"; chmod 755 "$house"
for tool in zfs zpool zdb zstream; do ln -s "$CENOTE" "$house/bin/$tool"; done
ssh_program=$(command -v ssh || true)
export PATH=$house/bin:$PATH CENOTE_STATE_DIR=$house/state HOME=$house/home TMPDIR=$house/tmp
unset CENOTE_SOCKET
failed=0

go_away() {
  "$CENOTE" zpool export -a -f >/dev/null 2>&1 || true
  "$CENOTE" daemon stop >/dev/null 2>&1 || true
  [ "${KEEP:-}" ] || rm -rf "$house"
}
trap go_away EXIT

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
}

# Makes ssh to any host name reach this machine, as root, with the same commands.
ssh_to_here() {
  [ "$ssh_program" ] || return 1
  local ssh=$house/home/.ssh sshd=$tools/replication/usr/sbin/sshd
  { printf 'root:x:0:0:root:%s:/bin/bash\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n' \
      "$house/home"
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
  local all skipped bad
  all=$(sed -n 's/^Ran \([0-9]*\) tests\? .*/\1/p' "$3" | tail -1)
  bad=$(grep -E '^(FAIL|ERROR): ' "$3" | cut -d' ' -f2,3 | sort -u | wc -l || true)
  skipped=$(sed -n 's/^\(OK\|FAILED\).*skipped=\([0-9]*\).*/\2/p' "$3" | tail -1)
  row "$1 $2" "$((${all:-0} - bad - ${skipped:-0})) of ${all:-0}, ${skipped:-0} left out by itself"
  sed -nE 's/^(FAIL|ERROR): /replication: '"$1"': &/p' "$3" >&2
  [ "$bad" = 0 ] && [ "${all:-0}" != 0 ] || failed=1
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
      *) all=$((all + 1)) failed=1
        printf 'replication: syncoid: %s failed: see %s\n' "$name" "$work/log-syncoid-$name" >&2;;
    esac
  done
  row "syncoid 2.3.0-53, its tests" "$passed of $all, $left left out by itself"
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

bzfs() { # [TEST...]
  if [ ! -d "$tools/bzfs-1.25.0" ]; then
    if [ "${CENOTE_NO_SETUP:-}" ] || ! python3 -m pip download -q --no-deps --no-binary bzfs \
      -d "$tools/debs" bzfs==1.25.0 >&2; then
      without bzfs "no python3 with pip, or no network"; return 0
    fi
    tar -xzf "$tools/debs/bzfs-1.25.0.tar.gz" -C "$tools"
  fi
  cp -r "$tools/bzfs-1.25.0" "$house/bzfs"
  [ $# != 0 ] || set -- bzfs_tests.itest.test_integrations.suite
  (cd "$house/bzfs" && timeout 14400 python3 -m unittest -v "$@") > "$work/log-bzfs" 2>&1 \
    </dev/null || true
  unittest_row bzfs "1.25.0, its integration tests" "$work/log-bzfs"
}

# --- all of them -------------------------------------------------------------------------------

helpers || die "the programs that the clients call cannot be had"
ssh_to_here || without ssh "no ssh, or sshd does not run here"
printf '| client | |\n|---|---|\n'
case ${1:-all} in
  all) syncoid; autobackup; bzfs;;
  syncoid | autobackup | bzfs) "$@";;
  *) die "no client $1";;
esac
[ $failed = 0 ]
