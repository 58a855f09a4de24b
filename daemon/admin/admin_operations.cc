// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/admin_operations.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <csignal>
#include <filesystem>
#include <optional>
#include <utility>

#include "daemon/admin/admin_request.h"
#include "daemon/config/config.h"
#include "daemon/config/config_schema.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/metrics/status_json.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/server.h"
#include "tiers/cache.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// Blocks that are read at once. After each batch it is checked whether the caller is still there,
// so that an interrupted command stops reading the disk soon.
constexpr uint32_t kVerifyBatchBlocks = 64;
// How often the cache is asked. The interval is short, because benchmarks that time an operation
// wait for it to settle, and their figures include it.
constexpr int64_t kSettlePollUs = 100;
// For the command to end and for systemd to go on with the signal, beyond drain.deadline.
constexpr int64_t kStopMarginMs = 10'000;

std::string Text(const json::object& document) { return json::serialize(document); }

// Reads all blocks on disk in batches, one batch at a time, so that clients' reads never wait
// behind more than that. Blocks that are written or evicted meanwhile may be left out.
class Verify final : public AdminOperation {
 public:
  // Verifies the disk, or the cold store if `disk` is null.
  Verify(const OperationBasics& basics, std::shared_ptr<AdminCall> call, DiskTier* disk)
      : AdminOperation(basics, std::move(call)), disk_(disk) {}

  void Run() override {
    if (Cancelled()) return;
    auto done = WhileAlive([this](const Cache::VerifyResult& step) { OnStep(step); });
    const auto of = disk_ == nullptr ? Cache::Verified::kCold : Cache::Verified::kDisk;
    cache_.VerifyStep(cursor_, kVerifyBatchBlocks, std::move(done), of);
  }

 private:
  void OnStep(const Cache::VerifyResult& step) {
    cursor_ = step.next_cursor;
    checked_ += step.checked;
    bad_ += step.bad;
    bytes_ += step.bytes;
    absent_ += step.absent;
    unread_ += step.unread;
    if (step.finished) return disk_ == nullptr ? End(std::nullopt) : FindGone();
    // The cache must not be called from within its own callback.
    Later(0, [this] {
      if (ProgressIsDue()) ReportProgress();
      Run();
    });
  }

  // A file that was deleted is read to the end, through its descriptor, and lost with the process.
  void FindGone() {
    disk_->FindGone(WhileAlive([this](const std::optional<std::filesystem::path>& gone) {
      if (!Cancelled()) End(gone);
    }));
  }

  void End(const std::optional<std::filesystem::path>& gone) {
    json::object reply{{"schema", "kvtier.verify/1"}, {"checked", checked_}, {"bad", bad_},
                       {"absent", absent_},           {"unread", unread_},   {"bytes", bytes_},
                       {"seconds", Seconds()}};
    if (gone) reply["gone"] = gone->native();
    Reply(Text(reply));
  }

  void ReportProgress() {
    Progress(Text({{"done", checked_},
                   {"total", disk_ == nullptr ? 0 : cache_.Gauges().disk_persisted},
                   {"bytes", bytes_},
                   {"rate", static_cast<double>(bytes_) / Seconds()}}));
  }

  uint64_t cursor_ = 0;
  uint64_t checked_ = 0;
  uint64_t bad_ = 0;
  uint64_t bytes_ = 0;
  uint64_t absent_ = 0;
  uint64_t unread_ = 0;
  DiskTier* const disk_;
};

// Polls, because the cache has no event for "nothing is under way".
class Settle final : public AdminOperation {
 public:
  Settle(const OperationBasics& basics, std::shared_ptr<AdminCall> call, int64_t timeout_ms)
      : AdminOperation(basics, std::move(call)), timeout_ms_(timeout_ms) {}

  void Run() override {
    if (Cancelled()) return;
    const int64_t waited_ms = ElapsedMs();
    if (cache_.Idle() && cache_.AdoptionEnded()) {
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

// The cache goes on writing after the caller has gone: that is of use to the next start.
class Drain final : public AdminOperation {
 public:
  Drain(const OperationBasics& basics, std::shared_ptr<AdminCall> call, int64_t deadline_ms)
      : AdminOperation(basics, std::move(call)), deadline_ms_(deadline_ms) {}

  void Run() override {
    total_ = Left();
    given_up_before_ = BlocksGivenUp(cache_.stats());
    if (deadline_ms_ == 0) return OnDrained();
    ReportForever();
    cache_.Drain(WhileAlive([this] { OnDrained(); }));
  }

 private:
  [[nodiscard]] uint64_t Left() const { return cache_.Gauges().drain_left; }

  // Blocks that the disk or the index refused are left as well, though none waits for them any
  // more.
  void OnDrained() {
    if (ended()) return;
    const uint64_t refused = BlocksGivenUp(cache_.stats()) - given_up_before_;
    Reply(Text({{"schema", "kvtier.drain/1"},
                {"blocks", std::max(total_, Left() + refused)},
                {"left", Left() + refused},
                {"seconds", Seconds()}}));
  }

  void ReportForever() {
    Later(std::clamp<int64_t>(deadline_ms_ - ElapsedMs(), 0, kAdminProgressMs), [this] {
      if (Cancelled()) return;
      if (ElapsedMs() >= deadline_ms_) return OnDrained();
      const uint64_t left = Left();
      // Blocks that clients commit during the drain add to the rest.
      total_ = std::max(total_, left);
      Progress(Text({{"done", total_ - left}, {"total", total_}}));
      ReportForever();
    });
  }

  const int64_t deadline_ms_;
  uint64_t total_ = 0;
  uint64_t given_up_before_ = 0;
};

// Ends the daemon as SIGTERM does. There is no reply: when all is written, the connection ends, and
// shortly afterwards the process does.
class Stop final : public AdminOperation {
 public:
  Stop(const OperationBasics& basics, DescriptorStore* descriptors, const Server* server,
       std::shared_ptr<AdminCall> call, bool release)
      : AdminOperation(basics, std::move(call)),
        descriptors_(*descriptors),
        server_(*server),
        release_(release) {}

  void Run() override {
    // At once and not at the end: a daemon that is killed while it drains leaves nothing either.
    if (release_) descriptors_.ReleaseAll();
    // A second signal would end the daemon without a drain.
    if (!server_.draining()) ::kill(::getpid(), SIGTERM);
    total_ = Left();
    ReportForever();
  }

 private:
  [[nodiscard]] uint64_t Left() const { return cache_.Gauges().drain_left; }

  void ReportForever() {
    if (Cancelled()) return;
    const uint64_t left = Left();
    total_ = std::max(total_, left);
    Progress(Text({{"pid", ::getpid()}, {"done", total_ - left}, {"total", total_}}));
    Later(kAdminProgressMs, [this] { ReportForever(); });
  }

  DescriptorStore& descriptors_;
  const Server& server_;
  const bool release_;
  uint64_t total_ = 0;
};

// Releases the memory that engines have left, or all that is kept.
std::string ReleaseMemory(KeptMemories* memories, bool all) {
  const wire::ReleaseMemoryReply reply = memories->ReleaseAll(all);
  return Text({{"schema", "kvtier.release_memory/1"},
               {"released", reply.released},
               {"bytes", reply.released_bytes}});
}

// The value as JSON: numbers and booleans as such, sizes and durations as the texts they are.
json::value ConfigValueJson(const ConfigKey& key, const Config& config) {
  const std::string text = FormatConfigValue(key, config);
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  return error ? json::value(text) : value;
}

}  // namespace

AdminOperations::AdminOperations(const Environment& environment) : env_(environment) {}
AdminOperations::~AdminOperations() = default;

bool AdminOperations::AnswerAtOnce(const AdminRequestBody& request, AdminCall* call) {
  const auto answer = [call](const Result<std::string>& reply) {
    reply ? call->Reply(*reply) : call->Fail(reply.error());
    return true;
  };
  const std::string& op = request.op;
  if (op == "status") return answer(StatusJson(*env_.metrics));
  if (op == "config") return answer(ConfigJson(*env_.config));
  if (op == "config_defaults") return answer(ConfigJson(Config{.tenants = {TenantConfig{}}}));
  if (op == "release_memory") return answer(ReleaseMemory(env_.kept_memories, request.all));
  return false;
}

Result<std::unique_ptr<AdminOperation>> AdminOperations::MakeOperation(
    const AdminRequestBody& request, const std::shared_ptr<AdminCall>& call) {
  const std::string& op = request.op;
  if (op == "ls") return MakeListing(env_.basics, env_.models, request, call);
  if (op == "inspect") return MakeInspection(env_.basics, env_.models, request, call);
  if (op == "pin") return MakePinning(env_.basics, env_.models, request, call);
  if (op == "evict") return MakeEviction(env_.basics, env_.models, request, call);
  if (op == "models") return MakeModelListing(env_.basics, env_.models, request, call);
  if (op == "forget") return MakeForgetting(env_.basics, env_.models, request, call);
  if (op == "trace") return MakeTraceListing(env_.basics, env_.trace, env_.server, request, call);
  if (op == "verify") return std::make_unique<Verify>(env_.basics, call, env_.disk);
  if (op == "verify_cold") {
    if (!env_.basics.cache->HasColdStore()) {
      return MakeError(ErrorCode::kUnsupported, "no_cold_tier", "no cold.endpoint is configured");
    }
    return std::make_unique<Verify>(env_.basics, call, nullptr);
  }
  if (op == "erase") return MakeErasure(env_.basics, env_.config, env_.log, request, call);
  if (op == "drain") return std::make_unique<Drain>(env_.basics, call, INT64_MAX);
  if (op == "drain_before_stop") {
    const int64_t deadline_ms = env_.config->drain.deadline_ms;
    env_.manager->Extend("Draining before the stop", deadline_ms + kStopMarginMs);
    return std::make_unique<Drain>(env_.basics, call, deadline_ms);
  }
  if (op == "stop")
    return std::make_unique<Stop>(env_.basics, env_.descriptors, env_.server, call,
                                  request.release);
  if (op == "settle") return std::make_unique<Settle>(env_.basics, call, request.timeout_ms);
  return MakeError(
      ErrorCode::kInvalidArgument, "unknown_op",
      fmt::format("\"{}\" is not one of status, config, config_defaults, "
                  "inspect, pin, release_memory, evict, models, forget, erase, ls, trace, "
                  "verify, drain, drain_before_stop, settle, stop",
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

std::string ConfigJson(const Config& config) {
  json::object document{{"schema", "kvtier.config/1"}};
  const auto section_of = [](const ConfigSection& section, const Config& values) {
    json::object keys;
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section == section.name) keys[key.name] = ConfigValueJson(key, values);
    }
    return keys;
  };
  for (const ConfigSection& section : ConfigSections()) {
    if (!section.repeated) {
      document[section.name] = section_of(section, config);
      continue;
    }
    json::array tenants;
    for (const TenantConfig& tenant : config.tenants) {
      // The schema's accessors look at the last tenant.
      Config only;
      only.tenants = {tenant};
      tenants.push_back(section_of(section, only));
    }
    document[section.name] = std::move(tenants);
  }
  return json::serialize(document);
}

}  // namespace kvtier
