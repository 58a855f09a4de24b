// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_credentials.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

#include "daemon/cold/reason_line.h"

namespace kvtier {
namespace {

// A header that is sent is one line, whatever a file has in it.
bool IsPrintable(std::string_view text) {
  for (const char c : text) {
    if (c < '!' || c > '~') return false;
  }
  return true;
}

std::optional<S3Credentials> Checked(S3Credentials credentials) {
  const bool good = !credentials.key_id.empty() && !credentials.secret.empty() &&
                    IsPrintable(credentials.key_id) && IsPrintable(credentials.secret) &&
                    IsPrintable(credentials.token);
  return good ? std::optional(std::move(credentials)) : std::nullopt;
}

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const size_t end = text.find_last_not_of(kSpace) + 1;
  return text.substr(begin, std::max(begin, end) - begin);
}

std::optional<S3Credentials> FromFile(const std::string& path) {
  std::ifstream file(path);
  S3Credentials credentials;
  bool is_ours = true;
  for (std::string line; std::getline(file, line);) {
    const std::string_view text = Trimmed(line);
    if (text.starts_with('[')) is_ours = text == "[default]";
    const size_t equals = text.find('=');
    if (!is_ours || text.starts_with('#') || equals == std::string_view::npos) continue;
    const std::string_view name = Trimmed(text.substr(0, equals));
    const std::string_view value = Trimmed(text.substr(equals + 1));
    if (name == "aws_access_key_id") credentials.key_id = value;
    if (name == "aws_secret_access_key") credentials.secret = value;
    if (name == "aws_session_token") credentials.token = value;
  }
  return Checked(std::move(credentials));
}

}  // namespace

S3CredentialSource::S3CredentialSource(std::string file, bool from_instance)
    : file_(from_instance ? std::string() : std::move(file)) {
  if (from_instance) {
    role_ = std::make_unique<S3InstanceRole>([this](S3Credentials got) {
      std::optional<S3Credentials> checked = Checked(std::move(got));
      const std::lock_guard lock(mutex_);
      if (checked) credentials_ = std::move(checked);
    });
    return;
  }
  if (!file_.empty()) return;
  credentials_ = Checked({.key_id = FromEnvironment("AWS_ACCESS_KEY_ID"),
                          .secret = FromEnvironment("AWS_SECRET_ACCESS_KEY"),
                          .token = FromEnvironment("AWS_SESSION_TOKEN")});
}

// A file that was half written when it was read has another version once it is whole.
std::optional<S3Credentials> S3CredentialSource::Current() {
  const std::lock_guard lock(mutex_);
  struct stat now {};
  if (file_.empty() || ::stat(file_.c_str(), &now) != 0) return credentials_;
  const Version version{.device = now.st_dev,
                        .number = now.st_ino,
                        .bytes = now.st_size,
                        .changed_s = now.st_mtim.tv_sec,
                        .changed_ns = now.st_mtim.tv_nsec};
  if (version == version_) return credentials_;
  version_ = version;
  if (std::optional<S3Credentials> read = FromFile(file_)) credentials_ = std::move(read);
  return credentials_;
}

std::string S3CredentialSource::Missing() const {
  constexpr const char* kNone = " has no credentials";
  if (!file_.empty()) return ReasonLine(file_ + kNone);
  return (role_ ? "the instance's role" : "the environment") + std::string(kNone);
}

}  // namespace kvtier
