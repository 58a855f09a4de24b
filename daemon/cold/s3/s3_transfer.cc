// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_transfer.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A list of a few hundred names, or a reason; a server that sends more is not listened to.
constexpr size_t kMostBodyBytes = size_t{1} << 20;
// One call of the system moves as much.
constexpr long kBufferBytes = 256L << 10;
constexpr long kConnectMs = 2000;

}  // namespace

// Redirects are not followed, so that no other host hears a signature or a token.
S3Transfer::S3Transfer(const S3Endpoint* endpoint)
    : endpoint_(*endpoint), handle_(::curl_easy_init()) {
  if (handle_ == nullptr) return;
  curl_easy_setopt(handle_, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(handle_, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle_, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(handle_, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(handle_, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(handle_, CURLOPT_NOSIGNAL, 1L);
  // A name server that hangs must not hold up the end.
  curl_easy_setopt(handle_, CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(handle_, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(handle_, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  curl_easy_setopt(handle_, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(handle_, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(handle_, CURLOPT_WRITEFUNCTION, &S3Transfer::OnBytes);
  curl_easy_setopt(handle_, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(handle_, CURLOPT_READFUNCTION, &S3Transfer::OnSend);
  curl_easy_setopt(handle_, CURLOPT_READDATA, this);
  curl_easy_setopt(handle_, CURLOPT_SEEKFUNCTION, &S3Transfer::OnSeek);
  curl_easy_setopt(handle_, CURLOPT_SEEKDATA, this);
  curl_easy_setopt(handle_, CURLOPT_PRIVATE, this);
  if (const char* const authorities = std::getenv("AWS_CA_BUNDLE")) {
    curl_easy_setopt(handle_, CURLOPT_CAINFO, authorities);
  }
}

S3Transfer::~S3Transfer() {
  if (handle_ != nullptr) ::curl_easy_cleanup(handle_);
  ::curl_slist_free_all(static_cast<curl_slist*>(headers_));
}

std::string_view S3Transfer::MethodOf(const S3Call& call) {
  switch (call.verb) {
    case S3Verb::kHead:
      return call.asks_why ? "GET" : "HEAD";
    case S3Verb::kGet:
      return "GET";
    case S3Verb::kPut:
      return "PUT";
    case S3Verb::kDelete:
      return "DELETE";
  }
  return {};
}

void S3Transfer::SetVerb() {
  curl_easy_setopt(handle_, CURLOPT_CUSTOMREQUEST, nullptr);
  curl_easy_setopt(handle_, CURLOPT_RANGE, call_.asks_why ? "0-0" : nullptr);
  if (call_.verb == S3Verb::kPut) {
    curl_easy_setopt(handle_, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(handle_, CURLOPT_INFILESIZE_LARGE,
                     static_cast<curl_off_t>(call_.payload.size()));
    return;
  }
  curl_easy_setopt(handle_, CURLOPT_HTTPGET, 1L);
  curl_easy_setopt(handle_, CURLOPT_NOBODY,
                   call_.verb == S3Verb::kHead && !call_.asks_why ? 1L : 0L);
  if (call_.verb == S3Verb::kDelete) curl_easy_setopt(handle_, CURLOPT_CUSTOMREQUEST, "DELETE");
}

void S3Transfer::Begin(S3Call call, const std::vector<std::string>& headers) {
  call_ = std::move(call);
  reply_ = {};
  sent_ = 0;
  is_too_long_ = false;
  const std::string url =
      endpoint_.origin + call_.path + (call_.query.empty() ? "" : '?' + call_.query);
  curl_easy_setopt(handle_, CURLOPT_URL, url.c_str());
  // No server is asked whether it wants the bytes, which would cost a round trip.
  curl_slist* lines = ::curl_slist_append(nullptr, "Expect:");
  for (const std::string& line : headers) lines = ::curl_slist_append(lines, line.c_str());
  curl_easy_setopt(handle_, CURLOPT_HTTPHEADER, lines);
  ::curl_slist_free_all(static_cast<curl_slist*>(std::exchange(headers_, lines)));
  SetVerb();
  const auto left = std::chrono::ceil<milliseconds>(call_.deadline - steady_clock::now());
  curl_easy_setopt(handle_, CURLOPT_TIMEOUT_MS, std::max<long>(left.count(), 1));
}

size_t S3Transfer::OnBytes(char* data, size_t /*one*/, size_t bytes, void* self) {
  return static_cast<S3Transfer*>(self)->Receive(std::as_bytes(std::span(data, bytes)));
}

// An object's bytes go where the call wants them, all else into the body. Taking less than all
// ends the connection.
size_t S3Transfer::Receive(std::span<const std::byte> part) {
  if (reply_.http == 0) {
    long status = 0;
    ::curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    reply_.http = status;
  }
  if (!call_.into.empty() && reply_.http / 100 == 2) {
    const size_t taken = std::min(part.size(), call_.into.size() - reply_.bytes);
    if (taken > 0) std::memcpy(call_.into.data() + reply_.bytes, part.data(), taken);
    reply_.bytes += taken;
    is_too_long_ = taken < part.size();
    return taken;
  }
  if (reply_.body.size() + part.size() > kMostBodyBytes) return 0;
  reply_.body.append(reinterpret_cast<const char*>(part.data()), part.size());
  return part.size();
}

size_t S3Transfer::OnSend(char* into, size_t /*one*/, size_t bytes, void* self) {
  auto* const transfer = static_cast<S3Transfer*>(self);
  const std::span<const std::byte> rest = transfer->call_.payload.subspan(transfer->sent_);
  const size_t count = std::min(bytes, rest.size());
  if (count > 0) std::memcpy(into, rest.data(), count);
  transfer->sent_ += count;
  return count;
}

// A connection that the server had closed is replaced, and the bytes are sent from their beginning,
// though it may have had all of them.
int S3Transfer::OnSeek(void* self, int64_t offset, int /*origin*/) {
  auto* const transfer = static_cast<S3Transfer*>(self);
  if (offset < 0 || static_cast<size_t>(offset) > transfer->call_.payload.size()) {
    return CURL_SEEKFUNC_FAIL;
  }
  transfer->call_.may_come |= transfer->WasSent();
  transfer->sent_ = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::string S3Transfer::HeaderOf(const char* name) const {
  curl_header* header = nullptr;
  const CURLHcode found = ::curl_easy_header(handle_, name, 0, CURLH_HEADER, -1, &header);
  return found == CURLHE_OK ? std::string(header->value) : std::string();
}

S3Verdict S3Transfer::End(int code) {
  const bool is_question = call_.verb == S3Verb::kHead;
  if (is_too_long_) return {.outcome = {.text = {}, .bytes = reply_.bytes}};
  if (code != CURLE_OK) {
    call_.may_come |= WasSent();
    const bool is_late = code == CURLE_OPERATION_TIMEDOUT && steady_clock::now() >= call_.deadline;
    return {.outcome = {.status = is_late ? KVT_COLD_LATE : KVT_COLD_UNAVAILABLE,
                        .text = ::curl_easy_strerror(static_cast<CURLcode>(code)),
                        .may_come = call_.may_come}};
  }
  long status = 0;
  ::curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
  reply_.http = status;
  if (status / 100 != 2) {
    reply_.region = HeaderOf("x-amz-bucket-region");
    reply_.server_s = ::curl_getdate(HeaderOf("date").c_str(), nullptr);
  }
  reply_.keeps_versions =
      call_.verb == S3Verb::kDelete && HeaderOf("x-amz-delete-marker") == "true";
  reply_.to_if_absent = call_.if_absent;
  // The one byte that was asked for to learn a reason is not data.
  if (is_question && status / 100 == 2) reply_.body.clear();
  S3Verdict verdict = JudgeS3Reply(reply_, is_question, std::time(nullptr));
  call_.may_come |= WasSent() && verdict.outcome.may_come;
  verdict.outcome.may_come = call_.may_come;
  return verdict;
}

}  // namespace kvtier
