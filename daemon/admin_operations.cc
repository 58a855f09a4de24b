#include "daemon/admin_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

namespace kvtier {
namespace {

namespace json = boost::json;

// Blocks read at once, and between two looks at whether the caller is still there.
constexpr uint32_t kVerifyBatchBlocks = 64;
constexpr int64_t kSettlePollMs = 2;

struct Request {
  std::string op;
  int64_t timeout_ms = kDefaultSettleTimeoutMs;
};

tl::unexpected<Error> BadRequest(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_request", std::move(context));
}

Result<Request> ParseRequest(std::string_view text) {
  json::parse_options options;
  options.max_depth = 4;
  boost::system::error_code error;
  const json::value document = json::parse(text, error, json::storage_ptr(), options);
  if (error) return MakeError(ErrorCode::kInvalidArgument, "bad_json", error.message());
  if (!document.is_object()) return BadRequest("the request must be an object");
  Request request;
  for (const auto& [key, value] : document.get_object()) {
    if (key == "op" && value.is_string()) {
      request.op = value.get_string();
    } else if (key == "timeout_ms" && value.is_int64()) {
      request.timeout_ms = value.get_int64();
    } else {
      return BadRequest(fmt::format("\"{}\" is unknown or of the wrong type", std::string(key)));
    }
  }
  if (request.timeout_ms < 0 || request.timeout_ms > kMaxSettleTimeoutMs) {
    return BadRequest(fmt::format("\"timeout_ms\" must be 0 to {}", kMaxSettleTimeoutMs));
  }
  return request;
}

}  // namespace

// An operation that takes its time. Owned by AdminOperations; callbacks of the cache hold it
// weakly.
class AdminOperation : public std::enable_shared_from_this<AdminOperation> {
 public:
  AdminOperation(const AdminEnvironment& environment, std::shared_ptr<AdminCall> call)
      : env_(environment),
        call_(std::move(call)),
        begun_ms_(env_.clock->MonotonicMs()),
        progress_ms_(begun_ms_),
        timer_(env_.loop) {}
  virtual ~AdminOperation() = default;
  virtual void Run() = 0;
  [[nodiscard]] bool ended() const { return ended_; }

 protected:
  void Reply(const json::object& reply) {
    ended_ = true;
    call_->Reply(json::serialize(reply));
  }
  void Fail(const Error& error) {
    ended_ = true;
    call_->Fail(error);
  }
  void Progress(const json::object& progress) { call_->Progress(json::serialize(progress)); }
  // Whether nobody waits for the reply any more; the operation is then over.
  [[nodiscard]] bool Abandoned() {
    ended_ |= call_->abandoned();
    return ended_;
  }
  [[nodiscard]] int64_t ElapsedMs() const { return env_.clock->MonotonicMs() - begun_ms_; }
  [[nodiscard]] double Seconds() const { return static_cast<double>(ElapsedMs()) / 1000; }
  [[nodiscard]] bool ProgressIsDue() {
    const int64_t now_ms = env_.clock->MonotonicMs();
    if (now_ms - progress_ms_ < kAdminProgressMs) return false;
    progress_ms_ = now_ms;
    return true;
  }
  // Runs `next` from a later event.
  void Later(int64_t delay_ms, std::function<void()> next) {
    timer_.Start(delay_ms, std::move(next));
  }
  template <typename Derived>
  [[nodiscard]] static std::weak_ptr<Derived> Weak(Derived* self) {
    return std::static_pointer_cast<Derived>(self->shared_from_this());
  }

  const AdminEnvironment& env_;

 private:
  const std::shared_ptr<AdminCall> call_;
  const int64_t begun_ms_;
  int64_t progress_ms_;
  bool ended_ = false;
  Timer timer_;
};

namespace {

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
      return Reply({{"schema", "kvtier.verify/1"},
                    {"checked", checked_},
                    {"bad", bad_},
                    {"bytes", bytes_},
                    {"seconds", Seconds()}});
    }
    // The cache must not be called from within its own callback.
    Later(0, [this] {
      if (ProgressIsDue()) ReportProgress();
      Run();
    });
  }

  void ReportProgress() {
    Progress({{"done", checked_},
              {"total", env_.cache->Gauges().disk_persisted},
              {"bytes", bytes_},
              {"rate", static_cast<double>(bytes_) / Seconds()}});
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
      return Reply({{"schema", "kvtier.settle/1"}, {"waited_ms", waited_ms}});
    }
    if (waited_ms >= timeout_ms_) {
      return Fail({ErrorCode::kTimeout, "not_settled",
                   fmt::format("work is still under way after {} ms", waited_ms)});
    }
    if (ProgressIsDue()) Progress({{"waited_ms", waited_ms}});
    Later(kSettlePollMs, [this] { Run(); });
  }

 private:
  const int64_t timeout_ms_;
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
    Reply({{"schema", "kvtier.drain/1"},
           {"blocks", total_},
           {"left", Left()},
           {"seconds", Seconds()}});
  }

  void ReportForever() {
    Later(kAdminProgressMs, [this] {
      if (Abandoned()) return;
      const uint64_t left = Left();
      total_ = std::max(total_, left);
      Progress({{"done", total_ - left}, {"total", total_}});
      ReportForever();
    });
  }

  uint64_t total_ = 0;
};

}  // namespace

AdminOperations::AdminOperations(AdminEnvironment environment)
    : environment_(std::move(environment)) {}
AdminOperations::~AdminOperations() = default;

void AdminOperations::Start(std::string_view request_json, std::shared_ptr<AdminCall> call) {
  const Result<Request> request = ParseRequest(request_json);
  if (!request) return call->Fail(request.error());
  const std::string& op = request->op;
  if (op == "status") return call->Reply(environment_.status());
  if (op == "stats") return call->Reply(environment_.stats());
  if (op == "config") return call->Reply(environment_.config());
  std::erase_if(operations_, [](const auto& operation) { return operation->ended(); });
  if (op == "verify") {
    operations_.push_back(std::make_shared<Verify>(environment_, std::move(call)));
  } else if (op == "drain") {
    operations_.push_back(std::make_shared<Drain>(environment_, std::move(call)));
  } else if (op == "settle") {
    operations_.push_back(
        std::make_shared<Settle>(environment_, std::move(call), request->timeout_ms));
  } else {
    return call->Fail(
        {ErrorCode::kInvalidArgument, "unknown_op",
         fmt::format("\"{}\" is not one of status, stats, config, verify, drain, settle", op)});
  }
  operations_.back()->Run();
}

}  // namespace kvtier
