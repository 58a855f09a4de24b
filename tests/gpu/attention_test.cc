// SPDX-License-Identifier: Apache-2.0
// Attention that a daemon computes in pools on a GPU and on the device beside it, for a client that
// launches nothing.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <vector>

#include "kernels/reference/attention_reference.h"
#include "kernels/reference/number_format.h"
#include "kvtier/kvtier.hpp"
#include "tests/gpu/faulty_kernels.h"
#include "tests/gpu/gpu_daemon_fixture.h"
#include "tools/support/admin.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kDim = 128;
constexpr uint32_t kTokens = 16;
constexpr size_t kSliceElements = size_t{kTokens} * kKvHeads * kDim;
constexpr uint64_t kWorkspaceBytes = 4 << 20;
constexpr uint64_t kOutputOffset = 1 << 20;
constexpr float kSoftmaxScale = 0.09F;

class GpuAttentionTest : public GpuDaemonFixture {
 protected:
  void SetUp() override {
    GpuDaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    std::vector<std::string> settings = {TwoDevices(), "pool.bytes=64MiB", "host.bytes=64MiB"};
    const std::vector<std::string> more_settings = MoreSettings();
    settings.insert(settings.end(), more_settings.begin(), more_settings.end());
    StartDaemon(settings);
  }

  [[nodiscard]] virtual std::vector<std::string> MoreSettings() const { return {}; }

  void Attach(uint32_t device = 0, kvt_model_dtype dtype = KVT_DTYPE_BFLOAT16) {
    pool_.reset();  // before the connection that it is of
    auto connection = kvt::Connection::Connect(daemon_->socket());
    ASSERT_TRUE(connection) << connection.error().ToString();
    connection_.emplace(*std::move(connection));
    kvt_model_record record;
    kvt_model_record_init(&record);
    record.name = "attended";
    record.groups[0].layers = kLayers;
    record.groups[0].kv_heads = kKvHeads;
    record.groups[0].k_head_dim = record.groups[0].v_head_dim = kDim;
    record.groups[0].dtype = dtype;
    const auto model = connection_->RegisterModel(record);
    ASSERT_TRUE(model);
    auto pool = connection_->Attach(model->model, 0, device);
    ASSERT_TRUE(pool) << pool.error().ToString();
    pool_.emplace(*std::move(pool));
  }

  // Writes `rows` queries over 37 tokens of numbers in blocks out of order, has them served, and
  // compares the results.
  void ExpectRightResults(uint32_t rows, kvt_dtype dtype, const std::vector<float>& key_scales = {},
                          const std::vector<float>& value_scales = {});

  std::optional<kvt::Connection> connection_;
  std::optional<kvt::Pool> pool_;
};

// A request for the second layer, its output at kOutputOffset; borrows both.
kvt_attend_request Request(const kvt_attend_sequence& sequence,
                           const std::vector<kvt_block>& blocks) {
  kvt_attend_request request;
  kvt_attend_request_init(&request);
  request.layer = 1;
  request.q_heads = kHeads;
  request.softmax_scale = kSoftmaxScale;
  request.output_offset = kOutputOffset;
  request.sequences = &sequence;
  request.sequence_count = 1;
  request.blocks = blocks.data();
  request.block_count = blocks.size();
  return request;
}

// Numbers of that type, the same for the same seed.
std::vector<std::byte> Numbers(size_t count, kvt_dtype dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> numbers(count * kernels::ElementBytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    kernels::StoreElement(numbers.data(), dtype, static_cast<int64_t>(i), normal(random));
  }
  return numbers;
}

void Put(const kvt_workspace_info& info, const std::vector<std::byte>& bytes) {
  if (info.base != nullptr) {
    std::memcpy(info.base, bytes.data(), bytes.size());
    return;
  }
  ASSERT_EQ(cudaSetDevice(info.ordinal), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(reinterpret_cast<void*>(info.device_base), bytes.data(), bytes.size(),
                       cudaMemcpyHostToDevice),
            cudaSuccess);
}

std::vector<std::byte> Get(const kvt_workspace_info& info, uint64_t offset, size_t count) {
  std::vector<std::byte> bytes(count);
  if (info.base != nullptr) {
    std::memcpy(bytes.data(), static_cast<const std::byte*>(info.base) + offset, count);
    return bytes;
  }
  EXPECT_EQ(cudaSetDevice(info.ordinal), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(bytes.data(), reinterpret_cast<void*>(info.device_base + offset), count,
                       cudaMemcpyDeviceToHost),
            cudaSuccess);
  return bytes;
}

// One for each KV head, one for all, or none.
kvt_scales ScalesOf(const std::vector<float>& scales) {
  return {.values = scales.empty() ? nullptr : scales.data(),
          .block_stride = 0,
          .token_stride = 0,
          .head_stride = scales.size() > 1 ? 1 : 0};
}

void GpuAttentionTest::ExpectRightResults(uint32_t rows, kvt_dtype dtype,
                                          const std::vector<float>& key_scales,
                                          const std::vector<float>& value_scales) {
  auto acquired = pool_->Acquire({}, {}, 4);
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  const std::vector<kvt_block> blocks = {acquired->new_blocks[3], acquired->new_blocks[0],
                                         acquired->new_blocks[2]};
  const size_t block_elements = kLayers * 2 * kSliceElements;
  std::vector<std::byte> cache;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::vector<std::byte> numbers = Numbers(block_elements, dtype, i);
    ASSERT_TRUE(pool_->Write(blocks[i], numbers));
    cache.insert(cache.end(), numbers.begin(), numbers.end());
  }
  auto workspace = pool_->OpenWorkspace(kWorkspaceBytes);
  ASSERT_TRUE(workspace) << workspace.error().ToString();
  const auto info = workspace->Info();
  ASSERT_TRUE(info) << info.error().ToString();
  const std::vector<std::byte> queries = Numbers(size_t{rows} * kHeads * kDim, KVT_BF16, 99);
  ASSERT_NO_FATAL_FAILURE(Put(*info, queries));
  const kvt_attend_sequence sequence{rows, 37};
  kvt_attend_request request = Request(sequence, blocks);
  request.key_scales = key_scales.data();
  request.key_scale_count = key_scales.size();
  request.value_scales = value_scales.data();
  request.value_scale_count = value_scales.size();
  const auto attended = workspace->Attend(request);
  ASSERT_TRUE(attended) << attended.error().ToString();
  const std::vector<std::byte> output = Get(*info, kOutputOffset, queries.size());
  const int32_t starts[] = {0, static_cast<int32_t>(rows)};
  const int32_t table[] = {0, 1, 2};
  const int32_t length = 37;
  const size_t slice_bytes = kSliceElements * kernels::ElementBytes(dtype);
  std::byte* const key = cache.data() + 2 * slice_bytes;
  const auto expected =
      kernels::AttentionReference({.query = queries.data(),
                                   .query_dtype = KVT_BF16,
                                   .q_heads = kHeads,
                                   .query_token_stride = kHeads * kDim,
                                   .query_head_stride = kDim,
                                   .query_starts = starts,
                                   .kv = {.key = key,
                                          .value = key + slice_bytes,
                                          .dtype = dtype,
                                          .kv_heads = kKvHeads,
                                          .head_dim = kDim,
                                          .page_tokens = kTokens,
                                          .block_stride = static_cast<int64_t>(block_elements),
                                          .token_stride = kKvHeads * kDim,
                                          .head_stride = kDim,
                                          .key_scales = ScalesOf(key_scales),
                                          .value_scales = ScalesOf(value_scales)},
                                   .sequences = {.block_table = table,
                                                 .kv_lengths = &length,
                                                 .table_stride = 3,
                                                 .sequences = 1,
                                                 .max_kv_length = length},
                                   .softmax_scale = kSoftmaxScale});
  for (size_t i = 0; i < expected.output.size(); ++i) {
    ASSERT_NEAR(kernels::LoadElement(output.data(), KVT_BF16, static_cast<int64_t>(i)),
                expected.output[i], 0.02)
        << rows << ", " << i;
  }
}

TEST_F(GpuAttentionTest, KernelsAreTriedOutBeforeTheFirstPoolIsAttached) {
  for (const uint32_t device : {1u, 0u}) {
    ASSERT_NO_FATAL_FAILURE(Attach(device));
    ASSERT_NO_FATAL_FAILURE(ExpectRightResults(1, KVT_BF16)) << "device " << device;
  }
  const auto reply = CallAdmin(daemon_->admin_socket(), R"({"op":"status"})", 60'000);
  ASSERT_TRUE(reply);
  const boost::json::value document = boost::json::parse(*reply);
  const JsonView status(&document);
  const JsonView kernels = status["kernels"];
  EXPECT_EQ(kernels["state"].Text(), "ready") << *reply;
  EXPECT_EQ(kernels["engine"].Text(), "cuda");
  const boost::json::array& devices = document.at("kernels").at("devices").as_array();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[1].at("state"), "ready");
  // Types times head sizes times groups, decode and append; long prompts of heads of 64 and 128.
  EXPECT_EQ(devices[0].at("self_test").at("cases").to_number<uint32_t>(), 4u * 3 * 2 * 2 + 4u * 2);
}

TEST_F(GpuAttentionTest, GivesWhatTheReferenceGivesOnEveryDevice) {
  for (const uint32_t device : {0u, 1u, 0u}) {
    ASSERT_NO_FATAL_FAILURE(Attach(device));
    for (const uint32_t rows : {1u, 3u}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRightResults(rows, KVT_BF16)) << "device " << device;
    }
  }
}

TEST_F(GpuAttentionTest, ScalesOfAnFp8CacheCountOnEveryDevice) {
  for (const uint32_t device : {0u, 1u}) {
    ASSERT_NO_FATAL_FAILURE(Attach(device, KVT_DTYPE_FLOAT8_E4M3));
    for (const uint32_t rows : {1u, 3u}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRightResults(rows, KVT_FP8_E4M3)) << "device " << device;
      ASSERT_NO_FATAL_FAILURE(ExpectRightResults(rows, KVT_FP8_E4M3, {0.5F, 1.5F}, {0.25F, 1.25F}))
          << "device " << device;
      ASSERT_NO_FATAL_FAILURE(ExpectRightResults(rows, KVT_FP8_E4M3, {}, {0.75F}))
          << "device " << device;
    }
  }
}

TEST_F(GpuAttentionTest, RefusesWhatNoKernelIsBuiltFor) {
  ASSERT_NO_FATAL_FAILURE(Attach(0));
  auto acquired = pool_->Acquire({}, {}, 1);
  ASSERT_TRUE(acquired);
  auto workspace = pool_->OpenWorkspace(kWorkspaceBytes);
  ASSERT_TRUE(workspace);
  const kvt_attend_sequence sequence{1, 16};
  const kvt_block block = acquired->new_blocks[0];
  kvt_attend_request request;
  kvt_attend_request_init(&request);
  request.q_heads = kHeads;
  request.query_dtype = KVT_DTYPE_FLOAT32;
  request.output_offset = kOutputOffset;
  request.sequences = &sequence;
  request.sequence_count = 1;
  request.blocks = &block;
  request.block_count = 1;
  const auto refused = workspace->Attend(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, "attend_geometry");
}

// A daemon whose kernels break the GPU's context when told to.
class LostDeviceTest : public GpuAttentionTest {
 protected:
  [[nodiscard]] std::vector<std::string> MoreSettings() const override {
    return {"disk.bytes=128MiB", "disk.free_floor_bytes=0B", "cache.slab_bytes=8MiB",
            "retention.persist_after=0s"};
  }
  // The daemon takes the kernels that lie beside it.
  [[nodiscard]] std::string Program() const override {
    const std::filesystem::path directory = directory_->path();
    std::filesystem::copy_file(ProgramBeside("kvtierd"), directory / "kvtierd",
                               std::filesystem::copy_options::skip_existing);
    if (!std::filesystem::exists(directory / "libkvtier_kernels.so")) {
      std::filesystem::create_symlink(ProgramBeside("../lib/libkvtier_faulty_kernels.so"),
                                      directory / "libkvtier_kernels.so");
    }
    return directory / "kvtierd";
  }
  [[nodiscard]] bool LogTells(const std::string& id) const {
    std::ifstream file(daemon_->log_path());
    std::ostringstream log;
    log << file.rdbuf();
    return log.view().find(id) != std::string_view::npos;
  }
};

TEST_F(LostDeviceTest, EndsTheDaemonWhoseNextServesFromDisk) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  const std::vector<std::byte> numbers = Numbers(2 * kLayers * kSliceElements, KVT_BF16, 7);
  kvt_commit_entry entry{};
  entry.hash.bytes[5] = 1;
  entry.tokens = kTokens;
  entry.retention = KVT_RETENTION_EXTENDED;
  {
    const auto acquired = pool_->Acquire({}, {}, 1);
    ASSERT_TRUE(acquired);
    ASSERT_TRUE(pool_->Write(acquired->new_blocks[0], numbers));
    entry.block = acquired->new_blocks[0];
    ASSERT_TRUE(pool_->CommitAndWait(std::span(&entry, 1)));
    ASSERT_TRUE(CallAdmin(daemon_->admin_socket(), R"({"op":"drain"})", 60'000));
    auto workspace = pool_->OpenWorkspace(kWorkspaceBytes);
    ASSERT_TRUE(workspace) << workspace.error().ToString();
    const kvt_attend_sequence sequence{1, 16};
    const std::vector<kvt_block> blocks = {acquired->new_blocks[0]};
    kvt_attend_request request = Request(sequence, blocks);
    ASSERT_TRUE(workspace->Attend(request));
    request.softmax_scale = kFatalScale;
    EXPECT_FALSE(workspace->Attend(request));
  }
  EXPECT_EQ(daemon_->Terminate(), 1) << "it must have ended by itself";
  EXPECT_TRUE(LogTells("device.lost"));

  ASSERT_TRUE(daemon_->Restart());
  ASSERT_NO_FATAL_FAILURE(Attach());
  auto found = pool_->Acquire(std::span(&entry.hash, 1));
  ASSERT_TRUE(found) << found.error().ToString();
  ASSERT_EQ(found->hits.size(), 1u);
  EXPECT_EQ(found->sources[0].tier, KVT_TIER_DISK);
  ASSERT_TRUE(pool_->Wait(&*found, 1));
  std::vector<std::byte> seen(numbers.size());
  ASSERT_TRUE(pool_->Read(found->hits[0], seen));
  EXPECT_TRUE(seen == numbers);
}

}  // namespace
}  // namespace kvtier
