// SPDX-License-Identifier: Apache-2.0
// The C ABI: a pool's memory where it is not the CPU's.

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "client/abi/c_common.h"

namespace kvtier::client {
namespace {

// A part of one block, in whatever memory.
struct BlockPart {
  std::shared_ptr<PoolMapping> mapping;
  uint64_t offset = 0;  // in the pool
};

// Finds the part in the mapping that the handle was got with, which may be an older one than the
// pool's. Checks bounds before any address is computed; the sums cannot overflow. Errors: those of
// Pool::MappingOf; kInvalidArgument "outside_block".
Result<BlockPart> PartOf(kvt_pool* pool, const kvt_block& block, uint64_t offset, uint64_t bytes) {
  KVT_RETURN_IF_ERROR(CheckPointer(pool, "pool"));
  KVT_ASSIGN_OR_RETURN(std::shared_ptr<PoolMapping> mapping,
                       pool->pool->MappingOf(block.attachment, block.index));
  const uint64_t block_bytes = pool->pool->block_bytes();
  if (offset > block_bytes || bytes > block_bytes - offset) {
    return MakeError(ErrorCode::kInvalidArgument, "outside_block",
                     fmt::format("{} bytes at {} of {}", bytes, offset, block_bytes));
  }
  return BlockPart{std::move(mapping), block.index * block_bytes + offset};
}

}  // namespace

extern "C" {

// Without a daemon the latest mapping is taken, because the memory outlives the connection. Errors:
// kUnsupported, if the pool is host memory or CUDA is missing; kIoError from the driver.
KVT_API kvt_status kvt_pool_map_device(kvt_pool* pool, kvt_device_mapping* mapping) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(mapping, "mapping"));
    KVT_ASSIGN_OR_RETURN(const auto attachment, pool->pool->AttachedOrLatest());
    PoolMapping& memory = *attachment->mapping();
    KVT_ASSIGN_OR_RETURN(const std::shared_ptr<const CudaMapping> device, memory.OnDevice());
    mapping->base = device->address();
    mapping->bytes = memory.bytes();
    mapping->generation = memory.generation();
    mapping->ordinal = device->ordinal();
    return {};
  });
}

KVT_API void kvt_pool_unmap_device(kvt_pool* pool) {
  if (pool != nullptr) pool->pool->UnmapDevice();
}

// Waits for the copy. The caller must hold the block: nothing here keeps another process from
// writing to it meanwhile.
KVT_API kvt_status kvt_pool_read(kvt_pool* pool, kvt_block block, uint64_t offset, void* data,
                                 size_t bytes) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(data, bytes, "data"));
    KVT_ASSIGN_OR_RETURN(const BlockPart part, PartOf(pool, block, offset, bytes));
    if (const std::byte* base = part.mapping->base(); base != nullptr) {
      if (bytes > 0) std::memcpy(data, base + part.offset, bytes);
      return {};
    }
    KVT_ASSIGN_OR_RETURN(const auto device, part.mapping->OnDevice());
    return device->Read(part.offset, static_cast<std::byte*>(data), bytes);
  });
}

// As kvt_pool_read, but a block of an earlier attachment may be another's by now. REQUIRES: the
// block is private to this session, since committed ones are shared.
KVT_API kvt_status kvt_pool_write(kvt_pool* pool, kvt_block block, uint64_t offset,
                                  const void* data, size_t bytes) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(data, bytes, "data"));
    KVT_ASSIGN_OR_RETURN(const BlockPart part, PartOf(pool, block, offset, bytes));
    KVT_ASSIGN_OR_RETURN(const auto latest, pool->pool->Latest());
    KVT_RETURN_IF_ERROR(CheckAttachment(block.attachment, latest->id()));
    if (std::byte* base = part.mapping->base(); base != nullptr) {
      if (bytes > 0) std::memcpy(base + part.offset, data, bytes);
      return {};
    }
    KVT_ASSIGN_OR_RETURN(const auto device, part.mapping->OnDevice());
    return device->Write(part.offset, static_cast<const std::byte*>(data), bytes);
  });
}

}  // extern "C"

}  // namespace kvtier::client
