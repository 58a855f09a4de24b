// SPDX-License-Identifier: Apache-2.0
#include "protocol/kept_memory_messages.h"

#include "protocol/message_codec.h"

namespace kvtier::wire {

void Fields(auto& io, Like<KeepMemory> auto& m) {
  io.Bytes(m.name);
  io.Number(m.device);
  io.OneOf(m.memory, RegionMemory::kSharedMemory, RegionMemory::kVmm);
  io.Number(m.bytes);
  io.Number(m.table_bytes);
  for (const uint64_t bytes : {m.bytes, m.table_bytes}) {
    io.Check(bytes > 0 && bytes <= kMaxKeptMemoryBytes, "bad_memory_size", bytes);
  }
}
KVT_DEFINE_MESSAGE(KeepMemory);

void Fields(auto& /*io*/, Like<KeepMemoryReply> auto& /*m*/) {}
KVT_DEFINE_MESSAGE(KeepMemoryReply);

void Fields(auto& io, Like<TakeMemory> auto& m) {
  io.Bytes(m.name);
  io.Bool(m.table_only);
}
KVT_DEFINE_MESSAGE(TakeMemory);

void Fields(auto& io, Like<TakeMemoryReply> auto& m) {
  io.Bool(m.found);
  io.OneOf(m.memory, RegionMemory::kSharedMemory, RegionMemory::kVmm);
  io.Number(m.device);
  io.Number(m.bytes);
  io.Number(m.table_bytes);
}
KVT_DEFINE_MESSAGE(TakeMemoryReply);

void Fields(auto& io, Like<ReleaseMemory> auto& m) {
  io.Presence(m.name);
  io.Number(m.device);
  if (m.name) io.Bytes(*m.name);
}
KVT_DEFINE_MESSAGE(ReleaseMemory);

void Fields(auto& io, Like<ReleaseMemoryReply> auto& m) {
  io.Number(m.released);
  io.Number(m.released_bytes);
}
KVT_DEFINE_MESSAGE(ReleaseMemoryReply);

}  // namespace kvtier::wire
