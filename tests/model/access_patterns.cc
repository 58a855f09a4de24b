// SPDX-License-Identifier: Apache-2.0
#include "tests/model/access_patterns.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

constexpr int64_t kPhaseMs = 5 * 60 * kSecondMs;
constexpr int64_t kEndMs = 12 * kPhaseMs;

class PatternMaker {
 public:
  explicit PatternMaker(uint64_t seed) : random_(seed) { trace_.block_tokens = 512; }

  Trace Finish() {
    std::ranges::stable_sort(trace_.requests, {}, &TraceRequest::arrival_ms);
    trace_.streams = 1;
    return std::move(trace_);
  }

  void Scan() {
    Conversations(0, kEndMs, 1200);
    for (int64_t at_ms = 2 * kPhaseMs; at_ms < kEndMs; at_ms += 5 * kSecondMs) {
      Ask(at_ms, Document(NewDocument(), 100));
    }
  }

  void Loop() {
    for (uint64_t i = 0; i < 3200; ++i) Ask(AtMs(i, 1100), Document(i % 320, 24));
  }

  void Uniform() {
    for (uint64_t i = 0; i < 9000; ++i) Ask(AtMs(i, 400), Document(random_.Below(1500), 8));
  }

  // The n-th most popular document is asked for about as often as 1 / n says.
  void Drift() {
    for (uint64_t i = 0; i < 9000; ++i) {
      const auto rank = static_cast<uint64_t>(std::exp(Share() * std::log(400.0)));
      Ask(AtMs(i, 400), Document(rank + i / 8, 8));
    }
  }

  void Flip() {
    for (int64_t phase_ms = 0; phase_ms < kEndMs; phase_ms += 2 * kPhaseMs) {
      Conversations(phase_ms, phase_ms + kPhaseMs, 900);
      for (int64_t at_ms = phase_ms + kPhaseMs; at_ms < phase_ms + 2 * kPhaseMs; at_ms += 900) {
        const std::vector<BlockHash> document = Document(NewDocument(), 14);
        Ask(at_ms, document);
        Ask(at_ms + 50 * kSecondMs, document);
      }
    }
  }

  void Trap() {
    for (int64_t phase_ms = 0; phase_ms < kEndMs; phase_ms += 2 * kPhaseMs) {
      const uint64_t first = documents_;
      documents_ += 40;
      for (int64_t at_ms = phase_ms; at_ms < phase_ms + kPhaseMs; at_ms += 250) {
        Ask(at_ms, Document(first + random_.Below(40), 16));
      }
      for (int64_t at_ms = phase_ms + kPhaseMs; at_ms < phase_ms + 2 * kPhaseMs; at_ms += 600) {
        const std::vector<BlockHash> document = Document(NewDocument(), 16);
        Ask(at_ms, document);
        Ask(at_ms + 30 * kSecondMs, document);
      }
    }
  }

 private:
  static int64_t AtMs(uint64_t request, int64_t gap_ms) {
    return static_cast<int64_t>(request) * gap_ms;
  }
  double Share() { return static_cast<double>(random_.Below(1u << 20)) / (1u << 20); }
  uint64_t NewDocument() { return documents_++; }

  // One sequence, a start that all of its blocks depend on.
  static std::vector<BlockHash> Document(uint64_t number, uint64_t blocks) {
    std::vector<BlockHash> hashes;
    for (uint64_t i = 0; i < blocks; ++i) hashes.push_back(TestHash(number, i));
    return hashes;
  }

  void Ask(int64_t at_ms, std::vector<BlockHash> hashes) {
    const auto tokens = static_cast<uint32_t>(hashes.size()) * trace_.block_tokens;
    trace_.requests.push_back(
        {.arrival_ms = at_ms, .input_tokens = tokens, .hashes = std::move(hashes)});
  }

  // One begins every `gap_ms`, behind the system prompt that all share. Two of three turns are
  // followed by another, each two blocks longer, after half a minute or several.
  void Conversations(int64_t begin_ms, int64_t end_ms, int64_t gap_ms) {
    constexpr uint64_t kSystemPrompt = UINT32_MAX;
    for (int64_t start_ms = begin_ms; start_ms < end_ms; start_ms += gap_ms) {
      const uint64_t number = NewDocument();
      std::vector<BlockHash> hashes = Document(kSystemPrompt, 4);
      uint64_t blocks = random_.Between(4, 24);
      int64_t at_ms = start_ms;
      do {
        while (hashes.size() < blocks) hashes.push_back(TestHash(number, hashes.size()));
        Ask(at_ms, hashes);
        blocks = hashes.size() + 2;
        at_ms += static_cast<int64_t>(30'000 * std::exp(2 * Share()));
      } while (at_ms < end_ms && random_.Below(3) < 2);
    }
  }

  Trace trace_;
  SeededRandom random_;
  uint64_t documents_ = 1'000'000;  // numbers below are those of documents that come back
};

}  // namespace

Trace MakeAccessPattern(std::string_view pattern, uint64_t seed) {
  PatternMaker maker(seed);
  if (pattern == "scan") {
    maker.Scan();
  } else if (pattern == "loop") {
    maker.Loop();
  } else if (pattern == "uniform") {
    maker.Uniform();
  } else if (pattern == "drift") {
    maker.Drift();
  } else if (pattern == "flip") {
    maker.Flip();
  } else {
    KVT_CHECK(pattern == "trap");
    maker.Trap();
  }
  return maker.Finish();
}

}  // namespace kvtier
