// SPDX-License-Identifier: Apache-2.0
// A persistent index in memory, with the failures of a real one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "tests/fakes/fake_loop.h"
#include "tests/fakes/seeded_random.h"
#include "tiers/index/index.h"

namespace kvtier {

// A batch is durable when its completion is stepped. Keeps its log, so that a crash can cut it.
class FakeIndex final : public Index {
 public:
  FakeIndex(FakeLoop* loop, uint64_t seed);

  void Apply(IndexBatch batch, std::function<void(Status)> done) override;

  // The next `count` batches are reported as failed; each is applied all the same, or not.
  void FailNextBatches(int count) { fail_next_ = count; }
  // The same, and none of them is applied.
  void RefuseNextBatches(int count) { refuse_next_ = count; }
  void FailBatchesAtRate(double rate) { failure_rate_ = rate; }

  // The process died: of the batches under way a prefix is applied. The loop's events must be
  // dropped by the caller.
  void Crash();
  // The log's end is gone, although it was acknowledged: forgets up to `batches` of the last.
  void LoseTail(size_t batches);

  // The index was made anew.
  void ReplaceWith(const IndexSnapshot& snapshot);

  // The index as a process finds it that starts now.
  [[nodiscard]] IndexSnapshot Snapshot() const;

  [[nodiscard]] EventSource source() const { return source_; }
  [[nodiscard]] size_t batches_applied() const { return log_.size(); }
  // The number of them that took deleted token ids out of the files.
  [[nodiscard]] size_t purges() const;

 private:
  void CompleteFirst(const std::function<void(Status)>& done);

  FakeLoop* const loop_;
  const EventSource source_;
  SeededRandom random_;
  std::vector<IndexBatch> log_;
  std::deque<IndexBatch> under_way_;
  int fail_next_ = 0;
  int refuse_next_ = 0;
  double failure_rate_ = 0;
};

}  // namespace kvtier
