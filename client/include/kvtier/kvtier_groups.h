/* SPDX-License-Identifier: Apache-2.0
 * Models whose layers form several groups: acquires of all groups at once.
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

#ifdef __cplusplus
}
#endif
#endif
