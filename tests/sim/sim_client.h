// SPDX-License-Identifier: Apache-2.0
// A simulated inference client: one session that acquires, fills, commits and releases sequences,
// and checks every byte that it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/sim/sim_oracle.h"
#include "tests/sim/sim_universe.h"
#include "tests/sim/sim_world.h"

namespace kvtier {

// State that all clients of a simulation share.
struct SimContext {
  const SimPlan& plan;
  SimWorld& world;
  SimOracle& oracle;
  const SimUniverse& universe;
};

class SimClient : public std::enable_shared_from_this<SimClient> {
 public:
  SimClient(const SimContext& context, SessionId session, SeededRandom random)
      : context_(context), session_(session), random_(random) {}

  // Once, right after construction.
  void Open();
  // Ends the session; returns the private blocks, which the process can still write.
  [[nodiscard]] std::vector<SimBlock> Close();

  // One random operation each; nothing if there is nothing to do it with.
  void BeginSequence();
  void CommitSome();
  void ReleaseSome();
  // Acquires held blocks a second time, as a fork does.
  void Fork();
  // Calls that must be refused, on blocks of its own, of other clients and of earlier times.
  void Misbehave();
  // Compares the bytes of one block it may use.
  void CheckOne();
  // Checks that the blocks that its loads' counters call usable are.
  void CheckCounters();

  // An acquire that waits holds the blocks that it has found so far.
  void TouchAwaited();

  [[nodiscard]] SessionId session() const { return session_; }

 private:
  struct Held {
    BlockHandle handle;
    BlockHash hash;
    bool usable = false;
  };
  // The place of the load's counter, and its last value.
  struct Counter {
    uint32_t offset = 0;
    uint32_t base = 0;
    uint32_t steps = 0;
    uint32_t done = 0;
  };
  struct Sequence {
    SimPool pool;
    uint32_t stream = 0;
    AcquireRequest request;
    bool answered = false;
    bool ended = false;     // with a partial block or a duplicate: nothing more is committed
    uint64_t erasures = 0;  // that had ended before it
    LoadId load;
    uint32_t hits = 0;   // the first of `held`
    uint32_t ready = 0;  // of the hits, as reported
    int64_t asked_ms = 0;
    bool load_finished = true;
    uint32_t good = 0;  // blocks of the prefix that can be built upon
    std::optional<Counter> counter;
    std::vector<Held> held;
    std::vector<BlockHandle> new_blocks;
  };
  using Sequences = std::map<uint64_t, Sequence>;

  void Acquire(Sequence sequence);
  void OnAcquired(uint64_t id, const Result<AcquireReply>& result);
  void CheckReply(const Sequence& sequence, const AcquireReply& reply) const;
  void TakeHits(Sequence* sequence, const AcquireReply& reply);
  void TakeNewBlocks(Sequence* sequence, const AcquireReply& reply);
  void TouchRequested(const Sequence& sequence);
  // Each hash that the sequence's acquire names.
  static void ForEachRequested(const Sequence& sequence,
                               const std::function<void(const BlockHash&)>& visit);
  void OnProgress(const LoadProgress& progress);
  void MarkUsable(const Sequence& sequence, Held* held);
  // Believes the counter, and checks it.
  void CheckCounter(Sequence* sequence);

  [[nodiscard]] Sequence* PickAnswered();
  void CommitNext(Sequence* sequence);
  // Gives back the last `count` of the held blocks, the private ones first.
  void ReleaseLast(Sequence* sequence, size_t count);
  void EraseIfEmpty(Sequence* sequence);
  // A block that this client may neither release nor commit, unless it holds it.
  void ExpectRefused(const SimBlock& block);
  // The second time in the same call, which must be refused.
  void ReleaseTwice();
  // Counts references of all its sequences that were answered.
  [[nodiscard]] uint32_t ReferencesTo(const SimBlock& block) const;
  void ReleaseBlocks(SimPool pool, const std::vector<BlockHandle>& blocks);
  void CheckPattern(SimPool pool, BlockHandle block);

  const SimContext context_;
  const SessionId session_;
  SeededRandom random_;
  Sequences sequences_;
  uint64_t next_sequence_ = 1;
  std::set<LoadId> forgotten_loads_;  // of sequences released meanwhile
  std::shared_ptr<CounterPage> counters_ = CounterPage::Create().value();
  std::vector<SimBlock> given_back_;  // of any kind; some of them it holds again
};

}  // namespace kvtier
