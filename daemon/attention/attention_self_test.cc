// SPDX-License-Identifier: Apache-2.0
// The test runs at every start, since the faults that it guards against depend on the machine: a
// library built for other GPUs, a driver with a defect, a CPU without the expected instructions. A
// wrong result would not crash an engine but make a model answer nonsense.
#include "daemon/attention/attention_self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <deque>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/reference/attention_reference.h"
#include "kernels/reference/kv_write_reference.h"
#include "kernels/reference/number_format.h"

namespace kvtier {
namespace {

using kernels::ElementBytes;

// Small enough to compute the expected results in milliseconds, large enough for several blocks per
// sequence and more than one tile of every kernel.
constexpr int32_t kPageTokens = 16;
constexpr int32_t kKvHeads = 2;
constexpr unsigned kMaxThreads = 8;
constexpr int32_t kLayers = 2;
constexpr int32_t kPoolBlocks = 32;
constexpr size_t kGranule = 256;
// Allowed beyond twice the error of a plain computation in 16 bits.
constexpr double kSlack = 2e-3;

struct Sequence {
  int32_t query_tokens;
  int32_t kv_tokens;
};
// Lengths around the sizes of blocks and tiles.
constexpr std::array<Sequence, 3> kDecode = {{{1, 1}, {1, 37}, {1, 130}}};
constexpr std::array<Sequence, 3> kPrefill = {{{3, 3}, {5, 130}, {1, 32}}};
// So long that on Hopper, in groups of kLongGroup, another kernel serves it than short ones: of
// heads of 256, which have but one, it would say nothing more.
constexpr std::array<Sequence, 1> kLong = {{{448, 448}}};
constexpr int32_t kLongGroup = 16;
constexpr int32_t kLongHeadDim = 128;  // the largest
// Expected results are computed for one row in so many of it, the last among them.
constexpr int32_t kLongStep = 149;

// Different for each KV head, so that a kernel that mixes heads up is noticed.
constexpr std::array<float, kKvHeads> kKeyScales = {0.5F, 1.25F};
constexpr std::array<float, kKvHeads> kValueScales = {1.5F, 0.625F};

struct Types {
  kvt_dtype cache;
  kvt_dtype query;
  bool scaled;
  const char* name;
};
constexpr std::array<Types, 5> kTypes = {
    {{KVT_BF16, KVT_BF16, false, "bf16"},
     {KVT_FP16, KVT_FP16, false, "fp16"},
     {KVT_FP8_E4M3, KVT_BF16, true, "fp8 with scales and bf16 queries"},
     {KVT_FP8_E4M3, KVT_FP16, false, "fp8 with fp16 queries"},
     {KVT_FP32, KVT_FP32, false, "fp32"}}};

struct Case {
  Types types;
  int32_t head_dim;
  int32_t group;
  std::span<const Sequence> sequences;

  [[nodiscard]] bool is_long() const { return sequences.data() == kLong.data(); }
  // From a row of queries whose results are compared to the next.
  [[nodiscard]] int32_t step() const { return is_long() ? kLongStep : 1; }
};

std::string NameOf(const Case& one) {
  return fmt::format("{} of {}, heads of {}, groups of {}",
                     one.sequences.data() == kDecode.data() ? "decode"
                     : one.is_long()                        ? "long append"
                                                            : "append",
                     one.types.name, one.head_dim, one.group);
}

size_t Aligned(size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

// One case: its inputs, the results that are expected of them, and the comparison with what an
// engine computes. The expected results are computed once and compared with every device.
class Trial {
 public:
  explicit Trial(const Case& one) : case_(one), random_(one.head_dim + one.group) {
    slice_bytes_ = size_t{kPageTokens} * kKvHeads * one.head_dim * ElementBytes(one.types.cache);
    // All bits set is a NaN in every type: whatever is read beside the sequences' own tokens shows
    // in the result.
    pool_.assign(kPoolBlocks * kLayers * 2 * slice_bytes_, std::byte{0xFF});
    FillTables();
    FillNumbers();
    Expect();
  }

  // The pool as an engine left it, and the engine's output.
  struct Outcome {
    std::vector<std::byte> pool, output;
  };
  // On a device's memory of kSelfTestBytes.
  [[nodiscard]] Result<Outcome> Run(AttentionEngine* engine, std::byte* device);
  // Empty if all is right.
  [[nodiscard]] std::string Judge(const Outcome& outcome, double* error) const;

 private:
  void FillTables();
  void FillNumbers();
  [[nodiscard]] std::vector<std::byte> DrawNumbers(size_t count);
  void Expect();
  [[nodiscard]] int64_t RowElements() const { return int64_t{job_.q_heads} * case_.head_dim; }

  const Case case_;
  std::mt19937 random_;
  size_t slice_bytes_ = 0;
  AttentionJob job_;  // aimed at the device that is tried
  std::vector<int64_t> slots_;
  std::vector<std::byte> queries_, pool_;
  std::vector<double> exact_, plain_;
};

// The last layer of `pool`, since a wrong layer or block stride shows only there.
kvt_paged_kv CacheAt(const Case& one, std::byte* pool) {
  const int64_t slice = int64_t{kPageTokens} * kKvHeads * one.head_dim;
  const int64_t slice_bytes = slice * static_cast<int64_t>(ElementBytes(one.types.cache));
  std::byte* const key = pool + (kLayers - 1) * 2 * slice_bytes;
  return {.key = key,
          .value = key + slice_bytes,
          .dtype = one.types.cache,
          .kv_heads = kKvHeads,
          .head_dim = one.head_dim,
          .page_tokens = kPageTokens,
          .block_stride = kLayers * 2 * slice,
          .token_stride = int64_t{kKvHeads} * one.head_dim,
          .head_stride = one.head_dim};
}

// Whether the engine has code for such a case.
bool Computes(const AttentionEngine& engine, const Case& one) {
  if (std::ranges::find(engine.traits().head_dims, one.head_dim) ==
          engine.traits().head_dims.end() ||
      std::ranges::find(engine.traits().groups, one.group) == engine.traits().groups.end()) {
    return false;
  }
  AttentionJob job;
  job.query_dtype = one.types.query;
  job.q_heads = kKvHeads * one.group;
  job.cache = CacheAt(one, nullptr);
  return engine.Check(job).has_value();
}

// Blocks are shuffled, so that a kernel that ignores the table reads NaN or another sequence's
// tokens.
void Trial::FillTables() {
  std::array<int32_t, kPoolBlocks> blocks;
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random_);
  job_.query_dtype = case_.types.query;
  job_.q_heads = kKvHeads * case_.group;
  job_.softmax_scale = 1.0F / std::sqrt(static_cast<float>(case_.head_dim));
  for (const Sequence& sequence : case_.sequences) {
    job_.query_starts.push_back(job_.query_starts.back() + sequence.query_tokens);
    job_.kv_lengths.push_back(sequence.kv_tokens);
    job_.max_kv_length = std::max(job_.max_kv_length, sequence.kv_tokens);
  }
  job_.table_stride = (job_.max_kv_length + kPageTokens - 1) / kPageTokens;
  for (const Sequence& sequence : case_.sequences) {
    for (int32_t token = 0; token < sequence.kv_tokens; ++token) {
      if (token % kPageTokens == 0) job_.blocks.push_back(blocks[job_.blocks.size()]);
      slots_.push_back(int64_t{job_.blocks.back()} * kPageTokens + token % kPageTokens);
    }
  }
  if (case_.types.scaled) {
    job_.key_scales.assign(kKeyScales.begin(), kKeyScales.end());
    job_.value_scales.assign(kValueScales.begin(), kValueScales.end());
  }
}

std::vector<std::byte> Trial::DrawNumbers(size_t count) {
  std::normal_distribution<float> normal;
  std::vector<std::byte> numbers(count * ElementBytes(case_.types.query));
  for (size_t i = 0; i < count; ++i) {
    kernels::StoreElement(numbers.data(), case_.types.query, static_cast<int64_t>(i),
                          normal(random_));
  }
  return numbers;
}

// The keys and values stand in the pool as a client has written them.
void Trial::FillNumbers() {
  const int64_t row = int64_t{kKvHeads} * case_.head_dim;
  const std::vector<std::byte> keys = DrawNumbers(slots_.size() * row);
  const std::vector<std::byte> values = DrawNumbers(slots_.size() * row);
  queries_ = DrawNumbers(size_t{1} * job_.query_tokens() * job_.q_heads * case_.head_dim);
  kernels::KvWriteReference({.key = keys.data(),
                             .value = values.data(),
                             .dtype = case_.types.query,
                             .tokens = static_cast<int32_t>(slots_.size()),
                             .key_token_stride = row,
                             .key_head_stride = case_.head_dim,
                             .value_token_stride = row,
                             .value_head_stride = case_.head_dim,
                             .slot_mapping = slots_.data(),
                             .cache = CacheAt(case_, pool_.data())});
}

// Computes each row that is compared as if a sequence ended with it.
void Trial::Expect() {
  kvt_paged_kv cache = CacheAt(case_, pool_.data());
  cache.key_scales = ScalesByHead(job_.key_scales);
  cache.value_scales = ScalesByHead(job_.value_scales);
  job_.cache = cache;
  const std::vector<int32_t> table = job_.PaddedTable();
  std::vector<int32_t> tables, lengths;
  for (int32_t s = 0; s < job_.sequences(); ++s) {
    const auto [query_tokens, kv_tokens] = case_.sequences[s];
    for (int32_t token = 0; token < query_tokens; token += case_.step()) {
      const auto row = table.begin() + int64_t{s} * job_.table_stride;
      tables.insert(tables.end(), row, row + job_.table_stride);
      lengths.push_back(kv_tokens - query_tokens + token + 1);
    }
  }
  const kernels::ReferenceAttention problem{
      .query = queries_.data(),
      .query_dtype = job_.query_dtype,
      .q_heads = job_.q_heads,
      .query_token_stride = case_.step() * RowElements(),
      .query_head_stride = case_.head_dim,
      .kv = cache,
      .sequences = {.block_table = tables.data(),
                    .kv_lengths = lengths.data(),
                    .table_stride = job_.table_stride,
                    .sequences = static_cast<int32_t>(lengths.size()),
                    .max_kv_length = job_.max_kv_length},
      .softmax_scale = job_.softmax_scale};
  exact_ = kernels::AttentionReference(problem).output;
  plain_ = kernels::AttentionReference(problem, kernels::ReferenceArithmetic::kPlain16Bit).output;
}

Result<Trial::Outcome> Trial::Run(AttentionEngine* engine, std::byte* device) {
  std::byte* const query = device + Aligned(pool_.size());
  std::byte* const results = query + Aligned(queries_.size());
  Outcome outcome{pool_, std::vector<std::byte>(queries_.size(), std::byte{0xFF})};
  KVT_RETURN_IF_ERROR(engine->Copy(device, pool_.data(), pool_.size()));
  KVT_RETURN_IF_ERROR(engine->Copy(query, queries_.data(), queries_.size()));
  KVT_RETURN_IF_ERROR(engine->Copy(results, outcome.output.data(), outcome.output.size()));
  job_.cache = CacheAt(case_, device);
  job_.query = query;
  job_.output = results;
  KVT_RETURN_IF_ERROR(engine->Run(job_));
  KVT_RETURN_IF_ERROR(engine->Copy(outcome.pool.data(), device, pool_.size()));
  KVT_RETURN_IF_ERROR(engine->Copy(outcome.output.data(), results, outcome.output.size()));
  return outcome;
}

// Sums depend on their order, so that outputs get a tolerance, taken from what 16-bit arithmetic
// does to the same numbers.
std::string Trial::Judge(const Outcome& outcome, double* error) const {
  if (outcome.pool != pool_) return "the pool was written to";
  double own = 0, allowed = 0;
  for (int64_t i = 0; i < job_.query_tokens() * RowElements(); ++i) {
    const double value = kernels::LoadElement(outcome.output.data(), job_.query_dtype, i);
    if (!std::isfinite(value)) return fmt::format("element {} is {}", i, value);
    const int64_t row = i / RowElements();
    if (row % case_.step() != 0) continue;
    const int64_t at = row / case_.step() * RowElements() + i % RowElements();
    own = std::max(own, std::fabs(value - exact_[at]));
    allowed = std::max(allowed, std::fabs(plain_[at] - exact_[at]));
  }
  allowed = 2 * allowed + kSlack;
  *error = own / allowed;
  if (own <= allowed) return {};
  return fmt::format("an element is wrong by {:.4g}, {:.4g} are allowed", own, allowed);
}

// All that any of the engines has code for.
std::vector<Case> CasesFor(std::span<const AttentionTrial> trials) {
  std::set<int32_t> head_dims, groups;
  for (const AttentionTrial& trial : trials) {
    head_dims.insert(trial.engine->traits().head_dims.begin(),
                     trial.engine->traits().head_dims.end());
    groups.insert(trial.engine->traits().groups.begin(), trial.engine->traits().groups.end());
  }
  std::vector<Case> cases;
  for (const Types& types : kTypes) {
    for (const int32_t head_dim : head_dims) {
      for (const int32_t group : groups) {
        cases.push_back({types, head_dim, group, kDecode});
        cases.push_back({types, head_dim, group, kPrefill});
        if (head_dim > kLongHeadDim || group != kLongGroup) continue;
        cases.push_back({types, head_dim, group, kLong});
      }
    }
  }
  return cases;
}

// One device under test, with the results so far. Several threads take turns at it.
struct TriedDevice {
  AttentionEngine* engine = nullptr;
  DevicePool* memory = nullptr;  // null: it cannot be had
  std::mutex in_use;             // guards all but `engine`
  AttentionSelfTest result;
  size_t failed_case = SIZE_MAX;  // the first; that of result.failure
};

void TryOn(Trial* trial, const Case& one, size_t number, TriedDevice* device) {
  const std::lock_guard lock(device->in_use);
  const Result<Trial::Outcome> outcome = trial->Run(device->engine, device->memory->data());
  if (!outcome && outcome.error().code == ErrorCode::kResourceExhausted) {
    device->result.lacks_memory = true;
    return;
  }
  ++device->result.cases;
  double error = 0;
  const std::string failure = outcome ? trial->Judge(*outcome, &error) : outcome.error().ToString();
  device->result.worst_error = std::max(device->result.worst_error, error);
  device->result.device_lost |= !outcome && outcome.error().reason == kDeviceLost;
  // The lowest case is reported, whichever thread was first, so that messages are reproducible.
  if (failure.empty() || number > device->failed_case) return;
  device->failed_case = number;
  device->result.failure = NameOf(one) + ": " + failure;
}

std::deque<TriedDevice> Prepare(std::span<const AttentionTrial> trials) {
  std::deque<TriedDevice> devices;
  for (const AttentionTrial& trial : trials) {
    TriedDevice& device = devices.emplace_back();
    device.engine = trial.engine;
    device.memory = trial.memory;
    device.result.lacks_memory = trial.memory == nullptr;
    if (trial.memory != nullptr) trial.memory->AwaitReady();
  }
  return devices;
}

}  // namespace

std::vector<AttentionSelfTest> TestAttention(std::span<const AttentionTrial> trials) {
  std::deque<TriedDevice> devices = Prepare(trials);
  const std::vector<Case> cases = CasesFor(trials);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < cases.size(); i = next++) {
      const auto wanted = [&](const TriedDevice& device) {
        return device.memory != nullptr && Computes(*device.engine, cases[i]);
      };
      if (std::ranges::none_of(devices, wanted)) continue;
      Trial trial(cases[i]);
      // Each thread begins with another device, so that they seldom wait for each other.
      for (size_t d = 0; d < devices.size(); ++d) {
        TriedDevice& device = devices[(i + d) % devices.size()];
        if (wanted(device)) TryOn(&trial, cases[i], i, &device);
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxThreads);
    for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  std::vector<AttentionSelfTest> results;
  for (TriedDevice& device : devices) {
    AttentionSelfTest& result = device.result;
    if (result.cases == 0 && result.failure.empty() && !result.lacks_memory) {
      result.failure = "nothing could be tried";
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace kvtier
