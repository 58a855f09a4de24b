// SPDX-License-Identifier: Apache-2.0
// The meaning of a server's answer. Pure: any bytes will do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/cold/cold_backend.h"

namespace kvtier {

// An answer as it was received.
struct S3Reply {
  int64_t http = 0;           // the status
  std::string body;           // of an error, or a list
  size_t bytes = 0;           // received where a get wants them
  std::string region;         // that the server names as the bucket's
  std::time_t server_s = -1;  // the time by the server's clock, if it says one
  bool keeps_versions = false;
  bool to_if_absent = false;  // to a put that was to replace nothing
};

// How a call ended: kvt_cold_status, and the call's data or the reason of an error.
struct S3Outcome {
  int status = KVT_COLD_OK;
  std::string text;
  size_t bytes = 0;
  bool may_come = false;  // a server that got all of a put's bytes may store them later
};

enum class S3Next : uint8_t {
  kEnd,
  kLater,             // the store has too much to do: it is to be asked less, and later
  kOtherCredentials,  // worth another try if there are other ones by now
  kAskWhy,            // the answer had no room for a reason: a get's has
  kPlainly,           // the server may not know a put's condition
};

struct S3Verdict {
  S3Outcome outcome;
  S3Next next = S3Next::kEnd;
};

// `is_question`: whether the object is there was asked, which is the first that a store hears of
// this host. A store that refuses this counts as away, and its reason is in the log.
[[nodiscard]] S3Verdict JudgeS3Reply(const S3Reply& reply, bool is_question, std::time_t now);

struct S3List {
  std::vector<std::string> names;
  bool has_more = false;
};
// Nothing if it is no list.
[[nodiscard]] std::optional<S3List> ReadS3List(std::string_view body);

}  // namespace kvtier
