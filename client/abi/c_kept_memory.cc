// SPDX-License-Identifier: Apache-2.0
// The C ABI: memory that outlives its process, and the tables beside it.

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "client/abi/c_common.h"
#include "client/core/kept_memory.h"

// Opaque to C, freed by kvt_kept_memory_close, which leaves the memory with the daemon.
struct kvt_kept_memory {
  std::unique_ptr<kvtier::client::KeptMemory> memory;
};

// A copy, made once: it does not change with the table of the process that owns it.
struct kvt_kept_table {
  kvtier::client::KeptTableContents contents;
};

namespace kvtier::client {
namespace {

static_assert(KVT_MAX_KEPT_GROUPS == KeptTable::kMaxGroups);
static_assert(KVT_KEPT_NAME_BYTES == sizeof(wire::KeptMemoryName));
static_assert(KVT_KEPT_ROOT_BYTES == sizeof(KeptTableContents::root));

wire::KeptMemoryName ToName(const uint8_t* name) {
  wire::KeptMemoryName bytes;
  std::memcpy(bytes.data(), name, bytes.size());
  return bytes;
}

// Null is a connection that there is not.
Connection* OrNone(kvt_connection* connection) {
  return connection == nullptr ? nullptr : connection->connection.get();
}

Status GetRoot(const Digest256& digest, uint8_t* root) {
  KVT_RETURN_IF_ERROR(CheckPointer(root, "root"));
  std::ranges::copy(digest.bytes, root);
  return {};
}

// The caller's arrays, all of `capacity` elements.
struct EntryArrays {
  uint32_t* blocks;
  uint32_t* groups;
  kvt_hash* hashes;
  size_t capacity;
};

// `*count` is the number of entries, and may exceed the arrays.
Status GetEntries(const KeptTableContents& contents, const EntryArrays& arrays, size_t* count) {
  KVT_RETURN_IF_ERROR(CheckArray(arrays.blocks, arrays.capacity, "blocks"));
  KVT_RETURN_IF_ERROR(CheckArray(arrays.groups, arrays.capacity, "groups"));
  KVT_RETURN_IF_ERROR(CheckArray(arrays.hashes, arrays.capacity, "hashes"));
  KVT_RETURN_IF_ERROR(CheckPointer(count, "count"));
  *count = contents.blocks.size();
  for (size_t i = 0; i < std::min(*count, arrays.capacity); ++i) {
    const KeptTableContents::Block& block = contents.blocks[i];
    arrays.blocks[i] = block.block;
    arrays.groups[i] = block.group;
    std::memcpy(&arrays.hashes[i], &block.hash, sizeof(block.hash));
  }
  return {};
}

}  // namespace

extern "C" {

KVT_API void kvt_kept_memory_options_init(kvt_kept_memory_options* options) {
  *options = {};
  options->size = sizeof(*options);
  options->cuda_device = -1;
}

// `connection` may be null: the memory is then allocated here and kept by no daemon yet.
KVT_API kvt_status kvt_kept_memory_open(kvt_connection* connection,
                                        const kvt_kept_memory_options* options,
                                        kvt_kept_memory** memory) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(options, "options"));
    KVT_RETURN_IF_ERROR(CheckPointer(memory, "memory"));
    *memory = nullptr;
    KeptMemoryOptions wanted{
        .name = ToName(options->name), .bytes = options->bytes, .blocks = options->blocks};
    if (options->cuda_device >= 0) wanted.cuda_device = options->cuda_device;
    auto handle = std::make_unique<kvt_kept_memory>();
    KVT_ASSIGN_OR_RETURN(handle->memory, KeptMemory::Open(OrNone(connection), wanted));
    *memory = handle.release();
    return {};
  });
}

KVT_API kvt_status kvt_kept_memory_keep(kvt_kept_memory* memory, kvt_connection* connection) {
  return GuardOn(memory, "memory", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(connection, "connection"));
    return memory->memory->Keep(connection->connection.get());
  });
}

KVT_API void kvt_kept_memory_close(kvt_kept_memory* memory) { delete memory; }

KVT_API void* kvt_kept_memory_data(kvt_kept_memory* memory) {
  return memory == nullptr ? nullptr : memory->memory->data();
}

KVT_API int kvt_kept_memory_fd(const kvt_kept_memory* memory) {
  return memory == nullptr ? -1 : memory->memory->fd();
}

KVT_API uint64_t kvt_kept_memory_bytes(const kvt_kept_memory* memory) {
  return memory == nullptr ? 0 : memory->memory->bytes();
}

KVT_API int kvt_kept_memory_was_kept(const kvt_kept_memory* memory) {
  return memory != nullptr && memory->memory->was_kept() ? 1 : 0;
}

// Writes to shared memory alone, without the daemon. REQUIRES: the blocks' bytes are complete on
// the device, because the next process believes the table.
KVT_API kvt_status kvt_kept_memory_publish(kvt_kept_memory* memory, uint32_t group,
                                           const uint32_t* blocks, const kvt_hash* hashes,
                                           size_t count) {
  return GuardOn(memory, "memory", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(blocks, count, "blocks"));
    KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
    return memory->memory->table().Publish(group, {blocks, count}, ToHashes(hashes, count));
  });
}

// REQUIRES: called before anything that overwrites the blocks is launched.
KVT_API kvt_status kvt_kept_memory_retract(kvt_kept_memory* memory, const uint32_t* blocks,
                                           size_t count) {
  return GuardOn(memory, "memory", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(blocks, count, "blocks"));
    return memory->memory->table().Retract({blocks, count});
  });
}

KVT_API kvt_status kvt_kept_memory_clear(kvt_kept_memory* memory) {
  return GuardOn(memory, "memory", [&]() -> Status {
    memory->memory->table().Clear();
    return {};
  });
}

KVT_API kvt_status kvt_kept_memory_root(kvt_kept_memory* memory, uint8_t* root) {
  return GuardOn(memory, "memory",
                 [&]() -> Status { return GetRoot(memory->memory->table().root(), root); });
}

KVT_API kvt_status kvt_kept_memory_set_root(kvt_kept_memory* memory, const uint8_t* root) {
  return GuardOn(memory, "memory", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(root, "root"));
    Digest256 digest;
    std::memcpy(digest.bytes.data(), root, digest.bytes.size());
    memory->memory->table().SetRoot(digest);
    return {};
  });
}

KVT_API kvt_status kvt_kept_memory_entries(kvt_kept_memory* memory, uint32_t* blocks,
                                           uint32_t* groups, kvt_hash* hashes, size_t capacity,
                                           size_t* count) {
  return GuardOn(memory, "memory", [&]() -> Status {
    const KeptTableContents contents = memory->memory->table().Contents();
    return GetEntries(contents, {blocks, groups, hashes, capacity}, count);
  });
}

// Success with a null `*table` means that the daemon keeps nothing under the name.
KVT_API kvt_status kvt_kept_table_read(kvt_connection* connection, const uint8_t* name,
                                       kvt_kept_table** table) {
  return GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(name, "name"));
    KVT_RETURN_IF_ERROR(CheckPointer(table, "table"));
    *table = nullptr;
    KVT_ASSIGN_OR_RETURN(std::optional<KeptTableContents> contents,
                         ReadKeptTable(connection->connection.get(), ToName(name)));
    if (contents) *table = std::make_unique<kvt_kept_table>(*std::move(contents)).release();
    return {};
  });
}

KVT_API kvt_status kvt_kept_table_root(const kvt_kept_table* table, uint8_t* root) {
  return GuardOn(table, "table", [&]() -> Status { return GetRoot(table->contents.root, root); });
}

KVT_API kvt_status kvt_kept_table_entries(const kvt_kept_table* table, uint32_t* blocks,
                                          uint32_t* groups, kvt_hash* hashes, size_t capacity,
                                          size_t* count) {
  return GuardOn(table, "table", [&]() -> Status {
    return GetEntries(table->contents, {blocks, groups, hashes, capacity}, count);
  });
}

KVT_API void kvt_kept_table_close(kvt_kept_table* table) { delete table; }

// Without a name, all memory of the tenant that no process owns is given back.
KVT_API kvt_status kvt_memory_release(kvt_connection* connection, const uint8_t* name,
                                      uint32_t device, uint32_t* released, uint64_t* bytes) {
  return GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(released, "released"));
    KVT_RETURN_IF_ERROR(CheckPointer(bytes, "bytes"));
    wire::ReleaseMemory request{.device = device, .name = std::nullopt};
    if (name != nullptr) request.name = ToName(name);
    KVT_ASSIGN_OR_RETURN(const wire::ReleaseMemoryReply reply,
                         ReleaseKeptMemory(connection->connection.get(), request));
    *released = reply.released;
    *bytes = reply.released_bytes;
    return {};
  });
}

}  // extern "C"

}  // namespace kvtier::client
