// SPDX-License-Identifier: Apache-2.0
// Which of many objects are there: a request for each that a search asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "daemon/cold/prefix_search.h"
#include "daemon/cold/s3/s3_answer.h"

namespace kvtier {

// Any thread. A prefix begins with a few questions, and each object that is there allows two more:
// a store that has nothing of it is hardly asked.
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
  const bool each_;
  std::mutex mutex_;  // guards what follows
  PrefixSearch search_;
  size_t allowed_ = 0;  // as many more may be asked for
  S3Outcome failure_;   // that ends all of it
  bool is_told_ = false;
};

}  // namespace kvtier
