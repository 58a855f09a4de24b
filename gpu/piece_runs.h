// SPDX-License-Identifier: Apache-2.0
// Finds the pieces of a chunk that one strided copy can move: equally long, and equally far apart
// on both sides, as the parts of a block are whose layers are tensors of their own.
//
// A GPU's copy engine takes a strided copy as one command, so that small parts cost it little more
// than the bytes: as copies of their own, 2 KiB each, they reach 2 % of the bus of an H200.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/copy_queue.h"

namespace kvtier {

// `pieces` pieces of `bytes` each; piece i lies at `pool` + i * `pool_stride` and at
// `host` + i * `host_stride`. A single piece has the strides 0. Nothing in a run overlaps.
struct PieceRun {
  std::byte* pool = nullptr;
  std::byte* host = nullptr;
  uint64_t bytes = 0;
  uint64_t pieces = 0;
  uint64_t pool_stride = 0;
  uint64_t host_stride = 0;

  // The bytes from the first to the last, gaps included.
  [[nodiscard]] uint64_t HostSpan() const { return (pieces - 1) * host_stride + bytes; }
};

// CUDA refuses rows that lie further apart (its limit is 2^31 - 1).
inline constexpr uint64_t kMaxRunStride = (uint64_t{1} << 31) - 1;

// From this size on pieces fill the bus as copies of their own, which are cut where the queue
// likes.
inline constexpr uint64_t kMaxRunPieceBytes = 32 * kKiB;

// The longest run at the front of `pieces`, which are not empty and have addresses. Runs of fewer
// than four pieces gain nothing: such pieces are returned one by one.
[[nodiscard]] PieceRun FirstRun(std::span<const CopyPiece> pieces);

}  // namespace kvtier
