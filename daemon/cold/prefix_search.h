// SPDX-License-Identifier: Apache-2.0
// How far a prefix of objects goes, by questions for a few of them: each question costs a store a
// request, and a prefix of 32,000 tokens has 2,000 objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvtier {

// Not thread-safe; its owner asks, in whichever order and from whichever thread. Objects of a
// prefix are written together and end together, so that every 16th vouches for those before it, and
// where one is absent each of the 15 before it is asked for. A gap that no question meets is found
// by a load, which then ends there: fewer hits, never other bytes.
class PrefixSearch {
 public:
  enum class Reply : uint8_t {
    kThere,
    kAbsent,
    kUnknown,  // the store did not say: a prefix goes no further
  };

  // `each`: no prefix, but every object for itself.
  PrefixSearch(size_t count, bool each);

  // The position to be asked for next, each once; none while the answer rests on those asked for.
  [[nodiscard]] std::optional<size_t> TakeNext();
  // Returns whether there are other positions to be asked for now than before.
  bool Answer(size_t position, Reply reply);
  // The answer is known.
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  // How many positions TakeNext has left.
  [[nodiscard]] size_t left() const { return has_ended_ ? 0 : steps_.size() - next_; }
  // A byte for each object, 1 or 0: as far as it is known by now.
  [[nodiscard]] std::string Told() const;

 private:
  [[nodiscard]] bool NarrowTo(size_t absent);

  const bool each_;
  std::vector<std::optional<Reply>> replies_;  // by position; nothing: not answered
  std::vector<size_t> steps_;                  // positions to be asked for, ascending
  size_t next_ = 0;                            // the first step that was not taken
  size_t answered_ = 0;                        // steps before it are answered
  size_t known_ = 0;                           // objects before it are there
  bool has_ended_ = false;
};

}  // namespace kvtier
