// SPDX-License-Identifier: Apache-2.0
// The self-test must pass right results and find wrong ones.
#include "daemon/attention/attention_self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "daemon/attention/attention_service.h"
#include "daemon/runtime/event_loop.h"
#include "gpu/host_device.h"
#include "kernels/reference/number_format.h"
#include "tests/fakes/fake_kernel_table.h"
#include "tests/fakes/late_device.h"

namespace kvtier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Five types, decode and append.
constexpr uint32_t kSelfTestCases = 10;

// An engine that is right but for the faults that the test asks for.
class FaultyEngine final : public AttentionEngine {
 public:
  // ..Later: after as many runs as the self-test makes.
  enum class Fault : uint8_t {
    kOutput,
    kNan,
    kStrayWrite,
    kMemory,
    kDevice,
    kDeviceLater,
    kLost,
    kLostLater,
    kMemoryOnceLater,
  };
  explicit FaultyEngine(Fault fault) : FaultyEngine(fault, MakeHostAttentionEngine()) {}

  [[nodiscard]] Status Check(const AttentionJob& job) const override { return right_->Check(job); }
  [[nodiscard]] Status Run(const AttentionJob& job) override {
    const uint32_t later = ++runs_ > kSelfTestCases ? runs_ - kSelfTestCases : 0;
    if (fault_ == Fault::kDevice || (fault_ == Fault::kDeviceLater && later > 0)) {
      return MakeError(ErrorCode::kIoError, "kernel_failed");
    }
    if (fault_ == Fault::kLost || (fault_ == Fault::kLostLater && later > 0)) {
      return MakeError(ErrorCode::kIoError, kDeviceLost);
    }
    if (fault_ == Fault::kMemory || (fault_ == Fault::kMemoryOnceLater && later == 1)) {
      return MakeError(ErrorCode::kResourceExhausted, "attend_memory");
    }
    const Status done = right_->Run(job);
    if (fault_ == Fault::kOutput) kernels::StoreElement(job.output, job.query_dtype, 7, 9.0F);
    // A byte of another layer.
    if (fault_ == Fault::kStrayWrite) {
      *(static_cast<std::byte*>(job.cache.key) - 1) = std::byte{0};
    }
    if (fault_ == Fault::kNan) kernels::StoreElement(job.output, job.query_dtype, 7, NAN);
    return done;
  }
  [[nodiscard]] Status Copy(void* to, const void* from, size_t bytes) override {
    return right_->Copy(to, from, bytes);
  }

 private:
  FaultyEngine(Fault fault, std::unique_ptr<AttentionEngine> right)
      : AttentionEngine(Named("faulty", right->traits())),
        fault_(fault),
        right_(std::move(right)) {}
  static Traits Named(std::string_view name, Traits traits) {
    traits.name = name;
    return traits;
  }

  const Fault fault_;
  std::atomic<uint32_t> runs_ = 0;
  const std::unique_ptr<AttentionEngine> right_;
};

class AttentionSelfTestTest : public testing::Test {
 protected:
  std::string FailureWith(FaultyEngine::Fault fault) {
    FaultyEngine engine(fault);
    return Test(&engine).failure;
  }

  AttentionSelfTest Test(AttentionEngine* engine) {
    const auto memory = device_.CreatePool(kSelfTestBytes);
    const AttentionTrial trial{engine, memory->get()};
    return TestAttention({&trial, 1}).front();
  }

  EventLoop loop_;
  HostDevice device_{&loop_};
  HostDevice other_device_{&loop_};
};

TEST_F(AttentionSelfTestTest, PassesWhatIsRight) {
  const AttentionSelfTest result = Test(MakeHostAttentionEngine().get());
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.cases, kSelfTestCases);
  EXPECT_GT(result.worst_error, 0.0);
  EXPECT_LE(result.worst_error, 1.0);
}

TEST_F(AttentionSelfTestTest, SeesWhatIsWrong) {
  EXPECT_THAT(FailureWith(FaultyEngine::Fault::kOutput), HasSubstr("is wrong by"));
  EXPECT_THAT(FailureWith(FaultyEngine::Fault::kNan), HasSubstr("nan"));
  EXPECT_THAT(FailureWith(FaultyEngine::Fault::kStrayWrite), HasSubstr("written to"));
  EXPECT_THAT(FailureWith(FaultyEngine::Fault::kDevice), HasSubstr("kernel_failed"));
}

TEST_F(AttentionSelfTestTest, TriesEachDeviceAndBlamesTheOneThatIsWrong) {
  const std::unique_ptr<AttentionEngine> right = MakeHostAttentionEngine();
  FaultyEngine wrong(FaultyEngine::Fault::kOutput);
  const auto memory = device_.CreatePool(kSelfTestBytes);
  const auto other_memory = other_device_.CreatePool(kSelfTestBytes);
  const AttentionTrial trials[] = {{right.get(), memory->get()}, {&wrong, other_memory->get()}};
  const std::vector<AttentionSelfTest> results = TestAttention(trials);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].failure, "");
  EXPECT_EQ(results[0].cases, kSelfTestCases);
  EXPECT_THAT(results[1].failure, HasSubstr("is wrong by"));
  EXPECT_EQ(results[1].cases, kSelfTestCases);
}

// From so many on the kernel for long prompts serves heads of these sizes on every Hopper GPU.
TEST_F(AttentionSelfTestTest, TriesPromptsForWhichGpusHaveAKernelOfTheirOwn) {
  kernels::FakeKernelTable gpus;
  const auto engine = OpenCudaAttentionEngine(gpus.table(), 0);
  ASSERT_TRUE(engine);
  std::map<std::pair<int32_t, kvt_dtype>, int32_t> longest;  // by head size and type of the cache
  gpus.on_prefill = [&](const kvt_prefill_params& params) {
    int32_t& tokens = longest[{params.kv.head_dim, params.kv.dtype}];
    tokens = std::max(tokens, params.query_tokens);
  };
  EXPECT_THAT(Test(engine->get()).failure, HasSubstr("nan")) << "the fake computes nothing";
  for (const kvt_dtype type : {KVT_BF16, KVT_FP16, KVT_FP8_E4M3}) {
    for (const int32_t head_dim : {64, 128}) {
      EXPECT_GE((longest[{head_dim, type}]), 431) << head_dim << ", type " << type;
    }
  }
}

class AttentionServiceTest : public AttentionSelfTestTest {
 protected:
  AttentionService::Environment Environment() {
    return {.devices = {&device_, &other_device_},
            .config = &config_,
            .clock = &clock_,
            .loop = &loop_,
            .log = &log_};
  }

  // The second device's engine has the fault.
  AttentionService::Environment EnvironmentWith(FaultyEngine::Fault fault) {
    AttentionService::Environment environment = Environment();
    environment.open_engine = [fault](uint32_t device) -> Result<std::unique_ptr<AttentionEngine>> {
      if (device == 0) return MakeHostAttentionEngine();
      return std::make_unique<FaultyEngine>(fault);
    };
    environment.on_fatal = [this](const std::string& error) { fatal_.push_back(error); };
    return environment;
  }
  // How a job of nothing ended on the second device.
  Result<uint64_t> RunOne(AttentionService* service) {
    std::optional<Result<uint64_t>> outcome;
    auto job = std::make_shared<AttentionJob>();
    job->cache.kv_heads = 1;
    service->Run(1, "a", std::move(job),
                 [&](Result<uint64_t> result) { outcome = std::move(result); });
    EXPECT_FALSE(service->idle());
    loop_.RunUntil([&] { return outcome.has_value(); });
    EXPECT_TRUE(service->idle());
    return *outcome;
  }

  // The outcome of one more try of the second device.
  static Status TryAgain(AttentionService* service, EventLoop* loop) {
    service->Prepare(1);
    bool prepared = false;
    service->WhenPrepared(1, [&] { prepared = true; });
    loop->RunUntil([&] { return prepared; });
    return service->CheckReady(1);
  }

  KernelsConfig config_;
  CoarseClock clock_;
  Log log_{LogConfig{.level = LogLevel::kError}};
  std::vector<std::string> fatal_;
};

TEST_F(AttentionServiceTest, IsReadyOnceItWasTriedOut) {
  const AttentionService service(Environment());
  const AttentionReports reports = service.Report();
  ASSERT_EQ(reports.devices.size(), 2u);
  for (const uint32_t device : {0, 1}) {
    EXPECT_TRUE(service.CheckReady(device));
    EXPECT_EQ(reports.devices[device].engine, "cpu");
    EXPECT_EQ(reports.devices[device].self_test.cases, kSelfTestCases);
  }
  EXPECT_EQ(reports.All().state, AttentionState::kReady);
  EXPECT_EQ(reports.All().self_test.cases, 2 * kSelfTestCases);
}

TEST_F(AttentionServiceTest, TriesADeviceThatIsOpenedOnDemandAtItsFirstPool) {
  LateDevice late(&loop_);
  late.HoldOpening();
  AttentionService::Environment environment = Environment();
  environment.devices = {&device_, &late};
  AttentionService service(environment);
  EXPECT_EQ(service.Report().devices[1].state, AttentionState::kWaiting);
  EXPECT_EQ(service.Report().All().state, AttentionState::kWaiting);
  EXPECT_EQ(service.CheckReady(1).error().reason, "attend_off");
  EXPECT_TRUE(service.CheckReady(0));
  late.EndOpening({});
  service.Prepare(1);
  service.Prepare(1);
  EXPECT_FALSE(service.idle());
  bool prepared = false;
  service.WhenPrepared(1, [&] { prepared = true; });
  EXPECT_FALSE(prepared);
  loop_.RunUntil([&] { return prepared; });
  EXPECT_TRUE(service.CheckReady(1));
  EXPECT_TRUE(service.idle());
  EXPECT_EQ(service.Report().devices[1].self_test.cases, kSelfTestCases);
}

TEST_F(AttentionServiceTest, ADeviceWithoutMemoryForTheTestIsTriedAgainAtTheNextPool) {
  LateDevice full(&loop_);
  full.RefusePools(2);
  AttentionService::Environment environment = Environment();
  environment.devices = {&device_, &full};
  AttentionService service(environment);
  EXPECT_TRUE(service.CheckReady(0));
  EXPECT_EQ(service.CheckReady(1).error().reason, "attend_off");
  EXPECT_EQ(service.Report().devices[1].state, AttentionState::kWaiting);
  EXPECT_FALSE(TryAgain(&service, &loop_));
  EXPECT_EQ(service.Report().devices[1].state, AttentionState::kWaiting);
  EXPECT_TRUE(TryAgain(&service, &loop_));
  EXPECT_EQ(service.Report().devices[1].self_test.cases, kSelfTestCases);
}

TEST_F(AttentionServiceTest, AnEngineThatFindsNoMemoryIsTriedAgainAtTheNextPool) {
  AttentionService::Environment environment = Environment();
  int opened = 0;
  environment.open_engine = [&](uint32_t device) -> Result<std::unique_ptr<AttentionEngine>> {
    if (device == 0 || opened == 2) return MakeHostAttentionEngine();
    if (++opened == 2) return std::make_unique<FaultyEngine>(FaultyEngine::Fault::kMemory);
    return MakeError(ErrorCode::kResourceExhausted, "attend_memory");
  };
  AttentionService service(environment);
  EXPECT_EQ(service.Report().devices[1].state, AttentionState::kWaiting);
  EXPECT_FALSE(TryAgain(&service, &loop_));
  EXPECT_EQ(service.Report().devices[1].state, AttentionState::kWaiting);
  EXPECT_TRUE(TryAgain(&service, &loop_));
}

TEST_F(AttentionServiceTest, IsOffIfConfiguredSo) {
  config_.enabled = false;
  const AttentionService service(Environment());
  EXPECT_EQ(service.CheckReady(0).error().reason, "attend_off");
  EXPECT_EQ(service.CheckReady(1).error().reason, "attend_off");
  EXPECT_EQ(service.Report().All().state, AttentionState::kOff);
}

TEST_F(AttentionServiceTest, WorkspacesOfATenantLeaveAsManyBytesToOthers) {
  config_.workspace_bytes = 8 * kMiB;
  AttentionService service(Environment());
  auto first = service.CreateWorkspace(0, "a", 1);
  auto second = service.CreateWorkspace(1, "a", 2 * kMiB);
  ASSERT_TRUE(first && second);
  EXPECT_EQ((*first)->bytes(), 2 * kMiB);
  EXPECT_EQ(service.CreateWorkspace(1, "a", 1).error().reason, "workspace_limit");
  auto others = service.CreateWorkspace(1, "b", 1);
  ASSERT_TRUE(others);
  EXPECT_EQ(service.Report().workspace_bytes, 6 * kMiB);
  first->reset();
  others->reset();
  bool returned = false;
  service.WhenReturned([&] { returned = true; });
  EXPECT_FALSE(returned) << "a thread gives the memory back, not the event loop";
  loop_.RunUntil([&] { return returned; });
  EXPECT_EQ(service.Report().workspace_bytes, 2 * kMiB);
  EXPECT_TRUE(service.CreateWorkspace(0, "a", 2 * kMiB).has_value());
}

TEST_F(AttentionServiceTest, OneDeviceThatIsWrongLeavesTheOther) {
  const AttentionService service(EnvironmentWith(FaultyEngine::Fault::kOutput));
  EXPECT_TRUE(service.CheckReady(0));
  EXPECT_EQ(service.CheckReady(1).error().reason, "attend_off");
  const AttentionReports reports = service.Report();
  EXPECT_EQ(reports.devices[1].state, AttentionState::kFailed);
  EXPECT_THAT(reports.devices[1].reason, HasSubstr("is wrong by"));
  // As a whole it is as well as the one that is worst off.
  EXPECT_EQ(reports.All().state, AttentionState::kFailed);
  EXPECT_THAT(reports.All().reason, HasSubstr("device 1: "));
}

TEST_F(AttentionServiceTest, ADeviceIsOffFromItsFirstFailureOn) {
  AttentionService service(EnvironmentWith(FaultyEngine::Fault::kDeviceLater));
  ASSERT_TRUE(service.CheckReady(1));
  EXPECT_EQ(RunOne(&service).error().reason, "kernel_failed");
  EXPECT_EQ(service.Report().devices[1].failures, 1u);
  EXPECT_EQ(service.Report().devices[1].state, AttentionState::kFailed);
  EXPECT_EQ(service.CheckReady(1).error().reason, "attend_off");
  EXPECT_TRUE(service.CheckReady(0));
  EXPECT_TRUE(fatal_.empty());
}

TEST_F(AttentionServiceTest, AJobTooLargeForTheDevicesMemoryCostsOnlyItself) {
  AttentionService service(EnvironmentWith(FaultyEngine::Fault::kMemoryOnceLater));
  ASSERT_TRUE(service.CheckReady(1));
  EXPECT_EQ(RunOne(&service).error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(service.CheckReady(1));
  EXPECT_TRUE(RunOne(&service).has_value());
  EXPECT_EQ(service.Report().devices[1].failures, 1u);
}

TEST_F(AttentionServiceTest, ALostDeviceEndsTheProcess) {
  AttentionService service(EnvironmentWith(FaultyEngine::Fault::kLostLater));
  ASSERT_TRUE(service.CheckReady(1));
  EXPECT_TRUE(fatal_.empty());
  EXPECT_EQ(RunOne(&service).error().reason, kDeviceLost);
  EXPECT_EQ(fatal_.size(), 1u);
}

// An engine whose jobs, but for the self-test, wait until the test lets them end.
class HeldEngine final : public AttentionEngine {
 public:
  // The next such job fails if the test says so, and those after it succeed.
  HeldEngine(std::counting_semaphore<>* may_end, std::atomic<bool>* fails_next)
      : AttentionEngine({.name = "held",
                         .head_dims = right_->traits().head_dims,
                         .groups = right_->traits().groups}),
        may_end_(*may_end),
        fails_next_(*fails_next) {}
  [[nodiscard]] Status Check(const AttentionJob& job) const override { return right_->Check(job); }
  [[nodiscard]] Status Run(const AttentionJob& job) override {
    if (job.sequences() != 0) return right_->Run(job);
    may_end_.acquire();
    if (fails_next_.exchange(false)) return MakeError(ErrorCode::kIoError, "kernel_failed");
    return right_->Run(job);
  }
  [[nodiscard]] Status Copy(void* to, const void* from, size_t bytes) override {
    return right_->Copy(to, from, bytes);
  }

 private:
  static inline const std::unique_ptr<AttentionEngine> right_ = MakeHostAttentionEngine();
  std::counting_semaphore<>& may_end_;
  std::atomic<bool>& fails_next_;
};

class AttentionTurns : public AttentionServiceTest {
 protected:
  AttentionTurns() {
    AttentionService::Environment environment = Environment();
    environment.open_engine = [this](uint32_t) -> Result<std::unique_ptr<AttentionEngine>> {
      return std::make_unique<HeldEngine>(&may_end_, &fails_next_);
    };
    service_ = std::make_unique<AttentionService>(environment);
  }
  ~AttentionTurns() override { may_end_.release(100); }
  // A job of nothing. `kept` stays until it has ended.
  std::shared_ptr<AttentionJob> Start(const std::string& tenant,
                                      std::shared_ptr<DevicePool> kept = nullptr) {
    auto job = std::make_shared<AttentionJob>();
    job->pool = PoolId(7);
    job->cache.kv_heads = 1;
    service_->Run(0, tenant, job, [this, tenant, kept = std::move(kept)](Result<uint64_t> done) {
      ended_.push_back(tenant);
      reasons_.push_back(done ? "" : done.error().reason);
    });
    return job;
  }

  std::counting_semaphore<> may_end_{0};
  std::atomic<bool> fails_next_ = false;
  std::vector<std::string> ended_;    // the tenants of the jobs that have, in order
  std::vector<std::string> reasons_;  // of their failures; empty for none
  std::unique_ptr<AttentionService> service_;
};

TEST_F(AttentionTurns, ATenantsManyJobsWaitForAnothersFirst) {
  for (int i = 0; i < 8; ++i) (void)Start("a");
  (void)Start("b");
  EXPECT_TRUE(service_->ReadsPool(PoolId(7)));
  EXPECT_FALSE(service_->ReadsPool(PoolId(8)));
  may_end_.release(9);
  loop_.RunUntil([&] { return ended_.size() == 9; });
  EXPECT_EQ(ended_[0], "a");
  EXPECT_EQ(ended_[1], "b");
  EXPECT_FALSE(service_->ReadsPool(PoolId(7)));
  EXPECT_TRUE(service_->idle());
}

TEST_F(AttentionTurns, ACancelledJobThatWaitsGivesItsMemoryBackAtOnce) {
  (void)Start("a");
  const auto waiting = Start("a", *service_->CreateWorkspace(0, "a", 1));
  (void)Start("b");
  waiting->cancelled = true;
  service_->DropCancelled("c");
  service_->DropCancelled("b");
  service_->DropCancelled("a");
  loop_.RunUntil([&] { return service_->Report().workspace_bytes == 0; });
  EXPECT_EQ(ended_, std::vector<std::string>{"a"}) << "the first is being computed";
  EXPECT_EQ(service_->Report().devices[0].in_flight, 2u);
  may_end_.release(2);
  loop_.RunUntil([&] { return service_->idle(); });
  EXPECT_EQ(ended_, (std::vector<std::string>{"a", "a", "b"}));
}

TEST_F(AttentionTurns, NothingIsComputedOnADeviceThatHasFailed) {
  fails_next_ = true;
  for (int i = 0; i < 4; ++i) (void)Start("a");
  may_end_.release(4);
  loop_.RunUntil([&] { return ended_.size() == 4; });
  EXPECT_THAT(reasons_, ElementsAre("kernel_failed", "attend_off", "attend_off", "attend_off"));
  EXPECT_EQ(service_->Report().devices[0].state, AttentionState::kFailed);
  EXPECT_EQ(service_->Report().devices[0].failures, 4u);
  EXPECT_TRUE(service_->idle());
  EXPECT_FALSE(service_->ReadsPool(PoolId(7)));
}

TEST_F(AttentionServiceTest, ADeviceLostWhileTriedOutEndsTheProcess) {
  const AttentionService service(EnvironmentWith(FaultyEngine::Fault::kLost));
  EXPECT_EQ(fatal_.size(), 1u);
}

}  // namespace
}  // namespace kvtier
