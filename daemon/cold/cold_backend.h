/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a library that speaks to a cold store: one symbol, which gives a table of
   functions. So neither the daemon nor its package needs the store's client library. The daemon
   checks the table's version and size before it calls any of its functions. */
#ifndef KVTIER_DAEMON_COLD_COLD_BACKEND_H_
#define KVTIER_DAEMON_COLD_COLD_BACKEND_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_COLD_ABI 9u
#define KVT_COLD_SYMBOL "kvt_cold_backend_table"

enum kvt_cold_status {
  KVT_COLD_OK = 0,
  KVT_COLD_ABSENT = 1,      /* no such object */
  KVT_COLD_UNAVAILABLE = 2, /* no connection, or it was lost */
  KVT_COLD_REFUSED = 3,     /* the store answered with an error */
  KVT_COLD_BUSY = 4,        /* too much is under way; of a deletion: a put may yet be stored */
  KVT_COLD_LATE = 5,        /* not answered in time */
  KVT_COLD_UNSENT = 6       /* stood in the library's queue for all of its time */
};

/* Strings end with 0; none is null. Copied by `open`. */
typedef struct kvt_cold_config {
  const char* endpoint;
  const char* user;     /* empty: the store's default */
  const char* password; /* empty: none */
  /* A path or empty: of the file that the password was read from, or of one of credentials, which
     the library reads, and again when it changes. It may not be there yet. */
  const char* password_file;
  uint64_t max_bytes; /* of all hosts' objects, for stores that do not evict; 0: no bound */
} kvt_cold_config;

#define KVT_COLD_NO_CALL 0u /* no call has this number */

/* Bytes that need not end with 0. */
typedef struct kvt_cold_name {
  const char* data;
  size_t bytes;
} kvt_cold_name;

/* Tells how the call of that number ended. The library calls it once for each call, on any thread,
   also within the call; `data` is valid until it returns. After a get `data` is null, and `bytes`
   bytes are where the call wanted them. `data` of an error may be a text that says why. `more` is 1
   if the library tells another end on this thread right after this one, so that the daemon's loop
   need not be woken for each. KVT_COLD_NO_CALL, any number of times: the text says why a sweep that
   the library does by itself has left something out, for the operator's log. */
typedef void (*kvt_cold_done)(void* context, uint64_t call, int status, const void* data,
                              size_t bytes, int more);

/* The functions may be called from one thread at a time and return at once. Names are copied. A
   call begins with the next `send` at the latest, so that threads are woken once for many. One that
   could not be sent within `timeout_ms` ends as KVT_COLD_UNSENT. */
typedef struct kvt_cold_backend {
  uint32_t abi;         /* KVT_COLD_ABI */
  uint32_t table_bytes; /* sizeof(kvt_cold_backend) */
  /* Connects later, and again whenever it has to. Null if the endpoint cannot be one. */
  void* (*open)(const kvt_cold_config* config, kvt_cold_done done, void* context);
  /* `done` is not called any more when this has returned, which may take some seconds. 1: all calls
     have ended. 0: threads that hang go on with some, whose memory must stay until the process
     ends.
   */
  int (*close)(void* store);
  /* Ends with one byte for each name, 1 if the object is there and else 0. The names are of one
     tenant and model. Unless `each` is 1, they are those of a prefix in its order: an object
     between two that are there may be 1 unasked, and what follows one that is not there 0. */
  void (*exists)(void* store, uint64_t call, const kvt_cold_name* names, size_t count, int each,
                 int64_t timeout_ms);
  /* Ends with the object's bytes in `into`, of a longer one with `bytes` + 1 of them: there is room
     for so many, which is the library's until the call has ended. */
  void (*get)(void* store, uint64_t call, kvt_cold_name name, void* into, uint64_t bytes,
              int64_t timeout_ms);
  /* `data` stays as it is until the call has ended. Unless `replaces` is 1, an object that is there
     may be left as it is. */
  void (*put)(void* store, uint64_t call, kvt_cold_name name, const void* data, size_t bytes,
              int64_t ttl_s, int replaces, int64_t timeout_ms);
  void (*remove)(void* store, uint64_t call, const kvt_cold_name* names, size_t count,
                 int64_t timeout_ms);
  /* Deletes some of the objects of a tenant, whose names begin with `prefix`. Ends with the
     cursor of the next call as 8 bytes of the machine's byte order; 0, as at first: none is left of
     those that were there at the first call. KVT_COLD_BUSY: likewise, but for a put that may yet be
     stored, so that it is to begin again at 0, later. */
  void (*remove_some)(void* store, uint64_t call, kvt_cold_name prefix, uint64_t cursor,
                      int64_t timeout_ms);
  void (*send)(void* store);
} kvt_cold_backend;

/* Null if the library has no table of this version. */
const kvt_cold_backend* kvt_cold_backend_table(uint32_t abi);

#ifdef __cplusplus
}
#endif

#endif /* KVTIER_DAEMON_COLD_COLD_BACKEND_H_ */
