// What the engine makes of the kernel library's answers, with a library that gives any.
#include "daemon/attention/cuda_attention_engine.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvtier {
namespace {

// What the library's functions answer; C's function pointers carry no state of their own.
struct Answers {
  kvt_kernel_status launch = KVT_KERNEL_OK;
  kvt_kernel_status allocate = KVT_KERNEL_OK;
  kvt_kernel_status synchronize = KVT_KERNEL_OK;
  int allocated = 0;
};
Answers answers;

kvt_kernel_table TableOfAnswers() {
  kvt_kernel_table table{};
  table.status_text = [](kvt_kernel_status) { return "so it went"; };
  table.cuda_error_text = [] { return "no reason"; };
  table.decode_workspace_bytes = [](const kvt_decode_params*) { return size_t{64}; };
  table.decode = [](const kvt_decode_params*, void*, size_t, void*) { return answers.launch; };
  table.select_device = [](int32_t) { return KVT_KERNEL_OK; };
  table.create_stream = [](void** stream) {
    *stream = &answers;
    return KVT_KERNEL_OK;
  };
  table.destroy_stream = [](void*) {};
  table.synchronize = [](void*) { return answers.synchronize; };
  table.allocate = [](void** memory, size_t bytes) {
    *memory = answers.allocate == KVT_KERNEL_OK ? std::calloc(bytes, 1) : nullptr;
    answers.allocated += *memory != nullptr;
    return answers.allocate;
  };
  table.release = [](void* memory) {
    std::free(memory);
    --answers.allocated;
  };
  table.copy = [](void*, const void*, size_t, void*) { return KVT_KERNEL_OK; };
  return table;
}

class CudaAttentionEngineTest : public testing::Test {
 protected:
  CudaAttentionEngineTest() {
    answers = {};
    engine_ = CudaAttentionEngine::Open(&table_, 0).value();
    job_.cache.kv_heads = job_.q_heads = 1;
    job_.query_starts = {0, 1};
    job_.kv_lengths = {1};
    job_.block_table = {0};
  }

  const kvt_kernel_table table_ = TableOfAnswers();
  std::unique_ptr<CudaAttentionEngine> engine_;
  AttentionJob job_;
};

TEST_F(CudaAttentionEngineTest, WithoutMemoryAJobFailsAndTheNextIsServed) {
  answers.allocate = KVT_KERNEL_OUT_OF_MEMORY;
  const Status first = engine_->Run(job_);
  EXPECT_EQ(first.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(first.error().reason, "attend_memory");
  answers.allocate = KVT_KERNEL_OK;
  EXPECT_TRUE(engine_->Run(job_));
  engine_.reset();
  EXPECT_EQ(answers.allocated, 0);
}

TEST_F(CudaAttentionEngineTest, ARefusedLaunchIsNotALostDevice) {
  answers.launch = KVT_KERNEL_LAUNCH_FAILED;
  EXPECT_EQ(engine_->Run(job_).error().reason, "kernel_failed");
}

TEST_F(CudaAttentionEngineTest, AnErrorThatStaysIsALostDevice) {
  answers.synchronize = KVT_KERNEL_LAUNCH_FAILED;
  const Status done = engine_->Run(job_);
  EXPECT_EQ(done.error().code, ErrorCode::kIoError);
  EXPECT_EQ(done.error().reason, kDeviceLost);
}

}  // namespace
}  // namespace kvtier
