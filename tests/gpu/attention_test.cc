// Attention that a daemon computes in a pool on a GPU, for a client that launches nothing.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <vector>

#include "client/kvtier.hpp"
#include "gpu/cuda_device.h"
#include "kernels/reference/attention_reference.h"
#include "kernels/reference/number_format.h"
#include "tests/gpu/faulty_kernels.h"
#include "tests/integration/harness/program.h"
#include "tools/support/admin.h"
#include "tools/support/json_view.h"
#include "tools/support/private_daemon.h"
#include "tools/support/temporary_directory.h"

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

std::string ProgramBeside(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

class GpuAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto presence = FindCudaDevices();
    ASSERT_TRUE(presence) << presence.error().ToString();
    if (presence->devices == 0) GTEST_SKIP() << presence->why_none;
    auto directory = TemporaryDirectory::Create();
    ASSERT_TRUE(directory);
    directory_.emplace(std::move(*directory));
    PrivateDaemonOptions options;
    options.program = ProgramBeside("kvtierd");
    options.directory = directory_->path();
    options.settings = {"pool.device=cuda:0", "pool.bytes=64MiB", "host.bytes=64MiB"};
    const std::vector<std::string> more_settings = MoreSettings();
    options.settings.insert(options.settings.end(), more_settings.begin(), more_settings.end());
    auto daemon = PrivateDaemon::Start(std::move(options));
    ASSERT_TRUE(daemon) << daemon.error().ToString();
    daemon_.emplace(std::move(*daemon));
  }

  [[nodiscard]] virtual std::vector<std::string> MoreSettings() const { return {}; }

  void Attach() {
    pool_.reset();  // before the connection that it is of
    auto connection = kvt::Connection::Connect(daemon_->socket());
    ASSERT_TRUE(connection) << connection.error().ToString();
    connection_.emplace(*std::move(connection));
    kvt_model_record record;
    kvt_model_record_init(&record);
    record.name = "attended";
    record.layers = kLayers;
    record.kv_heads = kKvHeads;
    record.k_head_dim = record.v_head_dim = kDim;
    const auto model = connection_->RegisterModel(record);
    ASSERT_TRUE(model);
    auto pool = connection_->Attach(model->model);
    ASSERT_TRUE(pool) << pool.error().ToString();
    pool_.emplace(*std::move(pool));
  }

  // bf16 numbers, the same for the same seed.
  static std::vector<uint16_t> Numbers(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> numbers(count);
    for (uint16_t& number : numbers) number = kernels::Bf16FromFloat(normal(random));
    return numbers;
  }

  std::optional<TemporaryDirectory> directory_;
  std::optional<PrivateDaemon> daemon_;
  std::optional<kvt::Connection> connection_;
  std::optional<kvt::Pool> pool_;
};

// Of the second layer, its output at kOutputOffset; borrows both.
kvt_attend_request Request(const kvt_attend_sequence& sequence,
                           const std::vector<kvt_block>& blocks) {
  kvt_attend_request request;
  kvt_attend_request_init(&request);
  request.layer = 1;
  request.q_heads = kHeads;
  request.softmax_scale = 0.09F;
  request.output_offset = kOutputOffset;
  request.sequences = &sequence;
  request.sequence_count = 1;
  request.blocks = blocks.data();
  request.block_count = blocks.size();
  return request;
}

TEST_F(GpuAttentionTest, KernelsAreTriedOutBeforeTheDaemonServes) {
  const auto reply = CallAdmin(daemon_->admin_socket(), R"({"op":"status"})", 60'000);
  ASSERT_TRUE(reply);
  const boost::json::value document = boost::json::parse(*reply);
  const JsonView status(&document);
  const JsonView kernels = status["kernels"];
  EXPECT_EQ(kernels["state"].Text(), "ready") << *reply;
  EXPECT_EQ(kernels["engine"].Text(), "cuda");
  // Types times head sizes times groups, decode and append.
  EXPECT_EQ(kernels["self_test"]["cases"].Count(), 4u * 3 * 2 * 2);
}

TEST_F(GpuAttentionTest, GivesWhatTheReferenceGives) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  // One sequence decodes, or three tokens are appended, over 37 tokens in blocks out of order.
  auto acquired = pool_->Acquire({}, {}, 4);
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  const std::vector<kvt_block> blocks = {acquired->fresh[3], acquired->fresh[0],
                                         acquired->fresh[2]};
  const size_t block_elements = kLayers * 2 * kSliceElements;
  std::vector<uint16_t> cache;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::vector<uint16_t> numbers = Numbers(block_elements, i);
    ASSERT_TRUE(pool_->Write(blocks[i], std::as_bytes(std::span(numbers))));
    cache.insert(cache.end(), numbers.begin(), numbers.end());
  }
  auto workspace = pool_->OpenWorkspace(kWorkspaceBytes);
  ASSERT_TRUE(workspace) << workspace.error().ToString();
  const auto info = workspace->Info();
  ASSERT_TRUE(info) << info.error().ToString();
  ASSERT_EQ(cudaSetDevice(info->ordinal), cudaSuccess);
  for (const uint32_t rows : {1u, 3u}) {
    const std::vector<uint16_t> queries = Numbers(size_t{rows} * kHeads * kDim, 99);
    ASSERT_EQ(cudaMemcpy(reinterpret_cast<void*>(info->device_base), queries.data(),
                         queries.size() * 2, cudaMemcpyHostToDevice),
              cudaSuccess);
    const kvt_attend_sequence sequence{rows, 37};
    const kvt_attend_request request = Request(sequence, blocks);
    const auto attended = workspace->Attend(request);
    ASSERT_TRUE(attended) << attended.error().ToString();
    std::vector<uint16_t> output(queries.size());
    ASSERT_EQ(cudaMemcpy(output.data(), reinterpret_cast<void*>(info->device_base + kOutputOffset),
                         output.size() * 2, cudaMemcpyDeviceToHost),
              cudaSuccess);
    const int32_t starts[] = {0, static_cast<int32_t>(rows)};
    const int32_t table[] = {0, 1, 2};
    const int32_t length = 37;
    uint16_t* const key = cache.data() + 2 * kSliceElements;
    const auto expected =
        kernels::AttentionReference({.query = queries.data(),
                                     .query_dtype = KVT_BF16,
                                     .q_heads = kHeads,
                                     .query_token_stride = kHeads * kDim,
                                     .query_head_stride = kDim,
                                     .query_starts = starts,
                                     .kv = {.key = key,
                                            .value = key + kSliceElements,
                                            .dtype = KVT_BF16,
                                            .kv_heads = kKvHeads,
                                            .head_dim = kDim,
                                            .page_tokens = kTokens,
                                            .block_stride = static_cast<int64_t>(block_elements),
                                            .token_stride = kKvHeads * kDim,
                                            .head_stride = kDim},
                                     .sequences = {.block_table = table,
                                                   .kv_lengths = &length,
                                                   .table_stride = 3,
                                                   .sequences = 1,
                                                   .max_kv_length = length},
                                     .softmax_scale = 0.09F});
    for (size_t i = 0; i < output.size(); ++i) {
      ASSERT_NEAR(kernels::FloatFromBf16(output[i]), expected.output[i], 0.02) << rows << ", " << i;
    }
  }
}

TEST_F(GpuAttentionTest, RefusesWhatNoKernelIsBuiltFor) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  auto acquired = pool_->Acquire({}, {}, 1);
  ASSERT_TRUE(acquired);
  auto workspace = pool_->OpenWorkspace(kWorkspaceBytes);
  ASSERT_TRUE(workspace);
  const kvt_attend_sequence sequence{1, 16};
  const kvt_block block = acquired->fresh[0];
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
    return {"kernels.library=" + ProgramBeside("../lib/libkvtier_faulty_kernels.so"),
            "disk.bytes=128MiB", "disk.free_floor_bytes=0B", "cache.chunk_bytes=8MiB",
            "retention.persist_after=0s"};
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
  const std::vector<uint16_t> numbers = Numbers(2 * kLayers * kSliceElements, 7);
  kvt_commit_entry entry{};
  entry.hash.bytes[5] = 1;
  entry.tokens = kTokens;
  entry.retention = KVT_RETENTION_EXTENDED;
  {
    const auto acquired = pool_->Acquire({}, {}, 1);
    ASSERT_TRUE(acquired);
    ASSERT_TRUE(pool_->Write(acquired->fresh[0], std::as_bytes(std::span(numbers))));
    entry.block = acquired->fresh[0];
    ASSERT_TRUE(pool_->CommitAndWait(std::span(&entry, 1)));
    ASSERT_TRUE(CallAdmin(daemon_->admin_socket(), R"({"op":"drain"})", 60'000));
    auto workspace = pool_->OpenWorkspace(kWorkspaceBytes);
    ASSERT_TRUE(workspace) << workspace.error().ToString();
    const kvt_attend_sequence sequence{1, 16};
    const std::vector<kvt_block> blocks = {acquired->fresh[0]};
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
  std::vector<uint16_t> seen(numbers.size());
  ASSERT_TRUE(pool_->Read(found->hits[0], std::as_writable_bytes(std::span(seen))));
  EXPECT_TRUE(seen == numbers);
}

// The committed model: the same text from a pool in VRAM as from the CPU.
class GpuGenerateTest : public GpuAttentionTest {
 protected:
  boost::json::value Generate(const std::string& prompt, std::vector<std::string> more) {
    std::vector<std::string> command = {
        ProgramBeside("kvtier-generate"), "--prompt", prompt, "--tokens", "48", "--json"};
    command.insert(command.end(), more.begin(), more.end());
    const ProgramResult result = RunProgram(command);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.errors, "");
    boost::json::error_code error;
    return boost::json::parse(result.output, error);
  }
};

TEST_F(GpuGenerateTest, TextIsTheSameAsOnTheCpuComputedOrCached) {
  for (const std::string prompt :
       {"In the beginning God created the heaven and the earth. And the earth was",
        "It is a truth universally acknowledged, that a single man in possession of"}) {
    const boost::json::value alone = Generate(prompt, {"--no-cache"});
    const std::vector<std::string> on_gpu = {"--socket", daemon_->socket(), "--device", "cuda"};
    const boost::json::value cold = Generate(prompt, on_gpu);
    const boost::json::value warm = Generate(prompt, on_gpu);
    EXPECT_EQ(cold.at("text"), alone.at("text"));
    EXPECT_EQ(warm.at("text"), alone.at("text"));
    EXPECT_EQ(cold.at("cached_tokens"), 0);
    EXPECT_GT(warm.at("tiers").at("pool").as_int64(), 0);
  }
}

}  // namespace
}  // namespace kvtier
