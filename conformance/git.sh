#!/usr/bin/env bash
# git: this project cloned onto a mount, checked out, changed, packed anew, killed, and looked at by
# `git fsck` and `git status` after the next mount.
. "$(dirname "$(readlink -f "$0")")/common.sh"
need git git
make_pool git 2048 compression=zstd atime=off
start git
at=$work/git/at/clone log=$work/git/log
# What git says is done is to be on disk.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.fsync GIT_CONFIG_VALUE_0=all
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@localhost
export GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@localhost
is_whole() {
  git -C "$at" fsck --full --strict >> "$log" 2>&1 && test -z "$(git -C "$at" status --porcelain)"
}

: > "$log"
git clone -q --no-hardlinks "$here" "$at"
is_whole
cp -r "$at/crates/cenote-ranges" "$at/again"
git -C "$at" add again
git -C "$at" commit -q -m "one more"
git -C "$at" repack -q -a -d
wanted=$(git -C "$at" rev-parse HEAD)
# The kernel's cache is not what is asked.
(cd "$at" && git ls-files -s) > "$work/git/before"
crash
start git
git -C "$at" fsck --full --strict >> "$log" 2>&1
test "$(git -C "$at" rev-parse HEAD)" = "$wanted"
git -C "$at" reset -q --hard
is_whole
(cd "$at" && git ls-files -s) | cmp - "$work/git/before"
# A build, and what was built run on the same tree.
(cd "$at" && cargo run -q --offline -p xtask -- spec) >> "$log" 2>&1
objects=$(git -C "$at" count-objects -v | awk '/^in-pack/ { print $2 }')
stop git
row "git $(git --version | cut -d' ' -f3): clone, commit, kill, fsck, build; $objects objects" \
  "1 of 1"
