// SPDX-License-Identifier: Apache-2.0
// The measurements of kvtier-codec-bench: what the code of bf16_codec.h saves, what it takes, and
// what a disk tier would gain by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvtier {

// Blocks of KV, one after the other.
struct KvBlocks {
  std::vector<std::byte> bytes;
  size_t block_bytes = 0;

  [[nodiscard]] size_t blocks() const { return bytes.size() / block_bytes; }
  [[nodiscard]] std::span<const std::byte> block(size_t i) const {
    return std::span(bytes).subspan(i * block_bytes, block_bytes);
  }
};

// Whole blocks of `block_bytes` of what the file holds, again and again until there are `bytes`.
// Errors: kIoError; kInvalidArgument if the file has no whole group of elements.
[[nodiscard]] Result<KvBlocks> ReadKv(const std::string& path, size_t block_bytes, size_t bytes);

// What the blocks take when encoded, and what of slots that are smaller than raw ones they fit.
struct CodecSizes {
  double mean = 0;  // encoded / raw
  double median = 0;
  double worst = 0;
  struct Slot {
    uint64_t slot_bytes = 0;  // header included, a multiple of 4 KiB
    double of_raw_slot = 0;
    double fit = 0;  // share of the blocks
  };
  std::vector<Slot> slots;
};
[[nodiscard]] CodecSizes MeasureSizes(const KvBlocks& blocks);

// One thread over blocks that are in no cache, 10^9 bytes of raw payload for each second of its
// processor time.
struct CodecSpeed {
  double encode = 0;
  double decode = 0;
  double decode_checksum = 0;  // the checksum while the segment is in the cache
  double checksum = 0;         // xxh3-128 alone, as reads are checked today
  double copy = 0;             // memcpy
};
// One row for each level that the machine has, scalar first.
[[nodiscard]] std::vector<CodecSpeed> MeasureSpeed(const KvBlocks& blocks, uint32_t repetitions);

// Reads of a disk to a pool in host memory: by io_uring to slots, checked by `workers` threads, and
// copied from there, unless the copy is a device's own.
struct DiskToPoolWork {
  std::string path;  // of a file to be made and removed, on the disk to be measured
  uint32_t workers = 1;
  bool copy = true;
  uint64_t queue_bytes = 0;   // under way at once
  uint64_t memory_bytes = 0;  // of host slots
  uint32_t repetitions = 5;
};
struct DiskToPoolRate {
  double gbps = 0;      // of raw payload
  double cpu_s = 0;     // processor time of this process for each GB of it
  double raw_gbps = 0;  // of a bare reader of the same slots, of what lies in them
};
// Rows of raw slots and of encoded ones, in turns.
struct DiskToPoolRates {
  std::vector<DiskToPoolRate> raw;
  std::vector<DiskToPoolRate> encoded;
};
[[nodiscard]] Result<DiskToPoolRates> MeasureDiskToPool(const KvBlocks& blocks,
                                                        const DiskToPoolWork& work);

}  // namespace kvtier
