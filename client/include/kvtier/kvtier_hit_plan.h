/* SPDX-License-Identifier: Apache-2.0
 * Which hits are worth loading. A block on a slow disk may take longer to load than to compute. The
 * daemon knows what loading takes at present, the engine what computing takes; told the latter, the
 * daemon leaves out of a prefix what would be ready sooner if it were computed. Without that, or
 * with KVT_PLAN_ALL, every hit is served.
 *
 * A sequence is opened with a plan, see kvt_sequence_options.
 */
#ifndef KVTIER_KVTIER_HIT_PLAN_H_
#define KVTIER_KVTIER_HIT_PLAN_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* To compute n tokens behind m that are there takes
 * per_token_us * n + per_pair_us * n * (m + n / 2) + fixed_us. */
typedef struct kvt_compute_cost {
  size_t size;
  double per_token_us; /* each from 0 to 1e9; all 0: not known */
  double per_pair_us;
  double fixed_us;
} kvt_compute_cost;

/* The computing costs of the pool's model on this engine; for all sequences that are opened later.
 * No round trip. Errors: KVT_INVALID_ARGUMENT "bad_cost". */
KVT_API kvt_status kvt_pool_set_compute_cost(kvt_pool* pool, const kvt_compute_cost* cost);

#ifdef __cplusplus
}
#endif
#endif
