// SPDX-License-Identifier: Apache-2.0
#include "client/core/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "client/core/device_choice.h"
#include "client/core/token_ids.h"
#include "client/cuda/cuda_mapping.h"

namespace kvtier::client {
namespace {

// Encoded items, rounded up; they bound how many fit the frames that the daemon accepts.
constexpr size_t kStoreItemBytesMax = 80;
constexpr size_t kLoadItemBytes = 36;
constexpr size_t kTransferBytes = 64;  // a frame without its items, rounded up
// One of so many looks at counters reads the socket, too: the daemon does not count a load whose
// counter it still uses for an earlier one, and a caller may do nothing but look.
constexpr uint64_t kLooksPerPoll = 1024;
// Between looks at a counter when a load takes long.
constexpr std::chrono::milliseconds kLongSleep{1};

// How many items one message may have.
size_t BatchOf(const wire::HelloReply& limits, size_t most, size_t item_bytes) {
  const size_t frame_bytes = std::max<size_t>(limits.max_frame_bytes, kTransferBytes);
  const size_t fitting = (frame_bytes - kTransferBytes) / item_bytes;
  return std::max<size_t>(1, std::min({most, size_t{limits.max_blocks}, fitting}));
}

// Where host memory is, only the descriptor says: it is not asked which device is meant.
Result<uint32_t> DeviceOf(const wire::OpenRegion& request, const Connection& connection,
                          DaemonSession* session) {
  if (request.device != kAnyDevice) return request.device;
  if (request.memory == wire::RegionMemory::kSharedMemory) return 0;
  KVT_ASSIGN_OR_RETURN(const auto devices, connection.DevicesOf(*session));
  return ChooseDevice(devices, std::nullopt, CurrentDeviceUuid);
}

// The daemon writes only to pages that are there. Pages that the engine has not written yet are
// made now, at its cost; where that fails, loads into them fail, and the engine computes. None are
// made for memory that is too short, which the daemon refuses.
void MakePages(const wire::OpenRegion& request, const UniqueFd& descriptor) {
  if (request.memory != wire::RegionMemory::kSharedMemory) return;
  constexpr uint64_t kUnit = 512;  // of st_blocks
  struct stat file {};
  if (::fstat(descriptor.get(), &file) != 0 ||
      static_cast<uint64_t>(file.st_size) < request.bytes ||
      static_cast<uint64_t>(file.st_blocks) * kUnit >= request.bytes) {
    return;
  }
  (void)::fallocate(descriptor.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(request.bytes));
}

Status CheckCount(size_t blocks) {
  if (blocks == 0) return MakeError(ErrorCode::kInvalidArgument, "empty_request");
  if (blocks <= wire::kMaxRegionBlocks) return {};
  return MakeError(ErrorCode::kLimitExceeded, "too_many_blocks",
                   fmt::format("{}, at most {}", blocks, wire::kMaxRegionBlocks));
}

}  // namespace

Result<std::unique_ptr<Region>> Region::Open(Connection* connection, uint32_t model,
                                             wire::OpenRegion request, UniqueFd descriptor) {
  if (request.memory != wire::RegionMemory::kCudaIpc && !descriptor.valid()) {
    return MakeError(ErrorCode::kInvalidArgument, "no_descriptor");
  }
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection->GetSession());
  KVT_ASSIGN_OR_RETURN(const Connection::Model known, connection->GetModel(model));
  if (request.group >= known.groups.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_group",
                     fmt::format("group {} of {}", request.group, known.groups.size()));
  }
  const KvGroup& group = known.record.groups[request.group];
  if (request.pieces.empty()) {
    request.pieces.push_back({.block_stride = group.BlockBytes(), .bytes = group.BlockBytes()});
  }
  KVT_ASSIGN_OR_RETURN(request.model, connection->ModelIn(session, model));
  KVT_ASSIGN_OR_RETURN(request.device, DeviceOf(request, *connection, session.get()));
  MakePages(request, descriptor);
  std::unique_ptr<Region> region(new Region(connection, session, group, request.blocks));
  region->touched_unasked_ = request.kept || request.memory == wire::RegionMemory::kCudaIpc;
  // The session must know the region before it can hear of a transfer.
  const auto add = [&](const wire::OpenRegionReply& reply) -> Status {
    if (reply.block_bytes != region->block_bytes()) {
      return MakeError(ErrorCode::kCorrupt, "region_geometry",
                       fmt::format("blocks of {} bytes (the model's have {})", reply.block_bytes,
                                   region->block_bytes()));
    }
    KVT_RETURN_IF_ERROR(session->AddRegion(reply.region, region->transfers_));
    region->id_ = reply.region;
    region->open_ = true;
    return {};
  };
  const int to_send = descriptor.get();
  const size_t count = descriptor.valid() ? 1 : 0;
  const Result<wire::OpenRegionReply> opened = session->channel().Call<wire::OpenRegionReply>(
      request, connection->RequestDeadline(), {.on_reply = add}, {}, {&to_send, count});
  if (opened) return region;
  return tl::unexpected(opened.error());
}

Region::~Region() {
  if (!open_) return;
  Channel& channel = session_->channel();
  // Waits for as long as it takes where the daemon may be at work: afterwards the caller frees
  // memory that it copies to. A daemon that has not answered another one is not waited for again.
  Deadline deadline = DeadlineIn(kMaxTimeoutMs);
  (void)channel.Poll();
  if (IsIdle()) deadline = channel.AwaitsLateReplies() ? Deadline() : connection_.RequestDeadline();
  (void)channel.Call<wire::CloseRegionReply>(wire::CloseRegion{.region = id_}, deadline,
                                             {.sent_later_behind = SIZE_MAX});
  const auto lock = channel.Lock();
  session_->RemoveRegion(id_);
}

bool Region::IsIdle() const {
  const auto lock = session_->channel().Lock();
  return !touched_unasked_ && transfers_->PriceUnderWay() == 0;
}

Status Region::CheckBlock(uint32_t block) const {
  if (block < blocks_) return {};
  return MakeError(ErrorCode::kInvalidArgument, "block_out_of_range",
                   fmt::format("block {} of {}", block, blocks_));
}

Result<uint64_t> Region::Store(std::vector<wire::StoreItem> items, std::optional<KvDtype> compare) {
  for (const wire::StoreItem& item : items) {
    KVT_RETURN_IF_ERROR(CheckBlock(item.block));
    if (item.tokens == 0 || item.tokens > group_.block_tokens) {
      return MakeError(
          ErrorCode::kInvalidArgument, "bad_token_count",
          fmt::format("block {}: {} of at most {}", item.block, item.tokens, group_.block_tokens));
    }
  }
  const size_t batch = BatchOf(session_->limits(), wire::kMaxStoresPerCall, kStoreItemBytesMax);
  wire::Store store{.region = id_, .items = std::move(items), .compare = compare};
  return Begin(std::move(store), batch);
}

Result<uint64_t> Region::Load(std::vector<wire::LoadItem> items, wire::LoadOrder order) {
  for (const wire::LoadItem& item : items) KVT_RETURN_IF_ERROR(CheckBlock(item.block));
  // A client that only polls counters must also notice a lost connection.
  if (order == wire::LoadOrder::kLayers) KVT_RETURN_IF_ERROR(session_->WatchForLoss());
  return Begin(wire::Load{.region = id_, .order = order, .items = std::move(items)},
               BatchOf(session_->limits(), wire::kMaxBlocksPerCall, kLoadItemBytes));
}

template <typename Message>
Result<uint64_t> Region::Begin(Message message, size_t blocks_per_message) {
  auto items = std::move(message.items);
  const size_t blocks = items.size();
  KVT_RETURN_IF_ERROR(CheckCount(blocks));
  Channel& channel = session_->channel();
  uint64_t transfer = 0;
  for (size_t first = 0; first < blocks; first += blocks_per_message) {
    const size_t count = std::min(blocks_per_message, blocks - first);
    if (count == blocks) {
      message.items = std::move(items);
    } else {
      const auto part = std::span(items).subspan(first, count);
      message.items.assign(part.begin(), part.end());
    }
    // Runs before the message is encoded, which thereby carries its request's id as its number.
    uint64_t part = 0;
    const auto add = [&](uint64_t request_id) {
      message.transfer = part = request_id;
      if (first == 0) transfer = request_id;
      transfers_->AddPart(transfer, static_cast<uint32_t>(blocks), request_id,
                          static_cast<uint32_t>(first), static_cast<uint32_t>(count));
      if constexpr (std::is_same_v<Message, wire::Load>) {
        if (message.order == wire::LoadOrder::kLayers) {
          message.counter = transfers_->layers().AddPart(transfer, request_id, group_.layers);
        }
      }
    };
    if (Status sent = channel.Post(message, add); !sent) {
      const auto lock = channel.Lock();
      if (first > 0) {
        transfers_->FailUnsent(transfer, part, sent.error());
        return transfer;
      }
      transfers_->Forget(transfer);
      return tl::unexpected(std::move(sent).error());
    }
  }
  return transfer;
}

std::vector<EndedTransfer> Region::Poll(size_t limit) {
  (void)session_->channel().Poll();
  const auto lock = session_->channel().Lock();
  return transfers_->TakeEnded(limit);
}

Result<EndedTransfer> Region::Wait(uint64_t transfer, Deadline deadline) {
  std::optional<EndedTransfer> end;
  const auto ended = [&] {
    if (!end) end = transfers_->TakeOne(transfer);
    return end || !transfers_->IsUnderWay(transfer);
  };
  const Status waited = session_->channel().WaitUntil(ended, deadline);
  if (end) return *std::move(end);
  if (!waited) return tl::unexpected(waited.error());
  return MakeError(ErrorCode::kNotFound, "unknown_transfer", fmt::format("transfer {}", transfer));
}

Result<LayerCounts::State> Region::LayersLoaded(uint64_t transfer) {
  Channel& channel = session_->channel();
  {
    const auto lock = channel.Lock();
    Result<LayerCounts::State> state = transfers_->layers().Find(transfer);
    if (!state || state->ended) return state;
    if (!state->counters.empty() && ++looks_ % kLooksPerPoll != 0) return state;
  }
  // Memory does not tell, so that events have to.
  (void)channel.Poll();
  const auto lock = channel.Lock();
  return transfers_->layers().Find(transfer);
}

Status Region::WaitLayers(uint64_t transfer, uint32_t layers, Deadline deadline) {
  if (layers > group_.layers) {
    return MakeError(ErrorCode::kInvalidArgument, "too_many_layers",
                     fmt::format("{} of {}", layers, group_.layers));
  }
  const CounterPace pace;
  std::optional<Error> failure;
  bool counted = false;
  const auto reached = [&] {
    const Result<LayerCounts::State> state = transfers_->layers().Find(transfer);
    if (!state) failure = state.error();
    if (!state || state->layers >= layers) return true;
    failure = state->failure;
    counted = !state->counters.empty();
    return failure.has_value();
  };
  while (true) {
    {
      const auto lock = session_->channel().Lock();
      if (reached()) break;
    }
    const auto now = std::chrono::steady_clock::now();
    if (counted && now < deadline && pace.Pause()) continue;
    // Between events the counter is looked at now and then.
    const Deadline next = counted ? std::min(deadline, now + kLongSleep) : deadline;
    const Status waited = session_->channel().WaitUntil(reached, next);
    if (waited) break;
    if (waited.error().code != ErrorCode::kTimeout || next == deadline) return waited;
  }
  return failure ? tl::unexpected(*failure) : Status();
}

std::vector<wire::TransferDone::Failed> Region::TakeFailures(uint64_t transfer, size_t limit,
                                                             size_t* count) {
  const auto lock = session_->channel().Lock();
  const std::vector<wire::TransferDone::Failed>& known = transfers_->FailuresOf(transfer);
  *count = known.size();
  const auto first = std::span(known).first(std::min(known.size(), limit));
  std::vector<wire::TransferDone::Failed> taken(first.begin(), first.end());
  if (taken.size() == *count) transfers_->ForgetFailures(transfer);
  return taken;
}

Status Region::CheckHashCount(size_t count) const {
  if (count <= session_->limits().max_hashes) return {};
  return MakeError(ErrorCode::kLimitExceeded, "too_many_hashes",
                   fmt::format("{} in one call, at most {}", count, session_->limits().max_hashes));
}

Result<uint32_t> Region::Pin(std::span<const BlockHash> hashes, int64_t ttl_ms) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (ttl_ms < 0) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_ttl", fmt::format("{} ms", ttl_ms));
  }
  if (hashes.empty()) return 0;
  const wire::Pin request{.pool = id_, .ttl_ms = ttl_ms, .hashes = hashes};
  KVT_ASSIGN_OR_RETURN(const wire::PinReply reply, session_->channel().Call<wire::PinReply>(
                                                       request, connection_.RequestDeadline()));
  return reply.count;
}

Result<uint32_t> Region::Hint(std::span<const BlockHash> hashes, SequenceHint hint,
                              int64_t returns_in_ms) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (hashes.empty()) return 0;
  const wire::Hint request{
      .pool = id_, .hint = hint, .returns_in_ms = returns_in_ms, .hashes = hashes};
  KVT_ASSIGN_OR_RETURN(const wire::HintReply reply, session_->channel().Call<wire::HintReply>(
                                                        request, connection_.RequestDeadline()));
  return reply.count;
}

Result<uint32_t> Region::Prefetch(std::span<const BlockHash> hashes, Deadline deadline) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (hashes.empty()) return 0;
  const wire::Prefetch request{.pool = id_, .hashes = hashes};
  KVT_ASSIGN_OR_RETURN(const wire::PrefetchReply reply,
                       session_->channel().Call<wire::PrefetchReply>(
                           request, deadline, {.sent_later_behind = wire::kMaxFrameBytes}));
  return reply.count;
}

Result<bool> Region::WantsTokenIds() const {
  return AskForTokenIds(session_.get(), id_, connection_.RequestDeadline());
}

Status Region::TellTokenIds(std::span<const BlockHash> hashes, std::span<const uint16_t> counts,
                            std::span<const uint32_t> ids) const {
  return client::TellTokenIds(session_.get(), id_, group_.block_tokens, hashes, counts, ids);
}

Result<std::vector<uint8_t>> Region::Lookup(std::span<const BlockHash> hashes) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (hashes.empty()) return std::vector<uint8_t>();
  return session_->LookUp(id_, hashes, connection_.RequestDeadline());
}

}  // namespace kvtier::client
