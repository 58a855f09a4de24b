// SPDX-License-Identifier: Apache-2.0
// A session's work for regions: memory that its client lends, and the transfers to and from it.
//
// Memory that the client lends is checked before anything is read from it or written to it: a
// layout lies within the memory, and the memory is as large as the client says. A later change of
// it costs the client its own blocks, and the cache a failed copy.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/session/session.h"

namespace kvtier {

Result<const Session::AttachedPool*> Session::FindRegion(PoolId region) const {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const found, FindPoolOrRegion(region));
  if (found->region_blocks > 0) return found;
  return MakeError(ErrorCode::kInvalidArgument, "not_a_region",
                   fmt::format("{} is a pool", region.value));
}

Result<LentMemory> Session::TakeLentMemory(const wire::OpenRegion& request) {
  LentMemory lent{.kind = static_cast<LentMemory::Kind>(request.memory),
                  .ipc_handle = request.ipc_handle,
                  .bytes = request.bytes};
  if (request.memory == wire::RegionMemory::kCudaIpc) return lent;
  std::optional<UniqueFd> descriptor = connection_.TakeDescriptor();
  if (!descriptor) {
    return MakeError(ErrorCode::kInvalidArgument, "no_descriptor", "none came with the message");
  }
  if (!descriptor->valid()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_region_memory",
                     "neither a file in memory nor memory of a GPU");
  }
  lent.descriptor =
      LentDescriptor(*std::move(descriptor), services_.network->closer.CloseFor(tenant_));
  lent.owner = tenant_;
  return lent;
}

Status Session::OnOpenRegion(const Call& call, const wire::OpenRegion& request) {
  KVT_ASSIGN_OR_RETURN(LentMemory lent, TakeLentMemory(request));
  // Shared, because a function that is kept for later must be copyable.
  const auto kept = std::make_shared<LentMemory>(std::move(lent));
  return After(
      [this, &request](std::function<void(Status)> open) {
        if (request.memory == wire::RegionMemory::kSharedMemory) return open({});
        services_.cache->WhenDeviceOpen(DeviceIndex(request.device), std::move(open));
      },
      wire::MessageType::kOpenRegion, call,
      [this, call, request, kept] { return OpenRegion(call, request, std::move(*kept)); });
}

Status Session::OpenRegion(const Call& call, const wire::OpenRegion& request, LentMemory lent) {
  KVT_ASSIGN_OR_RETURN(const ModelHold model, services_.models->Find(tenant_, request.model));
  if (request.group >= model->groups.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_group",
                     fmt::format("group {} of {}", request.group, model->groups.size()));
  }
  const wire::RegisterModelReply::Group& group = model->groups[request.group];
  uint64_t bytes = 0;
  for (const wire::RegionPiece& piece : request.pieces) bytes += piece.bytes;
  if (bytes != group.block_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "region_block_bytes",
                     fmt::format("the pieces have {} bytes, a block of the group has {}", bytes,
                                 group.block_bytes));
  }
  if (region_blocks_ + request.blocks > wire::kMaxRegionBlocks) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_blocks",
                     fmt::format("{} in regions, {} are allowed", region_blocks_ + request.blocks,
                                 wire::kMaxRegionBlocks));
  }
  connection_.Spend(request.pieces.size());
  RegionMemory memory{
      .lent = std::move(lent),
      .device = DeviceIndex(request.device),
      .blocks = request.blocks,
      .block_tokens = static_cast<uint16_t>(model->record.groups[request.group].block_tokens)};
  for (const wire::RegionPiece& piece : request.pieces) {
    memory.pieces.push_back({piece.offset, piece.block_stride, piece.bytes});
  }
  const NamespaceIdentity identity{tenant_, group.fingerprint, group.block_bytes};
  KVT_ASSIGN_OR_RETURN(const PoolId region,
                       services_.cache->OpenRegion(id_, identity, std::move(memory)));
  const NamespaceId namespace_id = services_.cache->FindNamespace(identity).value();
  services_.models->NoteNamespace(namespace_id, *model);
  pools_[region] = {.model = model,
                    .group = request.group,
                    .device = request.device,
                    .namespace_id = namespace_id,
                    .region_blocks = request.blocks};
  region_blocks_ += request.blocks;
  trace_.End(wire::MessageType::kOpenRegion, call.request_id, /*failed=*/false);
  Reply(call, wire::OpenRegionReply{.region = region, .block_bytes = group.block_bytes});
  return {};
}

Status Session::OnCloseRegion(const Call& call, const wire::CloseRegion& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const region, FindRegion(request.region));
  region_blocks_ -= region->region_blocks;
  pools_.erase(request.region);
  held_stores_.Drop(request.region);
  services_.cache->CloseRegion(request.region, gate_.WhileOpen([this, call] {
    trace_.End(wire::MessageType::kCloseRegion, call.request_id, /*failed=*/false);
    if (!ended_) Reply(call, wire::CloseRegionReply{});
  }));
  return {};
}

template <typename Message>
Status Session::BeginTransfer(const Message& request, const LayerOrder& order) {
  KVT_RETURN_IF_ERROR(FindRegion(request.region));
  std::vector<BlockIndex> blocks;
  blocks.reserve(request.items.size());
  for (const auto& item : request.items) blocks.emplace_back(item.block);
  const auto count = static_cast<uint32_t>(blocks.size());
  KVT_RETURN_IF_ERROR(services_.cache->BeginTransfer(
      request.region, TransferId(request.transfer), blocks,
      gate_.WhileOpen(
          [this, region = request.region, transfer = request.transfer, count](TransferEnd end) {
            OnTransferred(region, transfer, count, std::move(end));
          }),
      order));
  const uint64_t before = transfers_in_flight_;
  transfers_in_flight_ += count + kTransferPrice;
  const bool full = transfers_in_flight_ >= kMaxTransferBlocksInFlight;
  if (full && before < kMaxTransferBlocksInFlight) connection_.Pause();
  return {};
}

void Session::OnTransferred(PoolId region, uint64_t transfer, uint32_t blocks, TransferEnd end) {
  const uint64_t before = transfers_in_flight_;
  transfers_in_flight_ -= blocks + kTransferPrice;
  const bool free = transfers_in_flight_ < kMaxTransferBlocksInFlight;
  if (free && before >= kMaxTransferBlocksInFlight) connection_.Resume();
  if (ended_) return;
  wire::TransferDone done{
      .region = region, .transfer = transfer, .copied = end.copied, .skipped = end.skipped};
  done.failed.reserve(end.failed.size());
  for (const auto& [position, reason] : end.failed) done.failed.push_back({position, reason});
  connection_.Send(0, done);
}

template <typename Block, typename Work>
void Session::TransferInSteps(std::vector<Block> blocks, Work work) {
  // An event reports the transfer's end. A load in layers has host slots pinned until all blocks
  // are named.
  const auto step = [this, blocks = std::make_shared<const std::vector<Block>>(std::move(blocks)),
                     done = size_t{0}, work = std::move(work)]() mutable {
    const std::span<const Block> part = NextItems(std::span(*blocks), done);
    done += part.size();
    work(part);
    return done < blocks->size();
  };
  connection_.WorkInSteps(step, Connection::StepKind::kSendsNothing);
}

Status Session::OnStore(const Call& call, const wire::Store& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const region, FindRegion(request.region));
  const KvGroup& group = region->kv_group();
  std::vector<StoreRequest> blocks;
  blocks.reserve(request.items.size());
  for (const wire::StoreItem& item : request.items) {
    if (item.tokens == 0 || item.tokens > group.block_tokens) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_token_count",
                       fmt::format("{}, a block has {}", item.tokens, group.block_tokens));
    }
    if (item.depth > kMaxBlockPosition) return MakeError(ErrorCode::kInvalidArgument, "bad_depth");
    blocks.push_back({.block = BlockIndex(item.block),
                      .hash = item.hash,
                      // As of COMMIT: windows and states are of use without the blocks before them.
                      .parent = group.hit_rule == HitRule::kAll ? item.parent : std::nullopt,
                      .tokens = item.tokens,
                      .depth = EvictionDepth(group.hit_rule, item.depth),
                      .retention = item.retention});
  }
  if (request.after && !counters_->CanBeNamed(request.after->offset)) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_counter",
                     fmt::format("offset {}", request.after->offset));
  }
  const bool hold = request.after && !HeldStores::Reached(*counters_, *request.after);
  if (hold && held_stores_.blocks() + blocks.size() > kMaxHeldBlocks) {
    return MakeError(
        ErrorCode::kLimitExceeded, "too_many_held_blocks",
        fmt::format("{} beside {} that are held", blocks.size(), held_stores_.blocks()));
  }
  KVT_RETURN_IF_ERROR(BeginTransfer(request, {}));
  trace_.End(wire::MessageType::kStore, call.request_id, /*failed=*/false);
  if (hold) {
    held_stores_.Hold(request.region, std::move(blocks), counters_, *request.after);
    return {};
  }
  TransferInSteps(std::move(blocks), [cache = services_.cache, region = request.region](auto part) {
    cache->Store(region, part);
  });
  return {};
}

void Session::PrefetchToHost(const Call& call, const wire::Prefetch& request) {
  connection_.Spend(request.hashes.size());
  const auto done = gate_.WhileOpen([this, call](uint32_t in_memory) {
    trace_.End(wire::Prefetch::kType, call.request_id, /*failed=*/false);
    if (!ended_) Reply(call, wire::PrefetchReply{.count = in_memory});
  });
  services_.cache->PrefetchToHost(id_, request.pool, {request.hashes.begin(), request.hashes.end()},
                                  done);
}

Result<LayerOrder> Session::OrderOf(const wire::Load& request, uint32_t layers) const {
  LayerOrder order;
  if (request.order == wire::LoadOrder::kLayers) order.layers = layers;
  if (!request.counter) return order;
  const wire::LoadCounter& counter = *request.counter;
  if (!counters_->CanBeNamed(counter.offset) || counter.steps != layers) {
    return MakeError(
        ErrorCode::kInvalidArgument, "bad_counter",
        fmt::format("{} steps at offset {}, for {} layers", counter.steps, counter.offset, layers));
  }
  order.counters = counters_;
  order.counter_offset = counter.offset;
  order.counter_base = counter.base;
  return order;
}

Status Session::OnLoad(const Call& call, const wire::Load& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const region, FindRegion(request.region));
  std::vector<LoadRequest> blocks;
  blocks.reserve(request.items.size());
  for (const wire::LoadItem& item : request.items) {
    blocks.push_back({.block = BlockIndex(item.block), .hash = item.hash});
  }
  KVT_ASSIGN_OR_RETURN(const LayerOrder order, OrderOf(request, region->kv_group().layers));
  KVT_RETURN_IF_ERROR(BeginTransfer(request, order));
  trace_.End(wire::MessageType::kLoad, call.request_id, /*failed=*/false);
  TransferInSteps(std::move(blocks), [cache = services_.cache, region = request.region](auto part) {
    cache->Load(region, part);
  });
  return {};
}

}  // namespace kvtier
