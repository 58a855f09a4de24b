// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/daemon_status.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tools/support/admin.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

// A daemon that copies as fast as it can may be silent for so long.
constexpr int64_t kSilenceMs = 60'000;
// Memory that has ended before its size is never ready.
constexpr auto kGrowth = std::chrono::minutes(1);
constexpr auto kGrowthPoll = std::chrono::milliseconds(20);

}  // namespace

Result<boost::json::value> AskStatus(const std::string& admin_socket) {
  KVT_ASSIGN_OR_RETURN(const std::string text,
                       CallAdmin(admin_socket, R"({"op":"status"})", kSilenceMs));
  boost::json::error_code error;
  boost::json::value status = boost::json::parse(text, error);
  if (error) return MakeError(ErrorCode::kCorrupt, "bad_status", error.message());
  return status;
}

Status WaitForHostMemory(const std::string& admin_socket) {
  const auto until = std::chrono::steady_clock::now() + kGrowth;
  while (std::chrono::steady_clock::now() < until) {
    KVT_ASSIGN_OR_RETURN(const boost::json::value status, AskStatus(admin_socket));
    const JsonView host = JsonView(&status)["tiers"]["host"];
    if (host["ready_bytes"].Number() >= host["capacity_bytes"].Number()) break;
    std::this_thread::sleep_for(kGrowthPoll);
  }
  return {};
}

// The first number of a thread's schedstat is the time that it ran, in nanoseconds.
DaemonCpu CpuOf(pid_t pid) {
  DaemonCpu cpu;
  std::error_code error;
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    double ran_ns = 0;
    std::ifstream(thread.path() / "schedstat") >> ran_ns;
    cpu.all_seconds += ran_ns / 1e9;
    if (thread.path().filename() == std::to_string(pid)) cpu.loop_seconds = ran_ns / 1e9;
  }
  return cpu;
}

}  // namespace kvtier
