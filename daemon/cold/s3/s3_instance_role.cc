// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_instance_role.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>

#include "base/posix.h"

namespace kvtier {
namespace {

constexpr long kRoleConnectMs = 1000;
constexpr long kRoleAnswerMs = 2000;
constexpr size_t kMostRoleBytes = 16 << 10;
// Credentials are renewed so long before they end; new ones are there then.
constexpr std::chrono::seconds kRenewedBefore{300};
constexpr std::chrono::seconds kRenewedWithin{3600};
constexpr const char* kRolesPath = "/latest/meta-data/iam/security-credentials/";

std::string OriginOfService() {
  const char* const named = std::getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  std::string origin = named == nullptr ? "http://169.254.169.254" : named;
  while (origin.ends_with('/')) origin.pop_back();
  return origin;
}

size_t OnRoleBytes(char* data, size_t one, size_t bytes, void* into) {
  auto* const text = static_cast<std::string*>(into);
  if (text->size() + one * bytes > kMostRoleBytes) return 0;
  text->append(data, one * bytes);
  return one * bytes;
}

// "2026-01-31T12:00:00Z"; nothing for any other text.
std::optional<std::time_t> TimeOf(const std::string& text) {
  std::tm parts{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return ::timegm(&parts);
}

std::string_view WithoutSpace(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

}  // namespace

std::optional<std::string> StringInJson(std::string_view json, std::string_view name) {
  const std::string quoted = '"' + std::string(name) + '"';
  const size_t at = json.find(quoted);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = WithoutSpace(json.substr(at + quoted.size()));
  if (!rest.starts_with(':')) return std::nullopt;
  rest = WithoutSpace(rest.substr(1));
  if (!rest.starts_with('"')) return std::nullopt;
  const size_t end = rest.find_first_of("\"\\", 1);
  if (end == std::string_view::npos || rest[end] == '\\') return std::nullopt;
  return std::string(rest.substr(1, end - 1));
}

S3InstanceRole::S3InstanceRole(std::function<void(S3Credentials)> take,
                               std::chrono::milliseconds soonest)
    : take_(std::move(take)),
      soonest_(soonest),
      origin_(OriginOfService()),
      thread_([this] { Work(); }) {}

S3InstanceRole::~S3InstanceRole() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool S3InstanceRole::stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void S3InstanceRole::Work() {
  BlockAllSignals();
  while (!stopping()) {
    const std::chrono::milliseconds wait = Renew();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [this] { return stopping_; });
  }
}

// A service that fails leaves the last credentials, which may last for some hours.
std::chrono::milliseconds S3InstanceRole::Renew() {
  const std::optional<std::string> token =
      Ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds: 60"}, true);
  if (!token || token->find_first_of("\r\n") != std::string::npos) return soonest_;
  const std::vector<std::string> headers = {"X-aws-ec2-metadata-token: " + *token};
  std::optional<std::string> role = Ask(kRolesPath, headers, false);
  if (!role) return soonest_;
  role->resize(std::min(role->find_first_of("\r\n"), role->size()));  // of several the first
  const std::optional<std::string> answer = Ask(kRolesPath + *role, headers, false);
  if (!answer) return soonest_;
  const std::optional<std::time_t> end = TimeOf(StringInJson(*answer, "Expiration").value_or(""));
  if (!end) return soonest_;
  take_({.key_id = StringInJson(*answer, "AccessKeyId").value_or(""),
         .secret = StringInJson(*answer, "SecretAccessKey").value_or(""),
         .token = StringInJson(*answer, "Token").value_or("")});
  const std::chrono::seconds left(*end - std::time(nullptr));
  return std::clamp<std::chrono::milliseconds>(left - kRenewedBefore, soonest_, kRenewedWithin);
}

std::optional<std::string> S3InstanceRole::Ask(const std::string& path,
                                               const std::vector<std::string>& headers,
                                               bool is_put) {
  const std::unique_ptr<CURL, void (*)(CURL*)> handle(::curl_easy_init(), ::curl_easy_cleanup);
  if (handle == nullptr) return std::nullopt;
  curl_slist* lines = nullptr;
  for (const std::string& header : headers) lines = ::curl_slist_append(lines, header.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> owner(lines, ::curl_slist_free_all);
  std::string body;
  const auto on_progress = +[](void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<S3InstanceRole*>(self)->stopping() ? 1 : 0;
  };
  curl_easy_setopt(handle.get(), CURLOPT_URL, (origin_ + path).c_str());
  curl_easy_setopt(handle.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle.get(), CURLOPT_PROXY, "");  // a proxy would have its own machine's role
  curl_easy_setopt(handle.get(), CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(handle.get(), CURLOPT_NOSIGNAL, 1L);
  // A name server that hangs must not hold up the end.
  curl_easy_setopt(handle.get(), CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(handle.get(), CURLOPT_CONNECTTIMEOUT_MS, kRoleConnectMs);
  curl_easy_setopt(handle.get(), CURLOPT_TIMEOUT_MS, kRoleAnswerMs);
  curl_easy_setopt(handle.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(handle.get(), CURLOPT_HTTPHEADER, lines);
  if (is_put) curl_easy_setopt(handle.get(), CURLOPT_CUSTOMREQUEST, "PUT");
  curl_easy_setopt(handle.get(), CURLOPT_WRITEFUNCTION, &OnRoleBytes);
  curl_easy_setopt(handle.get(), CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(handle.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle.get(), CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(handle.get(), CURLOPT_XFERINFODATA, this);
  if (::curl_easy_perform(handle.get()) != CURLE_OK) return std::nullopt;
  return body;
}

}  // namespace kvtier
