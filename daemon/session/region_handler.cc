// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/region_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/net/connection.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/kept_table_reader.h"

namespace kvtier {
namespace {

// A region costs so much besides the frame to open or to close: memory is mapped or given back.
constexpr uint32_t kRegionPrice = 64;

}  // namespace

static_assert(static_cast<int>(NumberFormat::kFloat32) == static_cast<int>(KvDtype::kFloat32) &&
              static_cast<int>(NumberFormat::kInt8) == static_cast<int>(KvDtype::kInt8));

std::function<void(UniqueFd)> RegionHandler::CloseCounted(std::shared_ptr<const void> share) const {
  return [close = network_.closer.CloseFor(client_.tenant), share = std::move(share)](UniqueFd fd) {
    close(std::move(fd));
  };
}

Result<RegionHandler::Lent> RegionHandler::TakeLentMemory(const wire::OpenRegion& request) {
  std::shared_ptr<const void> share = network_.regions.TakeOne(client_.tenant);
  if (!share) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_regions",
                     fmt::format("{} of the tenant's are open, all may have {}: the daemon's "
                                 "LimitNOFILE= and the machine's vm.max_map_count say how many",
                                 network_.regions.taken(client_.tenant), network_.regions.total()));
  }
  LentMemory lent{.kind = static_cast<LentMemory::Kind>(request.memory),
                  .ipc_handle = request.ipc_handle,
                  .bytes = request.bytes,
                  .is_source = request.kept.has_value()};
  if (request.memory == wire::RegionMemory::kCudaIpc) return Lent{std::move(lent), share};
  std::optional<UniqueFd> descriptor = replies_.connection().TakeDescriptor();
  if (!descriptor) {
    return MakeError(ErrorCode::kInvalidArgument, "no_descriptor", "none came with the message");
  }
  if (!descriptor->valid()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_region_memory",
                     "neither a file in memory nor memory of a GPU");
  }
  lent.descriptor = LentDescriptor(*std::move(descriptor), CloseCounted(share));
  lent.owner = client_.tenant;
  return Lent{std::move(lent), share};
}

// Host memory is as near to every reader as what host memory keeps of it.
std::shared_ptr<const PublishedBlocks> RegionHandler::PublishedIn(
    const wire::OpenRegion& request, const std::shared_ptr<const void>& share) const {
  if (!request.kept || request.memory != wire::RegionMemory::kVmm) return nullptr;
  UniqueFd table =
      kept_memories_.TableOf({client_.session, client_.process, client_.tenant}, *request.kept);
  if (!table.valid()) return nullptr;
  return std::make_shared<KeptTableReader>(
      std::move(table), CloseCounted(share), request.group,
      fmt::format("{}, session {}", client_.tenant, client_.session.value),
      network_.closer.threads(), network_.mail);
}

Status RegionHandler::OnOpenRegion(const Call& call, const wire::OpenRegion& request) {
  KVT_ASSIGN_OR_RETURN(Lent lent, TakeLentMemory(request));
  // Before the memory is mapped, which takes long.
  KVT_RETURN_IF_ERROR(Check(request));
  replies_.connection().Spend(kRegionPrice + request.pieces.size());
  // Shared, because a function that is kept for later must be copyable.
  const auto kept = std::make_shared<LentMemory>(std::move(lent.memory));
  return replies_.After(
      [this, &request, kept](std::function<void(Status)> go_on) {
        if (request.memory == wire::RegionMemory::kSharedMemory) return go_on({});
        cache_.WhenDeviceOpen(DeviceIndex(request.device), kept, std::move(go_on));
      },
      wire::MessageType::kOpenRegion, call,
      [this, call, request, kept, share = std::move(lent.share)] {
        return OpenRegion(call, request, {std::move(*kept), share});
      });
}

Result<ModelHold> RegionHandler::Check(const wire::OpenRegion& request) const {
  KVT_ASSIGN_OR_RETURN(ModelHold model, models_.Find(client_.tenant, request.model));
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
  return model;
}

Status RegionHandler::OpenRegion(const Call& call, const wire::OpenRegion& request, Lent lent) {
  // Again, because others of the session's calls may have come between.
  KVT_ASSIGN_OR_RETURN(const ModelHold model, Check(request));
  const wire::RegisterModelReply::Group& group = model->groups[request.group];
  RegionMemory memory{
      .lent = std::move(lent.memory),
      .device = DeviceIndex(request.device),
      .blocks = request.blocks,
      .block_tokens = static_cast<uint16_t>(model->record.groups[request.group].block_tokens),
      .process = client_.Identity().process,
      .lender = replies_.connection().hang_up(),
      .published = PublishedIn(request, lent.share)};
  for (const wire::RegionPiece& piece : request.pieces) {
    memory.pieces.push_back({piece.offset, piece.block_stride, piece.bytes});
  }
  const NamespaceIdentity identity{client_.tenant, group.fingerprint, group.block_bytes};
  KVT_ASSIGN_OR_RETURN(const PoolId region,
                       cache_.OpenRegion(client_.session, identity, std::move(memory)));
  const NamespaceId namespace_id = cache_.FindNamespace(identity).value();
  models_.NoteNamespace(namespace_id, *model);
  pools_.Add(region, {.model = model,
                      .group = request.group,
                      .device = request.device,
                      .namespace_id = namespace_id,
                      .region_blocks = request.blocks,
                      .share = std::move(lent.share)});
  region_blocks_ += request.blocks;
  replies_.End(wire::MessageType::kOpenRegion, call);
  replies_.Send(call, wire::OpenRegionReply{.region = region, .block_bytes = group.block_bytes});
  return {};
}

Status RegionHandler::OnCloseRegion(const Call& call, const wire::CloseRegion& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const region, pools_.FindRegion(request.region));
  replies_.connection().Spend(kRegionPrice);
  region_blocks_ -= region->region_blocks;
  pools_.Erase(request.region);
  cache_.CloseRegion(request.region, gate_.WhileOpen([this, call] {
    replies_.End(wire::MessageType::kCloseRegion, call);
    replies_.Send(call, wire::CloseRegionReply{});
  }));
  return {};
}

template <typename Message>
Status RegionHandler::BeginTransfer(const Message& request, const LayerOrder& order) {
  KVT_RETURN_IF_ERROR(pools_.FindRegion(request.region));
  // Read late, from a client that has told its engine meanwhile that the memory is free.
  if (replies_.connection().hang_up()->Seen()) {
    return MakeError(ErrorCode::kUnavailable, "client_hung_up");
  }
  std::vector<BlockIndex> blocks;
  blocks.reserve(request.items.size());
  for (const auto& item : request.items) blocks.emplace_back(item.block);
  const auto count = static_cast<uint32_t>(blocks.size());
  KVT_RETURN_IF_ERROR(
      cache_.BeginTransfer(request.region, TransferId(request.transfer), blocks,
                           gate_.WhileOpen([this, region = request.region,
                                            transfer = request.transfer, count](TransferEnd end) {
                             OnTransferred(region, transfer, count, std::move(end));
                           }),
                           order));
  const uint64_t before = transfers_in_flight_;
  transfers_in_flight_ += count + wire::kTransferPrice;
  const bool full = transfers_in_flight_ >= wire::kTransfersPauseAt;
  if (full && before < wire::kTransfersPauseAt) replies_.connection().Pause();
  return {};
}

void RegionHandler::OnTransferred(PoolId region, uint64_t transfer, uint32_t blocks,
                                  TransferEnd end) {
  const uint64_t before = transfers_in_flight_;
  transfers_in_flight_ -= blocks + wire::kTransferPrice;
  const bool free = transfers_in_flight_ < wire::kTransfersPauseAt;
  if (free && before >= wire::kTransfersPauseAt) replies_.connection().Resume();
  if (replies_.ended()) return;
  wire::TransferDone done{
      .region = region, .transfer = transfer, .copied = end.copied, .skipped = end.skipped};
  done.failed.reserve(end.failed.size());
  for (const auto& [position, reason] : end.failed) done.failed.push_back({position, reason});
  replies_.connection().Send(0, done);
}

template <typename Block, typename Work>
void RegionHandler::TransferInSteps(std::vector<Block> blocks, Work work) {
  // An event reports the transfer's end. A load in layers has host slots pinned until all blocks
  // are named.
  const auto step = [this, blocks = std::make_shared<const std::vector<Block>>(std::move(blocks)),
                     done = size_t{0}, work = std::move(work)]() mutable {
    const std::span<const Block> part = replies_.NextItems(std::span(*blocks), done);
    done += part.size();
    work(part);
    return done < blocks->size();
  };
  replies_.connection().WorkInSteps(step, Connection::StepKind::kSendsNothing);
}

Status RegionHandler::OnStore(const Call& call, const wire::Store& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const region, pools_.FindRegion(request.region));
  const KvGroup& group = region->kv_group();
  std::vector<StoreRequest> blocks;
  blocks.reserve(request.items.size());
  KvNumbers compare;
  // The numbers of a state are of several types.
  if (request.compare && group.hit_rule != HitRule::kState) {
    compare = {static_cast<NumberFormat>(*request.compare), group.layers};
  }
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
                      .retention = item.retention,
                      .compare = compare});
  }
  KVT_RETURN_IF_ERROR(BeginTransfer(request, {}));
  replies_.End(wire::MessageType::kStore, call);
  TransferInSteps(std::move(blocks), [cache = &cache_, region = request.region](auto part) {
    cache->Store(region, part);
  });
  return {};
}

Result<LayerOrder> RegionHandler::OrderOf(const wire::Load& request, uint32_t layers) const {
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

Status RegionHandler::OnLoad(const Call& call, const wire::Load& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const region, pools_.FindRegion(request.region));
  std::vector<LoadRequest> blocks;
  blocks.reserve(request.items.size());
  for (const wire::LoadItem& item : request.items) {
    blocks.push_back({.block = BlockIndex(item.block), .hash = item.hash});
  }
  KVT_ASSIGN_OR_RETURN(const LayerOrder order, OrderOf(request, region->kv_group().layers));
  KVT_RETURN_IF_ERROR(BeginTransfer(request, order));
  replies_.End(wire::MessageType::kLoad, call);
  TransferInSteps(std::move(blocks), [cache = &cache_, region = request.region](auto part) {
    cache->Load(region, part);
  });
  return {};
}

}  // namespace kvtier
