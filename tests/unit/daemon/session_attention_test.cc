// SPDX-License-Identifier: Apache-2.0
// ATTEND over the socket: results equal the reference's, and no session reads blocks that it does
// not hold.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmath>
#include <memory>
#include <random>

#include "kernels/reference/attention_reference.h"
#include "kernels/reference/number_format.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

constexpr uint32_t kHeads = 4;
constexpr int64_t kDim = 64;
constexpr int64_t kTokens = 16;
constexpr uint64_t kWorkspaceBytes = 64 * kKiB;
constexpr uint64_t kOutputOffset = 16 * kKiB;
constexpr uint64_t kLseOffset = 32 * kKiB;

// Memory that came as a descriptor.
class Mapping {
 public:
  explicit Mapping(const UniqueFd& fd) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd.get(), &status), 0);
    bytes_ = static_cast<size_t>(status.st_size);
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class SessionAttention : public testing::Test {
 protected:
  SessionAttention() : SessionAttention(TestModel(), 1, 0) {}
  // A daemon with so many devices, and a pool on one of them.
  SessionAttention(const ModelRecord& model, size_t devices, uint32_t device)
      : kv_dtype_(model.groups[0].dtype == KvDtype::kFloat8E4m3 ? KVT_FP8_E4M3 : KVT_BF16),
        daemon_([devices](Config* config) {
          config->pool.devices.assign(devices, DeviceChoice::kHost);
        }),
        client_(daemon_.socket()) {
    attached_ = client_.Attach(model, device);
    pool_ = std::make_unique<Mapping>(client_.pool_fd());
  }

  std::unique_ptr<Mapping> OpenWorkspace(WireClient* client, uint32_t number = 0) {
    client->Send(wire::Workspace{attached_.pool, number, kWorkspaceBytes});
    const auto received = client->Receive();
    EXPECT_TRUE(received && received->Is(wire::MessageType::kWorkspaceReply));
    auto mapping = std::make_unique<Mapping>(received->descriptor);
    EXPECT_EQ(mapping->bytes(), wire::Decode<wire::WorkspaceReply>(received->payload)->bytes);
    return mapping;
  }

  void FillWithNumbers(std::byte* at, size_t count, kvt_dtype dtype = KVT_BF16) {
    for (size_t i = 0; i < count; ++i) {
      kernels::StoreElement(at, dtype, static_cast<int64_t>(i), normal_(random_));
    }
  }
  // Private blocks full of numbers.
  std::vector<BlockHandle> FilledBlocks(uint32_t count) {
    const auto blocks = Acquire(&client_, attached_.pool, {}, count).new_blocks;
    for (const BlockHandle& block : blocks) {
      FillWithNumbers(pool_->data() + block.index.value * attached_.block_bytes,
                      attached_.block_bytes / kernels::ElementBytes(kv_dtype_), kv_dtype_);
    }
    return blocks;
  }

  // Two sequences: one token over 21, three over 16.
  [[nodiscard]] wire::Attend Request(const std::vector<BlockHandle>& blocks) const {
    wire::Attend attend;
    attend.pool = attached_.pool;
    attend.q_heads = kHeads;
    attend.softmax_scale = 0.125F;
    attend.output_offset = kOutputOffset;
    attend.lse_offset = kLseOffset;
    attend.sequences = {{.query_tokens = 1, .kv_tokens = 21}, {.query_tokens = 3, .kv_tokens = 16}};
    attend.blocks = blocks;
    return attend;
  }

  [[nodiscard]] kernels::ReferenceOutput Expected(const std::vector<BlockHandle>& blocks,
                                                  const Mapping& workspace,
                                                  const float* key_scale = nullptr,
                                                  const float* value_scale = nullptr) const {
    const int32_t starts[] = {0, 1, 4};
    const int32_t lengths[] = {21, 16};
    const auto index = [&](int i) { return static_cast<int32_t>(blocks[i].index.value); };
    const int32_t table[] = {index(0), index(1), index(2), 0};
    return kernels::AttentionReference({.query = workspace.data(),
                                        .query_dtype = KVT_BF16,
                                        .q_heads = kHeads,
                                        .query_token_stride = kHeads * kDim,
                                        .query_head_stride = kDim,
                                        .query_starts = starts,
                                        .kv = {.key = pool_->data(),
                                               .value = pool_->data() + attached_.block_bytes / 2,
                                               .dtype = kv_dtype_,
                                               .kv_heads = 1,
                                               .head_dim = kDim,
                                               .page_tokens = kTokens,
                                               .block_stride = 2 * kTokens * kDim,
                                               .token_stride = kDim,
                                               .head_stride = kDim,
                                               .key_scales = {.values = key_scale},
                                               .value_scales = {.values = value_scale}},
                                        .sequences = {.block_table = table,
                                                      .kv_lengths = lengths,
                                                      .table_stride = 2,
                                                      .sequences = 2,
                                                      .max_kv_length = 21},
                                        .softmax_scale = 0.125F});
  }

  // The workspace's expected content after the Request was served.
  static void ExpectResults(const Mapping& workspace, const kernels::ReferenceOutput& expected) {
    for (size_t i = 0; i < expected.output.size(); ++i) {
      ASSERT_NEAR(
          kernels::LoadElement(workspace.data() + kOutputOffset, KVT_BF16, static_cast<int64_t>(i)),
          expected.output[i], 0x1p-7 + 1e-3)
          << i;
    }
    for (size_t i = 0; i < expected.lse.size(); ++i) {
      ASSERT_NEAR(
          kernels::LoadElement(workspace.data() + kLseOffset, KVT_FP32, static_cast<int64_t>(i)),
          expected.lse[i], 1e-4)
          << i;
    }
  }

  const kvt_dtype kv_dtype_;
  ServerUnderTest daemon_;
  WireClient client_;
  wire::AttachReply attached_;
  std::unique_ptr<Mapping> pool_;
  std::mt19937 random_{3};
  std::normal_distribution<float> normal_;
};

// A GPU may have a kernel to end before it writes the zeros.
TEST_F(SessionAttention, AWorkspaceIsHandedOverWhenItIsZeroAndOthersGoOn) {
  daemon_.OnLoop([this] { daemon_.device().HoldPools(); });
  const uint64_t request = client_.Send(wire::Workspace{attached_.pool, 0, kWorkspaceBytes});
  daemon_.WaitUntil([this] { return daemon_.device().pools_awaited() == 1; });
  // Nor can it be used before: the next request waits.
  client_.Send(wire::Attend{.pool = attached_.pool});
  WireClient other(daemon_.socket());
  (void)other.Hello();
  (void)other.Call<wire::Pong>(wire::Ping{});
  daemon_.OnLoop([this] { daemon_.device().LetPoolsBeReady(); });
  const auto received = client_.Receive();
  ASSERT_TRUE(received && received->Is(wire::MessageType::kWorkspaceReply));
  EXPECT_EQ(received->request_id, request);
  EXPECT_EQ(Mapping(received->descriptor).bytes(),
            wire::Decode<wire::WorkspaceReply>(received->payload)->bytes);
}

TEST_F(SessionAttention, GivesWhatTheReferenceGives) {
  const auto workspace = OpenWorkspace(&client_);
  const auto blocks = FilledBlocks(3);
  FillWithNumbers(workspace->data(), size_t{4} * kHeads * kDim);
  EXPECT_GT(client_.Call<wire::AttendReply>(Request(blocks)).compute_ns, 0u);
  ExpectResults(*workspace, Expected(blocks, *workspace));
}

TEST_F(SessionAttention, ReadsCommittedBlocksThatTheSessionReferences) {
  const auto workspace = OpenWorkspace(&client_);
  const auto hashes = Hashes(1, 3);
  const auto blocks = FilledBlocks(3);
  client_.Send(CommitOf(attached_.pool, blocks, hashes), /*want_reply=*/true);
  (void)client_.Expect<wire::CommitReply>();
  (void)client_.Call<wire::AttendReply>(Request(blocks));
}

TEST_F(SessionAttention, AnothersBlocksAreRefused) {
  const auto blocks = FilledBlocks(3);
  WireClient other(daemon_.socket());
  (void)other.Attach();
  const auto workspace = OpenWorkspace(&other);
  EXPECT_EQ(other.ErrorOf(Request(blocks)), "not_held");
  auto stale = Request(blocks);
  stale.blocks[0].generation += 1;
  EXPECT_EQ(other.ErrorOf(stale), "stale_generation");
  stale.blocks[0] = {BlockIndex{UINT32_MAX}, 0};
  EXPECT_EQ(other.ErrorOf(stale), "stale_generation");
}

TEST_F(SessionAttention, RequestsThatMakeNoSenseCostOnlyThemselves) {
  const auto workspace = OpenWorkspace(&client_);
  const auto blocks = FilledBlocks(3);
  auto request = Request(blocks);
  request.workspace = 5;
  EXPECT_EQ(client_.ErrorOf(request), "unknown_workspace");
  request = Request(blocks);
  request.pool = PoolId{77};
  EXPECT_EQ(client_.ErrorOf(request), "pool_not_attached");
  request = Request(blocks);
  request.layer = 1;
  EXPECT_EQ(client_.ErrorOf(request), "bad_layer");
  request = Request(blocks);
  request.query_dtype = KvDtype::kFloat32;
  EXPECT_EQ(client_.ErrorOf(request), "attend_geometry");
  request = Request(blocks);
  request.output_offset = UINT64_MAX - 15;
  EXPECT_EQ(client_.ErrorOf(request), "bad_range");
  (void)client_.Call<wire::AttendReply>(Request(blocks));
}

TEST_F(SessionAttention, AWorkspaceReplacedBeforeItsDescriptorWasReadDoesNoHarm) {
  // Both in one go: the first is gone before its reply is sent.
  std::vector<std::byte> frames;
  wire::Encode(wire::Workspace{attached_.pool, 0, kWorkspaceBytes}, 1000, &frames);
  wire::Encode(wire::Workspace{attached_.pool, 0, 4 * kMiB}, 1001, &frames);
  client_.SendBytes(frames);
  for (const uint64_t bytes : {2 * kMiB, 4 * kMiB}) {
    const auto received = client_.Receive();
    ASSERT_TRUE(received && received->Is(wire::MessageType::kWorkspaceReply));
    EXPECT_EQ(Mapping(received->descriptor).bytes(), bytes);
  }
}

TEST_F(SessionAttention, ManyRequestsAtOnceAreAllAnswered) {
  const auto workspace = OpenWorkspace(&client_);
  const auto blocks = FilledBlocks(3);
  std::vector<uint64_t> requests;
  for (int i = 0; i < 20; ++i) requests.push_back(client_.Send(Request(blocks)));
  std::vector<uint64_t> answered;
  for (int i = 0; i < 20; ++i) {
    const auto received = client_.Receive();
    ASSERT_TRUE(received && received->Is(wire::MessageType::kAttendReply));
    answered.push_back(received->request_id);
  }
  std::ranges::sort(answered);
  EXPECT_EQ(answered, requests);
}

TEST_F(SessionAttention, AClientThatGoesDuringItsRequestLeavesNothingBehind) {
  {
    WireClient other(daemon_.socket());
    (void)other.Attach();
    const auto workspace = OpenWorkspace(&other);
    const auto blocks = Acquire(&other, attached_.pool, {}, 3).new_blocks;
    for (int i = 0; i < 4; ++i) other.Send(Request(blocks));
  }
  daemon_.WaitUntil([&] { return daemon_.server().session_count() == 1; });
  const auto workspace = OpenWorkspace(&client_);
  (void)client_.Call<wire::AttendReply>(Request(FilledBlocks(3)));
}

class SessionAttentionOfTwo : public SessionAttention {
 protected:
  SessionAttentionOfTwo() : SessionAttention(TestModel(), 2, 1) {}
};

TEST_F(SessionAttentionOfTwo, TheSecondDevicesPoolIsServedToo) {
  const auto workspace = OpenWorkspace(&client_);
  const auto blocks = FilledBlocks(3);
  FillWithNumbers(workspace->data(), size_t{4} * kHeads * kDim);
  (void)client_.Call<wire::AttendReply>(Request(blocks));
  ExpectResults(*workspace, Expected(blocks, *workspace));
}

TEST_F(SessionAttentionOfTwo, AWorkspaceServesThePoolsOfItsDeviceOnly) {
  const auto on_second = OpenWorkspace(&client_, 0);
  const auto blocks = FilledBlocks(3);
  const PoolId second = attached_.pool;
  const wire::AttachReply first = client_.AttachPool(0);
  const auto first_blocks = Acquire(&client_, first.pool, {}, 3).new_blocks;
  auto request = Request(first_blocks);
  request.pool = first.pool;
  EXPECT_EQ(client_.ErrorOf(request), "workspace_other_device");
  // One more of the first device, which does not serve the second.
  attached_ = first;
  const auto on_first = OpenWorkspace(&client_, 1);
  request.workspace = 1;
  (void)client_.Call<wire::AttendReply>(request);
  request = Request(blocks);
  request.pool = second;
  request.workspace = 1;
  EXPECT_EQ(client_.ErrorOf(request), "workspace_other_device");
  request.workspace = 0;
  (void)client_.Call<wire::AttendReply>(request);
}

ModelRecord Fp8Model() {
  ModelRecord record = TestModel();
  record.groups[0].dtype = KvDtype::kFloat8E4m3;
  return record;
}

class SessionAttentionOverFp8 : public SessionAttention {
 protected:
  SessionAttentionOverFp8() : SessionAttention(Fp8Model(), 1, 0) {}
};

TEST_F(SessionAttentionOverFp8, ScalesCountInScoresAndInWhatIsMixed) {
  const auto workspace = OpenWorkspace(&client_);
  const auto blocks = FilledBlocks(3);
  FillWithNumbers(workspace->data(), size_t{4} * kHeads * kDim);
  const float key_scale = 0.375F, value_scale = 1.25F;
  wire::Attend request = Request(blocks);
  request.key_scales = {key_scale};
  request.value_scales = {value_scale};
  (void)client_.Call<wire::AttendReply>(request);
  ExpectResults(*workspace, Expected(blocks, *workspace, &key_scale, &value_scale));
  // Either may be left out, and both.
  request.key_scales = {};
  (void)client_.Call<wire::AttendReply>(request);
  ExpectResults(*workspace, Expected(blocks, *workspace, nullptr, &value_scale));
  (void)client_.Call<wire::AttendReply>(Request(blocks));
  ExpectResults(*workspace, Expected(blocks, *workspace));
}

TEST_F(SessionAttention, ScalesForOtherCachesAreRefused) {
  const auto workspace = OpenWorkspace(&client_);
  wire::Attend request = Request(FilledBlocks(3));
  request.key_scales = {0.5F};
  EXPECT_EQ(client_.ErrorOf(request), "bad_scale_count");
  request.key_scales = {};
  (void)client_.Call<wire::AttendReply>(request);
}

TEST_F(SessionAttention, AClosedWorkspaceIsGone) {
  const auto workspace = OpenWorkspace(&client_, 1);
  wire::Attend request = Request(FilledBlocks(3));
  request.workspace = 1;
  // Work being computed there comes first.
  FillWithNumbers(workspace->data(), 4 * kHeads * kDim);
  client_.Send(request);
  client_.Send(wire::WorkspaceClose{1});
  const auto computed = client_.Receive();
  ASSERT_TRUE(computed && computed->Is(wire::MessageType::kAttendReply));
  ExpectResults(*workspace, Expected(request.blocks, *workspace));
  EXPECT_EQ(client_.ErrorOf(request), "unknown_workspace");
  // Nothing happens, and nothing is said.
  client_.Send(wire::WorkspaceClose{1});
  (void)client_.Call<wire::Pong>(wire::Ping{});
}

TEST(SessionWorkspaces, CountAgainstTheirTenantsHalfUntilTheyAreClosed) {
  constexpr uint64_t kMost = 2 * kMiB;
  ServerUnderTest daemon([](Config* config) { config->kernels.workspace_bytes = 2 * kMost; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  client.Send(wire::Workspace{pool, 3, kMost});
  (void)client.Expect<wire::WorkspaceReply>();
  EXPECT_EQ(client.ErrorOf(wire::Workspace{pool, 4, kMost}), "workspace_limit");
  client.Send(wire::WorkspaceClose{3});
  client.Send(wire::Workspace{pool, 4, kMost});
  (void)client.Expect<wire::WorkspaceReply>();
}

TEST(SessionAttentionOff, IsSaidToBe) {
  ServerUnderTest daemon([](Config* config) { config->kernels.enabled = false; });
  WireClient client(daemon.socket());
  const auto attached = client.Attach();
  EXPECT_EQ(client.ErrorOf(wire::Workspace{attached.pool, 0, 1}), "attend_off");
  EXPECT_EQ(client.ErrorOf(wire::Attend{.pool = attached.pool}), "attend_off");
}

}  // namespace
}  // namespace kvtier
