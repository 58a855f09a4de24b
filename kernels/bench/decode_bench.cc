// SPDX-License-Identifier: Apache-2.0
// Decode: one query token for each sequence, uniform and Zipf lengths, blocks in random order.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "kernels/bench/bench_harness.h"
#include "kernels/reference/number_format.h"

namespace kvtier::kernels::bench {
namespace {

enum class Scales : uint8_t { kNone, kPerHead, kPerToken };  // of an fp8 cache

struct DecodeCase {
  int batch;
  int context;
  int q_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  int page = 16;
  kvt_dtype kv_dtype = KVT_BF16;
  int split_tokens = 0;
  bool zipf = false;  // lengths context / rank instead of context
  Scales scales = Scales::kNone;
  bool pool = false;  // in kvtier's pool, one layer of kPoolLayers after another, as in a step
  bool interleaved = false;  // there in vLLM's layout
};

constexpr int kPoolLayers = 32;

std::string Variant(const DecodeCase& c) {
  return std::string(c.zipf ? "zipf " : "") + (c.pool ? "pool " : "") +
         (c.interleaved ? "interleaved " : "") +
         (c.scales == Scales::kPerHead    ? "head scales "
          : c.scales == Scales::kPerToken ? "token scales "
                                          : "") +
         (c.split_tokens > 0 ? "split " + std::to_string(c.split_tokens) : "");
}

std::string Name(const DecodeCase& c) {
  std::string name = std::string("decode/bf16/") + TypeName(c.kv_dtype) + "/b" +
                     std::to_string(c.batch) + "/ctx" + std::to_string(c.context) + "/h" +
                     std::to_string(c.q_heads) + "-" + std::to_string(c.kv_heads) + "/d" +
                     std::to_string(c.head_dim) + "/page" + std::to_string(c.page);
  const std::string variant = Variant(c);
  return variant.empty() ? name : name + "/" + variant;
}

std::vector<int32_t> Lengths(const DecodeCase& c) {
  std::vector<int32_t> lengths(c.batch, c.context);
  if (!c.zipf) return lengths;
  for (int i = 0; i < c.batch; ++i) lengths[i] = std::max(16, c.context / (i + 1));
  std::shuffle(lengths.begin(), lengths.end(), std::mt19937_64(7));
  return lengths;
}

// A cache with the buffer sets of a case and what one launch needs. Pages [page, kv_heads,
// head_dim] lie in one tensor for keys and one for values, or in a pool's blocks [layer][K, V].
class DecodeWork {
 public:
  explicit DecodeWork(const DecodeCase& c) : case_(c), lengths_(Lengths(c)) {
    const int64_t tokens = std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0});
    kv_bytes_ =
        2 * tokens * c.kv_heads * c.head_dim * static_cast<int64_t>(ElementBytes(c.kv_dtype));
    rotations_ = c.pool ? kPoolLayers : RotationCount(kv_bytes_);
    table_sets_ = c.pool ? 1 : rotations_;
    MakeTables();
    cache_ = PagedCache({blocks_, c.page, c.kv_heads, c.head_dim, c.kv_dtype,
                         c.pool ? kPoolLayers : 0, c.interleaved});
    const size_t rows = static_cast<size_t>(c.batch) * c.q_heads;
    query_ = RandomOnDevice(KVT_BF16, rows * c.head_dim, 3);
    output_ = DeviceMemory(rows * c.head_dim * 2);
    lse_ = DeviceMemory(rows * sizeof(float));
    lengths_device_ = ToDevice(lengths_);
    if (c.scales != Scales::kNone) {
      const size_t count = c.scales == Scales::kPerHead
                               ? c.kv_heads
                               : static_cast<size_t>(blocks_) * c.page * c.kv_heads;
      scales_ = ToDevice(std::vector<float>(2 * count, 0.5F));  // of keys, then of values
    }
    const kvt_decode_params params = Params(0);
    workspace_ = DeviceMemory(kvt_decode_workspace_bytes(&params));
    workspace_.Zero();
  }

  [[nodiscard]] int rotations() const { return rotations_; }
  [[nodiscard]] int64_t kv_bytes() const { return kv_bytes_; }
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(kv_bytes_) /
           static_cast<double>(ElementBytes(case_.kv_dtype)) * case_.q_heads / case_.kv_heads;
  }

  void Launch(int rotation, cudaStream_t stream) const {
    const kvt_decode_params params = Params(rotation);
    CheckStatus(kvt_decode(&params, workspace_.get(), workspace_.bytes(), stream), "decode");
  }

 private:
  // One permutation of all blocks over all buffer sets.
  void MakeTables() {
    pages_ = (case_.context + case_.page - 1) / case_.page;
    std::vector<int32_t> table(static_cast<size_t>(table_sets_) * case_.batch * pages_, -1);
    blocks_ = 0;
    for (int r = 0; r < table_sets_; ++r) {
      for (int s = 0; s < case_.batch; ++s) {
        const int used = (lengths_[s] + case_.page - 1) / case_.page;
        for (int p = 0; p < used; ++p) {
          table[(static_cast<size_t>(r) * case_.batch + s) * pages_ + p] = blocks_++;
        }
      }
    }
    const std::vector<int32_t> order = Shuffled(blocks_, 5);
    for (int32_t& entry : table) {
      if (entry >= 0) entry = order[entry];
    }
    table_ = ToDevice(table);
  }

  [[nodiscard]] kvt_decode_params Params(int rotation) const {
    const DecodeCase& c = case_;
    kvt_decode_params params = {};
    params.query = query_.get();
    params.output = output_.get();
    params.lse = lse_.get<float>();
    params.query_dtype = KVT_BF16;
    params.q_heads = c.q_heads;
    params.query_head_stride = params.output_head_stride = c.head_dim;
    params.query_sequence_stride = params.output_sequence_stride = int64_t{c.q_heads} * c.head_dim;
    params.kv = cache_.Layer(c.pool ? rotation : 0);
    params.sequences = {
        .block_table = table_.get<int32_t>() + int64_t{rotation % table_sets_} * c.batch * pages_,
        .kv_lengths = lengths_device_.get<int32_t>(),
        .table_stride = pages_,
        .sequences = c.batch,
        .max_kv_length = c.context};
    if (c.scales != Scales::kNone) {
      const bool per_token = c.scales == Scales::kPerToken;
      params.kv.key_scales = {.values = scales_.get<float>(),
                              .block_stride = per_token ? int64_t{c.page} * c.kv_heads : 0,
                              .token_stride = per_token ? c.kv_heads : 0,
                              .head_stride = 1};
      params.kv.value_scales = params.kv.key_scales;
      params.kv.value_scales.values += scales_.bytes() / sizeof(float) / 2;
    }
    params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
    params.split_tokens = c.split_tokens;
    params.tables_settled = 1;  // as from a step's second layer on
    return params;
  }

  DecodeCase case_;
  std::vector<int32_t> lengths_;
  int rotations_ = 0;
  int table_sets_ = 0;
  int64_t kv_bytes_ = 0;
  int pages_ = 0;
  int32_t blocks_ = 0;
  PagedCache cache_;
  DeviceMemory query_, output_, lse_, lengths_device_, scales_, table_, workspace_;
};

// The cells that have bars.
std::vector<DecodeCase> BarCases() {
  std::vector<DecodeCase> cases;
  for (const int page : {16, 64}) {
    for (const auto& [batch, context] : std::vector<std::pair<int, int>>{{1, 1024},
                                                                         {1, 4096},
                                                                         {1, 32768},
                                                                         {1, 131072},
                                                                         {8, 1024},
                                                                         {8, 4096},
                                                                         {8, 32768},
                                                                         {32, 4096},
                                                                         {64, 8192},
                                                                         {128, 2048},
                                                                         {256, 1024}}) {
      cases.push_back({.batch = batch, .context = context, .page = page});
    }
    for (const auto& [batch, context] : std::vector<std::pair<int, int>>{
             {1, 1024}, {1, 32768}, {8, 4096}, {8, 32768}, {64, 8192}}) {
      cases.push_back({.batch = batch, .context = context, .page = page, .kv_dtype = KVT_FP8_E4M3});
    }
  }
  for (const Scales scales : {Scales::kPerHead, Scales::kPerToken}) {
    for (const auto& [batch, context] :
         std::vector<std::pair<int, int>>{{1, 32768}, {8, 4096}, {64, 8192}}) {
      cases.push_back(
          {.batch = batch, .context = context, .kv_dtype = KVT_FP8_E4M3, .scales = scales});
    }
  }
  cases.push_back({.batch = 8, .context = 4096, .kv_heads = 32});
  cases.push_back({.batch = 8, .context = 32768, .q_heads = 64});
  cases.push_back({.batch = 8, .context = 8192, .head_dim = 64});
  cases.push_back({.batch = 8, .context = 8192, .head_dim = 256});
  for (const bool interleaved : {false, true}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP8_E4M3}) {
      for (const int context : {4096, 32768}) {
        cases.push_back({.batch = 8,
                         .context = context,
                         .kv_dtype = dtype,
                         .pool = true,
                         .interleaved = interleaved});
      }
    }
  }
  return cases;
}

// The rest of the grid: other batches, contexts, groups, pages, lengths and a fixed split.
std::vector<DecodeCase> GridCases() {
  std::vector<DecodeCase> cases;
  for (const int batch : {1, 8, 32, 128}) {
    for (const int context : {1024, 4096, 16384, 65536, 131072}) {
      if (int64_t{batch} * context > int64_t{1} << 20) continue;
      for (const int q_heads : {8, 32, 64}) {
        cases.push_back({.batch = batch, .context = context, .q_heads = q_heads, .page = 32});
      }
    }
  }
  for (const int head_dim : {64, 256}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP8_E4M3}) {
      cases.push_back({.batch = 32, .context = 4096, .head_dim = head_dim, .kv_dtype = dtype});
    }
  }
  for (const int page : {16, 256}) {
    cases.push_back({.batch = 64, .context = 65536, .page = page, .zipf = true});
    cases.push_back({.batch = 32, .context = 4096, .page = page});
  }
  cases.push_back({.batch = 32, .context = 4096, .split_tokens = 1024});
  return cases;
}

// A step's keys and values that are timed at most: those of all buffer sets must fit the card.
constexpr int64_t kMostKvBytes = int64_t{40} << 30;

int64_t KvBytes(const DecodeCase& c) {
  return int64_t{2} * c.batch * c.context * c.kv_heads * c.head_dim *
         static_cast<int64_t>(ElementBytes(c.kv_dtype));
}

// Batches 1 to 256 over contexts 1k to 128k; then one thing varied at a time, over a few of them.
std::vector<DecodeCase> WideCases() {
  std::vector<DecodeCase> cases;
  for (int batch = 1; batch <= 256; batch *= 2) {
    for (int context = 1024; context <= 131072; context *= 2) {
      cases.push_back({.batch = batch, .context = context});
    }
  }
  for (const int batch : {1, 16, 128}) {
    for (const int context : {1024, 8192, 65536}) {
      for (const int q_heads : {8, 64}) {  // groups 1 and 8
        cases.push_back({.batch = batch, .context = context, .q_heads = q_heads});
      }
      for (const int head_dim : {64, 256}) {
        cases.push_back({.batch = batch, .context = context, .head_dim = head_dim});
      }
      for (const int page : {32, 64, 256}) {
        cases.push_back({.batch = batch, .context = context, .page = page});
      }
      cases.push_back({.batch = batch, .context = context, .kv_dtype = KVT_FP8_E4M3});
      cases.push_back({.batch = batch, .context = context, .zipf = true});
    }
  }
  std::erase_if(cases, [](const DecodeCase& c) { return KvBytes(c) > kMostKvBytes; });
  return cases;
}

void BenchCase(const DecodeCase& c, BenchRun* run) {
  if (!run->Wants(Name(c))) return;
  const DecodeWork work(c);
  const BenchResult shape{.kernel = "decode",
                          .variant = Variant(c),
                          .kv_dtype = TypeName(c.kv_dtype),
                          .batch = c.batch,
                          .q_len = 1,
                          .context = c.context,
                          .q_heads = c.q_heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .page = c.page};
  run->Add(shape, MedianMicroseconds(work), static_cast<double>(work.kv_bytes()), work.flops(),
           Bound::kRead);
}

}  // namespace

void BenchDecode(BenchRun* run) {
  std::vector<DecodeCase> cases = BarCases();
  const auto append = [&](std::vector<DecodeCase> more) {
    cases.insert(cases.end(), more.begin(), more.end());
  };
  if (!run->quick()) append(GridCases());
  if (run->wide()) append(WideCases());
  std::set<std::string> done;  // the lists overlap
  for (const DecodeCase& c : cases) {
    if (done.insert(Name(c)).second) BenchCase(c, run);
  }
}

}  // namespace kvtier::kernels::bench
