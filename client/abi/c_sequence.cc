// SPDX-License-Identifier: Apache-2.0
// The C ABI: sequences and hashing.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/abi/c_common.h"
#include "protocol/block_hash.h"

namespace kvtier::client {
namespace {

// Absent and empty are not the same for every recipe, so that null becomes no text here.
std::optional<std::string> TextOf(const char* text) {
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

// `given` may be null.
Result<PromptIdentity> ToIdentity(const kvt_prompt_identity* given) {
  if (given == nullptr) return PromptIdentity{};
  KVT_RETURN_IF_ERROR(CheckStruct(given, "identity"));
  KVT_RETURN_IF_ERROR(CheckArray(given->items, given->item_count, "identity.items"));
  KVT_RETURN_IF_ERROR(
      CheckArray(given->prompt_embeds, given->prompt_embed_count, "identity.prompt_embeds"));
  const auto embeds = ToHashes(given->prompt_embeds, given->prompt_embed_count);
  PromptIdentity identity{.seed = TextOf(given->seed),
                          .lora_name = TextOf(given->lora),
                          .lora_path = TextOf(given->lora_path),
                          .cache_salt = TextOf(given->cache_salt),
                          .extra_key = TextOf(given->extra_key),
                          .media = {},
                          .prompt_embeds = {embeds.begin(), embeds.end()}};
  uint64_t previous = 0;
  for (size_t i = 0; i < given->item_count; ++i) {
    const kvt_multimodal_item& item = given->items[i];
    KVT_RETURN_IF_ERROR(CheckPointer(item.content_hash, "identity.items.content_hash"));
    const uint64_t max = std::numeric_limits<int64_t>::max();
    if (item.offset_tokens < previous || item.offset_tokens > max ||
        item.length_tokens > max - item.offset_tokens) {
      return MakeError(
          ErrorCode::kInvalidArgument, "bad_multimodal_item",
          fmt::format("item {}: {} tokens at {}", i, item.length_tokens, item.offset_tokens));
    }
    previous = item.offset_tokens;
    identity.media.push_back({item.content_hash, item.offset_tokens, item.length_tokens});
  }
  return identity;
}

// A hasher as the options say, which has hashed nothing yet.
Result<BlockHasher> ToHasher(const kvt_hash_options& options) {
  if (options.block_tokens == 0 || options.block_tokens > kMaxModelBlockTokens) {
    return MakeError(
        ErrorCode::kInvalidArgument, "bad_block_tokens",
        fmt::format("{}, 1 to {} are possible", options.block_tokens, kMaxModelBlockTokens));
  }
  KVT_ASSIGN_OR_RETURN(
      const HashRecipe recipe,
      ParseHashRecipe(options.recipe == nullptr ? kDefaultHashRecipe : options.recipe));
  KVT_ASSIGN_OR_RETURN(PromptIdentity identity, ToIdentity(options.identity));
  KVT_RETURN_IF_ERROR(identity.CheckFor(recipe));
  if (recipe == HashRecipe::kSglang1 && options.lookahead_tokens > 0) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_lookahead_tokens",
                     fmt::format("{} does not look ahead", HashRecipeName(recipe)));
  }
  return BlockHasher(options.block_tokens, recipe, std::move(identity), options.lookahead_tokens);
}

// The last hash is that of the tokens that fill no block, unless the recipe looks ahead. Nothing is
// written if the array is too small: half of a prompt's hashes is no prefix of use.
Status HashBlocks(const kvt_hash_options* options, std::span<const uint32_t> tokens,
                  kvt_hash* hashes, size_t capacity, size_t* count) {
  KVT_RETURN_IF_ERROR(CheckStruct(options, "options"));
  KVT_RETURN_IF_ERROR(CheckArray(tokens.data(), tokens.size(), "tokens"));
  KVT_RETURN_IF_ERROR(CheckPointer(count, "count"));
  *count = 0;
  KVT_ASSIGN_OR_RETURN(BlockHasher hasher, ToHasher(*options));
  hasher.Extend(tokens);
  std::vector<BlockHash> all = hasher.hashes();
  const std::span<const uint32_t> rest = tokens.subspan(all.size() * options->block_tokens);
  if (options->lookahead_tokens == 0 && !rest.empty()) {
    all.push_back(hasher.HashAfter(all.size(), rest));
  }
  const size_t embeds = options->identity == nullptr ? 0 : options->identity->prompt_embed_count;
  if (embeds > 0 && embeds != all.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_prompt_embeds",
                     fmt::format("{} for {} blocks", embeds, all.size()));
  }
  KVT_RETURN_IF_ERROR(CheckArray(hashes, all.size(), "hashes"));
  if (capacity < all.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "capacity_too_small",
                     fmt::format("{} of {}", capacity, all.size()));
  }
  if (!all.empty()) std::memcpy(hashes, all.data(), all.size() * sizeof(kvt_hash));
  *count = all.size();
  return {};
}

// `given` may be null: all defaults. The caller's copy function must not throw; a result other than
// 0 fails the call that copies. Errors: kInvalidArgument "bad_retention", "bad_plan".
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
  if (options.plan > KVT_PLAN_CUT) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_plan", fmt::format("{}", options.plan));
  }
  KVT_ASSIGN_OR_RETURN(PromptIdentity identity, ToIdentity(options.identity));
  SequenceOptions result{
      .identity = std::move(identity),
      .leave_tokens = options.leave_tokens,
      .reserve_tokens = options.reserve_tokens,
      .retention = static_cast<RetentionClass>(options.retention),
      .wish = {.plan = static_cast<HitPlan>(options.plan), .deadline_ms = options.deadline_ms},
      .copier = {},
      .request_timeout_ms = connection.options().request_timeout_ms};
  if (options.copy != nullptr) {
    result.copier = [copy = options.copy, user = options.copy_user](
                        uint64_t target, uint64_t source, uint64_t bytes) {
      return copy(user, target, source, bytes) == 0;
    };
  }
  return result;
}

void FillInfo(const Sequence& sequence, kvt_sequence_info* info) {
  const auto by_tier = sequence.TokensByTier();
  info->tokens = sequence.tokens();
  info->cached_tokens = sequence.cached_tokens();
  info->computed_tokens = sequence.computed_tokens();
  info->blocks = sequence.blocks().size();
  info->pool_tokens = by_tier[static_cast<size_t>(Tier::kPool)];
  info->host_tokens = by_tier[static_cast<size_t>(Tier::kHost)];
  info->disk_tokens = by_tier[static_cast<size_t>(Tier::kDisk)];
  info->attachment = sequence.attachment().id();
  info->base = sequence.attachment().mapping()->base();
  info->ready = sequence.ready() ? 1 : 0;
  info->miss = static_cast<kvt_miss>(sequence.miss());
  info->load_us = sequence.forecast().load_us;
  info->ready_us = sequence.forecast().ready_us;
}

// With a gap, the blocks before it and in it are usable while the rest is loaded.
Status CheckTableReady(const Sequence& sequence) {
  if (sequence.ready()) return {};
  return MakeError(ErrorCode::kWrongState, "not_ready", "the cached prefix must be waited for");
}

// `*count` is set also if the array is too small, so that callers can ask for the size alone.
Status BlockTable(const Sequence& sequence, int32_t* indices, size_t capacity, size_t* count) {
  KVT_RETURN_IF_ERROR(CheckTableReady(sequence));
  const size_t blocks = sequence.blocks().size();
  *count = blocks;
  if (indices == nullptr && capacity == 0) return {};
  if (capacity < blocks) {
    return MakeError(ErrorCode::kInvalidArgument, "capacity_too_small",
                     fmt::format("{} of {}", capacity, blocks));
  }
  KVT_RETURN_IF_ERROR(CheckArray(indices, blocks, "indices"));
  for (size_t i = 0; i < blocks; ++i) {
    indices[i] = static_cast<int32_t>(sequence.blocks()[i].index.value);
  }
  return {};
}

// A slot is a token's place in the pool, counted in tokens, as paged attention wants it. Errors:
// kInvalidArgument "beyond_sequence"; kWrongState "not_ready".
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
    const BlockIndex block = sequence.blocks()[token / block_tokens].index;
    slots[i] = static_cast<int64_t>(block.value * block_tokens + token % block_tokens);
  }
  return {};
}

// The fork shares committed blocks and has copies of private ones, so that both sequences are
// independent. `*fork` is null after every error.
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
  return GuardOn(sequence, "sequence", [&]() -> Status { return body(); });
}

}  // namespace

extern "C" {

KVT_API void kvt_prompt_identity_init(kvt_prompt_identity* identity) {
  *identity = kvt_prompt_identity{};
  identity->size = sizeof(*identity);
}

KVT_API void kvt_hash_options_init(kvt_hash_options* options) {
  *options = kvt_hash_options{};
  options->size = sizeof(*options);
  options->block_tokens = KvGroup().block_tokens;
}

KVT_API kvt_status kvt_hash_blocks(const kvt_hash_options* options, const uint32_t* tokens,
                                   size_t token_count, kvt_hash* hashes, size_t capacity,
                                   size_t* count) {
  return Guard([&] { return HashBlocks(options, {tokens, token_count}, hashes, capacity, count); });
}

KVT_API void kvt_sequence_options_init(kvt_sequence_options* options) {
  const SequenceOptions defaults;
  *options = kvt_sequence_options{};
  options->size = sizeof(*options);
  options->leave_tokens = static_cast<uint32_t>(defaults.leave_tokens);
  options->retention = static_cast<kvt_retention>(defaults.retention);
}

// One round trip, or two if something must be filled. `*sequence` is null after every error, and
// nothing is held then.
KVT_API kvt_status kvt_sequence_open(kvt_pool* pool, const kvt_sequence_options* options,
                                     const uint32_t* tokens, size_t token_count,
                                     kvt_sequence** sequence) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(sequence, "sequence"));
    *sequence = nullptr;
    KVT_RETURN_IF_ERROR(CheckArray(tokens, token_count, "tokens"));
    KVT_ASSIGN_OR_RETURN(SequenceOptions checked, ToOptions(options, pool->pool->connection()));
    checked.wish.cost = pool->pool->compute_cost();
    KVT_ASSIGN_OR_RETURN(std::shared_ptr<const Attachment> attachment,
                         pool->pool->AttachedForOpening());
    auto handle = std::make_unique<kvt_sequence>();
    handle->connection = &pool->pool->connection();
    KVT_ASSIGN_OR_RETURN(handle->sequence, Sequence::Open(std::move(attachment), std::move(checked),
                                                          {tokens, token_count}));
    *sequence = handle.release();
    return {};
  });
}

KVT_API void kvt_sequence_close(kvt_sequence* sequence) {
  (void)Guard([&]() -> Status {
    delete sequence;
    return {};
  });
}

KVT_API kvt_status kvt_sequence_wait(kvt_sequence* sequence, int64_t timeout_ms) {
  return WithSequence(sequence, [&] {
    return sequence->sequence->Wait(ToDeadline(timeout_ms, *sequence->connection));
  });
}

KVT_API kvt_status kvt_sequence_get_info(const kvt_sequence* sequence, kvt_sequence_info* info) {
  return WithSequence(sequence, [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(info, "info"));
    FillInfo(*sequence->sequence, info);
    return {};
  });
}

KVT_API kvt_status kvt_sequence_check(kvt_sequence* sequence) {
  return WithSequence(sequence, [&] { return sequence->sequence->Check(); });
}

KVT_API kvt_status kvt_sequence_block_table(const kvt_sequence* sequence, int32_t* indices,
                                            size_t capacity, size_t* count) {
  return WithSequence(sequence, [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(count, "count"));
    return BlockTable(*sequence->sequence, indices, capacity, count);
  });
}

KVT_API kvt_status kvt_sequence_slot_mapping(const kvt_sequence* sequence, uint64_t first,
                                             size_t count, int64_t* slots) {
  return WithSequence(sequence,
                      [&] { return SlotMapping(*sequence->sequence, first, count, slots); });
}

KVT_API kvt_status kvt_sequence_append(kvt_sequence* sequence, const uint32_t* tokens,
                                       size_t count) {
  return WithSequence(sequence, [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(tokens, count, "tokens"));
    return sequence->sequence->Append({tokens, count});
  });
}

KVT_API kvt_status kvt_sequence_mark_computed(kvt_sequence* sequence, uint64_t tokens) {
  return WithSequence(sequence, [&] { return sequence->sequence->MarkComputed(tokens); });
}

KVT_API kvt_status kvt_sequence_finish(kvt_sequence* sequence) {
  return WithSequence(sequence, [&] { return sequence->sequence->Finish(); });
}

KVT_API kvt_status kvt_sequence_fork(kvt_sequence* sequence, kvt_sequence** fork) {
  return WithSequence(sequence, [&] { return Fork(sequence, fork); });
}

KVT_API kvt_status kvt_sequence_hint(kvt_sequence* sequence, kvt_hint hint, int64_t returns_in_ms,
                                     uint32_t* taken) {
  return WithSequence(sequence, [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckHint(hint, returns_in_ms));
    const auto known = static_cast<SequenceHint>(hint);
    return StoreCount(sequence->sequence->Hint(known, returns_in_ms), taken);
  });
}

}  // extern "C"

}  // namespace kvtier::client
