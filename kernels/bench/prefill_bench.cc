// SPDX-License-Identifier: Apache-2.0
// Prefill: several query tokens for each sequence over a cached prefix, causal, blocks in random
// order.

#include <cmath>

#include "kernels/bench/bench_harness.h"
#include "kernels/reference/number_format.h"

namespace kvtier::kernels::bench {
namespace {

struct PrefillCase {
  int batch;
  int q_len;
  int prefix;  // cached tokens before the queries' own
  int page = 16;
  kvt_dtype kv_dtype = KVT_BF16;
  int q_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  bool interleaved = false;  // in vLLM's layout
};

std::string Name(const PrefillCase& c) {
  return std::string("prefill-") + TypeName(c.kv_dtype) + "-b" + std::to_string(c.batch) + "-q" +
         std::to_string(c.q_len) + "-p" + std::to_string(c.prefix) +
         (c.interleaved ? "-interleaved" : "");
}

int KvLength(const PrefillCase& c) { return c.prefix + c.q_len; }

size_t KvBytes(const PrefillCase& c) {
  return size_t(2) * c.batch * KvLength(c) * c.kv_heads * c.head_dim * ElementBytes(c.kv_dtype);
}

double Flops(const PrefillCase& c) {
  const double pairs = double(c.q_len) * c.prefix + 0.5 * double(c.q_len) * c.q_len;
  return 4.0 * c.batch * c.q_heads * c.head_dim * pairs;
}

// The buffers of a case: one pool for all rotations, tables that scatter each over all of it.
class PrefillWork {
 public:
  explicit PrefillWork(const PrefillCase& c)
      : case_(c),
        rotations_(RotationCount(KvBytes(c))),
        pages_((KvLength(c) + c.page - 1) / c.page),
        query_elements_(size_t(c.batch) * c.q_len * c.q_heads * c.head_dim) {
    const int64_t blocks = rotations_ * c.batch * pages_;
    cache_ = PagedCache({.blocks = blocks,
                         .page = c.page,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .dtype = c.kv_dtype,
                         .interleaved = c.interleaved});
    query_ = RandomOnDevice(KVT_BF16, query_elements_ * rotations_, 2);
    output_ = DeviceMemory(2 * query_elements_ * rotations_);
    table_ = ToDevice(Shuffled(blocks, 3));
    std::vector<int32_t> starts(c.batch + 1);
    for (int i = 0; i <= c.batch; ++i) starts[i] = i * c.q_len;
    starts_ = ToDevice(starts);
    lengths_ = ToDevice(std::vector<int32_t>(c.batch, KvLength(c)));
    const kvt_prefill_params params = Params(0);
    workspace_ = DeviceMemory(kvt_prefill_workspace_bytes(&params));
    workspace_.Zero();
  }

  [[nodiscard]] int rotations() const { return rotations_; }

  void Launch(int rotation, cudaStream_t stream) const {
    const kvt_prefill_params params = Params(rotation);
    CheckStatus(kvt_prefill(&params, workspace_.get(), workspace_.bytes(), stream), "prefill");
  }

 private:
  [[nodiscard]] kvt_prefill_params Params(int rotation) const {
    const PrefillCase& c = case_;
    kvt_prefill_params p = {};
    p.query = query_.get<uint16_t>() + query_elements_ * rotation;
    p.output = output_.get<uint16_t>() + query_elements_ * rotation;
    p.query_dtype = KVT_BF16;
    p.q_heads = c.q_heads;
    p.query_token_stride = p.output_token_stride = int64_t(c.q_heads) * c.head_dim;
    p.query_head_stride = p.output_head_stride = c.head_dim;
    p.kv = cache_.Layer();
    p.sequences = {.block_table = table_.get<int32_t>() + rotation * c.batch * pages_,
                   .kv_lengths = lengths_.get<int32_t>(),
                   .table_stride = pages_,
                   .sequences = c.batch,
                   .max_kv_length = KvLength(c)};
    p.query_starts = starts_.get<int32_t>();
    p.query_tokens = c.batch * c.q_len;
    p.softmax_scale = 1.0F / std::sqrt(float(c.head_dim));
    p.causal = 1;
    p.tables_settled = 1;  // as from a step's second layer on
    return p;
  }

  PrefillCase case_;
  int rotations_;
  int64_t pages_;
  size_t query_elements_;
  PagedCache cache_;
  DeviceMemory query_, output_, table_, starts_, lengths_, workspace_;
};

void RunCase(const PrefillCase& c, BenchRun* run) {
  if (!run->Wants(Name(c))) return;
  const BenchResult shape{.kernel = "prefill",
                          .variant = c.interleaved ? "interleaved" : "",
                          .kv_dtype = TypeName(c.kv_dtype),
                          .batch = c.batch,
                          .q_len = c.q_len,
                          .context = KvLength(c),
                          .q_heads = c.q_heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .page = c.page};
  // Short suffixes are bound by the bytes of their prefix, long ones by the matrix units.
  run->Add(shape, MedianMicroseconds(PrefillWork(c)), double(KvBytes(c)), Flops(c),
           Bound::kReadOrMatrix);
}

}  // namespace

void BenchPrefill(BenchRun* run) {
  for (const kvt_dtype kv_dtype : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int page : {16, 64, 128}) {
      if (page != 16 && run->quick()) continue;
      RunCase({1, 16, 4096, page, kv_dtype}, run);
      RunCase({1, 128, 8192, page, kv_dtype}, run);
      RunCase({1, 2048, 0, page, kv_dtype}, run);
      RunCase({1, 8192, 0, page, kv_dtype}, run);
      RunCase({1, 512, 32768, page, kv_dtype}, run);
      RunCase({8, 512, 4096, page, kv_dtype}, run);
      RunCase({1, 32768, 0, page, kv_dtype}, run);
    }
  }
  for (const kvt_dtype kv_dtype : {KVT_BF16, KVT_FP8_E4M3}) {
    for (PrefillCase c :
         {PrefillCase{1, 16, 4096}, {1, 8192, 0}, {1, 512, 32768}, {8, 512, 4096}}) {
      c.kv_dtype = kv_dtype;
      c.interleaved = true;
      RunCase(c, run);
    }
  }
  // GPT-2's geometry: a token behind a long cached prefix against prefilling the whole.
  RunCase({16, 1, 908, 16, KVT_BF16, 12, 12, 64}, run);
  RunCase({16, 909, 0, 16, KVT_BF16, 12, 12, 64}, run);
  if (run->quick()) return;
  RunCase({1, 8192, 0, 16, KVT_BF16, 32, 8, 64}, run);
  RunCase({1, 8192, 0, 16, KVT_BF16, 32, 8, 256}, run);
  RunCase({1, 8192, 0, 16, KVT_BF16, 32, 32, 128}, run);
  RunCase({8, 1024, 8192, 16, KVT_BF16, 64, 8, 128}, run);
  RunCase({8, 16, 4096}, run);
  RunCase({64, 4, 4096}, run);
  if (!run->wide()) return;
  for (const int tokens : {1, 4, 8, 16, 32, 64}) {
    for (const int prefix : {1024, 4096, 8192, 32768}) RunCase({1, tokens, prefix}, run);
  }
}

}  // namespace kvtier::kernels::bench
