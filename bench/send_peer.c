/* What send_peer.py has OpenZFS's engine do. Functions of libzpool 2.3, which the program that loads
 * this has loaded. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
struct out { int (*put)(void *, void *, int, void *); void *argument; int only_counts; };
struct file { int fd, copy_fd; };
extern int dmu_send(const char *to, const char *from, int embedded, int large, int compressed, int raw,
                    int saved, u64 object, u64 offset, const char *redaction, int fd, int64_t *at,
                    struct out *);
extern int dmu_recv_begin(char *to, char *snapshot, void *record, int force, int heal, int resumable,
                          void *properties, void *hidden, char *origin, void *cookie, struct file *,
                          int64_t *at);
extern int dmu_recv_stream(void *cookie, int64_t *at), dmu_recv_end(void *cookie, void *owner);

static void check(int error, const char *what) {
  if (error) { fprintf(stderr, "send_peer: %s: error %d\n", what, error); exit(1); }
}

static u64 written;

static int put(void *set, void *bytes, int length, void *fd) {
  (void)set;
  written += length;
  return write(*(int *)fd, bytes, length) == length ? 0 : 5;
}

u64 send(const char *to, const char *from, int compressed, int fd) {
  struct out out = {put, &fd, 0};
  int64_t at = 0;
  check(dmu_send(to, from, compressed, 1, compressed, 0, 0, 0, 0, NULL, fd, &at, &out), "send");
  return written;
}

/* The caller of the engine reads the first record, of 312 bytes. */
void receive(char *to, int fd) {
  static char cookie[1 << 14], record[312];
  struct file file = {fd, -1};
  int64_t at = sizeof record;
  if (read(fd, record, sizeof record) != sizeof record) check(5, "read");
  check(dmu_recv_begin(to, "sent", record, 0, 0, 0, NULL, NULL, NULL, cookie, &file, &at), "begin");
  check(dmu_recv_stream(cookie, &at), "stream");
  check(dmu_recv_end(cookie, NULL), "end");
}
