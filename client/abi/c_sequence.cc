// SPDX-License-Identifier: Apache-2.0
// The C ABI: sequences and hashing.

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "client/abi/c_common.h"
#include "protocol/block_hash.h"
#include "protocol/limits.h"

namespace kvtier::client {
namespace {

// What both kinds of options say about hashing.
struct HashInput {
  std::string seed = std::string(kDefaultHashSeed);
  PromptIdentity identity;
};

template <typename Options>
Result<HashInput> ToHashInput(const Options& options) {
  KVT_RETURN_IF_ERROR(CheckArray(options.items, options.item_count, "options.items"));
  HashInput input;
  if (options.seed != nullptr) input.seed = options.seed;
  if (options.lora != nullptr) input.identity.lora_name = options.lora;
  if (options.cache_salt != nullptr) input.identity.cache_salt = options.cache_salt;
  uint64_t previous = 0;
  for (size_t i = 0; i < options.item_count; ++i) {
    const kvt_multimodal_item& item = options.items[i];
    KVT_RETURN_IF_ERROR(CheckPointer(item.content_hash, "options.items.content_hash"));
    const uint64_t max = std::numeric_limits<int64_t>::max();
    if (item.offset_tokens < previous || item.offset_tokens > max ||
        item.length_tokens > max - item.offset_tokens) {
      return MakeError(
          ErrorCode::kInvalidArgument, "bad_multimodal_item",
          fmt::format("item {}: {} tokens at {}", i, item.length_tokens, item.offset_tokens));
    }
    previous = item.offset_tokens;
    input.identity.media.push_back({item.content_hash, item.offset_tokens, item.length_tokens});
  }
  return input;
}

Status HashBlocks(const kvt_hash_options* options, const uint32_t* tokens, size_t token_count,
                  kvt_hash* hashes, size_t capacity) {
  KVT_RETURN_IF_ERROR(CheckStruct(options, "options"));
  KVT_RETURN_IF_ERROR(CheckArray(tokens, token_count, "tokens"));
  if (options->block_tokens == 0 || options->block_tokens > kMaxModelBlockTokens) {
    return MakeError(
        ErrorCode::kInvalidArgument, "bad_block_tokens",
        fmt::format("{}, 1 to {} are possible", options->block_tokens, kMaxModelBlockTokens));
  }
  const size_t count = BlocksOf(token_count, options->block_tokens);
  KVT_RETURN_IF_ERROR(CheckArray(hashes, count, "hashes"));
  if (capacity < count) {
    return MakeError(ErrorCode::kInvalidArgument, "capacity_too_small",
                     fmt::format("{} of {}", capacity, count));
  }
  KVT_ASSIGN_OR_RETURN(HashInput input, ToHashInput(*options));
  BlockHasher hasher(options->block_tokens, RootHash(input.seed), std::move(input.identity));
  const std::span<const uint32_t> all(tokens, token_count);
  hasher.Extend(all);
  const size_t full = hasher.hashes().size();
  if (full > 0) std::memcpy(hashes, hasher.hashes().data(), full * sizeof(kvt_hash));
  if (full < count) {
    const BlockHash partial_block =
        hasher.HashPartialBlock(all.subspan(full * options->block_tokens));
    std::memcpy(hashes + full, &partial_block, sizeof(partial_block));
  }
  return {};
}

Result<SequenceOptions> ToOptions(const kvt_sequence_options* given, const Connection& connection) {
  kvt_sequence_options options;
  kvt_sequence_options_init(&options);
  if (given != nullptr) {
    KVT_RETURN_IF_ERROR(CheckStruct(given, "options"));
    options = *given;
  }
  if (options.retention > KVT_RETENTION_EXTENDED) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_retention",
                     fmt::format("{}", options.retention));
  }
  KVT_ASSIGN_OR_RETURN(HashInput input, ToHashInput(options));
  SequenceOptions result{.seed = std::move(input.seed),
                         .identity = std::move(input.identity),
                         .leave_tokens = options.leave_tokens,
                         .reserve_tokens = options.reserve_tokens,
                         .retention = static_cast<RetentionClass>(options.retention),
                         .request_timeout_ms = connection.options().request_timeout_ms};
  if (options.copy != nullptr) {
    result.copier = [copy = options.copy, user = options.copy_user](
                        uint64_t target, uint64_t source, uint64_t bytes) {
      return copy(user, target, source, bytes) == 0;
    };
  }
  return result;
}

Status Open(kvt_pool* pool, const kvt_sequence_options* options, const uint32_t* tokens,
            size_t token_count, kvt_sequence** sequence) {
  KVT_RETURN_IF_ERROR(CheckPointer(pool, "pool"));
  KVT_RETURN_IF_ERROR(CheckPointer(sequence, "sequence"));
  *sequence = nullptr;
  KVT_RETURN_IF_ERROR(CheckArray(tokens, token_count, "tokens"));
  KVT_ASSIGN_OR_RETURN(SequenceOptions checked, ToOptions(options, pool->pool->connection()));
  KVT_ASSIGN_OR_RETURN(std::shared_ptr<const Attachment> attachment, pool->pool->Attached());
  auto handle = std::make_unique<kvt_sequence>();
  handle->connection = &pool->pool->connection();
  KVT_ASSIGN_OR_RETURN(handle->sequence, Sequence::Open(std::move(attachment), std::move(checked),
                                                        {tokens, token_count}));
  *sequence = handle.release();
  return {};
}

void FillInfo(const Sequence& sequence, kvt_sequence_info* info) {
  const auto by_tier = sequence.TokensByTier();
  info->tokens = sequence.tokens();
  info->cached_tokens = sequence.cached_tokens();
  info->computed_tokens = sequence.computed_tokens();
  info->blocks = sequence.blocks();
  info->pool_tokens = by_tier[static_cast<size_t>(Tier::kPool)];
  info->host_tokens = by_tier[static_cast<size_t>(Tier::kHost)];
  info->disk_tokens = by_tier[static_cast<size_t>(Tier::kDisk)];
  info->attachment = sequence.attachment().id();
  info->base = sequence.attachment().mapping()->base();
  info->ready = sequence.ready() ? 1 : 0;
  info->miss = static_cast<kvt_miss>(sequence.miss());
}

Status CheckTableReady(const Sequence& sequence) {
  if (sequence.ready()) return {};
  return MakeError(ErrorCode::kWrongState, "not_ready", "the cached prefix must be waited for");
}

Status BlockTable(const Sequence& sequence, int32_t* indices, size_t capacity, size_t* count) {
  KVT_RETURN_IF_ERROR(CheckTableReady(sequence));
  *count = sequence.blocks();
  if (indices == nullptr && capacity == 0) return {};
  if (capacity < sequence.blocks()) {
    return MakeError(ErrorCode::kInvalidArgument, "capacity_too_small",
                     fmt::format("{} of {}", capacity, sequence.blocks()));
  }
  KVT_RETURN_IF_ERROR(CheckArray(indices, sequence.blocks(), "indices"));
  for (size_t i = 0; i < sequence.blocks(); ++i) {
    indices[i] = static_cast<int32_t>(sequence.block(i).value);
  }
  return {};
}

Status SlotMapping(const Sequence& sequence, uint64_t first, size_t count, int64_t* slots) {
  KVT_RETURN_IF_ERROR(CheckTableReady(sequence));
  KVT_RETURN_IF_ERROR(CheckArray(slots, count, "slots"));
  if (first > sequence.tokens() || count > sequence.tokens() - first) {
    return MakeError(ErrorCode::kInvalidArgument, "beyond_sequence",
                     fmt::format("{} tokens from {} on of {}", count, first, sequence.tokens()));
  }
  const uint64_t block_tokens = sequence.attachment().block_tokens();
  for (size_t i = 0; i < count; ++i) {
    const uint64_t token = first + i;
    slots[i] = static_cast<int64_t>(sequence.block(token / block_tokens).value * block_tokens +
                                    token % block_tokens);
  }
  return {};
}

Status Fork(kvt_sequence* sequence, kvt_sequence** fork) {
  KVT_RETURN_IF_ERROR(CheckPointer(fork, "fork"));
  *fork = nullptr;
  auto handle = std::make_unique<kvt_sequence>();
  handle->connection = sequence->connection;
  KVT_ASSIGN_OR_RETURN(handle->sequence, sequence->sequence->Fork());
  *fork = handle.release();
  return {};
}

// The body of a function about an existing sequence.
template <typename Body>
kvt_status WithSequence(const kvt_sequence* sequence, Body&& body) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(sequence, "sequence"));
    return body();
  });
}

}  // namespace
}  // namespace kvtier::client

using kvtier::Status;
namespace client = kvtier::client;

extern "C" {

void kvt_hash_options_init(kvt_hash_options* options) {
  *options = kvt_hash_options{};
  options->size = sizeof(*options);
  options->block_tokens = kvtier::ModelRecord().block_tokens;
}

kvt_status kvt_hash_blocks(const kvt_hash_options* options, const uint32_t* tokens,
                           size_t token_count, kvt_hash* hashes, size_t hashes_capacity) {
  return client::Guard(
      [&] { return client::HashBlocks(options, tokens, token_count, hashes, hashes_capacity); });
}

void kvt_sequence_options_init(kvt_sequence_options* options) {
  const client::SequenceOptions defaults;
  *options = kvt_sequence_options{};
  options->size = sizeof(*options);
  options->leave_tokens = static_cast<uint32_t>(defaults.leave_tokens);
  options->retention = static_cast<kvt_retention>(defaults.retention);
}

kvt_status kvt_sequence_open(kvt_pool* pool, const kvt_sequence_options* options,
                             const uint32_t* tokens, size_t token_count, kvt_sequence** sequence) {
  return client::Guard([&] { return client::Open(pool, options, tokens, token_count, sequence); });
}

void kvt_sequence_close(kvt_sequence* sequence) {
  (void)client::Guard([&]() -> Status {
    delete sequence;
    return {};
  });
}

kvt_status kvt_sequence_wait(kvt_sequence* sequence, int64_t timeout_ms) {
  return client::WithSequence(sequence, [&] {
    return sequence->sequence->Wait(client::ToDeadline(timeout_ms, *sequence->connection));
  });
}

kvt_status kvt_sequence_get_info(const kvt_sequence* sequence, kvt_sequence_info* info) {
  return client::WithSequence(sequence, [&]() -> Status {
    KVT_RETURN_IF_ERROR(client::CheckStruct(info, "info"));
    client::FillInfo(*sequence->sequence, info);
    return {};
  });
}

kvt_status kvt_sequence_check(kvt_sequence* sequence) {
  return client::WithSequence(sequence, [&] { return sequence->sequence->Check(); });
}

kvt_status kvt_sequence_block_table(const kvt_sequence* sequence, int32_t* indices, size_t capacity,
                                    size_t* count) {
  return client::WithSequence(sequence, [&]() -> Status {
    KVT_RETURN_IF_ERROR(client::CheckPointer(count, "count"));
    return client::BlockTable(*sequence->sequence, indices, capacity, count);
  });
}

kvt_status kvt_sequence_slot_mapping(const kvt_sequence* sequence, uint64_t first, size_t count,
                                     int64_t* slots) {
  return client::WithSequence(
      sequence, [&] { return client::SlotMapping(*sequence->sequence, first, count, slots); });
}

kvt_status kvt_sequence_append(kvt_sequence* sequence, const uint32_t* tokens, size_t count) {
  return client::WithSequence(sequence, [&]() -> Status {
    KVT_RETURN_IF_ERROR(client::CheckArray(tokens, count, "tokens"));
    return sequence->sequence->Append({tokens, count});
  });
}

kvt_status kvt_sequence_mark_computed(kvt_sequence* sequence, uint64_t tokens) {
  return client::WithSequence(sequence, [&] { return sequence->sequence->MarkComputed(tokens); });
}

kvt_status kvt_sequence_finish(kvt_sequence* sequence) {
  return client::WithSequence(sequence, [&] { return sequence->sequence->Finish(); });
}

kvt_status kvt_sequence_fork(kvt_sequence* sequence, kvt_sequence** fork) {
  return client::WithSequence(sequence, [&] { return client::Fork(sequence, fork); });
}

}  // extern "C"
