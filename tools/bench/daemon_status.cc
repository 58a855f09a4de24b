// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/daemon_status.h"

#include <boost/json.hpp>
#include <cstdint>

#include "tools/support/admin.h"

namespace kvtier {
namespace {

// Of a daemon that copies as fast as it can.
constexpr int64_t kSilenceMs = 60'000;

}  // namespace

Result<boost::json::value> AskStatus(const std::string& admin_socket) {
  KVT_ASSIGN_OR_RETURN(const std::string text,
                       CallAdmin(admin_socket, R"({"op":"status"})", kSilenceMs));
  boost::json::error_code error;
  boost::json::value status = boost::json::parse(text, error);
  if (error) return MakeError(ErrorCode::kCorrupt, "bad_status", error.message());
  return status;
}

}  // namespace kvtier
