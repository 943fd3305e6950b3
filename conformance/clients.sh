#!/usr/bin/env bash
# Programs that other people wrote for zfs and zpool, as they are, on pools of the daemon: sanoid
# (Debian), zfs-autobackup (PyPI), Ansible's modules (Debian's collections, PyPI's core), go-zfs
# (its own tests). What needs the network and cannot be had is told, and left out.
. "$(dirname "$(readlink -f "$0")")/common.sh"
house=$work/clients
rm -rf "$house"; mkdir -p "$house/bin" "$house/state" "$tools"; chmod 755 "$house"
for tool in zfs zpool zdb; do ln -s "$CENOTE" "$house/bin/$tool"; done
export PATH=$house/bin:$PATH CENOTE_STATE_DIR=$house/state
unset CENOTE_SOCKET
failed=0 missing=0

go_away() {
  "$CENOTE" zpool export -a -f >/dev/null 2>&1 || true
  "$CENOTE" daemon stop >/dev/null 2>&1 || true
  [ "${KEEP:-}" ] || rm -rf "$house"
}
trap go_away EXIT

# What a client did; its steps are functions that fail where something is not as it should be.
client() { # NAME STEPS...
  local step status passed=0 all=0
  for step in "${@:2}"; do
    all=$((all + 1))
    # Not as a condition: the shell would ignore `set -e` in the step.
    set +e; (set -e; "$step") > "$work/log-$step" 2>&1; status=$?; set -e
    if [ $status = 0 ]; then passed=$((passed + 1))
    else printf 'clients: %s: %s failed: see %s\n' "$1" "$step" "$work/log-$step" >&2; fi
  done
  row "$1" "$passed of $all"
  [ "$passed" = "$all" ] || failed=1
}
without() { printf 'clients: without %s: %s\n' "$1" "$2" >&2; missing=1; }

snapshots() { zfs list -H -t snapshot -o name -r "$1" | wc -l; }

# --- sanoid ------------------------------------------------------------------------------------

sanoid() {
  # Debian's file, with another folder of defaults.
  sed "s,/usr/share/sanoid,$tools/sanoid/usr/share/sanoid,g" "$tools/sanoid/usr/sbin/sanoid" \
    > "$house/sanoid"
  PERL5LIB=$tools/sanoid/usr/share/perl5 perl "$house/sanoid" --configdir="$house/etc" \
    --cache-dir="$house/cache" --run-dir="$house/run" "$@"
}

sanoid_takes() {
  mkdir -p "$house"/{etc,cache,run}
  cp "$tools/sanoid/usr/share/sanoid/sanoid.defaults.conf" "$house/etc"
  printf '[t/data]\n\tuse_template = all\n\trecursive = yes\n[template_all]\n\thourly = %s
\tfrequently = 0\n\tdaily = 2\n\tmonthly = 1\n\tyearly = 0\n\tautosnap = yes\n\tautoprune = yes\n' 1 \
    > "$house/etc/sanoid.conf"
  zfs create -p t/data/below
  sanoid --take-snapshots --verbose
  [ "$(snapshots t/data)" = 6 ]
}
sanoid_prunes() {
  zfs snapshot -r t/data@autosnap_2020-01-01_00:00:00_hourly
  # Snapshots count by when they were made: this one is no older than the next.
  sanoid --prune-snapshots --verbose --force-update
  sed -i 's/hourly = 1/hourly = 0/' "$house/etc/sanoid.conf"
  sanoid --prune-snapshots --verbose --force-update
  ! zfs list -H -t snapshot -o name -r t/data | grep "$(date +%Y).*_hourly"
}
sanoid_monitors() {
  sanoid --monitor-snapshots | grep "^OK"
  sanoid --monitor-health | grep "OK ZPOOL t : ONLINE"
  sanoid --monitor-capacity | grep "^OK"
}

# --- zfs-autobackup ----------------------------------------------------------------------------

autobackup_takes() {
  zfs create t/saved
  zfs set autobackup:here=true t/saved
  "$tools/python/bin/zfs-autobackup" --verbose here
  [ "$(snapshots t/saved)" = 1 ]
}
autobackup_leaves_what_did_not_change() {
  "$tools/python/bin/zfs-autobackup" --verbose here | grep "No changes anywhere"
  [ "$(snapshots t/saved)" = 1 ]
}
autobackup_thins() {
  for number in 1 2 3; do
    echo $number > "$house/t/saved/file"
    zpool sync t
    sleep 1.1
    "$tools/python/bin/zfs-autobackup" --verbose --keep-source 1 here
  done
  [ "$(snapshots t/saved)" = 1 ]
}

# --- Ansible -----------------------------------------------------------------------------------

ansible_plays() {
  cat > "$house/play.yml" <<'END'
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {properties: {compression: lz4, quota: 100M, "org.x:y": z}}
  tasks:
    - {community.general.zfs: {name: t/web, state: present, extra_zfs_properties: "{{ properties }}"}, register: made}
    - {community.general.zfs: {name: t/web, state: present, extra_zfs_properties: "{{ properties }}"}, register: again}
    - {community.general.zfs: {name: t/web, state: present, extra_zfs_properties: {compression: zstd}}, register: other}
    - {community.general.zfs: {name: t/vol, state: present, extra_zfs_properties: {volsize: 16M}}}
    - {community.general.zfs: {name: t/web@one, state: present}}
    - {community.general.zfs: {name: t/copy, state: present, origin: t/web@one}}
    - {community.general.zfs_facts: {name: t, recurse: true, type: filesystem, properties: "name,compression,quota"}, register: sets}
    - {community.general.zpool_facts: {name: t, properties: "health,size,free"}, register: pools}
    - community.general.zfs: {name: "{{ item }}", state: absent}
      loop: [t/copy, t/web@one, t/web, t/vol]
    - ansible.builtin.assert:
        that:
          - made is changed
          - again is not changed
          - other is changed
          - sets.ansible_facts.ansible_zfs_datasets | length > 2
          - pools.ansible_facts.ansible_zfs_pools[0].health == "ONLINE"
END
  ansible_runs "$house/play.yml"
  ! zfs list t/web
}
ansible_delegates() {
  zfs create t/given
  cat > "$house/given.yml" <<'END'
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - {community.general.zfs_delegate_admin: {name: t/given, users: nobody, permissions: "snapshot,mount"}, register: given}
    - {community.general.zfs_delegate_admin: {name: t/given, users: nobody, permissions: "snapshot,mount"}, register: again}
    - {community.general.zfs_delegate_admin: {name: t/given, users: nobody, state: absent}, register: taken}
    - ansible.builtin.assert: {that: [given is changed, again is not changed, taken is changed]}
END
  ansible_runs "$house/given.yml"
}
ansible_runs() {
  ANSIBLE_COLLECTIONS_PATH=$tools/ansible/usr/lib/python3/dist-packages HOME=$house \
    "$tools/python/bin/ansible-playbook" "$1" -e "ansible_python_interpreter=$tools/python/bin/python"
}

# --- all of them -------------------------------------------------------------------------------

truncate -s 1G "$house/d0"
zpool create -m "$house/t" t "$house/d0"
printf '| client | |\n|---|---|\n'

if command -v perl >/dev/null && unpack sanoid sanoid libconfig-inifiles-perl libcapture-tiny-perl; then
  client "sanoid 2.1.0, snapshots" sanoid_takes sanoid_prunes sanoid_monitors
else without sanoid "no perl"; fi

need_python() {
  [ -x "$tools/python/bin/zfs-autobackup" ] && [ -x "$tools/python/bin/ansible-playbook" ] && return
  [ -z "${CENOTE_NO_SETUP:-}" ] || return 1
  python3 -m venv "$tools/python" && "$tools/python/bin/pip" install -q \
    'zfs-autobackup==3.3' 'ansible-core<2.17' >&2
}
if need_python; then
  client "zfs-autobackup 3.3, snapshots" autobackup_takes autobackup_leaves_what_did_not_change \
    autobackup_thins
  if unpack ansible ansible; then
    client "Ansible, community.general of Debian's 7.7" ansible_plays ansible_delegates
  else without ansible "its package cannot be had"; fi
else without "zfs-autobackup and ansible" "no python3 with venv, or no network"; fi

if command -v go >/dev/null && (cd "$house" && printf 'module x\ngo 1.20\n' > go.mod &&
  go mod download -json github.com/mistifyio/go-zfs/v4@v4.0.0 > download 2>/dev/null); then
  cp -r "$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' "$house/download")" "$house/go-zfs"
  chmod -R u+w "$house/go-zfs"
  (cd "$house/go-zfs" && go test -v ./...) > "$work/log-go-zfs" 2>&1 || true
  passed=$(grep -c '^--- PASS' "$work/log-go-zfs" || true)
  all=$(grep -c '^--- ' "$work/log-go-zfs" || true)
  fail=$(sed -n 's/^--- FAIL: \([A-Za-z]*\).*/\1/p' "$work/log-go-zfs" | xargs)
  row "go-zfs 4.0.0, its tests" "$passed of $all${fail:+ ($fail fail)}"
else without go-zfs "no Go, or no network"; fi

zpool export t
"$CENOTE" verify --leaks -d "$house/d0" t > "$work/log-verify" || { failed=1; cat "$work/log-verify" >&2; }
[ $failed = 0 ]
