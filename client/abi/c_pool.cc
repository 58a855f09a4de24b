// SPDX-License-Identifier: Apache-2.0
// The C ABI: pools and the blocks in them.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "client/abi/c_common.h"

namespace kvtier::client {
namespace {

using AttachmentPtr = std::shared_ptr<const Attachment>;

// One status for each entry. The call itself succeeds, so the first failure is remembered for
// kvt_last_error, which has its reason.
void FillResults(const std::vector<EntryOutcome>& outcomes, kvt_status* results) {
  const EntryOutcome* first_failed = nullptr;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const EntryOutcome& outcome = outcomes[i];
    results[i] = outcome.duplicate ? KVT_ALREADY_EXISTS
                 : outcome.ok      ? KVT_OK
                                   : static_cast<kvt_status>(outcome.code);
    if (!outcome.ok && first_failed == nullptr) first_failed = &outcome;
  }
  if (first_failed != nullptr) (void)SetLastError({first_failed->code, first_failed->reason, {}});
}

// REQUIRES: the entry's attachment and retention have been checked.
wire::CommitItem ToItem(const kvt_commit_entry& entry) {
  wire::CommitItem item{.block = ToHandle(entry.block),
                        .hash = ToHashes(&entry.hash, 1)[0],
                        .tokens = entry.tokens,
                        .depth = entry.depth,
                        .retention = static_cast<RetentionClass>(entry.retention)};
  if (entry.has_parent != 0) item.parent = ToHashes(&entry.parent, 1)[0];
  if (entry.has_checksum != 0) {
    PayloadChecksum checksum;
    std::memcpy(checksum.bytes.data(), entry.checksum, sizeof(entry.checksum));
    item.checksum = checksum;
  }
  return item;
}

// A call that names blocks by hash: `call(attachment, hashes, deadline)`.
template <typename Call>
Status WithHashes(kvt_pool* pool, const kvt_hash* hashes, size_t count, Call&& call) {
  KVT_RETURN_IF_ERROR(CheckPointer(pool, "pool"));
  KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
  KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, pool->pool->Attached());
  return call(*attachment, ToHashes(hashes, count), pool->pool->connection().RequestDeadline());
}

// Refuses NaN, too.
Result<float> ToCost(double us, const char* name) {
  if (us >= 0 && us <= ComputeCost::kMaxUs) return static_cast<float>(us);
  return MakeError(ErrorCode::kInvalidArgument, "bad_cost", fmt::format("{}: {}", name, us));
}

}  // namespace

extern "C" {

// `*pool` is null after every error. With wait_for_daemon it succeeds without a daemon, and the
// pool misses until there is one.
KVT_API kvt_status kvt_attach(kvt_connection* connection, uint32_t model, uint32_t group,
                              uint32_t device, uint64_t pool_bytes, kvt_pool** pool) {
  return GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(pool, "pool"));
    *pool = nullptr;
    auto handle = std::make_unique<kvt_pool>();
    KVT_ASSIGN_OR_RETURN(
        handle->pool, Pool::Open(connection->connection.get(), model, group, device, pool_bytes));
    *pool = handle.release();
    return {};
  });
}

KVT_API void kvt_pool_close(kvt_pool* pool) { delete pool; }

// Reconnects if it can; without a daemon it describes the latest attachment, whose memory is still
// mapped.
KVT_API kvt_status kvt_pool_get_info(kvt_pool* pool, kvt_pool_info* info) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(info, "info"));
    KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, pool->pool->AttachedOrLatest());
    const PoolMapping& mapping = *attachment->mapping();
    info->base = mapping.base();
    info->bytes = mapping.bytes();
    info->block_bytes = attachment->block_bytes();
    info->blocks = attachment->blocks();
    info->block_tokens = attachment->block_tokens();
    info->generation = mapping.generation();
    info->attachment = attachment->id();
    info->fd = mapping.fd();
    info->model = pool->pool->model();
    info->group = pool->pool->group();
    info->device_kind = static_cast<kvt_device_kind>(mapping.device_kind());
    return {};
  });
}

KVT_API uint64_t kvt_pool_block_bytes(const kvt_pool* pool) {
  return pool == nullptr ? 0 : pool->pool->block_bytes();
}

// Looks the handle's own mapping up, which stays valid after a reconnection. Errors: kStaleHandle;
// kInvalidArgument "block_outside_pool"; kUnsupported "not_host_memory".
KVT_API kvt_status kvt_pool_block_address(kvt_pool* pool, kvt_block block, void** address) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(address, "address"));
    *address = nullptr;
    KVT_ASSIGN_OR_RETURN(const std::shared_ptr<PoolMapping> mapping,
                         pool->pool->MappingOf(block.attachment, block.index));
    if (mapping->base() == nullptr) {
      return MakeError(ErrorCode::kUnsupported, "not_host_memory",
                       "the pool is a device's: import its descriptor there");
    }
    *address = mapping->base() + block.index * pool->pool->block_bytes();
    return {};
  });
}

// All three are checked before any takes effect. No round trip.
KVT_API kvt_status kvt_pool_set_compute_cost(kvt_pool* pool, const kvt_compute_cost* cost) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(cost, "cost"));
    ComputeCost known;
    KVT_ASSIGN_OR_RETURN(known.per_token_us, ToCost(cost->per_token_us, "per_token_us"));
    KVT_ASSIGN_OR_RETURN(known.per_pair_us, ToCost(cost->per_pair_us, "per_pair_us"));
    KVT_ASSIGN_OR_RETURN(known.fixed_us, ToCost(cost->fixed_us, "fixed_us"));
    pool->pool->SetComputeCost(known);
    return {};
  });
}

KVT_API void kvt_pool_drop_stale_mappings(kvt_pool* pool) {
  if (pool != nullptr) pool->pool->DropStaleMappings();
}

// Without `results` the entries are only sent: a failure is reported by kvt_take_errors. Nothing is
// sent if one entry is wrong, so that callers need not find out which were.
KVT_API kvt_status kvt_commit(kvt_pool* pool, const kvt_commit_entry* entries, size_t count,
                              kvt_status* results) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(entries, count, "entries"));
    KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, pool->pool->Latest());
    std::vector<wire::CommitItem> items;
    items.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      KVT_RETURN_IF_ERROR(CheckAttachment(entries[i].block.attachment, attachment->id()));
      if (entries[i].retention > KVT_RETENTION_EXTENDED) {
        return MakeError(ErrorCode::kInvalidArgument, "bad_retention",
                         fmt::format("entry {}: {}", i, entries[i].retention));
      }
      items.push_back(ToItem(entries[i]));
    }
    std::vector<EntryOutcome> outcomes;
    KVT_RETURN_IF_ERROR(attachment->Commit(std::move(items),
                                           results == nullptr ? nullptr : &outcomes,
                                           pool->pool->connection().RequestDeadline()));
    if (results != nullptr) FillResults(outcomes, results);
    return {};
  });
}

// Handles of a lost attachment hold nothing: they are skipped, so that clean-up never fails for a
// daemon that is gone. Without `results` the blocks are only sent.
KVT_API kvt_status kvt_release(kvt_pool* pool, const kvt_block* blocks, size_t count,
                               kvt_status* results) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(blocks, count, "blocks"));
    const Result<AttachmentPtr> latest = pool->pool->Latest();
    // Whatever the handles are, no daemon knows them.
    if (!latest && results != nullptr) std::fill_n(results, count, KVT_STALE_HANDLE);
    if (!latest) return {};
    const AttachmentPtr& attachment = *latest;
    std::vector<BlockHandle> handles;
    std::vector<size_t> positions;
    for (size_t i = 0; i < count; ++i) {
      const bool current = blocks[i].attachment == attachment->id();
      if (results != nullptr) results[i] = current ? KVT_OK : KVT_STALE_HANDLE;
      if (!current) continue;
      handles.push_back(ToHandle(blocks[i]));
      positions.push_back(i);
    }
    std::vector<EntryOutcome> outcomes;
    const Status released =
        attachment->Release(std::move(handles), results == nullptr ? nullptr : &outcomes,
                            pool->pool->connection().RequestDeadline());
    // A lost connection has released everything.
    if (!released && (results != nullptr || released.error().code != ErrorCode::kUnavailable)) {
      return released;
    }
    std::vector<kvt_status> statuses(outcomes.size());
    FillResults(outcomes, statuses.data());
    for (size_t i = 0; i < statuses.size(); ++i) results[positions[i]] = statuses[i];
    return {};
  });
}

// May wait for the next daemon and resume (PoolLink::CheckHeld). A loss is kStaleHandle here: for
// the caller it does not matter whether the daemon or the block is gone, nor that it is not known
// yet.
KVT_API kvt_status kvt_check_blocks(kvt_pool* pool, const kvt_block* blocks, size_t count) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(blocks, count, "blocks"));
    if (count == 0) return {};
    KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, pool->pool->Latest());
    std::vector<BlockHandle> handles;
    handles.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      KVT_RETURN_IF_ERROR(CheckAttachment(blocks[i].attachment, attachment->id()));
      handles.push_back(ToHandle(blocks[i]));
    }
    const Status held = attachment->CheckHeld(handles);
    const bool is_known = held || held.error().code == ErrorCode::kStaleHandle;
    if (is_known) return held;
    return MakeError(ErrorCode::kStaleHandle, "connection_lost", held.error().ToString());
  });
}

KVT_API kvt_status kvt_prefetch(kvt_pool* pool, const kvt_hash* hashes, size_t count,
                                uint32_t* accepted) {
  return Guard([&] {
    return WithHashes(
        pool, hashes, count,
        [&](const Attachment& attachment, std::span<const BlockHash> span, Deadline deadline) {
          return StoreCount(attachment.Prefetch(span, deadline), accepted);
        });
  });
}

KVT_API kvt_status kvt_lookup(kvt_pool* pool, const kvt_hash* hashes, size_t count,
                              uint8_t* presence) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(presence, count, "presence"));
    return WithHashes(pool, hashes, count,
                      [&](const Attachment& attachment, std::span<const BlockHash> span,
                          Deadline deadline) -> Status {
                        KVT_ASSIGN_OR_RETURN(const std::vector<uint8_t> found,
                                             attachment.Lookup(span, deadline));
                        std::ranges::copy(found, presence);
                        return {};
                      });
  });
}

KVT_API kvt_status kvt_hint_blocks(kvt_pool* pool, const kvt_hash* hashes, size_t count,
                                   kvt_hint hint, int64_t returns_in_ms, uint32_t* taken) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckHint(hint, returns_in_ms));
    return WithHashes(
        pool, hashes, count,
        [&](const Attachment& attachment, std::span<const BlockHash> span, Deadline deadline) {
          const auto known = static_cast<SequenceHint>(hint);
          return StoreCount(attachment.Hint(span, known, returns_in_ms, deadline), taken);
        });
  });
}

KVT_API kvt_status kvt_pin(kvt_pool* pool, const kvt_hash* hashes, size_t count, int64_t ttl_ms,
                           uint32_t* pinned) {
  return Guard([&] {
    return WithHashes(
        pool, hashes, count,
        [&](const Attachment& attachment, std::span<const BlockHash> span, Deadline deadline) {
          return StoreCount(attachment.Pin(span, ttl_ms, deadline), pinned);
        });
  });
}

KVT_API kvt_status kvt_tokens_wanted(kvt_pool* pool, int* wanted) {
  return GuardOn(wanted, "wanted", [&]() -> Status {
    *wanted = 0;
    return WithHashes(
        pool, nullptr, 0,
        [&](const Attachment& attachment, std::span<const BlockHash>, Deadline deadline) -> Status {
          KVT_ASSIGN_OR_RETURN(const bool is_wanted, attachment.WantsTokenIds(deadline));
          *wanted = is_wanted ? 1 : 0;
          return {};
        });
  });
}

KVT_API kvt_status kvt_give_tokens(kvt_pool* pool, const kvt_hash* hashes, const uint16_t* counts,
                                   size_t count, const uint32_t* ids, size_t id_count) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(ids, id_count, "ids"));
    return WithHashes(
        pool, hashes, count,
        [&](const Attachment& attachment, std::span<const BlockHash> span, Deadline) {
          return attachment.TellTokenIds(span, ToCounts(counts, count), {ids, id_count});
        });
  });
}

}  // extern "C"

}  // namespace kvtier::client
