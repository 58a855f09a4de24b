// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/load_plan.h"

#include <algorithm>
#include <array>
#include <limits>

namespace kvtier {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr WayPrice kTrial{.trial_bytes = RateMeter::kTrialBytes};

// Counts how many of a stretch of blocks come over each way. Blocks from disk or the cold store are
// also copied to the device.
class Stretch {
 public:
  void Add(BlockSource source) {
    if (source == BlockSource::kHere) return;
    if (source == BlockSource::kDisk) ++blocks_[static_cast<size_t>(LoadWay::kDisk)];
    if (source == BlockSource::kCold) ++blocks_[static_cast<size_t>(LoadWay::kCold)];
    ++blocks_[static_cast<size_t>(LoadWay::kBus)];
  }
  // Takes as long as the slowest way, since all go on at once.
  [[nodiscard]] double LoadUs(const LoadQuestion& question) const {
    double us = 0;
    for (size_t way = 0; way < kLoadWayCount; ++way) {
      const uint64_t bytes = blocks_[way] * question.block_bytes;
      if (bytes == 0) continue;
      const WayPrice& price = question.prices[way];
      if (bytes > std::max(price.trial_bytes, question.block_bytes)) return kNever;
      us = std::max(us, price.wait_us + static_cast<double>(bytes) * price.us_per_byte);
    }
    return us;
  }
  [[nodiscard]] bool has(LoadWay way) const { return blocks_[static_cast<size_t>(way)] > 0; }

 private:
  std::array<uint64_t, kLoadWayCount> blocks_{};
};

// One search over all cuts, with the prices as they are.
class Search {
 public:
  explicit Search(const LoadQuestion& question)
      : question_(question),
        takes_all_(question.plan == HitPlan::kAll || !question.cost.known()),
        lead_(static_cast<size_t>(std::ranges::find_if_not(question.blocks, IsHere) -
                                  question.blocks.begin())) {}

  [[nodiscard]] LoadAnswer Best() {
    Stretch head;  // of [lead, end)
    Consider(lead_, head);
    for (size_t end = lead_ + 1; end <= question_.blocks.size(); ++end) {
      head.Add(question_.blocks[end - 1]);
      Consider(end, head);
    }
    if (best_.end < question_.blocks.size()) {
      const bool late = takes_all_ || late_us_ < best_.ready_us;
      best_.declined_for = late ? MissReason::kAfterDeadline : MissReason::kSlowerThanComputing;
    }
    return best_;
  }

  // Whether there are blocks on the way, and the answer loads none of them.
  [[nodiscard]] bool Declines(LoadWay way, const LoadAnswer& answer) const {
    return OfBlocks(question_.blocks.size()).has(way) && !OfBlocks(answer.end).has(way);
  }

 private:
  static bool IsHere(BlockSource source) { return source == BlockSource::kHere; }
  // The blocks [lead, end) as a stretch.
  [[nodiscard]] Stretch OfBlocks(size_t end) const {
    Stretch stretch;
    for (size_t i = lead_; i < end; ++i) stretch.Add(question_.blocks[i]);
    return stretch;
  }
  [[nodiscard]] uint64_t Covered(size_t blocks) const {
    return blocks == question_.blocks.size() ? question_.covered_tokens
                                             : blocks * question_.block_tokens;
  }

  // Takes the longest of equals.
  void Consider(size_t end, const Stretch& head) {
    const double load_us = head.LoadUs(question_);
    if (load_us == kNever) return;
    const double ready_us = load_us + question_.cost.Us(Covered(end), question_.tokens);
    if (question_.deadline_us > 0 && load_us > question_.deadline_us) {
      late_us_ = std::min(late_us_, ready_us);
    } else if (end == lead_ || takes_all_ || ready_us <= best_.ready_us) {
      best_ = {.end = end, .load_us = load_us, .ready_us = ready_us};
    }
  }

  const LoadQuestion& question_;
  const bool takes_all_;
  const size_t lead_;
  LoadAnswer best_;
  double late_us_ = kNever;  // the best of what would come after the deadline
};

}  // namespace

// A rate that is old may still say that loading pays. If it says that loading does not pay, loading
// is tried out, or the rate would never be measured again.
LoadAnswer PlanLoad(const LoadQuestion& question) {
  LoadQuestion asked = question;
  const bool known = question.plan != HitPlan::kAll && question.cost.known();
  if (!known && question.deadline_us == 0) {
    for (WayPrice& price : asked.prices) price.trial_bytes = UINT64_MAX;
  }
  const LoadAnswer answer = Search(asked).Best();
  const Search search(asked);
  bool again = false;
  for (size_t way = 0; known && way < kLoadWayCount; ++way) {
    WayPrice& price = asked.prices[way];
    if (!price.stale || !search.Declines(static_cast<LoadWay>(way), answer)) continue;
    price = kTrial;
    again = true;
  }
  return again ? Search(asked).Best() : answer;
}

}  // namespace kvtier
