// What can be asked on the admin socket.
//
//   {"op":"status"}                    all of status_json.h
//   {"op":"stats"}                     the counters alone
//   {"op":"config"}                    the configuration in effect
//   {"op":"verify"}                    reads every persisted block back and checks it
//   {"op":"drain"}                     writes what should survive a restart to disk
//   {"op":"settle","timeout_ms":60000} replies when nothing is under way
//
// The last three send progress at least every kAdminProgressMs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "daemon/admin_call.h"
#include "daemon/event_loop.h"
#include "tiers/cache.h"

namespace kvtier {

inline constexpr int64_t kAdminProgressMs = 250;
inline constexpr int64_t kDefaultSettleTimeoutMs = 60'000;
inline constexpr int64_t kMaxSettleTimeoutMs = 24 * 3600 * 1000;

// Borrowed; outlives the operations.
struct AdminEnvironment {
  EventLoop* loop = nullptr;
  const Clock* clock = nullptr;
  Cache* cache = nullptr;
  // The documents.
  std::function<std::string()> status;
  std::function<std::string()> stats;
  std::function<std::string()> config;
};

class AdminOperation;

class AdminOperations {
 public:
  explicit AdminOperations(AdminEnvironment environment);
  ~AdminOperations();
  AdminOperations(const AdminOperations&) = delete;
  AdminOperations& operator=(const AdminOperations&) = delete;

  // Errors, through the call: kInvalidArgument "bad_json", "bad_request", "unknown_op"; kTimeout
  // "not_settled".
  void Start(std::string_view request_json, std::shared_ptr<AdminCall> call);

 private:
  const AdminEnvironment environment_;
  // Those that have ended are forgotten when the next begins.
  std::vector<std::shared_ptr<AdminOperation>> operations_;
};

}  // namespace kvtier
