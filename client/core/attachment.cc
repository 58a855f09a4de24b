// SPDX-License-Identifier: Apache-2.0
#include "client/core/attachment.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "client/core/token_ids.h"

namespace kvtier::client {
namespace {

// An encoded commit item with every optional field, rounded up; bounds the items of one frame.
constexpr uint32_t kCommitItemBytesMax = 128;

uint64_t NextAttachmentId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// The daemon's figures of a pool must fit together, or using it would be fatal.
Status CheckGeometry(const wire::AttachReply& reply, uint64_t block_bytes) {
  if (reply.block_bytes != block_bytes || reply.blocks == 0 || reply.blocks > INT32_MAX ||
      reply.pool_bytes / block_bytes < reply.blocks) {
    return MakeError(ErrorCode::kCorrupt, "pool_geometry",
                     fmt::format("{} blocks of {} bytes (the model's have {}) in {} bytes",
                                 reply.blocks, reply.block_bytes, block_bytes, reply.pool_bytes));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Attachment>> Attachment::Open(
    PoolLink::Target target, std::shared_ptr<DaemonSession> session, ModelRecord record,
    const std::shared_ptr<PoolMapping>& known) {
  const wire::Attach& request = target.request;
  const uint64_t block_bytes = record.groups[request.group].BlockBytes();
  UniqueFd fd;
  KVT_ASSIGN_OR_RETURN(
      const wire::AttachReply reply,
      session->channel().Call<wire::AttachReply>(
          request, target.connection->RequestDeadline(),
          {.on_reply = [&](const auto& r) { return CheckGeometry(r, block_bytes); }}, {&fd, 1}));
  const std::shared_ptr<Attachment> attachment(new Attachment);
  if (known && known->Serves(reply.generation, reply.pool_bytes)) {
    attachment->mapping_ = known;
  } else {
    auto mapping =
        PoolMapping::Map(std::move(fd), reply.generation, reply.pool_bytes, reply.device_kind);
    if (!mapping) {
      session->Detach(reply.pool);
      return tl::unexpected(std::move(mapping).error());
    }
    attachment->mapping_ = *std::move(mapping);
  }
  attachment->id_ = target.attachment = NextAttachmentId();
  attachment->link_ =
      PoolLink::Make(target, attachment->mapping_, Link{std::move(session), reply.pool});
  attachment->blocks_ = reply.blocks;
  attachment->record_ = std::move(record);
  attachment->group_ = request.group;
  return attachment;
}

template <typename Call>
auto Attachment::OverLink(Call call) const -> decltype(call(*LinkPtr())) {
  LinkPtr link = link_->Current();
  while (true) {
    auto result = call(*link);
    const bool lost = !result && result.error().code == ErrorCode::kUnavailable &&
                      !link->session->channel().Poll();
    if (!lost) return result;
    const Result<LinkPtr> next = Live();
    if (!next) return result;
    link = *next;
  }
}

Status Attachment::CheckHashCount(size_t count) const {
  const uint32_t most = link()->session->limits().max_hashes;
  if (count > most) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_hashes",
                     fmt::format("{} in one call, at most {}", count, most));
  }
  return {};
}

Result<AcquiredPart> Attachment::Acquire(std::span<const BlockHash> hashes,
                                         std::span<const BlockHash> partial_blocks,
                                         uint32_t new_blocks, Deadline deadline,
                                         wire::LoadOrder order, const LoadWish& wish) const {
  const GroupRequest request{this, hashes, partial_blocks, new_blocks, true};
  KVT_ASSIGN_OR_RETURN(std::vector<AcquiredPart> parts,
                       AcquireGroups(std::span(&request, 1), order, deadline, wish));
  return std::move(parts.front());
}

std::unique_ptr<LoadHold> Attachment::HoldOf(LoadId load) const {
  const LinkPtr link = link_->Current();
  const Result<LoadId> of_link = link->Untagged(load);
  if (load.value == 0 || !of_link) return nullptr;
  return std::make_unique<LoadHold>(link->session, *of_link);
}

Result<LoadState> Attachment::Wait(LoadId load, const LoadGoal& goal, Deadline deadline) const {
  const LinkPtr link = link_->Current();
  KVT_ASSIGN_OR_RETURN(const LoadId of_link, link->Untagged(load));
  return WaitForLoad(link->session.get(), of_link, goal, deadline);
}

Status Attachment::WaitOnStream(LoadId tagged, uint32_t steps, void* stream,
                                Deadline deadline) const {
  const LinkPtr link = link_->Current();
  DaemonSession& session = *link->session;
  KVT_ASSIGN_OR_RETURN(const LoadId load, link->Untagged(tagged));
  KVT_ASSIGN_OR_RETURN(const LoadState state, FindLoad(&session, load));
  const bool ended = state.progress.finished;
  if (!ended && !state.counter && mapping_->device_kind() == wire::DeviceKind::kCuda) {
    const LoadGoal goal{.hits = state.in_layers ? state.hits : steps};
    KVT_ASSIGN_OR_RETURN(const LoadState waited, WaitForLoad(&session, load, goal, deadline));
    return goal.Check(waited);
  }
  KVT_ASSIGN_OR_RETURN(const auto device, mapping_->OnDevice());
  if (ended) return {};
  KVT_RETURN_IF_ERROR(session.WatchForLoss());
  return session.counters()->WaitOnStream(*state.counter, std::min(steps, state.counter->steps),
                                          device->ordinal(), stream);
}

Status Attachment::Commit(std::vector<wire::CommitItem> items, std::vector<EntryOutcome>* outcomes,
                          Deadline deadline) const {
  const LinkPtr link = link_->Current();
  const wire::HelloReply& limits = link->session->limits();
  const size_t batch =
      std::max<size_t>(1, std::min({limits.max_blocks, wire::kMaxCommitsPerCall,
                                    limits.max_frame_bytes / kCommitItemBytesMax}));
  if (outcomes != nullptr) outcomes->assign(items.size(), {});
  const bool want_reply = outcomes != nullptr;
  if (items.size() <= batch) {
    if (items.empty()) return {};
    return CommitBatch(std::move(items), want_reply ? *outcomes : std::span<EntryOutcome>(),
                       want_reply, deadline);
  }
  for (size_t first = 0; first < items.size(); first += batch) {
    const auto part = std::span(items).subspan(first, std::min(batch, items.size() - first));
    KVT_RETURN_IF_ERROR(CommitBatch(
        {part.begin(), part.end()},
        want_reply ? std::span(*outcomes).subspan(first, part.size()) : std::span<EntryOutcome>(),
        want_reply, deadline));
  }
  return {};
}

// A daemon that was lost has committed some of them, or none: the next one says which it has.
Status Attachment::CommitBatch(std::vector<wire::CommitItem> items,
                               std::span<EntryOutcome> outcomes, bool want_reply,
                               Deadline deadline) const {
  LinkPtr link = link_->Current();
  Status sent = CommitOver(*link, items, outcomes, want_reply, deadline);
  while (!sent && sent.error().code == ErrorCode::kUnavailable &&
         !link->session->channel().Poll()) {
    const uint64_t resumes = link->resumes;
    const Result<LinkPtr> next = Live();
    if (!next) return sent;
    link = *next;
    std::vector<wire::CommitItem> left;
    std::vector<size_t> positions;
    for (size_t i = 0; i < items.size(); ++i) {
      const ResumeOutcome held = OutcomeSince(resumes, items[i].block);
      if (held == ResumeOutcome::kReferenced) continue;
      left.push_back(items[i]);
      positions.push_back(i);
    }
    if (left.empty()) return {};
    std::vector<EntryOutcome> of_left(want_reply ? left.size() : 0);
    sent = CommitOver(*link, left, of_left, want_reply, deadline);
    for (size_t i = 0; sent && i < of_left.size(); ++i) {
      outcomes[positions[i]] = std::move(of_left[i]);
    }
  }
  return sent;
}

Status Attachment::CommitOver(const Link& link, const std::vector<wire::CommitItem>& items,
                              std::span<EntryOutcome> outcomes, bool want_reply,
                              Deadline deadline) const {
  const wire::Commit message{.pool = link.pool, .items = items};
  DaemonSession& session = *link.session;
  if (!want_reply) {
    std::vector<BlockHandle> blocks;
    blocks.reserve(message.items.size());
    for (const wire::CommitItem& item : message.items) blocks.push_back(item.block);
    return session.channel().Post(message, [&](uint64_t request_id) {
      session.RememberPosted(request_id, id_, std::move(blocks));
    });
  }
  const auto check = [&](const wire::CommitReply& reply) -> Status {
    for (const auto& item : reply.items) {
      if (item.position >= message.items.size())
        return MakeError(ErrorCode::kCorrupt, "bad_position");
    }
    return {};
  };
  KVT_ASSIGN_OR_RETURN(const wire::CommitReply reply, session.channel().Call<wire::CommitReply>(
                                                          message, deadline, {.on_reply = check}));
  for (const auto& item : reply.items) {
    const bool duplicate = item.outcome == wire::CommitOutcome::kDuplicate;
    outcomes[item.position] = {
        .ok = duplicate, .duplicate = duplicate, .code = item.code, .reason = item.reason};
  }
  return {};
}

// Released blocks are not claimed from the next daemon: so a daemon that is gone needs no message,
// unless its blocks are lost anyway.
Status Attachment::Release(std::vector<BlockHandle> blocks, std::vector<EntryOutcome>* outcomes,
                           Deadline deadline) const {
  const bool may_resume = MayResume();
  std::vector<bool> lost;
  const LinkPtr link = link_->Drop(blocks, &lost);
  std::vector<BlockHandle> left;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!lost[i]) left.push_back(blocks[i]);
  }
  std::vector<EntryOutcome> of_left;
  const Status released =
      ReleaseAll(*link, left, outcomes == nullptr ? nullptr : &of_left, deadline);
  const bool told = released || released.error().code != ErrorCode::kUnavailable || !may_resume;
  if (told) KVT_RETURN_IF_ERROR(released);
  if (outcomes == nullptr) return {};
  outcomes->clear();
  auto next = of_left.begin();
  for (const bool was_lost : lost) {
    outcomes->push_back(
        was_lost ? EntryOutcome{.ok = false, .code = ErrorCode::kStaleHandle, .reason = kLostBlock}
                 : std::move(*next++));
  }
  return {};
}

Status Attachment::ReleaseAll(const Link& link, std::span<const BlockHandle> blocks,
                              std::vector<EntryOutcome>* outcomes, Deadline deadline) const {
  const size_t batch = std::max<size_t>(1, link.session->limits().max_blocks);
  if (outcomes != nullptr) outcomes->assign(blocks.size(), {});
  const bool want_reply = outcomes != nullptr;
  // The last batch first: the daemon takes the end of a sequence out of use before its beginning.
  for (size_t end = blocks.size(); end > 0;) {
    const size_t first = (end - 1) / batch * batch;
    KVT_RETURN_IF_ERROR(ReleaseOver(
        link, blocks.subspan(first, end - first),
        want_reply ? std::span(*outcomes).subspan(first, end - first) : std::span<EntryOutcome>(),
        want_reply, deadline));
    end = first;
  }
  return {};
}

Status Attachment::ReleaseOver(const Link& link, std::span<const BlockHandle> blocks,
                               std::span<EntryOutcome> outcomes, bool want_reply,
                               Deadline deadline) const {
  const wire::Release message{.pool = link.pool, .blocks = {blocks.begin(), blocks.end()}};
  DaemonSession& session = *link.session;
  if (!want_reply) {
    return session.channel().GiveBack(message, [&](uint64_t request_id) {
      session.RememberPosted(request_id, id_, message.blocks);
    });
  }
  const auto check = [&](const wire::ReleaseReply& reply) -> Status {
    for (const auto& item : reply.errors) {
      if (item.position >= blocks.size()) return MakeError(ErrorCode::kCorrupt, "bad_position");
    }
    return {};
  };
  KVT_ASSIGN_OR_RETURN(const wire::ReleaseReply reply, session.channel().Call<wire::ReleaseReply>(
                                                           message, deadline, {.on_reply = check}));
  for (const auto& item : reply.errors) {
    outcomes[item.position] = {.ok = false, .code = item.code, .reason = item.reason};
  }
  return {};
}

Result<uint32_t> Attachment::Prefetch(std::span<const BlockHash> hashes, Deadline deadline) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (hashes.empty()) return 0;
  return OverLink([&](const Link& link) -> Result<uint32_t> {
    const wire::Prefetch request{.pool = link.pool, .hashes = hashes};
    KVT_ASSIGN_OR_RETURN(const wire::PrefetchReply reply,
                         link.session->channel().Call<wire::PrefetchReply>(request, deadline));
    return reply.count;
  });
}

Result<uint32_t> Attachment::Pin(std::span<const BlockHash> hashes, int64_t ttl_ms,
                                 Deadline deadline) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (ttl_ms < 0) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_ttl", fmt::format("{} ms", ttl_ms));
  }
  if (hashes.empty()) return 0;
  return OverLink([&](const Link& link) -> Result<uint32_t> {
    const wire::Pin request{.pool = link.pool, .ttl_ms = ttl_ms, .hashes = hashes};
    KVT_ASSIGN_OR_RETURN(const wire::PinReply reply,
                         link.session->channel().Call<wire::PinReply>(request, deadline));
    return reply.count;
  });
}

Result<uint32_t> Attachment::Hint(std::span<const BlockHash> hashes, SequenceHint hint,
                                  int64_t returns_in_ms, Deadline deadline) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (hashes.empty()) return 0;
  return OverLink([&](const Link& link) -> Result<uint32_t> {
    const wire::Hint request{
        .pool = link.pool, .hint = hint, .returns_in_ms = returns_in_ms, .hashes = hashes};
    KVT_ASSIGN_OR_RETURN(const wire::HintReply reply,
                         link.session->channel().Call<wire::HintReply>(request, deadline));
    return reply.count;
  });
}

Result<bool> Attachment::WantsTokenIds(Deadline deadline) const {
  return OverLink([&](const Link& link) -> Result<bool> {
    {
      const std::lock_guard lock(asked_mutex_);
      if (asked_ && asked_->resumes == link.resumes) return asked_->wants_token_ids;
    }
    KVT_ASSIGN_OR_RETURN(const bool wanted,
                         AskForTokenIds(link.session.get(), link.pool, deadline));
    const std::lock_guard lock(asked_mutex_);
    asked_ = Asked{link.resumes, wanted};
    return wanted;
  });
}

Status Attachment::TellTokenIds(std::span<const BlockHash> hashes, std::span<const uint16_t> counts,
                                std::span<const uint32_t> ids) const {
  return OverLink([&](const Link& link) {
    return client::TellTokenIds(link.session.get(), link.pool, block_tokens(), hashes, counts, ids);
  });
}

Result<std::vector<uint8_t>> Attachment::Lookup(std::span<const BlockHash> hashes,
                                                Deadline deadline) const {
  KVT_RETURN_IF_ERROR(CheckHashCount(hashes.size()));
  if (hashes.empty()) return std::vector<uint8_t>();
  return OverLink(
      [&](const Link& link) { return link.session->LookUp(link.pool, hashes, deadline); });
}

}  // namespace kvtier::client
