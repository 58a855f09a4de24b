// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/survival_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvtier {
namespace {

// The episodes of so long are kept, in seconds, if need be of fewer blocks.
constexpr uint32_t kSpanS = 4 * 3600;
constexpr uint32_t kMostHalvings = 32;
// From fewer episodes nothing is learned.
constexpr size_t kLeastEpisodes = 256;
// Each rate counts as if that of all classes had been observed on so many blocks besides.
constexpr double kPriorBlocks = 30;
// The same for the rates of all classes, which are taken to be nearly nothing until observed.
constexpr double kEmptyBlocks = 10;
constexpr double kEmptyUses = 1e-3;
constexpr size_t kAgeCount = 24;
// Where each age begins, in seconds, and where the last one ends.
constexpr std::array<double, kAgeCount + 1> kAgeBegins = [] {
  std::array<double, kAgeCount + 1> begins{0, 1, 2, 4};
  for (size_t age = 4; age < begins.size(); ++age) begins[age] = begins[age - 1] * 1.6;
  return begins;
}();

constexpr double Width(size_t age) { return kAgeBegins[age + 1] - kAgeBegins[age]; }

}  // namespace

size_t SurvivalTable::ClassOf(uint32_t uses) {
  return std::min<size_t>(std::bit_width(uses - 1), kClasses - 1);
}

// Block hashes may differ in few of their bits only, so that these are spread first.
bool SurvivalTable::Samples(uint64_t block) const {
  const uint64_t spread = (block ^ block >> 32) * 0x9E37'79B9'7F4A'7C15;
  return (spread >> 24 & ((uint64_t{1} << halvings_) - 1)) == 0;
}

void SurvivalTable::BeginEpisode(uint64_t block, size_t use_class, uint32_t now_s) {
  if (!Samples(block) || open_.contains(block)) return;
  if (episodes_.size() == kMaxEpisodes) {
    const Episode& oldest = episodes_[next_];
    if (now_s < oldest.began_s + kSpanS && halvings_ < kMostHalvings) {
      HalveSample();
      if (!Samples(block)) return;
    }
  }
  if (next_ == episodes_.size()) episodes_.emplace_back();
  Episode& episode = episodes_[next_];
  const auto replaced = open_.find(episode.block);
  if (replaced != open_.end() && replaced->second == next_) open_.erase(replaced);
  episode = {.block = block, .began_s = now_s};
  episode.use_class = static_cast<uint32_t>(use_class) & 7;
  open_.emplace(block, static_cast<uint32_t>(next_));
  next_ = (next_ + 1) % kMaxEpisodes;
}

void SurvivalTable::HalveSample() {
  ++halvings_;
  std::rotate(episodes_.begin(), episodes_.begin() + static_cast<ptrdiff_t>(next_),
              episodes_.end());
  std::erase_if(episodes_, [this](const Episode& episode) { return !Samples(episode.block); });
  next_ = episodes_.size() % kMaxEpisodes;
  open_.clear();
  for (size_t i = 0; i < episodes_.size(); ++i) {
    if (!episodes_[i].ended) open_.emplace(episodes_[i].block, static_cast<uint32_t>(i));
  }
}

void SurvivalTable::EndEpisode(uint64_t block, uint32_t now_s) {
  if (!Samples(block)) return;
  const auto open = open_.find(block);
  if (open == open_.end()) return;
  Episode& episode = episodes_[open->second];
  episode.idle_s = std::max(now_s, episode.began_s) - episode.began_s;
  episode.ended = 1;
  open_.erase(open);
}

size_t SurvivalTable::AgeOf(double idle_s) {
  const auto later = std::upper_bound(kAgeBegins.begin() + 1, kAgeBegins.end() - 1, idle_s);
  return static_cast<size_t>(later - kAgeBegins.begin()) - 1;
}

std::array<SurvivalTable::Observed, SurvivalTable::kClasses> SurvivalTable::Observe(
    uint32_t now_s) const {
  std::array<Observed, kClasses> classes;
  std::array<PerAge, kClasses> last_seen{};  // blocks that were watched up to this age
  for (const Episode& episode : episodes_) {
    const uint32_t idle_s =
        episode.ended ? episode.idle_s : std::max(now_s, episode.began_s) - episode.began_s;
    const size_t age = AgeOf(idle_s);
    Observed& seen = classes[episode.use_class];
    seen.uses[age] += episode.ended;
    seen.seconds[age] += std::min<double>(idle_s, kAgeBegins[age + 1]) - kAgeBegins[age];
    last_seen[episode.use_class][age] += 1;
  }
  // Blocks that came to a later age were watched through all of an earlier one.
  for (size_t use_class = 0; use_class < kClasses; ++use_class) {
    double older = 0;
    for (size_t age = kAges; age > 0; --age) {
      classes[use_class].seconds[age - 1] += older * Width(age - 1);
      older += last_seen[use_class][age - 1];
    }
  }
  return classes;
}

void SurvivalTable::Learn(uint32_t now_s) {
  if (episodes_.size() < kLeastEpisodes) return;
  const std::array<Observed, kClasses> classes = Observe(now_s);
  PerAge common;  // rates of all classes together
  for (size_t age = 0; age < kAges; ++age) {
    double uses = kEmptyUses;
    double seconds = kEmptyBlocks * Width(age);
    for (const Observed& seen : classes) {
      uses += seen.uses[age];
      seconds += seen.seconds[age];
    }
    common[age] = uses / seconds;
  }
  for (size_t use_class = 0; use_class < kClasses; ++use_class) {
    const Observed& seen = classes[use_class];
    PerAge rates;  // uses a second, of a block of that age
    for (size_t age = 0; age < kAges; ++age) {
      const double prior_s = kPriorBlocks * Width(age);
      rates[age] = (seen.uses[age] + prior_s * common[age]) / (seen.seconds[age] + prior_s);
    }
    ranks_[use_class] = RanksOf(rates);
  }
  learned_ = true;
  const auto recent = std::ranges::count_if(
      episodes_, [&](const Episode& episode) { return now_s < episode.began_s + kSpanS; });
  if (halvings_ > 0 && static_cast<size_t>(recent) < kMaxEpisodes / 8) --halvings_;
}

// At a constant rate a block is used within an age with probability p = 1 - exp(-rate * width), and
// waits for that, or for the end of the age, p / rate seconds on average.
SurvivalTable::PerAge SurvivalTable::RanksOf(const PerAge& rates) {
  PerAge used, waited_s;
  for (size_t age = 0; age < kAges; ++age) {
    used[age] = -std::expm1(-rates[age] * Width(age));
    waited_s[age] = used[age] / rates[age];
  }
  PerAge ranks{};
  for (size_t from = 0; from < kAges; ++from) {
    double idle = 1;  // the share of blocks that are still idle
    double uses = 0;
    double seconds = 0;
    for (size_t age = from; age < kAges; ++age) {
      uses += idle * used[age];
      seconds += idle * waited_s[age];
      idle *= 1 - used[age];
      ranks[from] = std::max(ranks[from], uses / seconds);
    }
  }
  return ranks;
}

double SurvivalTable::Rank(size_t use_class, uint32_t idle_s) const {
  if (!learned_) return (1 + 0.01 * static_cast<double>(use_class)) / (1.0 + idle_s);
  return ranks_[use_class][AgeOf(idle_s)];
}

size_t SurvivalTable::memory_bytes() const {
  constexpr size_t kNodeBytes = 40;  // of the map, about
  return sizeof(*this) + episodes_.capacity() * sizeof(Episode) + open_.size() * kNodeBytes;
}

}  // namespace kvtier
