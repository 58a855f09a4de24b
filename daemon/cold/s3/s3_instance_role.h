// SPDX-License-Identifier: Apache-2.0
// Credentials of the role that a machine of the cloud has: its metadata service gives them for some
// hours (IMDSv2,
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-v2-how-it-works.html).
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon/cold/s3/s3_signature.h"

namespace kvtier {

// A thread asks, so that a service that hangs holds up no other thread.
class S3InstanceRole {
 public:
  // The thread calls `take` with each credentials it gets: at the start, and again before they end.
  // AWS_EC2_METADATA_SERVICE_ENDPOINT names another service than http://169.254.169.254. It is
  // asked again no sooner than after `soonest`.
  explicit S3InstanceRole(std::function<void(S3Credentials)> take,
                          std::chrono::milliseconds soonest = std::chrono::seconds(10));
  // Returns when the thread has ended, a second at most after a request that hangs.
  ~S3InstanceRole();
  S3InstanceRole(const S3InstanceRole&) = delete;
  S3InstanceRole& operator=(const S3InstanceRole&) = delete;

 private:
  void Work();
  // Asks once. Returns the time until it is to be asked again.
  [[nodiscard]] std::chrono::milliseconds Renew();
  [[nodiscard]] std::optional<std::string> Ask(const std::string& path,
                                               const std::vector<std::string>& headers,
                                               bool is_put);
  [[nodiscard]] bool stopping();

  const std::function<void(S3Credentials)> take_;
  const std::chrono::milliseconds soonest_;
  const std::string origin_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;  // last
};

// The string that a JSON object has under `name`, without looking at its other parts; nothing if
// there is none, or if it is written with a backslash, which no credentials have.
[[nodiscard]] std::optional<std::string> StringInJson(std::string_view json, std::string_view name);

}  // namespace kvtier
