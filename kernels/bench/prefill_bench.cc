// SPDX-License-Identifier: Apache-2.0
// Prefill: several query tokens for each sequence over a cached prefix, causal, blocks in random
// order.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

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
};

const char* TypeName(kvt_dtype dtype) {
  return dtype == KVT_BF16 ? "bf16" : dtype == KVT_FP16 ? "fp16" : "fp8";
}

std::string Name(const PrefillCase& c) {
  return std::string("prefill-") + TypeName(c.kv_dtype) + "-b" + std::to_string(c.batch) + "-q" +
         std::to_string(c.q_len) + "-p" + std::to_string(c.prefix);
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
class PrefillBuffers {
 public:
  explicit PrefillBuffers(const PrefillCase& c)
      : case_(c),
        rotations_(RotationCount(KvBytes(c))),
        pages_((KvLength(c) + c.page - 1) / c.page),
        slice_(int64_t(c.page) * c.kv_heads * c.head_dim),
        query_elements_(size_t(c.batch) * c.q_len * c.q_heads * c.head_dim) {
    const size_t blocks = size_t(rotations_) * c.batch * pages_;
    pool_ = DeviceMemory(blocks * 2 * slice_ * ElementBytes(c.kv_dtype));
    FillRandom(pool_.get(), c.kv_dtype, blocks * 2 * slice_, 1);
    query_ = DeviceMemory(2 * query_elements_ * rotations_);
    FillRandom(query_.get(), KVT_BF16, query_elements_ * rotations_, 2);
    output_ = DeviceMemory(2 * query_elements_ * rotations_);
    std::vector<int32_t> table(blocks);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937_64(3));
    table_ = ToDevice(table);
    std::vector<int32_t> starts(c.batch + 1);
    for (int i = 0; i <= c.batch; ++i) starts[i] = i * c.q_len;
    starts_ = ToDevice(starts);
    lengths_ = ToDevice(std::vector<int32_t>(c.batch, KvLength(c)));
    const kvt_prefill_params params = Params(0);
    workspace_ = DeviceMemory(kvt_prefill_workspace_bytes(&params));
    workspace_.Zero();
  }

  [[nodiscard]] int rotations() const { return rotations_; }

  [[nodiscard]] kvt_prefill_params Params(int rotation) const {
    const PrefillCase& c = case_;
    kvt_prefill_params p = {};
    p.query = query_.get<uint16_t>() + query_elements_ * rotation;
    p.output = output_.get<uint16_t>() + query_elements_ * rotation;
    p.query_dtype = KVT_BF16;
    p.q_heads = c.q_heads;
    p.query_token_stride = p.output_token_stride = int64_t(c.q_heads) * c.head_dim;
    p.query_head_stride = p.output_head_stride = c.head_dim;
    p.kv.key = pool_.get();
    p.kv.value = pool_.get<char>() + slice_ * ElementBytes(c.kv_dtype);
    p.kv.dtype = c.kv_dtype;
    p.kv.kv_heads = c.kv_heads;
    p.kv.head_dim = c.head_dim;
    p.kv.page_tokens = c.page;
    p.kv.block_stride = 2 * slice_;
    p.kv.token_stride = int64_t(c.kv_heads) * c.head_dim;
    p.kv.head_stride = c.head_dim;
    p.sequences.block_table = table_.get<int32_t>() + size_t(rotation) * c.batch * pages_;
    p.sequences.kv_lengths = lengths_.get<int32_t>();
    p.sequences.table_stride = pages_;
    p.sequences.sequences = c.batch;
    p.sequences.max_kv_length = KvLength(c);
    p.query_starts = starts_.get<int32_t>();
    p.query_tokens = c.batch * c.q_len;
    p.softmax_scale = 1.0F / std::sqrt(float(c.head_dim));
    p.causal = 1;
    p.tables_settled = 1;  // as from a step's second layer on
    return p;
  }

  void Queue(int rotation, cudaStream_t stream) const {
    const kvt_prefill_params params = Params(rotation);
    CheckStatus(kvt_prefill(&params, workspace_.get(), workspace_.bytes(), stream), "prefill");
  }

 private:
  PrefillCase case_;
  int rotations_;
  int64_t pages_;
  int64_t slice_;
  size_t query_elements_;
  DeviceMemory pool_, query_, output_, table_, starts_, lengths_, workspace_;
};

void RunCase(const PrefillCase& c, BenchRun* run) {
  if (!run->Wants(Name(c))) return;
  const PrefillBuffers buffers(c);
  const double us = MedianMicroseconds(buffers.rotations(), [&](int rotation, cudaStream_t stream) {
    buffers.Queue(rotation, stream);
  });
  BenchResult result;
  result.kernel = "prefill";
  result.kv_dtype = TypeName(c.kv_dtype);
  result.batch = c.batch;
  result.q_len = c.q_len;
  result.context = KvLength(c);
  result.q_heads = c.q_heads;
  result.kv_heads = c.kv_heads;
  result.head_dim = c.head_dim;
  result.page = c.page;
  result.us = us;
  result.gbps = double(KvBytes(c)) / us / 1e3;
  result.tflops = Flops(c) / us / 1e6;
  // Short suffixes are bound by the bytes of their prefix, long ones by the matrix units.
  const Ceilings& ceilings = run->ceilings();
  result.ceiling_ratio = result.gbps / ceilings.read_gbps;
  if (ceilings.bf16_tflops > 0) {
    result.ceiling_ratio = std::max(result.ceiling_ratio, result.tflops / ceilings.bf16_tflops);
  }
  run->Add(result);
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
