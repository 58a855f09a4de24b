// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_answer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/cold/reason_line.h"
#include "daemon/config/s3_endpoint.h"

namespace kvtier {
namespace {

// Servers allow for a quarter of an hour.
constexpr std::time_t kMostSkewS = 900;
// Insufficient storage, MinIO's answer to writes.
constexpr int64_t kFull = 507;

// The text of the first such element, without those within it.
std::string_view ElementOf(std::string_view body, const std::string& name) {
  const std::string open = '<' + name + '>';
  const size_t at = body.find(open);
  if (at == std::string_view::npos) return {};
  body.remove_prefix(at + open.size());
  return body.substr(0, std::min(body.find('<'), body.size()));
}

std::string ReasonOf(const S3Reply& reply) {
  std::string reason = "HTTP " + std::to_string(reply.http);
  for (const char* const name : {"Code", "Message"}) {
    const std::string_view part = ElementOf(reply.body, name);
    if (!part.empty()) reason.append(name[0] == 'C' ? " " : ": ").append(part);
  }
  return reason;
}

std::string SkewOf(std::time_t ahead_s) {
  return ", for this host's clock is " + std::to_string(std::abs(ahead_s)) + " s " +
         (ahead_s > 0 ? "ahead of" : "behind") + " the store's";
}

bool IsOneOf(std::string_view code, const auto& codes) {
  return std::ranges::find(codes, code) != codes.end();
}

// The first digit of the status, and codes that count more than it does.
S3Verdict JudgeError(const S3Reply& reply, bool is_question, std::time_t now) {
  constexpr std::array<std::string_view, 2> kBusy = {"SlowDown", "ServiceUnavailable"};
  constexpr std::array<std::string_view, 6> kCredentials = {
      "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired",
      "InvalidToken", "InvalidAccessKeyId",    "SignatureDoesNotMatch"};
  const std::string_view code = ElementOf(reply.body, "Code");
  S3Verdict verdict{.outcome = {.status = KVT_COLD_UNAVAILABLE, .text = ReasonOf(reply)}};
  std::string& text = verdict.outcome.text;
  const bool is_skewed =
      reply.server_s >= 0 && std::abs(now - reply.server_s) > kMostSkewS && reply.http == 403;
  if (reply.http == 429 || reply.http == 503 || IsOneOf(code, kBusy)) {
    verdict.next = S3Next::kLater;
  } else if (is_skewed || code == "RequestTimeTooSkewed") {
    if (reply.server_s >= 0) text += SkewOf(now - reply.server_s);
  } else if (IsOneOf(code, kCredentials)) {
    verdict.next = S3Next::kOtherCredentials;
  } else if (reply.http / 100 == 3 || code == "AuthorizationHeaderMalformed") {
    const std::string_view element = ElementOf(reply.body, "Region");
    const std::string_view region = reply.region.empty() ? element : reply.region;
    text += "; the bucket is elsewhere";
    if (!region.empty()) text.append(", in region ").append(region);
    text += ": redirects are not followed, name its region and endpoint";
  } else if ((reply.http / 100 != 5 || reply.http == kFull) && !is_question) {
    verdict.outcome.status = KVT_COLD_REFUSED;
  }
  text = ReasonLine(text);
  return verdict;
}

}  // namespace

S3Verdict JudgeS3Reply(const S3Reply& reply, bool is_question, std::time_t now) {
  if (reply.http / 100 == 2 && reply.keeps_versions) {
    return {.outcome = {.status = KVT_COLD_REFUSED,
                        .text = "the bucket keeps versions of deleted objects"}};
  }
  if (reply.http / 100 == 2) return {.outcome = {.text = reply.body, .bytes = reply.bytes}};
  // Another host has written it.
  if (reply.http == 412 && reply.to_if_absent) return {};
  // An object of no bytes has no first one.
  if (reply.http == 416) return {};
  if (reply.http == 404 && ElementOf(reply.body, "Code") != "NoSuchBucket") {
    return {.outcome = {.status = KVT_COLD_ABSENT, .text = {}}};
  }
  S3Verdict verdict = JudgeError(reply, is_question, now);
  const bool is_refusal = reply.http == 400 || reply.http == 501;
  if (reply.to_if_absent && is_refusal && verdict.next == S3Next::kEnd) {
    verdict.next = S3Next::kPlainly;
  }
  // A gateway may have passed the put on before it gave up.
  const bool is_failure = reply.http / 100 == 5 && verdict.next == S3Next::kEnd &&
                          verdict.outcome.status == KVT_COLD_UNAVAILABLE;
  verdict.outcome.may_come = is_failure || ElementOf(reply.body, "Code").empty();
  if (is_question && reply.body.empty() && reply.http / 100 != 5 && verdict.next == S3Next::kEnd) {
    verdict.next = S3Next::kAskWhy;
  }
  return verdict;
}

std::optional<S3List> ReadS3List(std::string_view body) {
  const std::string_view more = ElementOf(body, "IsTruncated");
  if (more != "true" && more != "false") return std::nullopt;
  const bool is_encoded = ElementOf(body, "EncodingType") == "url";
  S3List list{.names = {}, .has_more = more == "true"};
  constexpr std::string_view kOpen = "<Key>";
  for (size_t at = body.find(kOpen); at != std::string_view::npos; at = body.find(kOpen)) {
    body.remove_prefix(at + kOpen.size());
    const std::string_view text = body.substr(0, std::min(body.find('<'), body.size()));
    const std::optional<std::string> name = is_encoded ? S3Decoded(text) : std::string(text);
    if (!name || name->empty()) return std::nullopt;
    list.names.push_back(*name);
  }
  return list;
}

}  // namespace kvtier
