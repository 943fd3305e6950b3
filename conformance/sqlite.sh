#!/usr/bin/env bash
# sqlite: one writer commits rows until the program is killed; after the next mount the database is
# whole, and every row is there whose commit had returned. SQLITE_ROUNDS: how often, for each kind
# of journal.
. "$(dirname "$(readlink -f "$0")")/common.sh"
need sqlite3 sqlite3
rounds=${SQLITE_ROUNDS:-4} passed=0 all=0 rows=0
make_pool sqlite 2048 compression=lz4

# Prints the number of each row whose commit has returned, until nothing answers.
writer() { # DATABASE JOURNAL FIRST
  local number
  { printf 'pragma journal_mode=%s; pragma synchronous=extra;\n' "$2"
    printf 'create table if not exists t(n integer primary key, text);\n'
    for ((number = $3; ; number++)); do
      printf 'begin; insert into t values(%s, hex(randomblob(%s)));' "$number" $((number % 3000))
      printf 'delete from t where n = %s; commit; select %s;\n' $((number - 500)) "$number"
    done
  } 2>/dev/null | stdbuf -oL sqlite3 -bail "$1" 2>/dev/null
}

for journal in ${SQLITE_JOURNALS:-delete wal truncate}; do
  for ((round = 0; round < rounds; round++)); do
    all=$((all + 1))
    start sqlite
    database=$work/sqlite/at/$journal.db
    first=$(sqlite3 "$database" 'select coalesce(max(n), 0) + 1 from t' 2>/dev/null || echo 1)
    writer "$database" $journal "$first" > "$work/sqlite/told" &
    writing=$!
    # In the middle of something, after so many commits.
    tries=0
    until [ "$(wc -l < "$work/sqlite/told")" -gt $((40 + 97 * round)) ] || [ $tries -ge 600 ]; do
      tries=$((tries + 1)); sleep 0.1
    done
    crash
    wait $writing || true
    start sqlite
    told=$(tail -n 1 "$work/sqlite/told"); case $told in '' | *[!0-9]*) told=0 ;; esac
    whole=$(sqlite3 "$database" 'pragma integrity_check')
    last=$(sqlite3 "$database" 'select coalesce(max(n), 0) from t')
    kept=$(sqlite3 "$database" 'select count(*) from t')
    if [ "$whole" = ok ] && [ "$last" -ge "$told" ] && [ "$last" -le $((told + 1)) ] &&
      [ "$kept" -eq $((last < 500 ? last : 500)) ] && [ "$told" -gt "$first" ]; then
      passed=$((passed + 1)); rows=$((rows + told - first))
    else
      printf 'sqlite: %s, round %s: %s; told %s, there are %s rows up to %s\n' $journal "$round" \
        "$whole" "$told" "$kept" "$last" >&2
    fi
    stop sqlite
  done
done
row "sqlite $(sqlite3 --version | cut -d' ' -f1), killed while it commits, $rows commits" \
  "$passed of $all"
[ "$passed" = "$all" ]
