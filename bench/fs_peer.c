/* What fs_peer.py has OpenZFS's engine do in a loop, so that no interpreter is measured. Functions
 * of libzpool 2.3, which the program that loads this has loaded. Sizes and offsets in comments are
 * those of its structures. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
extern void *dmu_tx_create(void *);
extern void dmu_tx_hold_zap(void *, u64, int, const char *), dmu_tx_hold_bonus(void *, u64);
extern void dmu_tx_hold_write(void *, u64, u64, int), dmu_tx_hold_free(void *, u64, u64, u64);
extern void dmu_tx_commit(void *), dmu_buf_will_dirty(void *, void *);
extern void dmu_buf_rele(void *, const void *);
extern int dmu_tx_assign(void *, u64), dmu_object_free(void *, u64, void *);
extern u64 dmu_object_alloc(void *, int, int, int, int, void *);
extern u64 zap_create(void *, int, int, int, void *);
extern int dmu_bonus_hold(void *, u64, const void *, void **);
extern void dmu_write(void *, u64, u64, u64, const void *, void *);
extern int dmu_read(void *, u64, u64, u64, void *, uint32_t);
extern int zap_add(void *, u64, const char *, int, u64, const void *, void *);
extern int zap_lookup(void *, u64, const char *, u64, u64, void *);
extern int zap_remove(void *, u64, const char *, void *);
extern void zap_cursor_init(void *, void *, u64), zap_cursor_advance(void *);
extern void zap_cursor_fini(void *);
extern int zap_cursor_retrieve(void *, void *);
extern void *zap_attribute_alloc(void);
extern void *zil_open(void *, void *, void *), *zil_itx_create(u64, u64);
extern void zil_itx_assign(void *, void *, void *), zil_commit(void *, u64), zil_close(void *);

enum { PLAIN_FILE = 19, DIRECTORY = 20, ZNODE = 17, ZNODE_LEN = 264, WAIT = 1, TX_WRITE = 9 };
#define NEW ((u64)-1)

static void check(int error, const char *what) {
  if (error) { fprintf(stderr, "fs_peer: %s: error %d\n", what, error); exit(1); }
}

static void name_of(char *name, u64 number) {
  sprintf(name, "file-%07llu", (unsigned long long)number);
}

/* A bonus buffer: its data is behind three words (dmu_buf_t: object, offset, size, data). */
static void set_attributes(void *set, u64 object, u64 size, void *tx) {
  void **buf;
  check(dmu_bonus_hold(set, object, set, (void **)&buf), "bonus");
  dmu_buf_will_dirty(buf, tx);
  memset(buf[3], 0, ZNODE_LEN);
  ((u64 *)buf[3])[10] = size;
  dmu_buf_rele(buf, set);
}

static u64 size_of(void *set, u64 object) {
  void **buf;
  u64 size;
  check(dmu_bonus_hold(set, object, set, (void **)&buf), "bonus");
  size = ((u64 *)buf[3])[10];
  dmu_buf_rele(buf, set);
  return size;
}

u64 make_directory(void *set) {
  void *tx = dmu_tx_create(set);
  u64 object;
  dmu_tx_hold_zap(tx, NEW, 1, NULL);
  check(dmu_tx_assign(tx, WAIT), "assign");
  object = zap_create(set, DIRECTORY, ZNODE, ZNODE_LEN, tx);
  dmu_tx_commit(tx);
  return object;
}

/* Files first .. end of `size` bytes, by name in a directory. */
void create(void *set, u64 dir, u64 first, u64 end, u64 size) {
  char name[32], *bytes = malloc(size + 1);
  memset(bytes, 7, size + 1);
  for (u64 number = first; number < end; number++) {
    void *tx = dmu_tx_create(set);
    u64 object;
    name_of(name, number);
    dmu_tx_hold_bonus(tx, NEW);
    dmu_tx_hold_zap(tx, dir, 1, name);
    check(dmu_tx_assign(tx, WAIT), "assign");
    object = dmu_object_alloc(set, PLAIN_FILE, size ? 1024 : 0, ZNODE, ZNODE_LEN, tx);
    set_attributes(set, object, size, tx);
    check(zap_add(set, dir, name, 8, 1, &object, tx), "add");
    dmu_tx_commit(tx);
    if (size) {
      tx = dmu_tx_create(set);
      dmu_tx_hold_write(tx, object, 0, size);
      check(dmu_tx_assign(tx, WAIT), "assign");
      dmu_write(set, object, 0, size, bytes, tx);
      dmu_tx_commit(tx);
    }
  }
  free(bytes);
}

/* Each name once, `stride` further than the last; its attributes, and with `size` its bytes. */
void look(void *set, u64 dir, u64 first, u64 end, u64 stride, u64 size) {
  char name[32], *bytes = malloc(size + 1);
  for (u64 number = first; number < end; number++) {
    u64 object;
    name_of(name, first + number * stride % (end - first));
    check(zap_lookup(set, dir, name, 8, 1, &object), "lookup");
    size_of(set, object);
    if (size) check(dmu_read(set, object, 0, size, bytes, 0), "read");
  }
  free(bytes);
}

u64 list(void *set, u64 dir) {
  char cursor[1024];
  void *entry = zap_attribute_alloc();
  u64 count = 0;
  for (zap_cursor_init(cursor, set, dir); zap_cursor_retrieve(cursor, entry) == 0; count++)
    zap_cursor_advance(cursor);
  zap_cursor_fini(cursor);
  return count;
}

void destroy(void *set, u64 dir, u64 first, u64 end) {
  char name[32];
  for (u64 number = first; number < end; number++) {
    void *tx = dmu_tx_create(set);
    u64 object;
    name_of(name, number);
    check(zap_lookup(set, dir, name, 8, 1, &object), "lookup");
    dmu_tx_hold_zap(tx, dir, 0, name);
    dmu_tx_hold_bonus(tx, object);
    dmu_tx_hold_free(tx, object, 0, NEW);
    check(dmu_tx_assign(tx, WAIT), "assign");
    check(zap_remove(set, dir, name, tx), "remove");
    check(dmu_object_free(set, object, tx), "free");
    dmu_tx_commit(tx);
  }
}

static u64 next(u64 *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  return *state ^= *state << 17;
}

void read_random(void *set, u64 object, u64 records, u64 size, u64 count) {
  char *bytes = malloc(size);
  u64 state = 88172645463325252ull;
  for (; count; count--)
    check(dmu_read(set, object, next(&state) % records * size, size, bytes, 0), "read");
  free(bytes);
}

struct writer { void *set, *log; u64 object, size, records, count; const void *bytes; };

/* itx_t: link 16, private 8, state 4, sync 4, callback 16, size 8, object 8, generation 8; then the
 * record: header of 32 (type, length, txg, sequence), object, offset, length, block pointer from
 * word 8 on, data from word 24 on. */
static void *write_synced(void *argument) {
  struct writer *w = argument;
  for (u64 number = 0; number < w->count; number++) {
    u64 offset = number % w->records * w->size, *record;
    void *tx = dmu_tx_create(w->set);
    char *itx;
    dmu_tx_hold_write(tx, w->object, offset, w->size);
    check(dmu_tx_assign(tx, WAIT), "assign");
    dmu_write(w->set, w->object, offset, w->size, w->bytes, tx);
    itx = zil_itx_create(TX_WRITE, 192 + w->size);
    record = (u64 *)(itx + 72);
    if (record[1] != 192 + w->size) {
      fprintf(stderr, "fs_peer: a log record is not where it should be\n");
      exit(1);
    }
    record[4] = w->object, record[5] = offset, record[6] = w->size, record[7] = 0;
    memcpy(record + 24, w->bytes, w->size);
    *(uint32_t *)(itx + 24) = 1; /* the data is in the record */
    itx[28] = 1;                 /* to be durable */
    *(u64 *)(itx + 56) = w->object;
    zil_itx_assign(w->log, itx, tx);
    dmu_tx_commit(tx);
    zil_commit(w->log, w->object);
  }
  return NULL;
}

void write_group(void *set, const u64 *objects, u64 writers, u64 size, u64 records, u64 count,
                 const void *bytes) {
  void *log = zil_open(set, NULL, NULL);
  struct writer *all = calloc(writers, sizeof *all);
  pthread_t *threads = calloc(writers, sizeof *threads);
  for (u64 i = 0; i < writers; i++) {
    all[i] = (struct writer){set, log, objects[i], size, records, count, bytes};
    check(pthread_create(threads + i, NULL, write_synced, all + i), "thread");
  }
  for (u64 i = 0; i < writers; i++) pthread_join(threads[i], NULL);
  zil_close(log);
  free(all), free(threads);
}
