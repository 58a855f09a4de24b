// SPDX-License-Identifier: Apache-2.0
#include "client/core/pool_link.h"

#include <algorithm>
#include <utility>

namespace kvtier::client {
namespace {

// The number of earlier resumes that are remembered: a sequence that slept through more of them is
// lost.
constexpr size_t kOutcomesKept = 8;
// The bit of a load's number where the link's number begins. No daemon begins so many loads.
constexpr int kLoadTagShift = 48;

uint64_t KeyOf(BlockHandle block) {
  return static_cast<uint64_t>(block.index.value) << 32 | block.generation;
}

Error Lost(const char* context) { return {ErrorCode::kUnavailable, "connection_lost", context}; }

}  // namespace

const HeldBlocks::Row* HeldBlocks::Find(BlockHandle block) const {
  if (block.index.value >= rows_.size()) return nullptr;
  const Row& row = rows_[block.index.value];
  return row.generation == block.generation && row.holds > 0 ? &row : nullptr;
}

void HeldBlocks::Add(BlockHandle block) {
  if (block.index.value >= rows_.size()) rows_.resize(size_t{block.index.value} + 1);
  Row& row = rows_[block.index.value];
  if (row.generation != block.generation) {
    total_ -= row.holds;
    row = {.generation = block.generation, .holds = 0};
  }
  ++row.holds;
  ++total_;
}

bool HeldBlocks::Remove(BlockHandle block) {
  if (Find(block) == nullptr) return false;
  --rows_[block.index.value].holds;
  --total_;
  return true;
}

void HeldBlocks::Forget(BlockHandle block) {
  if (Find(block) == nullptr) return;
  total_ -= rows_[block.index.value].holds;
  rows_[block.index.value].holds = 0;
}

uint32_t HeldBlocks::CountOf(BlockHandle block) const {
  const Row* const row = Find(block);
  return row == nullptr ? 0 : row->holds;
}

std::vector<ResumeClaim> HeldBlocks::Claims() const {
  std::vector<ResumeClaim> claims;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].holds == 0) continue;
    claims.push_back({{BlockIndex(static_cast<uint32_t>(i)), rows_[i].generation}, rows_[i].holds});
  }
  return claims;
}

LoadId Link::Tagged(LoadId load) const {
  if (load.value == 0) return load;
  return LoadId(load.value | resumes << kLoadTagShift);
}

Result<LoadId> Link::Untagged(LoadId load) const {
  if (Tagged(LoadId(load.value & ((uint64_t{1} << kLoadTagShift) - 1))) != load) {
    return tl::unexpected(Lost("the load ended with the daemon"));
  }
  return LoadId(load.value & ((uint64_t{1} << kLoadTagShift) - 1));
}

std::shared_ptr<PoolLink> PoolLink::Make(const Target& target, std::shared_ptr<PoolMapping> mapping,
                                         Link first) {
  const auto link = std::make_shared<PoolLink>(target, std::move(mapping), std::move(first));
  link->group_->Join(link);
  return link;
}

PoolLink::PoolLink(const Target& target, std::shared_ptr<PoolMapping> mapping, Link first)
    : target_(target),
      mapping_(std::move(mapping)),
      group_(target.connection->LinksTo(mapping_->generation())),
      link_(std::make_shared<const Link>(std::move(first))) {}

// The memory goes first: with the message the daemon may give blocks that were private to others.
PoolLink::~PoolLink() {
  mapping_.reset();
  link_->session->Detach(link_->pool);
}

LinkPtr PoolLink::Current() const {
  const std::lock_guard lock(mutex_);
  return link_;
}

bool PoolLink::CanResume() const {
  const ConnectionOptions& options = target_.connection->options();
  return !given_up_ && options.resume_wait_ms > 0 && options.reconnect_min_ms >= 0 &&
         link_->session->limits().secret != Digest128{};
}

bool PoolLink::MayResume() const {
  const std::lock_guard lock(mutex_);
  return CanResume() && !held_.empty();
}

bool PoolLink::MayOutlive() const {
  const std::lock_guard lock(mutex_);
  return CanResume();
}

Result<LinkPtr> PoolLink::Live() {
  LinkPtr link = Current();
  if (link->session->channel().Poll()) return link;
  // As long as a call may wait on its own: else many threads would wait in turn.
  const ConnectionOptions& options = target_.connection->options();
  const std::unique_lock resuming =
      group_->Lock(DeadlineIn(std::max(options.resume_wait_ms, options.request_timeout_ms)));
  if (!resuming) return MakeError(ErrorCode::kTimeout, "another_resumes");
  link = Current();
  if (link->session->channel().Poll()) return link;
  std::unique_lock lock(mutex_);
  const bool can_resume = CanResume();
  const bool holds = !held_.empty();
  lock.unlock();
  if (can_resume) {
    // If nothing is held there is nothing to wait for. But the next daemon keeps all blocks that it
    // does not know to be given up, so it is told as soon as it is there.
    const int64_t wait_ms = holds ? options.resume_wait_ms : 0;
    const Status resumed = group_->Resume(*this, DeadlineIn(wait_ms));
    if (resumed) return Current();
    const bool may_pass = resumed.error().code == ErrorCode::kTimeout ||
                          (!holds && resumed.error().code == ErrorCode::kUnavailable);
    if (may_pass) {
      return tl::unexpected(resumed.error());
    }
    if (holds) group_->Forsake(*link->session);
  }
  lock.lock();
  given_up_ = true;
  return tl::unexpected(Lost("the held blocks are lost"));
}

// The bytes of a held block change only after its session has ended, and blocks that the next
// daemon did not give back are held no longer: so the link is checked first.
Status PoolLink::CheckHeld(std::span<const BlockHandle> blocks) {
  if (const Result<LinkPtr> link = Live(); !link) return tl::unexpected(link.error());
  const std::lock_guard lock(mutex_);
  const auto is_held = [this](const BlockHandle& block) { return held_.CountOf(block) > 0; };
  if (std::ranges::all_of(blocks, is_held)) return {};
  return MakeError(ErrorCode::kStaleHandle, kLostBlock, "a block is not held any more");
}

Result<PoolId> PoolLink::Attach(const std::shared_ptr<DaemonSession>& session) const {
  wire::Attach request = target_.request;
  KVT_ASSIGN_OR_RETURN(request.model, target_.connection->ModelIn(session, target_.model));
  DeviceChoice device = target_.device;
  KVT_ASSIGN_OR_RETURN(request.device, device.In(*target_.connection, *session));
  UniqueFd fd;
  KVT_ASSIGN_OR_RETURN(const wire::AttachReply reply,
                       session->channel().Call<wire::AttachReply>(
                           request, target_.connection->RequestDeadline(), {}, {&fd, 1}));
  if (mapping_->Serves(reply.generation, reply.pool_bytes)) return reply.pool;
  session->Detach(reply.pool);
  return MakeError(ErrorCode::kStaleHandle, "pool_replaced");
}

std::vector<ResumeClaim> PoolLink::BeginResume() {
  const std::lock_guard lock(mutex_);
  resuming_ = true;
  return held_.Claims();
}

void PoolLink::EndResume(const std::shared_ptr<DaemonSession>& session, PoolId pool,
                         std::span<const ResumeClaim> claims,
                         std::span<const ResumeOutcome> outcomes) {
  std::vector<BlockHandle> surplus;
  {
    const std::lock_guard lock(mutex_);
    TakeOutcomes(claims, outcomes, &surplus);
    resuming_ = false;
    link_ = std::make_shared<const Link>(Link{session, pool, link_->resumes + 1});
  }
  const size_t most = std::max<size_t>(1, session->limits().max_blocks);
  for (std::span<const BlockHandle> rest = surplus; !rest.empty();) {
    const auto part = rest.first(std::min(most, rest.size()));
    // On failure the session has ended, and its blocks are gone with it.
    (void)session->channel().GiveBack(wire::Release{pool, {part.begin(), part.end()}});
    rest = rest.subspan(part.size());
  }
}

void PoolLink::TakeOutcomes(std::span<const ResumeClaim> claims,
                            std::span<const ResumeOutcome> outcomes,
                            std::vector<BlockHandle>* surplus) {
  Outcomes& noted = outcomes_.emplace_back();
  if (outcomes_.size() > kOutcomesKept) outcomes_.pop_front();
  for (size_t i = 0; i < claims.size(); ++i) {
    const BlockHandle block = claims[i].block;
    if (outcomes[i] != ResumeOutcome::kReferenced) noted.emplace(KeyOf(block), outcomes[i]);
    if (outcomes[i] == ResumeOutcome::kLost) {
      if (held_.CountOf(block) > 0) {
        target_.connection->async_errors().Add({.attachment = target_.attachment,
                                                .block = block,
                                                .code = ErrorCode::kStaleHandle,
                                                .reason = kLostBlock});
      }
      held_.Forget(block);
      continue;
    }
    const bool is_private = outcomes[i] == ResumeOutcome::kPrivate;
    const uint32_t held = held_.CountOf(block);
    const uint32_t given = is_private ? 1 : claims[i].references;
    for (uint32_t n = held; n < given; ++n) surplus->push_back(block);
  }
}

bool PoolLink::Hold(const LinkPtr& link, const wire::AcquireReply::Part& acquired) {
  const std::lock_guard lock(mutex_);
  if (link_ != link || resuming_) return false;
  for (const AcquiredBlock& hit : acquired.hits) held_.Add(hit.handle);
  for (const BlockHandle& block : acquired.new_blocks) held_.Add(block);
  return true;
}

LinkPtr PoolLink::Drop(std::span<const BlockHandle> blocks, std::vector<bool>* lost) {
  const std::lock_guard lock(mutex_);
  for (const BlockHandle& block : blocks) {
    lost->push_back(!held_.Remove(block) && WasLost(block));
  }
  return link_;
}

bool PoolLink::WasLost(BlockHandle block) const {
  return std::ranges::any_of(outcomes_, [&](const Outcomes& noted) {
    const auto found = noted.find(KeyOf(block));
    return found != noted.end() && found->second == ResumeOutcome::kLost;
  });
}

ResumeOutcome PoolLink::OutcomeSince(uint64_t since, BlockHandle block) const {
  const std::lock_guard lock(mutex_);
  const uint64_t resumes = link_->resumes - since;
  if (resumes > outcomes_.size()) return ResumeOutcome::kLost;
  ResumeOutcome latest = ResumeOutcome::kReferenced;
  for (size_t i = outcomes_.size() - resumes; i < outcomes_.size(); ++i) {
    const auto noted = outcomes_[i].find(KeyOf(block));
    latest = noted == outcomes_[i].end() ? ResumeOutcome::kReferenced : noted->second;
    if (latest == ResumeOutcome::kLost) return latest;
  }
  return held_.CountOf(block) > 0 ? latest : ResumeOutcome::kLost;
}

}  // namespace kvtier::client
