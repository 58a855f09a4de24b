// SPDX-License-Identifier: Apache-2.0
// Which of many objects are there: a request for each, of which a prefix needs no more than lead to
// its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/cold/s3/s3_answer.h"

namespace kvtier {

// Any thread. A prefix begins with a few questions, and each object that is there allows two more:
// a store that has nothing of it is hardly asked, and the questions for one that it has all of
// double with each round trip.
class S3Question {
 public:
  S3Question(size_t count, bool each);

  // The positions to be asked for next, each once.
  [[nodiscard]] std::vector<size_t> TakeNext();
  // The first object of a prefix that was not answered for ends it, if those before it are there.
  void Answer(size_t position, const S3Outcome& outcome);
  // True once, as soon as the answer is known; then it is in `outcome`.
  [[nodiscard]] bool TakeEnd(S3Outcome* outcome);

 private:
  enum class State : uint8_t { kOpen, kThere, kAbsent, kFailed };

  const bool each_;
  std::mutex mutex_;  // guards what follows
  std::vector<State> states_;
  size_t next_ = 0;     // the first that was not asked for
  size_t allowed_ = 0;  // as many may be asked for
  size_t known_ = 0;    // those before it are answered
  S3Outcome failure_;
  bool has_ended_ = false;
  bool is_told_ = false;
};

}  // namespace kvtier
