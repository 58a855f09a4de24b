#include "daemon/attention/attention_self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/reference/attention_reference.h"
#include "kernels/reference/number_format.h"
#include "kernels/write/kv_write_reference.h"

namespace kvtier {
namespace {

using kernels::ElementBytes;

constexpr int32_t kPageTokens = 16;
constexpr int32_t kKvHeads = 2;
constexpr unsigned kMaxThreads = 8;
constexpr int32_t kLayers = 2;
constexpr int32_t kPoolBlocks = 32;
constexpr uint64_t kPoolBytes = uint64_t{4} << 20;
constexpr size_t kGranule = 256;
// Beyond twice the error of a plain computation in 16 bits.
constexpr double kSlack = 2e-3;

struct Sequence {
  int32_t query_tokens;
  int32_t kv_tokens;
};
// Lengths around the sizes of blocks and tiles.
constexpr std::array<Sequence, 3> kDecode = {{{1, 1}, {1, 37}, {1, 130}}};
constexpr std::array<Sequence, 3> kAppend = {{{3, 3}, {5, 130}, {1, 32}}};

struct Types {
  kvt_dtype cache;
  kvt_dtype query;
  const char* name;
};
constexpr std::array<Types, 5> kTypes = {{{KVT_BF16, KVT_BF16, "bf16"},
                                          {KVT_FP16, KVT_FP16, "fp16"},
                                          {KVT_FP8_E4M3, KVT_BF16, "fp8 with bf16 queries"},
                                          {KVT_FP8_E4M3, KVT_FP16, "fp8 with fp16 queries"},
                                          {KVT_FP32, KVT_FP32, "fp32"}}};

struct Case {
  Types types;
  int32_t head_dim;
  int32_t group;
  std::span<const Sequence> sequences;
};

std::string NameOf(const Case& one) {
  return fmt::format("{} of {}, heads of {}, groups of {}",
                     one.sequences.data() == kDecode.data() ? "decode" : "append", one.types.name,
                     one.head_dim, one.group);
}

// One case: its numbers, and the same job in host memory and on the device.
class Trial {
 public:
  Trial(const Case& one, AttentionEngine* engine, std::byte* device)
      : case_(one), engine_(*engine), device_(device), random_(one.head_dim + one.group) {
    slice_bytes_ = size_t{kPageTokens} * kKvHeads * one.head_dim * ElementBytes(one.types.cache);
    pool_.assign(kPoolBlocks * kLayers * 2 * slice_bytes_, std::byte{0xFF});
    FillTables();
    FillNumbers();
  }

  [[nodiscard]] Status Supported() const { return engine_.Check(job_); }

  // The three steps of a case; only the second touches the device. Empty if all is right.
  void Expect();
  [[nodiscard]] Status RunOnDevice();
  [[nodiscard]] std::string Judge(double* error) const;

 private:
  void FillTables();
  void FillNumbers();
  [[nodiscard]] kvt_paged_kv CacheAt(std::byte* pool) const;

  const Case case_;
  AttentionEngine& engine_;
  std::byte* const device_;  // pool, then queries, then output
  std::mt19937 random_;
  size_t slice_bytes_ = 0;
  AttentionJob job_;
  std::vector<int64_t> slots_;
  std::vector<std::byte> keys_, values_, queries_;
  std::vector<std::byte> pool_, expected_pool_, output_;
  std::vector<double> exact_, plain_;
};

kvt_paged_kv Trial::CacheAt(std::byte* pool) const {
  const int64_t slice = int64_t{kPageTokens} * kKvHeads * case_.head_dim;
  // The last layer, so that a wrong stride shows.
  std::byte* const key = pool + (kLayers - 1) * 2 * slice_bytes_;
  return {.key = key,
          .value = key + slice_bytes_,
          .dtype = case_.types.cache,
          .kv_heads = kKvHeads,
          .head_dim = case_.head_dim,
          .page_tokens = kPageTokens,
          .block_stride = kLayers * 2 * slice,
          .token_stride = int64_t{kKvHeads} * case_.head_dim,
          .head_stride = case_.head_dim};
}

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
  job_.block_table.assign(case_.sequences.size() * job_.table_stride, 0);
  size_t next = 0;
  for (size_t s = 0; s < case_.sequences.size(); ++s) {
    for (int32_t token = 0; token < case_.sequences[s].kv_tokens; ++token) {
      int32_t& block = job_.block_table[s * job_.table_stride + token / kPageTokens];
      if (token % kPageTokens == 0) block = blocks[next++];
      slots_.push_back(int64_t{block} * kPageTokens + token % kPageTokens);
    }
  }
  // Not that of the device, but of the same shape: enough to ask whether it is supported.
  job_.cache = CacheAt(pool_.data());
}

void Trial::FillNumbers() {
  std::normal_distribution<float> normal;
  const auto fill = [&](size_t count) {
    std::vector<std::byte> numbers(count * ElementBytes(case_.types.query));
    for (size_t i = 0; i < count; ++i) {
      kernels::StoreElement(numbers.data(), case_.types.query, static_cast<int64_t>(i),
                            normal(random_));
    }
    return numbers;
  };
  keys_ = fill(slots_.size() * kKvHeads * case_.head_dim);
  values_ = fill(slots_.size() * kKvHeads * case_.head_dim);
  queries_ = fill(size_t{1} * job_.query_tokens() * job_.q_heads * case_.head_dim);
}

// Ahead of the device: what must come of it.
void Trial::Expect() {
  expected_pool_ = pool_;
  const kvt_paged_kv cache = CacheAt(expected_pool_.data());
  const int64_t row = int64_t{kKvHeads} * case_.head_dim;
  kernels::KvWriteReference({.key = keys_.data(),
                             .value = values_.data(),
                             .dtype = case_.types.query,
                             .tokens = static_cast<int32_t>(slots_.size()),
                             .key_token_stride = row,
                             .key_head_stride = case_.head_dim,
                             .value_token_stride = row,
                             .value_head_stride = case_.head_dim,
                             .slot_mapping = slots_.data(),
                             .cache = cache});
  const kernels::ReferenceAttention problem{
      .query = queries_.data(),
      .query_dtype = job_.query_dtype,
      .q_heads = job_.q_heads,
      .query_token_stride = int64_t{job_.q_heads} * case_.head_dim,
      .query_head_stride = case_.head_dim,
      .query_starts = job_.query_starts.data(),
      .kv = cache,
      .sequences = job_.tables(),
      .softmax_scale = job_.softmax_scale};
  exact_ = kernels::AttentionReference(problem).output;
  plain_ = kernels::AttentionReference(problem, kernels::ReferenceArithmetic::kPlain16Bit).output;
}

Status Trial::RunOnDevice() {
  const auto aligned = [](size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; };
  std::byte* const query = device_ + aligned(pool_.size());
  std::byte* const results = query + aligned(queries_.size());
  output_.assign(queries_.size(), std::byte{0xFF});
  KVT_RETURN_IF_ERROR(engine_.Copy(device_, pool_.data(), pool_.size()));
  KVT_RETURN_IF_ERROR(engine_.Copy(query, queries_.data(), queries_.size()));
  KVT_RETURN_IF_ERROR(engine_.Copy(results, output_.data(), output_.size()));
  job_.cache = CacheAt(device_);
  job_.query = query;
  job_.output = results;
  KVT_RETURN_IF_ERROR(
      engine_.StoreKv(job_.cache, case_.types.query, keys_.data(), values_.data(), slots_));
  KVT_RETURN_IF_ERROR(engine_.Run(job_));
  KVT_RETURN_IF_ERROR(engine_.Copy(pool_.data(), device_, pool_.size()));
  return engine_.Copy(output_.data(), results, output_.size());
}

std::string Trial::Judge(double* error) const {
  if (pool_ != expected_pool_) return "keys and values were not written as they should be";
  double own = 0, allowed = 0;
  for (size_t i = 0; i < exact_.size(); ++i) {
    const double value =
        kernels::LoadElement(output_.data(), job_.query_dtype, static_cast<int64_t>(i));
    if (!std::isfinite(value)) return fmt::format("element {} is {}", i, value);
    own = std::max(own, std::fabs(value - exact_[i]));
    allowed = std::max(allowed, std::fabs(plain_[i] - exact_[i]));
  }
  allowed = 2 * allowed + kSlack;
  *error = own / allowed;
  if (own <= allowed) return {};
  return fmt::format("an element is wrong by {:.4g}, {:.4g} are allowed", own, allowed);
}

std::vector<Case> CasesFor(const AttentionEngine& engine) {
  std::vector<Case> cases;
  for (const Types& types : kTypes) {
    for (const int32_t head_dim : engine.head_dims()) {
      for (const int32_t group : engine.groups()) {
        for (const std::span<const Sequence> sequences : {std::span(kDecode), std::span(kAppend)}) {
          cases.push_back({types, head_dim, group, sequences});
        }
      }
    }
  }
  return cases;
}

struct Verdict {
  bool tried = false;
  std::string failure;
  double error = 0;
  bool device_lost = false;
};

Verdict Try(const Case& one, AttentionEngine* engine, std::byte* memory, std::mutex* device) {
  Trial trial(one, engine, memory);
  if (!trial.Supported()) return {};
  trial.Expect();
  Verdict verdict{.tried = true};
  {
    const std::lock_guard lock(*device);
    if (const Status done = trial.RunOnDevice(); !done) {
      verdict.failure = done.error().ToString();
      verdict.device_lost = done.error().reason == kDeviceLost;
    }
  }
  if (verdict.failure.empty()) verdict.failure = trial.Judge(&verdict.error);
  if (!verdict.failure.empty()) verdict.failure = NameOf(one) + ": " + verdict.failure;
  return verdict;
}

}  // namespace

AttentionSelfTest TestAttention(AttentionEngine* engine, Device* device) {
  AttentionSelfTest result;
  const Result<std::unique_ptr<DevicePool>> memory = device->CreatePool(kPoolBytes);
  if (!memory) {
    result.failure = memory.error().ToString();
    return result;
  }
  const std::vector<Case> cases = CasesFor(*engine);
  std::vector<Verdict> verdicts(cases.size());
  std::mutex device_in_use;
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < cases.size(); i = next++) {
      verdicts[i] = Try(cases[i], engine, (*memory)->data(), &device_in_use);
    }
  };
  {
    std::vector<std::jthread> helpers;
    const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxThreads);
    for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  for (const Verdict& verdict : verdicts) {
    if (verdict.tried) ++result.cases;
    result.worst_error = std::max(result.worst_error, verdict.error);
    if (result.failure.empty()) result.failure = verdict.failure;
    result.device_lost |= verdict.device_lost;
  }
  if (result.cases == 0) result.failure = "nothing could be tried";
  return result;
}

}  // namespace kvtier
