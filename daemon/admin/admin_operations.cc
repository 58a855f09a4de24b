// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/admin_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "daemon/admin/admin_request.h"
#include "daemon/admin/block_operations.h"
#include "daemon/admin/trace_operation.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// Blocks read at once, and between two looks at whether the caller is still there.
constexpr uint32_t kVerifyBatchBlocks = 64;
// Whoever measures how long something takes waits by this.
constexpr int64_t kSettlePollUs = 100;

std::string Text(const json::object& document) { return json::serialize(document); }

class Verify final : public AdminOperation {
 public:
  using AdminOperation::AdminOperation;

  void Run() override {
    if (Abandoned()) return;
    env_.cache->VerifyStep(cursor_, kVerifyBatchBlocks,
                           [weak = Weak(this)](const Cache::VerifyResult& step) {
                             if (const auto self = weak.lock()) self->OnStep(step);
                           });
  }

 private:
  void OnStep(const Cache::VerifyResult& step) {
    cursor_ = step.next_cursor;
    checked_ += step.checked;
    bad_ += step.bad;
    bytes_ += step.bytes;
    if (step.finished) {
      return Reply(Text({{"schema", "kvtier.verify/1"},
                         {"checked", checked_},
                         {"bad", bad_},
                         {"bytes", bytes_},
                         {"seconds", Seconds()}}));
    }
    // The cache must not be called from within its own callback.
    Later(0, [this] {
      if (ProgressIsDue()) ReportProgress();
      Run();
    });
  }

  void ReportProgress() {
    Progress(Text({{"done", checked_},
                   {"total", env_.cache->Gauges().disk_persisted},
                   {"bytes", bytes_},
                   {"rate", static_cast<double>(bytes_) / Seconds()}}));
  }

  uint64_t cursor_ = 0;
  uint64_t checked_ = 0;
  uint64_t bad_ = 0;
  uint64_t bytes_ = 0;
};

class Settle final : public AdminOperation {
 public:
  Settle(const AdminEnvironment& environment, std::shared_ptr<AdminCall> call, int64_t timeout_ms)
      : AdminOperation(environment, std::move(call)), timeout_ms_(timeout_ms) {}

  void Run() override {
    if (Abandoned()) return;
    const int64_t waited_ms = ElapsedMs();
    if (env_.cache->Idle()) {
      return Reply(Text({{"schema", "kvtier.settle/1"}, {"waited_ms", waited_ms}}));
    }
    if (waited_ms >= timeout_ms_) {
      return Fail({ErrorCode::kTimeout, "not_settled",
                   fmt::format("work is still under way after {} ms", waited_ms)});
    }
    if (ProgressIsDue()) Progress(Text({{"waited_ms", waited_ms}}));
    LaterUs(kSettlePollUs, [this] { Run(); });
  }

 private:
  const int64_t timeout_ms_;
};

// The reply waits until the evicted blocks cannot come back at a restart.
class Evict final : public AdminOperation {
 public:
  Evict(const AdminEnvironment& environment, std::shared_ptr<AdminCall> call,
        AdminRequestBody request)
      : AdminOperation(environment, std::move(call)), request_(std::move(request)) {}

  void Run() override {
    Result<std::string> reply = EvictBlocks(env_, request_);
    if (!reply) return Fail(reply.error());
    env_.cache->WhenEvictionsAreDurable(
        [weak = Weak(this), reply = *std::move(reply)](const Status& durable) {
          const auto self = weak.lock();
          if (!self) return;
          durable ? self->Reply(reply) : self->Fail(durable.error());
        });
  }

 private:
  const AdminRequestBody request_;
};

class Drain final : public AdminOperation {
 public:
  using AdminOperation::AdminOperation;

  void Run() override {
    total_ = Left();
    ReportForever();
    env_.cache->Drain([weak = Weak(this)] {
      if (const auto self = weak.lock()) self->OnDrained();
    });
  }

 private:
  [[nodiscard]] uint64_t Left() const { return env_.cache->Gauges().unpersisted_blocks; }

  void OnDrained() {
    Reply(Text({{"schema", "kvtier.drain/1"},
                {"blocks", total_},
                {"left", Left()},
                {"seconds", Seconds()}}));
  }

  void ReportForever() {
    Later(kAdminProgressMs, [this] {
      if (Abandoned()) return;
      const uint64_t left = Left();
      total_ = std::max(total_, left);
      Progress(Text({{"done", total_ - left}, {"total", total_}}));
      ReportForever();
    });
  }

  uint64_t total_ = 0;
};

}  // namespace

AdminOperations::AdminOperations(AdminEnvironment environment)
    : environment_(std::move(environment)) {}
AdminOperations::~AdminOperations() = default;

bool AdminOperations::AnswerAtOnce(const AdminRequestBody& request, AdminCall* call) {
  const auto answer = [call](const Result<std::string>& reply) {
    reply ? call->Reply(*reply) : call->Fail(reply.error());
    return true;
  };
  const std::string& op = request.op;
  if (op == "status") return answer(environment_.status());
  if (op == "stats") return answer(environment_.stats());
  if (op == "config") return answer(environment_.config());
  if (op == "config_defaults") return answer(environment_.default_config());
  if (op == "inspect") return answer(InspectBlock(environment_, request));
  if (op == "lookup") return answer(LookUpBlocks(environment_, request));
  if (op == "pin") return answer(PinBlocks(environment_, request));
  return false;
}

Result<std::shared_ptr<AdminOperation>> AdminOperations::MakeOperation(
    const AdminRequestBody& request, const std::shared_ptr<AdminCall>& call) {
  const std::string& op = request.op;
  if (op == "ls") return MakeListing(environment_, request, call);
  if (op == "trace") return MakeTraceListing(environment_, request, call);
  if (op == "verify") return std::make_shared<Verify>(environment_, call);
  if (op == "evict") return std::make_shared<Evict>(environment_, call, request);
  if (op == "drain") return std::make_shared<Drain>(environment_, call);
  if (op == "settle") return std::make_shared<Settle>(environment_, call, request.timeout_ms);
  return MakeError(ErrorCode::kInvalidArgument, "unknown_op",
                   fmt::format("\"{}\" is not one of status, stats, config, config_defaults, "
                               "inspect, lookup, pin, evict, ls, trace, verify, drain, settle",
                               op));
}

void AdminOperations::Start(std::string_view request_json, std::shared_ptr<AdminCall> call) {
  const Result<AdminRequestBody> request = ParseAdminRequest(request_json);
  if (!request) return call->Fail(request.error());
  if (AnswerAtOnce(*request, call.get())) return;
  std::erase_if(operations_, [](const auto& operation) { return operation->ended(); });
  auto operation = MakeOperation(*request, call);
  if (!operation) return call->Fail(operation.error());
  operations_.push_back(std::move(*operation));
  operations_.back()->Run();
}

}  // namespace kvtier
