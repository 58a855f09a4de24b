// SPDX-License-Identifier: Apache-2.0
// Messages about kept memory: memory of an engine whose descriptor the daemon holds, so that it
// outlives the engine's process and the next one takes it over as it is. messages.h has the rules
// common to all, docs/PROTOCOL.md says what becomes of memory without an owner.
//
// The daemon does not map the memory for this. It reads the table only where a region says that it
// lies in the memory (OpenRegion::kept).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "protocol/limits.h"
#include "protocol/message_type.h"
#include "protocol/region_messages.h"

namespace kvtier::wire {

// Hands the daemon two descriptors, which travel with this frame's first byte (SCM_RIGHTS): the
// memory's, then its table's. The session's process becomes the owner; memory that was kept under
// the name and had no owner, or this one, is given back.
struct KeepMemory {
  static constexpr MessageType kType = MessageType::kKeepMemory;
  KeptMemoryName name{};
  uint32_t device = 0;  // of kVmm: its position in DevicesReply
  // kSharedMemory or kVmm: Decode says "bad_enum" to another one.
  RegionMemory memory = RegionMemory::kSharedMemory;
  // 1 to kMaxKeptMemoryBytes: Decode says "bad_memory_size".
  uint64_t bytes = 0;
  uint64_t table_bytes = 0;
};

struct KeepMemoryReply {
  static constexpr MessageType kType = MessageType::kKeepMemoryReply;
};

// Asks for the memory that is kept under a name. With `table_only` for the table alone, which
// changes no owner; otherwise the session's process becomes the owner of the memory.
struct TakeMemory {
  static constexpr MessageType kType = MessageType::kTakeMemory;
  KeptMemoryName name{};
  bool table_only = false;
};

// If something was found, descriptors travel with this frame's first byte: the memory's, then the
// table's; of a request with `table_only` the table's alone, and `bytes` is 0.
struct TakeMemoryReply {
  static constexpr MessageType kType = MessageType::kTakeMemoryReply;
  bool found = false;
  RegionMemory memory = RegionMemory::kSharedMemory;  // as of KeepMemory
  uint32_t device = 0;
  uint64_t bytes = 0;
  uint64_t table_bytes = 0;

  // How many descriptors come along.
  [[nodiscard]] uint32_t descriptors() const { return !found ? 0 : bytes == 0 ? 1 : 2; }
};

// Gives memory back: the memory kept under `name`, unless another process that lives owns it;
// without a name all of the tenant that has no owner, on `device` or anywhere.
struct ReleaseMemory {
  static constexpr MessageType kType = MessageType::kReleaseMemory;
  static constexpr uint32_t kAnyDevice = UINT32_MAX;
  uint32_t device = kAnyDevice;  // with a name not looked at
  std::optional<KeptMemoryName> name;
};

struct ReleaseMemoryReply {
  static constexpr MessageType kType = MessageType::kReleaseMemoryReply;
  uint32_t released = 0;
  uint64_t released_bytes = 0;  // of the memory, without tables
};

}  // namespace kvtier::wire
