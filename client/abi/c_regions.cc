// SPDX-License-Identifier: Apache-2.0
// The C ABI: regions and the transfers of their blocks.

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/abi/c_common.h"
#include "client/core/region.h"

// Opaque to C, freed by kvt_region_close, which waits until no copy touches the memory.
struct kvt_region {
  // For its time-outs; outlives it.
  const kvtier::client::Connection* connection = nullptr;
  std::unique_ptr<kvtier::client::Region> region;
};

namespace kvtier::client {
namespace {

static_assert(KVT_MISS_UNAVAILABLE == static_cast<int>(kMissUnavailable));
static_assert(KVT_MAX_REGION_PIECES == wire::kMaxRegionPieces);
static_assert(KVT_MAX_REGION_BLOCKS == wire::kMaxRegionBlocks);
static_assert(KVT_FAILURES_KEPT == Transfers::kFailuresKept);
static_assert(sizeof(kvt_transfer_end::reason) > wire::kMaxReasonBytes);

// Checks pointers, enumerators and counts; the daemon checks the layout against the memory. Errors:
// kInvalidArgument "bad_memory"; kLimitExceeded "too_many_pieces".
Result<wire::OpenRegion> ToRequest(const kvt_region_options* options) {
  KVT_RETURN_IF_ERROR(CheckStruct(options, "options"));
  KVT_RETURN_IF_ERROR(CheckArray(options->pieces, options->piece_count, "options.pieces"));
  if (options->memory > KVT_REGION_CUDA_IPC) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_memory", fmt::format("{}", options->memory));
  }
  if (options->piece_count > wire::kMaxRegionPieces) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_pieces",
                     fmt::format("{}, at most {}", options->piece_count, wire::kMaxRegionPieces));
  }
  wire::OpenRegion request{.group = options->group,
                           .device = options->device,
                           .memory = static_cast<wire::RegionMemory>(options->memory),
                           .bytes = options->bytes,
                           .blocks = options->blocks};
  static_assert(sizeof(options->ipc_handle) == sizeof(request.ipc_handle));
  std::memcpy(request.ipc_handle.data(), options->ipc_handle, sizeof(options->ipc_handle));
  wire::KeptMemoryName kept;
  static_assert(sizeof(options->kept_name) == sizeof(kept));
  std::memcpy(kept.data(), options->kept_name, sizeof(kept));
  if (kept != wire::KeptMemoryName{}) request.kept = kept;
  for (size_t i = 0; i < options->piece_count; ++i) {
    const kvt_region_piece& piece = options->pieces[i];
    request.pieces.push_back({piece.offset, piece.block_stride, piece.bytes});
  }
  return request;
}

// A descriptor that another thread closes while it is sent must not end the connection, so that a
// copy of it goes. Errors: kInvalidArgument "no_descriptor".
Result<UniqueFd> DescriptorOf(const kvt_region_options& options) {
  if (options.memory == KVT_REGION_CUDA_IPC) return UniqueFd();
  UniqueFd copy(::fcntl(options.fd, F_DUPFD_CLOEXEC, 0));
  if (copy.valid()) return copy;
  return MakeError(ErrorCode::kInvalidArgument, "no_descriptor", fmt::format("{}", options.fd));
}

// Only sends. `*transfer` is 0 if nothing was begun; otherwise its end is reported once, by
// kvt_region_poll or kvt_region_wait, whatever happens to the daemon.
Status Store(kvt_region* region, const kvt_store_block* blocks, size_t count,
             std::optional<KvDtype> compare, uint64_t* transfer) {
  KVT_RETURN_IF_ERROR(CheckPointer(region, "region"));
  KVT_RETURN_IF_ERROR(CheckArray(blocks, count, "blocks"));
  KVT_RETURN_IF_ERROR(CheckPointer(transfer, "transfer"));
  *transfer = 0;
  std::vector<wire::StoreItem> items(count);
  for (size_t i = 0; i < count; ++i) {
    const kvt_store_block& given = blocks[i];
    if (given.retention > KVT_RETENTION_EXTENDED) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_retention",
                       fmt::format("block {}: {}", i, given.retention));
    }
    items[i] = {.block = given.block,
                .hash = ToHashes(&given.hash, 1)[0],
                .parent = {},
                .tokens = given.tokens,
                .depth = given.depth,
                .retention = static_cast<RetentionClass>(given.retention)};
    if (given.has_parent != 0) items[i].parent = ToHashes(&given.parent, 1)[0];
  }
  KVT_ASSIGN_OR_RETURN(*transfer, region->region->Store(std::move(items), compare));
  return {};
}

// The reason is cut to the field and ends with a zero; a static_assert holds the sizes together.
kvt_transfer_end ToEnd(const EndedTransfer& ended) {
  kvt_transfer_end end{};
  end.transfer = ended.transfer;
  end.copied = ended.copied;
  end.skipped = ended.skipped;
  end.failed = static_cast<uint32_t>(ended.failed.size());
  if (!ended.error) return end;
  end.code = static_cast<kvt_status>(ended.error->code);
  const size_t length = std::min(ended.error->reason.size(), sizeof(end.reason) - 1);
  std::memcpy(end.reason, ended.error->reason.data(), length);
  return end;
}

}  // namespace

extern "C" {

KVT_API void kvt_region_options_init(kvt_region_options* options) {
  *options = {};
  options->size = sizeof(*options);
  options->fd = -1;
  options->device = KVT_ANY_DEVICE;
}

// Needs a daemon, also with wait_for_daemon: a region ends with its connection. `*region` is null
// after every error.
KVT_API kvt_status kvt_region_open(kvt_connection* connection, uint32_t model,
                                   const kvt_region_options* options, kvt_region** region) {
  return GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(region, "region"));
    *region = nullptr;
    KVT_ASSIGN_OR_RETURN(wire::OpenRegion request, ToRequest(options));
    KVT_ASSIGN_OR_RETURN(UniqueFd descriptor, DescriptorOf(*options));
    auto handle = std::make_unique<kvt_region>();
    handle->connection = connection->connection.get();
    KVT_ASSIGN_OR_RETURN(handle->region, Region::Open(connection->connection.get(), model,
                                                      std::move(request), std::move(descriptor)));
    *region = handle.release();
    return {};
  });
}

KVT_API void kvt_region_close(kvt_region* region) { delete region; }

KVT_API uint64_t kvt_region_block_bytes(const kvt_region* region) {
  return region == nullptr ? 0 : region->region->block_bytes();
}

KVT_API int kvt_region_is_connected(kvt_region* region) {
  return region != nullptr && region->region->Alive() ? 1 : 0;
}

KVT_API int kvt_region_daemon_ended(kvt_region* region) {
  return region != nullptr && region->region->DaemonEnded() ? 1 : 0;
}

KVT_API kvt_status kvt_region_hang_up(kvt_region* region) {
  return GuardOn(region, "region", [&]() -> Status {
    region->region->HangUp();
    return {};
  });
}

KVT_API kvt_status kvt_region_store(kvt_region* region, const kvt_store_block* blocks, size_t count,
                                    uint64_t* transfer) {
  return Guard([&] { return Store(region, blocks, count, {}, transfer); });
}

// As Store. The blocks of the region belong to the transfer until its end.
KVT_API kvt_status kvt_region_store_compared(kvt_region* region, const kvt_store_block* blocks,
                                             size_t count, kvt_model_dtype dtype,
                                             uint64_t* transfer) {
  return Guard([&]() -> Status {
    if (dtype < KVT_DTYPE_FLOAT32 || dtype > KVT_DTYPE_INT8) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_dtype", fmt::format("{}", dtype));
    }
    return Store(region, blocks, count, static_cast<KvDtype>(dtype), transfer);
  });
}

KVT_API kvt_status kvt_region_load(kvt_region* region, const kvt_load_block* blocks, size_t count,
                                   kvt_load_order order, uint64_t* transfer) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(blocks, count, "blocks"));
    KVT_RETURN_IF_ERROR(CheckPointer(transfer, "transfer"));
    *transfer = 0;
    if (order > KVT_LOAD_LAYERS) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_load_order", fmt::format("{}", order));
    }
    std::vector<wire::LoadItem> items(count);
    for (size_t i = 0; i < count; ++i) {
      items[i] = {.block = blocks[i].block, .hash = ToHashes(&blocks[i].hash, 1)[0]};
    }
    KVT_ASSIGN_OR_RETURN(
        *transfer, region->region->Load(std::move(items), static_cast<wire::LoadOrder>(order)));
    return {};
  });
}

// Never waits. Further ends stay for the next call.
KVT_API kvt_status kvt_region_poll(kvt_region* region, kvt_transfer_end* ends, size_t capacity,
                                   size_t* count) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(ends, capacity, "ends"));
    KVT_RETURN_IF_ERROR(CheckPointer(count, "count"));
    const std::vector<EndedTransfer> ended = region->region->Poll(capacity);
    std::ranges::transform(ended, ends, ToEnd);
    *count = ended.size();
    return {};
  });
}

// Takes the end: kvt_region_poll does not report it again. Errors: those of Region::Wait.
KVT_API kvt_status kvt_region_wait(kvt_region* region, uint64_t transfer, int64_t timeout_ms,
                                   kvt_transfer_end* end) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(end, "end"));
    *end = {};
    KVT_ASSIGN_OR_RETURN(
        const EndedTransfer ended,
        region->region->Wait(transfer, ToDeadline(timeout_ms, *region->connection)));
    *end = ToEnd(ended);
    return {};
  });
}

// `*layers` is set also when the load has failed: the layers that had come are counted.
KVT_API kvt_status kvt_region_layers_loaded(kvt_region* region, uint64_t transfer,
                                            uint32_t* layers) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(layers, "layers"));
    *layers = 0;
    KVT_ASSIGN_OR_RETURN(const LayerCounts::State state, region->region->LayersLoaded(transfer));
    *layers = state.layers;
    return state.failure ? tl::unexpected(*state.failure) : Status();
  });
}

KVT_API kvt_status kvt_region_wait_layers(kvt_region* region, uint64_t transfer, uint32_t layers,
                                          int64_t timeout_ms) {
  return GuardOn(region, "region", [&]() -> Status {
    return region->region->WaitLayers(transfer, layers,
                                      ToDeadline(timeout_ms, *region->connection));
  });
}

// `*count` is the number of all failures. They are forgotten once the arrays have held all of them,
// so that a caller whose arrays are too small can ask again.
KVT_API kvt_status kvt_region_failures(kvt_region* region, uint64_t transfer, uint32_t* positions,
                                       kvt_miss* reasons, size_t capacity, size_t* count) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(positions, capacity, "positions"));
    KVT_RETURN_IF_ERROR(CheckArray(reasons, capacity, "reasons"));
    KVT_RETURN_IF_ERROR(CheckPointer(count, "count"));
    const std::vector<wire::TransferDone::Failed> failures =
        region->region->TakeFailures(transfer, capacity, count);
    for (size_t i = 0; i < failures.size(); ++i) {
      positions[i] = failures[i].position;
      reasons[i] = static_cast<kvt_miss>(failures[i].reason);
    }
    return {};
  });
}

// One round trip; holds nothing.
KVT_API kvt_status kvt_region_lookup(kvt_region* region, const kvt_hash* hashes, size_t count,
                                     uint8_t* presence) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
    KVT_RETURN_IF_ERROR(CheckArray(presence, count, "presence"));
    KVT_ASSIGN_OR_RETURN(const std::vector<uint8_t> found,
                         region->region->Lookup(ToHashes(hashes, count)));
    std::ranges::copy(found, presence);
    return {};
  });
}

KVT_API kvt_status kvt_region_pin(kvt_region* region, const kvt_hash* hashes, size_t count,
                                  int64_t ttl_ms, uint32_t* pinned) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
    return StoreCount(region->region->Pin(ToHashes(hashes, count), ttl_ms), pinned);
  });
}

KVT_API kvt_status kvt_region_hint(kvt_region* region, const kvt_hash* hashes, size_t count,
                                   kvt_hint hint, int64_t returns_in_ms, uint32_t* taken) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
    KVT_RETURN_IF_ERROR(CheckHint(hint, returns_in_ms));
    const auto known = static_cast<SequenceHint>(hint);
    return StoreCount(region->region->Hint(ToHashes(hashes, count), known, returns_in_ms), taken);
  });
}

// Waits for the daemon's answer, which comes when nothing of the prefix is on its way any more.
KVT_API kvt_status kvt_region_prefetch(kvt_region* region, const kvt_hash* hashes, size_t count,
                                       int64_t timeout_ms, uint32_t* in_memory) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
    const Deadline deadline = ToDeadline(timeout_ms, *region->connection);
    return StoreCount(region->region->Prefetch(ToHashes(hashes, count), deadline), in_memory);
  });
}

KVT_API kvt_status kvt_region_tokens_wanted(kvt_region* region, int* wanted) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(wanted, "wanted"));
    *wanted = 0;
    KVT_ASSIGN_OR_RETURN(const bool is_wanted, region->region->WantsTokenIds());
    *wanted = is_wanted ? 1 : 0;
    return {};
  });
}

KVT_API kvt_status kvt_region_give_tokens(kvt_region* region, const kvt_hash* hashes,
                                          const uint16_t* counts, size_t count, const uint32_t* ids,
                                          size_t id_count) {
  return GuardOn(region, "region", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
    KVT_RETURN_IF_ERROR(CheckArray(ids, id_count, "ids"));
    return region->region->TellTokenIds(ToHashes(hashes, count), ToCounts(counts, count),
                                        {ids, id_count});
  });
}

}  // extern "C"

}  // namespace kvtier::client
