// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace kvtier {

// Plays several clients of one or two tenants against the daemon's own sessions and cache, with an
// administrator, failing devices and a clock that jumps, all as `input` says: the same bytes play
// the same game. Aborts if the daemon would, if an invariant of the cache is broken after any step,
// or if in the end, with every client gone, something is still held or under way.
void PlayHostileSessions(std::span<const uint8_t> input);

}  // namespace kvtier
