// SPDX-License-Identifier: Apache-2.0
#include "client/core/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvtier::client {
namespace {

Status Invalid(const wire::TransferDone& done, const std::string& why) {
  return MakeError(
      ErrorCode::kCorrupt, "transfer_done_invalid",
      fmt::format("transfer {} of region {}: {}", done.transfer, done.region.value, why));
}

// Why a load that has ended has not all layers.
Error Incomplete(const wire::TransferDone& done) {
  return {ErrorCode::kCancelled, "load_incomplete",
          fmt::format("{} blocks could not be loaded", done.failed.size())};
}

}  // namespace

void Transfers::AddPart(uint64_t transfer, uint32_t blocks, uint64_t request_id, uint32_t first,
                        uint32_t count) {
  const auto [it, is_first] = under_way_.try_emplace(transfer);
  if (is_first) {
    it->second.blocks = it->second.blocks_left = blocks;
    it->second.end.transfer = transfer;
  }
  it->second.blocks_added = first + count;
  parts_.emplace(request_id, Part{.transfer = transfer, .first = first, .count = count});
}

void Transfers::Forget(uint64_t transfer) {
  layers_.Forget(transfer);
  under_way_.erase(transfer);
  std::erase_if(parts_, [&](const auto& part) { return part.second.transfer == transfer; });
  std::erase_if(ended_, [&](const EndedTransfer& end) { return end.transfer == transfer; });
}

void Transfers::FailUnsent(uint64_t transfer, uint64_t request_id, const Error& error) {
  layers_.Fail(transfer, error);
  if (const auto part = parts_.extract(request_id)) {
    layers_.EndPart(request_id, error);
    FailPart(part.mapped(), kMissUnavailable, error);
  }
  const auto it = under_way_.find(transfer);
  if (it == under_way_.end()) return;
  const UnderWay& rest = it->second;
  FailPart({transfer, rest.blocks_added, rest.blocks - rest.blocks_added}, kMissUnavailable, error);
}

Status Transfers::OnDone(const wire::TransferDone& done) {
  const auto it = parts_.find(done.transfer);
  if (it == parts_.end()) {
    return MakeError(ErrorCode::kCorrupt, "transfer_unknown",
                     fmt::format("{} of region {}", done.transfer, done.region.value));
  }
  const Part part = it->second;
  const uint64_t told = uint64_t{done.copied} + done.skipped + done.failed.size();
  if (told != part.count) {
    return Invalid(done, fmt::format("{} blocks told of, {} named", told, part.count));
  }
  EndedTransfer& end = under_way_.at(part.transfer).end;
  for (const wire::TransferDone::Failed& failed : done.failed) {
    if (failed.position >= part.count || failed.reason == MissReason::kNone) {
      return Invalid(done, fmt::format("block {} failed with reason {}", failed.position,
                                       static_cast<int>(failed.reason)));
    }
    end.failed.push_back({part.first + failed.position, failed.reason});
  }
  end.copied += done.copied;
  end.skipped += done.skipped;
  parts_.erase(it);
  layers_.EndPart(done.transfer,
                  done.failed.empty() ? std::nullopt : std::optional(Incomplete(done)));
  EndPart(part);
  return {};
}

bool Transfers::OnRefused(uint64_t request_id, const Error& error) {
  const auto it = parts_.find(request_id);
  if (it == parts_.end()) return false;
  const Part part = it->second;
  parts_.erase(it);
  layers_.EndPart(request_id, error);
  FailPart(part, MissReason::kCancelled, error);
  return true;
}

void Transfers::FailAll(const Error& error) {
  for (const auto& [request_id, part] : std::exchange(parts_, {})) {
    layers_.EndPart(request_id, error);
    FailPart(part, kMissUnavailable, error);
  }
  // A transfer that still has unsent parts is ended by the caller that cannot send them.
}

uint64_t Transfers::PriceUnderWay() const {
  uint64_t price = 0;
  for (const auto& [request_id, part] : parts_) price += part.count + wire::kTransferPrice;
  return price;
}

void Transfers::FailPart(const Part& part, MissReason reason, const Error& error) {
  EndedTransfer& end = under_way_.at(part.transfer).end;
  for (uint32_t i = 0; i < part.count; ++i) end.failed.push_back({part.first + i, reason});
  if (!end.error) end.error = error;
  EndPart(part);
}

void Transfers::EndPart(const Part& part) {
  const auto it = under_way_.find(part.transfer);
  it->second.blocks_left -= part.count;
  if (it->second.blocks_left > 0) return;
  // Parts end in any order.
  std::ranges::sort(it->second.end.failed, {}, &wire::TransferDone::Failed::position);
  ended_.push_back(std::move(it->second.end));
  under_way_.erase(it);
}

std::vector<EndedTransfer> Transfers::TakeEnded(size_t limit) {
  std::vector<EndedTransfer> taken;
  while (!ended_.empty() && taken.size() < limit) {
    taken.push_back(Tell(std::move(ended_.front())));
    ended_.pop_front();
  }
  return taken;
}

std::optional<EndedTransfer> Transfers::TakeOne(uint64_t transfer) {
  const auto it = std::ranges::find(ended_, transfer, &EndedTransfer::transfer);
  if (it == ended_.end()) return std::nullopt;
  EndedTransfer end = std::move(*it);
  ended_.erase(it);
  return Tell(std::move(end));
}

EndedTransfer Transfers::Tell(EndedTransfer end) {
  if (end.failed.empty()) return end;
  told_.push_back(end);
  if (told_.size() > kFailuresKept) told_.pop_front();
  return end;
}

const std::vector<wire::TransferDone::Failed>& Transfers::FailuresOf(uint64_t transfer) const {
  static const std::vector<wire::TransferDone::Failed> kNone;
  const auto it = std::ranges::find(told_, transfer, &EndedTransfer::transfer);
  return it == told_.end() ? kNone : it->failed;
}

void Transfers::ForgetFailures(uint64_t transfer) {
  std::erase_if(told_, [&](const EndedTransfer& end) { return end.transfer == transfer; });
}

}  // namespace kvtier::client
