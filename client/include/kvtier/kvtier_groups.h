/* SPDX-License-Identifier: Apache-2.0
 * Models whose layers form several groups: acquires and lookups of all groups at once, and of all
 * tensor-parallel ranks.
 *
 * A prefix can be restored when every group has the blocks of it that its hit rule needs. Its
 * length is a multiple of every group's block_tokens.
 */
#ifndef KVTIER_KVTIER_GROUPS_H_
#define KVTIER_KVTIER_GROUPS_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kvt_acquire for `count` groups of one model: the longest prefix that all groups can restore, and
 * of each group the blocks that it needs, or no hits at all. `pools[i]` is the pool of the group
 * that `requests[i]` and `replies[i]` are about, attached over one connection. Where any hashes are
 * given, all groups of the model must be named; groups may then differ in how many of the
 * sequence's blocks they give, and have no partial blocks. The first request's load_order holds for
 * all. replies[i].first_hit tells which of a group's hashes its hits begin with; each group has a
 * load of its own, and a failed block in one makes the prefix useless in all. Errors: as
 * kvt_acquire; KVT_INVALID_ARGUMENT "group_missing", "group_twice", "other_model". */
KVT_API kvt_status kvt_acquire_groups(kvt_pool* const* pools, const kvt_acquire_request* requests,
                                      size_t count, kvt_acquire_reply* replies);

typedef struct kvt_lookup_group {
  kvt_pool* pool;
  const kvt_hash* hashes; /* of the sequence's full blocks, from block 0 */
  size_t hash_count;
  uint8_t* presence; /* out: KVT_PRESENT_* of each hash; NULL: not wanted */
} kvt_lookup_group;

typedef uint8_t kvt_lookup_flags;
enum {
  /* Looks up the blocks that every tensor-parallel rank of the model has: one rank asks for all.
   * The answer for each block is the fastest tier of the rank that is worst off, or 0 if some rank
   * lacks it. The ranks are the models whose records differ only in the rank. */
  KVT_LOOKUP_ALL_RANKS = 1,
  KVT_LOOKUP_EVERY_PREFIX = 2 /* else only the longest */
};

/* Writes the lengths in tokens of the prefixes that can be restored, the longest first, at most
 * `capacity` of them, and how many there are. Holds nothing: a block may be gone by the time of the
 * acquire. All groups of the model must be named. Errors: as kvt_acquire_groups. */
KVT_API kvt_status kvt_lookup_groups(const kvt_lookup_group* groups, size_t count,
                                     kvt_lookup_flags flags, uint64_t* prefixes, size_t capacity,
                                     size_t* prefix_count);

#ifdef __cplusplus
}
#endif
#endif
