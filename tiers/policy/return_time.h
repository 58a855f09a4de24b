// SPDX-License-Identifier: Apache-2.0
// After how long blocks that an engine has stored are used for the first time.
#pragma once

#include <cstdint>

namespace kvtier {

// Follows the third quartile of these times and keeps none of them: a longer time raises it, each
// other one lowers it by a third as much, so that it rests where one time in four is longer. Some
// dozen uses move it anywhere within its bounds. Event loop only.
class ReturnTime {
 public:
  static constexpr uint32_t kLeastS = 1;
  static constexpr uint32_t kMostS = 60;
  // Before anything is known. Short, because the first burst is over before it has been learned;
  // where sessions take longer, their first uses tell so within seconds.
  static constexpr uint32_t kAssumedS = 3;

  // A block was used for the first time, so long after it was stored. More than kMostS is not
  // counted: host does not hold unwritten blocks for such sessions.
  void Note(uint32_t waited_s);
  [[nodiscard]] uint32_t ds() const { return static_cast<uint32_t>(10 * seconds_); }

 private:
  double seconds_ = kAssumedS;
};

}  // namespace kvtier
