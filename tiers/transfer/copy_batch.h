// SPDX-License-Identifier: Apache-2.0
// How much of what waits to be copied goes to a device in one request.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace kvtier {

// Large enough that a request's overhead vanishes, small enough that blocks arrive, or become
// clean, one after the other.
inline constexpr uint64_t kCopyBatchBytes = 4 * kMiB;
// However small the pieces are: gathering a request holds the event loop.
inline constexpr size_t kCopyBatchPieces = 4096;
// Likewise of all requests of one kind under way.
inline constexpr uint64_t kCopyPiecesInFlight = 8 * kCopyBatchPieces;

}  // namespace kvtier
