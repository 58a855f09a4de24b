// SPDX-License-Identifier: Apache-2.0
// The time that a cached prefix saves: KV write and attention of one layer for requests of which
// all but the last token is cached (decode), against the same requests computed from their first
// token (prefill). GPT-2's geometry.

#include <algorithm>

#include "kernels/bench/bench_harness.h"

namespace kvtier::kernels::bench {
namespace {

constexpr int kRequests = 16;
constexpr int kShortestPrefix = 900;  // and one token more with each request
constexpr int kHeads = 12;
constexpr int kHeadDim = 64;
constexpr int kPage = 16;
constexpr int64_t kRow = int64_t{kHeads} * kHeadDim;
constexpr int kPages = (kShortestPrefix + kRequests + kPage - 1) / kPage;  // of the longest request

int Length(int request) { return kShortestPrefix + request + 1; }

enum class Mode { kSuffix, kSuffixPrefill, kPrefill, kPrefillEach };

const char* NameOf(Mode mode) {
  switch (mode) {
    case Mode::kSuffix:
      return "suffix";
    case Mode::kSuffixPrefill:
      return "suffix-prefill";
    case Mode::kPrefill:
      return "prefill";
    default:
      return "prefill-each";
  }
}

// Whether all of a request's tokens are computed.
bool IsPrefill(Mode mode) { return mode == Mode::kPrefill || mode == Mode::kPrefillEach; }

int TokensOfAll() {
  int tokens = 0;
  for (int i = 0; i < kRequests; ++i) tokens += Length(i);
  return tokens;
}

size_t KvBytes() { return size_t{2} * TokensOfAll() * kRow * 2; }

double PrefillFlops() {
  double pairs = 0;
  for (int i = 0; i < kRequests; ++i) pairs += 0.5 * Length(i) * Length(i);
  return 4.0 * kRow * pairs;
}

// The requests' buffers, enough sets that L2 serves none of them. A step computes the last token of
// each request, a prefill all of them.
class SuffixWork {
 public:
  explicit SuffixWork(Mode mode) : mode_(mode), rotations_(RotationCount(KvBytes())) {
    const bool prefill = IsPrefill(mode);
    const int64_t blocks = int64_t{rotations_} * kRequests * kPages;
    cache_ = PagedCache({blocks, kPage, kHeads, kHeadDim});
    const std::vector<int32_t> table = Shuffled(blocks, 3);
    std::vector<int32_t> lengths, starts = {0};
    std::vector<int64_t> slots;
    for (int i = 0; i < kRequests; ++i) {
      lengths.push_back(Length(i));
      starts.push_back(starts.back() + (prefill ? Length(i) : 1));
    }
    for (int row = 0; row < rotations_ * kRequests; ++row) {
      const int length = Length(row % kRequests);
      for (int token = prefill ? 0 : length - 1; token < length; ++token) {
        slots.push_back(int64_t{table[row * kPages + token / kPage]} * kPage + token % kPage);
      }
    }
    tokens_ = starts.back();
    first_tokens_ = starts;
    // For launches of one request: from 0 to its length.
    for (const int32_t length : lengths) starts.insert(starts.end(), {0, length});
    table_ = ToDevice(table);
    lengths_ = ToDevice(lengths);
    starts_ = ToDevice(starts);
    slots_ = ToDevice(slots);
    // Query, key and value of each token side by side, as a projection leaves them.
    inputs_ = RandomOnDevice(KVT_BF16, size_t(tokens_) * 3 * kRow * rotations_, 2);
    output_ = DeviceMemory(size_t{2} * tokens_ * kRow);
    const kvt_decode_params decode = Decode(0);
    const kvt_prefill_params all = Prefill(0, 0, kRequests);
    const kvt_prefill_params longest = Prefill(0, kRequests - 1, kRequests);
    workspace_ = DeviceMemory(
        std::max({kvt_prefill_workspace_bytes(&all), kvt_prefill_workspace_bytes(&longest),
                  kvt_decode_workspace_bytes(&decode)}));
    workspace_.Zero();
  }

  [[nodiscard]] int rotations() const { return rotations_; }
  void Launch(int rotation, cudaStream_t stream) const {
    if (mode_ == Mode::kPrefillEach) {
      for (int i = 0; i < kRequests; ++i) QueuePart(rotation, i, i + 1, stream);
    } else {
      QueuePart(rotation, 0, kRequests, stream);
    }
  }

 private:
  // Requests [first, end).
  void QueuePart(int rotation, int first, int end, cudaStream_t stream) const {
    const kvt_kv_write_params write = Write(rotation, first, end);
    CheckStatus(kvt_kv_write(&write, stream), "KV write");
    if (mode_ == Mode::kSuffix) {
      const kvt_decode_params params = Decode(rotation);
      CheckStatus(kvt_decode(&params, workspace_.get(), workspace_.bytes(), stream), "decode");
    } else {
      const kvt_prefill_params params = Prefill(rotation, first, end);
      CheckStatus(kvt_prefill(&params, workspace_.get(), workspace_.bytes(), stream), "prefill");
    }
  }
  [[nodiscard]] uint16_t* Inputs(int rotation, int request) const {
    const size_t token = size_t(tokens_) * rotation + first_tokens_[request];
    return inputs_.get<uint16_t>() + token * 3 * kRow;
  }
  [[nodiscard]] kvt_sequences Sequences(int rotation, int first, int end) const {
    return {.block_table = table_.get<int32_t>() + size_t(rotation * kRequests + first) * kPages,
            .kv_lengths = lengths_.get<int32_t>() + first,
            .table_stride = kPages,
            .sequences = end - first,
            .max_kv_length = Length(end - 1)};
  }
  [[nodiscard]] kvt_kv_write_params Write(int rotation, int first, int end) const {
    return {
        .key = Inputs(rotation, first) + kRow,
        .value = Inputs(rotation, first) + 2 * kRow,
        .dtype = KVT_BF16,
        .tokens = first_tokens_[end] - first_tokens_[first],
        .key_token_stride = 3 * kRow,
        .key_head_stride = kHeadDim,
        .value_token_stride = 3 * kRow,
        .value_head_stride = kHeadDim,
        .slot_mapping = slots_.get<int64_t>() + int64_t{tokens_} * rotation + first_tokens_[first],
        .cache = cache_.Layer()};
  }
  [[nodiscard]] kvt_decode_params Decode(int rotation) const {
    return {.query = Inputs(rotation, 0),
            .output = output_.get(),
            .query_dtype = KVT_BF16,
            .q_heads = kHeads,
            .query_sequence_stride = 3 * kRow,
            .query_head_stride = kHeadDim,
            .output_sequence_stride = kRow,
            .output_head_stride = kHeadDim,
            .kv = cache_.Layer(),
            .sequences = Sequences(rotation, 0, kRequests),
            .softmax_scale = 0.125F,
            // As from a step's second layer on.
            .tables_settled = 1};
  }
  [[nodiscard]] kvt_prefill_params Prefill(int rotation, int first, int end) const {
    const bool all = end - first == kRequests;
    return {.query = Inputs(rotation, first),
            .output = output_.get(),
            .query_dtype = KVT_BF16,
            .q_heads = kHeads,
            .query_token_stride = 3 * kRow,
            .query_head_stride = kHeadDim,
            .output_token_stride = kRow,
            .output_head_stride = kHeadDim,
            .kv = cache_.Layer(),
            .sequences = Sequences(rotation, first, end),
            .query_starts = starts_.get<int32_t>() + (all ? 0 : kRequests + 1 + 2 * first),
            .query_tokens = first_tokens_[end] - first_tokens_[first],
            .softmax_scale = 0.125F,
            .causal = 1,
            .tables_settled = IsPrefill(mode_) ? 0 : 1};
  }

  const Mode mode_;
  const int rotations_;
  int tokens_ = 0;
  std::vector<int32_t> first_tokens_;  // of each request among all
  PagedCache cache_;
  DeviceMemory table_, lengths_, starts_, slots_, inputs_, output_, workspace_;
};

void RunCase(Mode mode, BenchRun* run) {
  const std::string variant = NameOf(mode);
  if (!run->Wants("gpt2-" + variant)) return;
  const bool prefill = IsPrefill(mode);
  const BenchResult shape{.kernel = "gpt2",
                          .variant = variant,
                          .batch = kRequests,
                          .q_len = prefill ? Length(0) : 1,
                          .context = Length(kRequests - 1),
                          .q_heads = kHeads,
                          .kv_heads = kHeads,
                          .head_dim = kHeadDim,
                          .page = kPage};
  run->Add(shape, MedianMicroseconds(SuffixWork(mode)), double(KvBytes()),
           prefill ? PrefillFlops() : 0, prefill ? Bound::kMatrix : Bound::kRead);
}

}  // namespace

void BenchSuffix(BenchRun* run) {
  for (const Mode mode :
       {Mode::kSuffix, Mode::kSuffixPrefill, Mode::kPrefill, Mode::kPrefillEach}) {
    RunCase(mode, run);
  }
}

}  // namespace kvtier::kernels::bench
