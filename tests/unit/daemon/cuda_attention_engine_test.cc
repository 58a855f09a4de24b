// SPDX-License-Identifier: Apache-2.0
// The engine's requests to the kernel library, and its use of the answers; the kernels' results are
// tested where there is a GPU.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "daemon/attention/attention_engine.h"
#include "tests/fakes/fake_kernel_table.h"

namespace kvtier {
namespace {

using kernels::FakeKernelTable;

// Two sequences over an fp8 cache of two KV heads.
void FillJob(AttentionJob* job) {
  job->cache = {.dtype = KVT_FP8_E4M3,
                .kv_heads = 2,
                .head_dim = 64,
                .page_tokens = 16,
                .block_stride = 4096,
                .token_stride = 128,
                .head_stride = 64};
  job->q_heads = 8;
  job->query_starts = {0, 1, 2};
  job->kv_lengths = {20, 16};
  job->max_kv_length = 20;
  job->table_stride = 2;
  job->blocks = {7, 3, 5};
}

class CudaAttentionEngineTest : public testing::Test {
 protected:
  std::unique_ptr<AttentionEngine> OpenOn(int32_t gpu) {
    auto engine = OpenCudaAttentionEngine(gpus_.table(), gpu);
    EXPECT_TRUE(engine) << engine.error().ToString();
    return *std::move(engine);
  }

  FakeKernelTable gpus_;
};

TEST_F(CudaAttentionEngineTest, EnginesOfSeveralGpusKeepToTheirOwn) {
  const auto first = OpenOn(0), third = OpenOn(2);
  AttentionJob job;
  FillJob(&job);
  for (const auto* engine : {&first, &third, &first}) ASSERT_TRUE((*engine)->Run(job));
  EXPECT_EQ(gpus_.mistakes(), std::vector<std::string>());
  EXPECT_GT(gpus_.BytesOn(0), 0u);
  EXPECT_EQ(gpus_.BytesOn(1), 0u);
  EXPECT_EQ(gpus_.BytesOn(2), gpus_.BytesOn(0));
}

TEST_F(CudaAttentionEngineTest, TablesAndScalesAreWhereTheKernelLooks) {
  const auto engine = OpenOn(1);
  AttentionJob job;
  FillJob(&job);
  job.key_scales = {0.5F, 2.0F};
  int calls = 0;
  gpus_.on_decode = [&](const kvt_decode_params& params) {
    ++calls;
    EXPECT_EQ(std::vector<int32_t>(params.sequences.block_table, params.sequences.block_table + 4),
              (std::vector<int32_t>{7, 3, 5, 0}));
    EXPECT_EQ(std::vector<int32_t>(params.sequences.kv_lengths, params.sequences.kv_lengths + 2),
              job.kv_lengths);
    ASSERT_NE(params.kv.key_scales.values, nullptr);
    EXPECT_NE(params.kv.key_scales.values, job.key_scales.data());
    EXPECT_EQ(params.kv.key_scales.head_stride, 1);
    EXPECT_EQ(params.kv.key_scales.values[0], 0.5F);
    EXPECT_EQ(params.kv.key_scales.values[1], 2.0F);
    EXPECT_EQ(params.kv.value_scales.values, nullptr);
  };
  ASSERT_TRUE(engine->Run(job));
  EXPECT_EQ(calls, 1);
}

TEST_F(CudaAttentionEngineTest, AGpuThatIsNotThereHasNoEngine) {
  const auto engine = OpenCudaAttentionEngine(gpus_.table(), FakeKernelTable::kGpus);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kUnsupported);
}

TEST_F(CudaAttentionEngineTest, WithoutMemoryAJobFailsAndTheNextIsServed) {
  auto engine = OpenOn(0);
  AttentionJob job;
  FillJob(&job);
  gpus_.allocate_answer = KVT_KERNEL_OUT_OF_MEMORY;
  const Status first = engine->Run(job);
  EXPECT_EQ(first.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(first.error().reason, "attend_memory");
  gpus_.allocate_answer = KVT_KERNEL_OK;
  EXPECT_TRUE(engine->Run(job));
  // Kernels are loaded by their first launch. Work queued before it reads the job's memory.
  gpus_.launch_answer = KVT_KERNEL_OUT_OF_MEMORY;
  const int synchronised = gpus_.synchronised();
  EXPECT_EQ(engine->Run(job).error().reason, "attend_memory");
  EXPECT_GT(gpus_.synchronised(), synchronised);
  gpus_.launch_answer = KVT_KERNEL_OK;
  EXPECT_TRUE(engine->Run(job));
  engine.reset();
  EXPECT_EQ(gpus_.BytesOn(0), 0u);
}

TEST_F(CudaAttentionEngineTest, ARefusedLaunchIsNotALostDevice) {
  const auto engine = OpenOn(0);
  AttentionJob job;
  FillJob(&job);
  gpus_.launch_answer = KVT_KERNEL_LAUNCH_FAILED;
  EXPECT_EQ(engine->Run(job).error().reason, "kernel_failed");
}

TEST_F(CudaAttentionEngineTest, AnErrorThatStaysIsALostDevice) {
  const auto engine = OpenOn(0);
  AttentionJob job;
  FillJob(&job);
  gpus_.synchronize_answer = KVT_KERNEL_LAUNCH_FAILED;
  const Status done = engine->Run(job);
  EXPECT_EQ(done.error().code, ErrorCode::kIoError);
  EXPECT_EQ(done.error().reason, kDeviceLost);
}

}  // namespace
}  // namespace kvtier
