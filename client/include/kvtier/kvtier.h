/* SPDX-License-Identifier: Apache-2.0 */
/* libkvtier: use the KV blocks that kvtierd keeps, from any language that can call C.
 *
 * A process connects to the daemon's Unix socket, registers the KV geometry of its model and maps
 * the model's block pool. It then names blocks by content hash: `kvt_acquire` references the
 * longest cached prefix and reserves blocks to fill, `kvt_commit` publishes filled blocks,
 * `kvt_release` gives references back. The bytes are used in place in the mapped pool.
 * `kvt_sequence_*` (kvtier_sequence.h) does all this for one sequence of tokens.
 *
 * Status. Every function that can fail returns a `kvt_status`, KVT_OK (0) or one of the positive
 * codes below; its particulars are in `kvt_last_error()` of the same thread. Two kinds matter:
 *   KVT_UNAVAILABLE   no daemon, or the connection was lost (or closed by the library, because the
 *                     daemon broke the protocol). Not an error of the caller: treat it as a miss,
 *                     compute without the cache and call again; the library reconnects.
 *   everything else   the request cannot be served, for the stated reason.
 *
 * Ownership. Objects (`kvt_connection`, `kvt_pool`) belong to the caller, which frees them with the
 * function named there; NULL is accepted. Arrays and structs passed in are only read during the
 * call; those to be filled are the caller's. Free what comes as `char**` with `kvt_string_free`.
 *
 * Threads. A connection and its pools may be used by any number of threads at once: requests go out
 * in the order of the calls, each caller gets its own reply, and one thread's wait does not hold up
 * another's. There is no background thread: whichever thread waits reads the socket for all of them
 * (but see kvt_wait_on_stream). Objects must not be freed while another thread is using them. A
 * sequence is used by one thread at a time. Nothing may be used in the child of a fork().
 *
 * Reconnecting. A call that finds the connection gone tries to connect, say hello, register and
 * attach again, at most once per `reconnect_min_ms`..`reconnect_max_ms` (doubling); between tries
 * it returns KVT_UNAVAILABLE at once. Blocks acquired over the lost connection are taken back if
 * they can be ("Resuming" in kvtier_sequence.h); else handles give KVT_STALE_HANDLE, and
 * lost blocks may be overwritten. Memory is never unmapped under the caller: an earlier pool stays
 * until `kvt_pool_drop_stale_mappings` or `kvt_pool_close`, but two generations later as zeros.
 *
 * Units are in the names; times are milliseconds; a block is `block_tokens` tokens. Timeouts: 0
 * does not wait, KVT_DEFAULT_TIMEOUT uses the connection's `request_timeout_ms`.
 *
 * Growth. Structs with a `size` field may gain fields at their end; set `size` to sizeof the struct
 * (the `_init` functions do, and fill in defaults). All other structs are frozen; their reserved
 * fields must be 0. No function raises a signal or throws; none keeps a lock across a return.
 */
#ifndef KVTIER_CLIENT_KVTIER_H_
#define KVTIER_CLIENT_KVTIER_H_

#include <stddef.h>
#include <stdint.h>

#if defined(KVT_BUILDING_LIBRARY)
#define KVT_API __attribute__((visibility("default")))
#else
#define KVT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- status */

typedef int32_t kvt_status;
enum {
  KVT_OK = 0,
  KVT_INVALID_ARGUMENT = 1,
  KVT_NOT_FOUND = 2,
  KVT_ALREADY_EXISTS = 3,
  KVT_PERMISSION_DENIED = 4,
  KVT_RESOURCE_EXHAUSTED = 5, /* the pool is full: try later or release something */
  KVT_STALE_HANDLE = 6,       /* the block, load or sequence is of an earlier life */
  KVT_NOT_OWNER = 7,
  KVT_WRONG_STATE = 8,
  KVT_LIMIT_EXCEEDED = 9,
  KVT_UNAVAILABLE = 10, /* no daemon now: a miss */
  KVT_IO_ERROR = 11,
  KVT_CORRUPT = 12,
  KVT_TIMEOUT = 13,
  KVT_UNSUPPORTED = 14,
  KVT_CANCELLED = 15,
  KVT_INTERNAL = 16
};

typedef struct kvt_error {
  kvt_status code;
  const char* reason;  /* short and stable, for programs, for example "pool_full" */
  const char* context; /* the particulars, for people; may be empty */
} kvt_error;

/* The error of this thread's last kvt_ call that failed. Never NULL; the strings live until this
 * thread's next failing call. */
KVT_API const kvt_error* kvt_last_error(void);
/* "stale_handle" for KVT_STALE_HANDLE, and so on; never NULL. */
KVT_API const char* kvt_status_name(kvt_status status);
/* "MAJOR.MINOR.PATCH" of the library. */
KVT_API const char* kvt_version(void);
KVT_API void kvt_string_free(char* text);

#define KVT_DEFAULT_TIMEOUT ((int64_t)-1)

/* ---------------------------------------------------------------- words */

/* The content identity of a block: covers its tokens, its parent's hash and the extra keys. */
typedef struct kvt_hash {
  uint8_t bytes[32];
} kvt_hash;

/* A pool block held by this process. `index` is its position in the pool, for block tables; the
 * rest makes a handle kept too long an error. */
typedef struct kvt_block {
  uint32_t index;
  uint32_t generation;
  uint64_t attachment;
} kvt_block;

/* The onloads of one acquire; id 0: nothing had to be loaded. */
typedef struct kvt_load {
  uint64_t id;
  uint64_t attachment;
} kvt_load;

typedef uint8_t kvt_tier;
enum { KVT_TIER_POOL = 0, KVT_TIER_HOST = 1, KVT_TIER_DISK = 2 };

typedef uint8_t kvt_retention;
enum {
  KVT_RETENTION_MEMORY = 0,  /* never touches the disk */
  KVT_RETENTION_EXTENDED = 1 /* persisted */
};

typedef uint8_t kvt_miss; /* why a block asked for was not served */
enum {
  KVT_MISS_NONE = 0,
  KVT_MISS_UNKNOWN = 1, /* never seen, or forgotten */
  KVT_MISS_EXPIRED = 2,
  KVT_MISS_POOL_FULL = 3, /* cached below, but the pool had no free block for it */
  KVT_MISS_HOST_FULL = 4,
  KVT_MISS_READ_ERROR = 5,
  KVT_MISS_CHECKSUM_MISMATCH = 6,
  KVT_MISS_IDENTITY_MISMATCH = 7,
  KVT_MISS_COPY_FAILED = 8,
  KVT_MISS_CANCELLED = 9,
  KVT_MISS_ERASED = 10,                /* erased, or the key that it was encrypted with is gone */
  KVT_MISS_SLOWER_THAN_COMPUTING = 11, /* cached, but computed sooner; see kvtier_hit_plan.h */
  KVT_MISS_AFTER_DEADLINE = 12,        /* cached, but not in time */
  KVT_MISS_DISTRUSTED = 13,            /* engines differ over KV of this tenant and model */
  KVT_MISS_UNAVAILABLE = 255           /* no daemon was asked; only the library says this */
};
/* "checksum_mismatch" for KVT_MISS_CHECKSUM_MISMATCH, and so on; never NULL. */
KVT_API const char* kvt_miss_name(kvt_miss miss);

/* ---------------------------------------------------------------- connection */

typedef struct kvt_connection kvt_connection;
typedef struct kvt_pool kvt_pool;
typedef struct kvt_sequence kvt_sequence; /* see kvtier_sequence.h */

typedef struct kvt_connect_options {
  size_t size;
  const char* client_name;    /* shown by `kvtierctl status`; default: the program's name */
  int64_t connect_timeout_ms; /* for connecting and saying hello; default 2000 */
  int64_t request_timeout_ms; /* for any other reply; default 5000 */
  int64_t reconnect_min_ms;   /* pause after the first failed try; default 50; < 0: never again */
  int64_t reconnect_max_ms;   /* longest pause between tries; default 2000 */
  int32_t wait_for_daemon;    /* nonzero: succeed without a daemon; see kvt_attach. Default 0 */
  int32_t resume_wait_ms;     /* see "Resuming" in kvtier_sequence.h; default 3000, 0: never */
} kvt_connect_options;
KVT_API void kvt_connect_options_init(kvt_connect_options* options);

/* Connects and says hello. An empty path: $KVTIER_SOCKET, else the socket of this user's own daemon
 * (kvtierd --dev), else /run/kvtier/kvtier.sock. `options` may be NULL. Errors: KVT_UNAVAILABLE,
 * KVT_PERMISSION_DENIED, KVT_UNSUPPORTED (no common protocol version), KVT_TIMEOUT. */
KVT_API kvt_status kvt_connect(const char* socket_path, const kvt_connect_options* options,
                               kvt_connection** connection);
/* Closes and frees it; the daemon drops all its references. REQUIRES: its pools are closed. */
KVT_API void kvt_disconnect(kvt_connection* connection);
/* Nonzero while the connection stands, without a round trip: looks whether the daemon hung up. Does
 * not reconnect. Does not say whether blocks are still held: any call, of any thread, may have
 * reconnected since they were acquired. For that: kvt_check_blocks, kvt_sequence_check. */
KVT_API int kvt_is_connected(kvt_connection* connection);
/* One empty round trip. `round_trip_us` may be NULL. */
KVT_API kvt_status kvt_ping(kvt_connection* connection, double* round_trip_us);

typedef struct kvt_stats {
  size_t size;
  /* By all acquires since the daemon started; asked = pool + host + disk + miss + declined. */
  uint64_t blocks_asked;
  uint64_t blocks_pool;
  uint64_t blocks_host;
  uint64_t blocks_disk;
  uint64_t blocks_miss;
  /* Now, over the pools this connection has attached. */
  uint64_t pool_blocks_total;
  uint64_t pool_blocks_free;
  uint64_t pool_blocks_private;
  uint64_t pool_blocks_cached;
  uint64_t session_references;
} kvt_stats; /* one round trip: */
KVT_API kvt_status kvt_get_stats(kvt_connection* connection, kvt_stats* stats);

/* ---------------------------------------------------------------- model and pool */

typedef uint8_t kvt_model_dtype;
enum {
  KVT_DTYPE_FLOAT32 = 1,
  KVT_DTYPE_FLOAT16 = 2,
  KVT_DTYPE_BFLOAT16 = 3,
  KVT_DTYPE_FLOAT8_E4M3 = 4,
  KVT_DTYPE_FLOAT8_E5M2 = 5,
  KVT_DTYPE_INT8 = 6
};
/* Order of dimensions in the pool. */
typedef uint8_t kvt_layout_kind;
enum {
  KVT_LAYOUT_BLOCK_FIRST = 1, /* [block][layer][K,V][token][head][dim] */
  KVT_LAYOUT_INTERLEAVED = 2  /* [block][layer][token][head][K dim, V dim]; has K and V */
};
typedef struct kvt_key_value {
  const char* key;
  const char* value;
} kvt_key_value;
/* Which blocks of its group a prefix needs. */
typedef uint8_t kvt_hit_rule;
enum {
  KVT_HIT_ALL = 1,      /* every block: full attention, indexers */
  KVT_HIT_TRAILING = 2, /* those with any of the last `window_tokens` tokens: sliding windows */
  KVT_HIT_STATE = 3     /* the one that ends where the prefix ends: Mamba, linear attention */
};

/* A group of a model's layers, whose blocks have a geometry and a pool of their own. An opaque
 * group has `layer_bytes` in place of heads and head sizes: only the engine knows the meaning of
 * the bytes. A group of states is opaque, and its block_tokens say how far apart states are. */
typedef struct kvt_kv_group {
  uint32_t layers;
  uint32_t kv_heads; /* stored by this tensor-parallel rank */
  uint32_t k_head_dim;
  uint32_t v_head_dim;  /* 0: one tensor, no values beside the keys, as in a latent (MLA) cache */
  uint32_t scale_bytes; /* of quantization scales stored inline, per token and KV head */
  uint32_t block_tokens;
  uint32_t window_tokens; /* KVT_HIT_TRAILING: how many tokens before its end a prefix needs */
  kvt_hit_rule hit_rule;
  kvt_model_dtype dtype;
  kvt_layout_kind layout;
  uint8_t replicated;   /* 1: every tensor-parallel rank holds the same bytes; stored once */
  uint64_t layer_bytes; /* of one layer of a block of an opaque group; 0: the dimensions say it */
  uint64_t reserved[2];
} kvt_kv_group;

enum { KVT_MAX_GROUPS = 16 };

/* KV geometries with their identity: blocks of models that differ in any field never meet. */
typedef struct kvt_model_record {
  size_t size;
  const char* name;     /* required */
  const char* revision; /* of the weights; NULL: empty */
  /* How its blocks are hashed, NAME/VERSION: one of KVT_HASH_*, by which sequences hash then, or
   * any other for hashes of the caller's own. NULL: KVT_HASH_VLLM_2. */
  const char* hash_recipe;
  uint32_t tensor_parallel_rank;
  uint32_t tensor_parallel_size;
  kvt_kv_group groups[KVT_MAX_GROUPS];
  size_t group_count;         /* of them in use; most models have 1 */
  const kvt_key_value* extra; /* all else that changes the bytes (rope, ...); unique keys */
  size_t extra_count;
} kvt_model_record;
/* Sets `size`, tensor_parallel_size 1, group_count 1, and each group to hit rule KVT_HIT_ALL,
 * block_tokens 16, bfloat16, block-first; the rest 0. */
KVT_API void kvt_model_record_init(kvt_model_record* record);

/* Byte strides in the pool of a group. Inline scales follow a layer's keys and values as
 * [token][head][scale]. An opaque group has only strides of blocks and layers; the others are 0. */
typedef struct kvt_layout {
  size_t size;
  uint64_t element_bytes;
  uint64_t block_stride; /* the bytes of one block */
  uint64_t layer_stride;
  uint64_t v_offset; /* from a layer's K to its V */
  uint64_t k_token_stride;
  uint64_t k_head_stride;
  uint64_t v_token_stride;
  uint64_t v_head_stride;
} kvt_layout;
/* Pure; any thread. Errors: KVT_INVALID_ARGUMENT naming the field. */
KVT_API kvt_status kvt_layout_of(const kvt_model_record* record, uint32_t group,
                                 kvt_layout* layout);

typedef struct kvt_model_info {
  size_t size;
  uint32_t model;       /* names the model on this connection, also after reconnecting */
  uint64_t block_bytes; /* of one block of group 0 */
  kvt_hash fingerprint; /* SHA-256 of the canonical record */
} kvt_model_info;

/* Errors: KVT_INVALID_ARGUMENT naming the field, KVT_LIMIT_EXCEEDED. */
KVT_API kvt_status kvt_register_model(kvt_connection* connection, const kvt_model_record* record,
                                      kvt_model_info* info);

typedef uint8_t kvt_device_kind;
enum { KVT_DEVICE_HOST = 0, KVT_DEVICE_CUDA = 1 };

/* A device on which the daemon keeps pools. */
typedef struct kvt_device {
  uint8_t uuid[16];    /* a GPU's as CUDA tells it, the same in every process; zeros: host memory */
  uint64_t pool_bytes; /* at most, for all its pools */
  char name[72];       /* for people */
  kvt_device_kind kind;
  uint8_t reserved[7];
} kvt_device;
enum { KVT_MAX_DEVICES = 16 };
/* One round trip. Writes the first `capacity` of the daemon's devices and the number of all.
 * kvt_attach calls them by their position. `devices` may be NULL with capacity 0. */
KVT_API kvt_status kvt_get_devices(kvt_connection* connection, kvt_device* devices, size_t capacity,
                                   size_t* count);

/* As `device` of kvt_attach: the only one that the daemon has; of several, the GPU of the CUDA
 * context that is current on this thread, or the only one that this process may see. It is told by
 * its UUID, so it does not matter how CUDA_VISIBLE_DEVICES numbers it. Reattaching after a lost
 * connection finds the same device, also of a position, wherever a restarted daemon lists it. */
#define KVT_ANY_DEVICE UINT32_MAX

/* Attaches to the pool of (device, this user's tenant, model, group) and maps it for reading and
 * writing. Pools of one model on several devices share the tiers below them. `group` is a position
 * in the record's groups. The pool is created on first use with `pool_bytes`; 0 leaves the size to
 * the daemon, which shares the rest among the groups that have no pool yet. Two attaches to one
 * model give two mappings of one pool. With wait_for_daemon and no daemon, calls are
 * KVT_UNAVAILABLE (misses) until one finds a daemon. Free with kvt_pool_close. Errors:
 * KVT_RESOURCE_EXHAUSTED, KVT_INVALID_ARGUMENT, KVT_NOT_FOUND (model; "unknown_device";
 * "device_not_served": no pools on this GPU; "device_ambiguous": several, none is current here). */
KVT_API kvt_status kvt_attach(kvt_connection* connection, uint32_t model, uint32_t group,
                              uint32_t device, uint64_t pool_bytes, kvt_pool** pool);
/* Unmaps the pool, old mappings included. The last of a connection's that are attached to one pool
 * also gives back its blocks: references are dropped, blocks that were not committed are free for
 * others at once. REQUIRES: no thread and no kernel of the process uses the memory, by whatever
 * mapping; the pool's sequences and workspaces are closed. Waits for no answer. */
KVT_API void kvt_pool_close(kvt_pool* pool);

typedef struct kvt_pool_info {
  size_t size;
  void* base; /* block i starts at base + i * block_bytes; NULL unless device_kind is host */
  uint64_t bytes;
  uint64_t block_bytes;
  uint32_t blocks;
  uint32_t block_tokens;
  uint64_t generation; /* of the pool: differs between any two pools ever created on this host */
  uint64_t attachment; /* of this process to it: changes with blocks held before being lost */
  int32_t fd;          /* of the pool's memory, to import it on a device; owned by `pool` */
  uint32_t model;
  uint32_t group;
  kvt_device_kind device_kind;
} kvt_pool_info;

/* The current attachment. Without a daemon: the last one. `base` changes only with `generation`. */
KVT_API kvt_status kvt_pool_get_info(kvt_pool* pool, kvt_pool_info* info);
/* The bytes of one block: the model's, known before a daemon has been there. */
KVT_API uint64_t kvt_pool_block_bytes(const kvt_pool* pool);
/* Where a block's bytes are, also for handles of earlier attachments while their mapping stands.
 * Errors: KVT_STALE_HANDLE, KVT_INVALID_ARGUMENT (index outside the pool), KVT_UNSUPPORTED (not
 * host memory; see kvt_pool_map_device, kvt_pool_read). */
KVT_API kvt_status kvt_pool_block_address(kvt_pool* pool, kvt_block block, void** address);
/* Unmaps the pools of earlier generations. REQUIRES: no pointer into them is in use. */
KVT_API void kvt_pool_drop_stale_mappings(kvt_pool* pool);

typedef struct kvt_device_mapping {
  size_t size;
  uint64_t base; /* CUDA address of block 0 in this process; block i is i * block_bytes further */
  uint64_t bytes;
  uint64_t generation; /* of the pool, as in kvt_pool_info */
  int32_t ordinal;     /* of the GPU, as this process numbers them */
} kvt_device_mapping;

/* Maps a CUDA pool for kernels of this process: imports it on the first call after an attachment to
 * new memory, making its GPU's primary context if there is none yet; later calls only tell. The
 * mapping stands, also after the daemon has died, until the pool is closed or unmapped.
 * Errors: KVT_UNSUPPORTED (host memory; no driver; built without CUDA), KVT_IO_ERROR. */
KVT_API kvt_status kvt_pool_map_device(kvt_pool* pool, kvt_device_mapping* mapping);
/* Gives a CUDA pool's memory back, of all generations: until then, no restarted daemon can have it.
 * The next attachment to new memory can be mapped again. REQUIRES: no kernel or copy uses it. */
KVT_API void kvt_pool_unmap_device(kvt_pool* pool);

/* Copies between a part of a block and the caller's memory, whatever the device, and waits for it:
 * for tools and checks, not for the hot path. Errors: KVT_STALE_HANDLE, KVT_INVALID_ARGUMENT
 * (outside the pool or the block), and those of kvt_pool_map_device. */
KVT_API kvt_status kvt_pool_read(kvt_pool* pool, kvt_block block, uint64_t offset, void* data,
                                 size_t bytes);
KVT_API kvt_status kvt_pool_write(kvt_pool* pool, kvt_block block, uint64_t offset,
                                  const void* data, size_t bytes);

/* ---------------------------------------------------------------- blocks */

/* In which order blocks come from host memory to the pool. */
typedef uint8_t kvt_load_order;
enum {
  KVT_LOAD_BLOCKS = 0, /* block by block: a prefix of the hits becomes usable */
  KVT_LOAD_LAYERS = 1  /* layer 0 of all blocks, then layer 1: an engine can start with the first */
};

typedef struct kvt_acquire_request {
  size_t size;
  const kvt_hash* hashes; /* of the sequence's full blocks, from block 0 */
  size_t hash_count;
  const kvt_hash* partial_blocks; /* that would do after all of `hashes`, the longest first */
  size_t partial_count;
  uint32_t new_blocks; /* private blocks to allocate: all of them or the call fails */
  uint32_t reserved;
  /* Default KVT_LOAD_BLOCKS. Blocks from disk come whole, and no layer is complete before. */
  kvt_load_order load_order;
  uint8_t reserved_2[7];
} kvt_acquire_request;

typedef struct kvt_acquired_block {
  kvt_block block;
  uint16_t tokens;
  kvt_tier tier; /* where it was found; KVT_TIER_POOL: usable now, else once the load reached it */
  uint8_t reserved[5];
} kvt_acquired_block;

#define KVT_NO_PARTIAL_BLOCK UINT32_MAX

typedef struct kvt_acquire_reply {
  size_t size;
  kvt_acquired_block* hits;  /* in: an array of hash_count blocks, one more for partial ones */
  size_t hits_capacity;      /* in */
  kvt_block* new_blocks;     /* in: an array of new_blocks blocks */
  size_t new_block_capacity; /* in */
  size_t hit_count;          /* the longest cached prefix, each block referenced once */
  size_t new_block_count;    /* new_blocks */
  uint32_t partial_block;    /* of partial_blocks, the last of `hits`, or KVT_NO_PARTIAL_BLOCK */
  kvt_load load;             /* for kvt_wait; id 0: all hits are usable now */
  uint32_t first_hit;        /* which of `hashes` is the first of `hits`: not 0 only where a prefix
                                needs the last blocks alone */
  kvt_miss miss;             /* why the block after `hits` was not served, or KVT_MISS_NONE */
} kvt_acquire_reply;

/* References the longest cached prefix over all tiers, starts what must be loaded, and allocates
 * private blocks. Exactly one round trip. On failure nothing is held and the counts are 0. Errors:
 * KVT_UNAVAILABLE (miss is then KVT_MISS_UNAVAILABLE), KVT_RESOURCE_EXHAUSTED "pool_full",
 * KVT_LIMIT_EXCEEDED, KVT_TIMEOUT (the library releases all that the daemon still grants). */
KVT_API kvt_status kvt_acquire(kvt_pool* pool, const kvt_acquire_request* request,
                               kvt_acquire_reply* reply);

typedef struct kvt_load_progress {
  size_t size;
  uint32_t ready;   /* the first `ready` hits are usable */
  int32_t finished; /* nothing follows; hits from `ready` on could not be loaded: their bytes are
                       not the block's, and they are to be released like the others */
  kvt_miss miss;    /* why the first of those could not */
  uint8_t reserved[3];
  uint32_t layers; /* of a load in layers: the first so many layers of all hits are usable;
                      KVT_ALL_LAYERS when all hits are, whatever the order */
} kvt_load_progress;
#define KVT_ALL_LAYERS UINT32_MAX

#define KVT_FINISHED_LOADS_KEPT 4096

/* Waits until the first `up_to` hits of the acquire are usable or its load has finished: `progress`
 * tells. May be called any number of times; of finished loads the latest KVT_FINISHED_LOADS_KEPT
 * are known, and load 0, with `ready` UINT32_MAX. Errors: KVT_TIMEOUT (progress is filled in),
 * KVT_NOT_FOUND, KVT_STALE_HANDLE and KVT_UNAVAILABLE (the connection it belongs to is gone, and
 * the blocks are of no use: release them, as some may be held still). */
KVT_API kvt_status kvt_wait(kvt_pool* pool, kvt_load load, uint32_t up_to, int64_t timeout_ms,
                            kvt_load_progress* progress);
/* The same until the first `layers` layers of all hits are usable. A load by blocks has them when
 * it is complete. After a failure no layer counts as usable: `ready` says which hits still are. */
KVT_API kvt_status kvt_wait_layers(kvt_pool* pool, kvt_load load, uint32_t layers,
                                   int64_t timeout_ms, kvt_load_progress* progress);
/* Work given to `stream` after this call starts when the first `up_to` hits (of a load in layers:
 * the first `up_to` layers of all hits) are usable, without the host: the stream waits for a
 * counter that the daemon's copies set. It goes on, too, when the load fails, the daemon dies or
 * the connection is closed: once the stream has passed, kvt_wait (kvt_wait_layers) for the same
 * `up_to` tells, usually without waiting, whether its results count; if it does not say so, throw
 * them away. `stream` is a cudaStream_t or CUstream of the pool's GPU, NULL the default one. Where
 * the load is not counted (the session has more loads at once than counters) the call itself waits,
 * at most for the connection's `request_timeout_ms`. A thread of the library watches the connection
 * from the first call on. Errors: KVT_UNSUPPORTED (not CUDA memory), KVT_IO_ERROR, those of
 * kvt_wait. */
KVT_API kvt_status kvt_wait_on_stream(kvt_pool* pool, kvt_load load, uint32_t up_to, void* stream);

typedef struct kvt_commit_entry {
  kvt_block block; /* private, filled, and not written again */
  kvt_hash hash;
  kvt_hash parent; /* of the block before this one, if has_parent */
  uint32_t depth;  /* position in the sequence, 0 for the first block */
  uint16_t tokens;
  kvt_retention retention;
  uint8_t has_parent;
  uint8_t has_checksum;
  uint8_t reserved[7];
  uint8_t checksum[16]; /* canonical xxh3-128 of the block's bytes, if has_checksum */
} kvt_commit_entry;

/* Publishes blocks. With `results` NULL the call only sends: errors come by kvt_take_errors. Else
 * it waits and fills results[0..count): KVT_OK, KVT_ALREADY_EXISTS (the hash was there: the first
 * is kept, this block stays the caller's private one) or the entry's error; the call itself then
 * returns KVT_OK, and kvt_last_error tells of the first entry that failed. Blocks on a device must
 * have been written completely. Errors: KVT_UNAVAILABLE, KVT_STALE_HANDLE (a handle of an earlier
 * attachment: nothing is sent), KVT_LIMIT_EXCEEDED. */
KVT_API kvt_status kvt_commit(kvt_pool* pool, const kvt_commit_entry* entries, size_t count,
                              kvt_status* results);
/* Gives back one reference, or the private block, per handle; pass a sequence's blocks in their
 * order. `results` as for kvt_commit. Handles of earlier attachments are already released: they are
 * skipped, with KVT_STALE_HANDLE in `results`. */
KVT_API kvt_status kvt_release(kvt_pool* pool, const kvt_block* blocks, size_t count,
                               kvt_status* results);
/* Waits until the daemon has done all that was sent before. KVT_UNAVAILABLE: the connection was
 * lost since the last flush, and what had been sent may be lost with it; never reconnects. */
KVT_API kvt_status kvt_flush(kvt_connection* connection);

/* An error of a commit or release that was only sent, or why a later daemon refused a pool. */
typedef struct kvt_async_error {
  kvt_block block; /* the handle it is about; attachment 0 if it concerns the whole call */
  kvt_status code;
  char reason[44];
} kvt_async_error;

/* Takes up to `capacity` collected errors, oldest first, and returns how many. The library keeps
 * the latest 1024; `*dropped` (may be NULL) is set to how many were lost since the last call. */
KVT_API size_t kvt_take_errors(kvt_connection* connection, kvt_async_error* errors, size_t capacity,
                               uint64_t* dropped);

enum {
  KVT_PRESENT_POOL = 1,
  KVT_PRESENT_HOST = 2,
  KVT_PRESENT_DISK = 4,            /* durably */
  KVT_PRESENT_COLD = 8,            /* it alone */
  KVT_PRESENT_DISK_UNVERIFIED = 16 /* as a rebuilt index knows it: a load reads and checks it */
};
/* Fills presence[0..count) with the tiers that have each block. */
KVT_API kvt_status kvt_lookup(kvt_pool* pool, const kvt_hash* hashes, size_t count,
                              uint8_t* presence);

/* ---------------------------------------------------------------- hashing */

/* A multimodal item (image, audio) that takes the place of tokens. */
typedef struct kvt_multimodal_item {
  const char* content_hash; /* hexadecimal or any other stable text */
  uint64_t offset_tokens;   /* where its first placeholder token is in the sequence */
  uint64_t length_tokens;
} kvt_multimodal_item;

/* Recipes of block hashes: names of kvt_model_record.hash_recipe and kvt_hash_options.recipe. */
#define KVT_HASH_VLLM_1 "vllm-sha256-cbor/1" /* vLLM up to 0.30, keys as bare values */
#define KVT_HASH_VLLM_2 "vllm-sha256-cbor/2" /* vLLM from 0.31 on, each key with its kind */
#define KVT_HASH_SGLANG_1 "sglang/1"         /* SGLang's storage hashes */

/* Values that a prompt's hashes cover beside its tokens. A text that is NULL is absent; vLLM takes
 * an empty one for absent, too. A recipe refuses values it does not hash; /1 skips lora_path. */
typedef struct kvt_prompt_identity {
  size_t size;
  const char* seed;                 /* vLLM's, of the first parent; NULL: "vllm-none-hash" */
  const char* lora;                 /* vLLM's: adapter name, part of every block's hash */
  const char* lora_path;            /* vLLM's: hashed with the name by KVT_HASH_VLLM_2 */
  const char* cache_salt;           /* part of the first block's hash */
  const char* extra_key;            /* SGLang's */
  const kvt_multimodal_item* items; /* vLLM's, in the order of their offsets */
  size_t item_count;
  const kvt_hash* prompt_embeds; /* vLLM's: SHA-256 of each block's prompt embeddings; of
                                    kvt_hash_blocks only, as many as there are hashes */
  size_t prompt_embed_count;
} kvt_prompt_identity;
KVT_API void kvt_prompt_identity_init(kvt_prompt_identity* identity);

typedef struct kvt_hash_options {
  size_t size;
  const char* recipe;                  /* NULL: KVT_HASH_VLLM_2 */
  const kvt_prompt_identity* identity; /* NULL: tokens alone */
  uint32_t block_tokens;               /* default 16 */
  uint32_t lookahead_tokens;           /* vLLM's num_hash_lookahead_tokens; default 0 */
} kvt_hash_options;
KVT_API void kvt_hash_options_init(kvt_hash_options* options);

/* Hashes tokens: one hash per full block and, if tokens remain, one for the partial block of the
 * rest; with lookahead_tokens only the full blocks that so many tokens follow. Writes their number
 * to `*count`. (token_count + block_tokens - 1) / block_tokens is always enough capacity. Pure; any
 * thread. Errors: KVT_INVALID_ARGUMENT. */
KVT_API kvt_status kvt_hash_blocks(const kvt_hash_options* options, const uint32_t* tokens,
                                   size_t token_count, kvt_hash* hashes, size_t capacity,
                                   size_t* count);

/* ---------------------------------------------------------------- administration */

/* Called with the text of each progress message, on the calling thread. */
typedef void (*kvt_admin_progress)(void* user, const char* json);

/* Sends one request to the admin socket (an empty path: admin.sock beside the socket that
 * kvt_connect finds), waits up to `timeout_ms` after the last message from the daemon, and returns
 * refusals with their code. `progress` may be NULL. Free with kvt_string_free. Any thread. */
KVT_API kvt_status kvt_admin(const char* admin_socket_path, const char* request_json,
                             int64_t timeout_ms, kvt_admin_progress progress, void* user,
                             char** reply_json);

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "kvtier_attention.h"
#include "kvtier_groups.h"
#include "kvtier_hints.h"
#include "kvtier_hit_plan.h"
#include "kvtier_kept_memory.h"
#include "kvtier_region.h"
#include "kvtier_sequence.h"
#include "kvtier_tokens.h"

#endif /* KVTIER_CLIENT_KVTIER_H_ */
