// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/load_plan.h"

#include <algorithm>
#include <array>
#include <limits>

namespace kvtier {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// A gap is a step more for the engine, and what computing and loading take is known roughly. So it
// has to be expected to save a tenth of the time.
constexpr double kMostOfPlain = 0.9;

// As long as the slowest way, since all go on at once.
double LoadUs(const LoadPrices& prices, const std::array<uint64_t, kLoadWayCount>& bytes,
              uint64_t least_trial_bytes) {
  double us = 0;
  for (size_t way = 0; way < kLoadWayCount; ++way) {
    if (bytes[way] == 0) continue;
    const WayPrice& price = prices[way];
    if (bytes[way] > std::max(price.trial_bytes, least_trial_bytes)) return kNever;
    us = std::max(us, price.wait_us + static_cast<double>(bytes[way]) * price.us_per_byte);
  }
  return us;
}

constexpr WayPrice kTrial{.trial_bytes = RateMeter::kTrialBytes};

// How many of a stretch of blocks come over each way. A block from disk or the cold store is also
// copied.
class Stretch {
 public:
  void Add(BlockSource source) { Count(source, 1); }
  void Remove(BlockSource source) { Count(source, -1); }

  [[nodiscard]] double LoadUs(const LoadQuestion& question) const {
    std::array<uint64_t, kLoadWayCount> bytes{};
    for (size_t way = 0; way < kLoadWayCount; ++way) {
      bytes[way] = static_cast<uint64_t>(blocks_[way]) * question.block_bytes;
    }
    return kvtier::LoadUs(question.prices, bytes, question.block_bytes);
  }
  [[nodiscard]] bool has(LoadWay way) const { return blocks_[static_cast<size_t>(way)] > 0; }

 private:
  void Count(BlockSource source, int64_t by) {
    if (source == BlockSource::kHere) return;
    if (source == BlockSource::kDisk) blocks_[static_cast<size_t>(LoadWay::kDisk)] += by;
    if (source == BlockSource::kCold) blocks_[static_cast<size_t>(LoadWay::kCold)] += by;
    blocks_[static_cast<size_t>(LoadWay::kBus)] += by;
  }

  std::array<int64_t, kLoadWayCount> blocks_{};
};

// One search over all cuts, with the prices as they are. Linear: as the end moves on, so does the
// gap's best end, because a longer tail takes longer to load and a longer gap longer to compute.
class Search {
 public:
  explicit Search(const LoadQuestion& question)
      : question_(question),
        takes_all_(question.plan == HitPlan::kAll || !question.cost.known()),
        lead_(static_cast<size_t>(std::ranges::find_if_not(question.blocks, IsHere) -
                                  question.blocks.begin())) {}

  [[nodiscard]] LoadAnswer Best() {
    Stretch head;  // of [lead, end)
    // The gap that is best for the end, and the shortest behind which the loaded blocks are in
    // time.
    Gap best{lead_, {}}, timely{lead_, {}};
    Consider(lead_, lead_, head);
    for (size_t end = lead_ + 1; end <= question_.blocks.size(); ++end) {
      const BlockSource source = question_.blocks[end - 1];
      head.Add(source);
      Consider(lead_, end, head);
      if (takes_all_ || question_.plan != HitPlan::kBothEnds) continue;
      best.tail.Add(source);
      timely.tail.Add(source);
      while (MayGrow(best, end)) {
        Gap longer = best;
        Grow(&longer);
        if (FirstUs(longer.end, longer.tail) > FirstUs(best.end, best.tail)) break;
        best = longer;
      }
      while (MayGrow(timely, end) &&
             (timely.end < best.end || Late(timely.tail.LoadUs(question_)))) {
        Grow(&timely);
      }
      for (const Gap& gap : {best, timely}) {
        if (gap.end > lead_) Consider(gap.end, end, gap.tail);
      }
    }
    if (best_gap_.ready_us < kMostOfPlain * best_.ready_us) best_ = best_gap_;
    Trim();
    if (best_.end < question_.blocks.size() || best_.gap() > 0) {
      const bool late = takes_all_ || late_us_ < best_.ready_us;
      best_.declined_for = late ? MissReason::kAfterDeadline : MissReason::kSlowerThanComputing;
    }
    return best_;
  }

  // Whether there are blocks on the way, and the answer loads none of them.
  [[nodiscard]] bool Declines(LoadWay way, const LoadAnswer& answer) const {
    return OfBlocks(lead_, question_.blocks.size()).has(way) &&
           !OfBlocks(answer.gap_end, answer.end).has(way);
  }

 private:
  // The part of [lead, end) that is computed, while the tail behind it is loaded.
  struct Gap {
    size_t end;
    Stretch tail;
  };
  [[nodiscard]] bool MayGrow(const Gap& gap, size_t end) const {
    return gap.end + 1 < end && gap.end - lead_ < question_.most_gap_blocks;
  }
  void Grow(Gap* gap) const { gap->tail.Remove(question_.blocks[gap->end++]); }

  static bool IsHere(BlockSource source) { return source == BlockSource::kHere; }
  [[nodiscard]] Stretch OfBlocks(size_t first, size_t end) const {
    Stretch stretch;
    for (size_t i = first; i < end; ++i) stretch.Add(question_.blocks[i]);
    return stretch;
  }
  [[nodiscard]] uint64_t Covered(size_t blocks) const {
    return blocks == question_.blocks.size() ? question_.covered_tokens
                                             : blocks * question_.block_tokens;
  }
  [[nodiscard]] double GapUs(size_t gap_end) const {
    return question_.cost.Us(Covered(lead_), Covered(gap_end));
  }
  // Until the tail is here and the gap is computed.
  [[nodiscard]] double FirstUs(size_t gap_end, const Stretch& tail) const {
    return std::max(tail.LoadUs(question_), GapUs(gap_end));
  }

  [[nodiscard]] bool Late(double load_us) const {
    return question_.deadline_us > 0 && load_us > question_.deadline_us;
  }

  // On a tie, prefers the longest prefix; among plans with a gap, the first.
  void Consider(size_t gap_end, size_t end, const Stretch& tail) {
    const double load_us = tail.LoadUs(question_);
    const double rest_us = question_.cost.Us(Covered(end), question_.tokens);
    const double ready_us = std::max(load_us, GapUs(gap_end)) + rest_us;
    if (load_us == kNever) return;
    if (Late(load_us)) {
      late_us_ = std::min(late_us_, ready_us);
      return;
    }
    const LoadAnswer answer{lead_, gap_end, end, load_us, ready_us, MissReason::kNone};
    if (gap_end > lead_) {
      if (ready_us < best_gap_.ready_us) best_gap_ = answer;
    } else if (end == lead_ || takes_all_ || ready_us <= best_.ready_us) {
      best_ = answer;
    }
  }

  // A gap that ends in blocks which are here, or that load meanwhile, would be computed for
  // nothing.
  void Trim() {
    Stretch tail = OfBlocks(best_.gap_end, best_.end);
    const double first_us = FirstUs(best_.gap_end, tail);
    while (best_.gap() > 1) {
      tail.Add(question_.blocks[best_.gap_end - 1]);
      const double load_us = tail.LoadUs(question_);
      if (Late(load_us) || FirstUs(best_.gap_end - 1, tail) > first_us) break;
      --best_.gap_end;
      best_.load_us = load_us;
    }
  }

  const LoadQuestion& question_;
  const bool takes_all_;
  const size_t lead_;
  LoadAnswer best_;  // without a gap, until the search ends
  LoadAnswer best_gap_{.ready_us = kNever};
  double late_us_ = kNever;  // the best of what would come after the deadline
};

PrefixChoice ChooseOnce(const LoadWish& wish, std::span<const PrefixOffer> offers,
                        uint64_t least_trial_bytes, const LoadPrices& prices) {
  const bool takes_all = wish.plan == HitPlan::kAll || !wish.cost.known();
  const uint64_t tokens = std::max<uint64_t>(wish.tokens, offers.back().tokens);
  PrefixChoice best;
  for (size_t i = 0; i < offers.size(); ++i) {
    const double load_us = LoadUs(prices, offers[i].bytes, least_trial_bytes);
    const double ready_us = load_us + wish.cost.Us(offers[i].tokens, tokens);
    const bool late = wish.deadline_ms > 0 && load_us > wish.deadline_ms * 1000.0;
    if (i > 0 && (load_us == kNever || late)) continue;
    if (i == 0 || takes_all || ready_us <= best.ready_us) best = {i, load_us, ready_us};
  }
  return best;
}

}  // namespace

PrefixChoice ChoosePrefix(const LoadWish& wish, std::span<const PrefixOffer> offers,
                          uint64_t least_trial_bytes, LoadPrices prices) {
  const bool known = wish.plan != HitPlan::kAll && wish.cost.known();
  if (!known && wish.deadline_ms == 0) {
    for (WayPrice& price : prices) price.trial_bytes = UINT64_MAX;
  }
  const PrefixChoice choice = ChooseOnce(wish, offers, least_trial_bytes, prices);
  bool again = false;
  for (size_t way = 0; known && way < kLoadWayCount; ++way) {
    const bool declined = offers.back().bytes[way] > 0 && offers[choice.index].bytes[way] == 0;
    if (!prices[way].stale || !declined) continue;
    prices[way] = kTrial;
    again = true;
  }
  return again ? ChooseOnce(wish, offers, least_trial_bytes, prices) : choice;
}

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
