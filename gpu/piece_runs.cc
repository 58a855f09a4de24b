// SPDX-License-Identifier: Apache-2.0
#include "gpu/piece_runs.h"

#include "base/result.h"

namespace kvtier {
namespace {

constexpr size_t kFewestPieces = 4;

// The step from one piece to the next on one side; 0 if it is none that a strided copy may have:
// rows follow each other upwards and do not overlap. The addresses are compared as numbers, since
// pieces may lie in different allocations, between whose pointers there is no difference.
uint64_t Stride(const std::byte* from, const std::byte* to, uint64_t bytes) {
  const uint64_t stride = reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
  return to > from && stride >= bytes && stride <= kMaxRunStride ? stride : 0;
}

// How many pieces at the front lie as far apart as the first two.
size_t LengthOf(std::span<const CopyPiece> pieces, uint64_t pool_stride, uint64_t host_stride) {
  const uint64_t bytes = pieces.front().bytes;
  size_t length = 1;
  while (length < pieces.size()) {
    const CopyPiece& last = pieces[length - 1];
    const CopyPiece& next = pieces[length];
    if (next.bytes != bytes || Stride(last.pool, next.pool, bytes) != pool_stride ||
        Stride(last.host, next.host, bytes) != host_stride) {
      break;
    }
    ++length;
  }
  return length;
}

}  // namespace

PieceRun FirstRun(std::span<const CopyPiece> pieces) {
  KVT_CHECK(!pieces.empty());
  const CopyPiece& first = pieces.front();
  const PieceRun alone{.pool = first.pool, .host = first.host, .bytes = first.bytes, .pieces = 1};
  if (pieces.size() < kFewestPieces || first.bytes > kMaxRunPieceBytes) return alone;
  const uint64_t pool_stride = Stride(first.pool, pieces[1].pool, first.bytes);
  const uint64_t host_stride = Stride(first.host, pieces[1].host, first.bytes);
  if (pool_stride == 0 || host_stride == 0) return alone;
  const size_t length = LengthOf(pieces, pool_stride, host_stride);
  if (length < kFewestPieces) return alone;
  PieceRun run = alone;
  run.pieces = length;
  run.pool_stride = pool_stride;
  run.host_stride = host_stride;
  return run;
}

}  // namespace kvtier
