// SPDX-License-Identifier: Apache-2.0
// Where credentials come from: a file, which is read again when it has changed, the environment, or
// the machine's role.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "daemon/cold/s3/s3_instance_role.h"
#include "daemon/cold/s3/s3_signature.h"

namespace kvtier {

// Any thread.
class S3CredentialSource {
 public:
  // The file is as AWS's programs have it: `aws_access_key_id = ...` in lines, likewise
  // `aws_secret_access_key` and `aws_session_token`; of sections `[default]` counts. Without a file
  // the environment's AWS_ACCESS_KEY_ID and so on count, as they were at the start. Neither counts
  // if `from_instance`: the machine's role alone does.
  S3CredentialSource(std::string file, bool from_instance);

  // The credentials that count now, without waiting. A file that is away, or being written, leaves
  // the last good ones; nothing if there have never been any.
  [[nodiscard]] std::optional<S3Credentials> Current();
  // Says where there are none, as a line of the log.
  [[nodiscard]] std::string Missing() const;

 private:
  // Two files of which these are equal have the same bytes.
  struct Version {
    dev_t device = 0;
    ino_t number = 0;
    off_t bytes = -1;
    int64_t changed_s = 0, changed_ns = 0;
    [[nodiscard]] bool operator==(const Version&) const = default;
  };

  const std::string file_;
  std::mutex mutex_;  // guards what follows
  Version version_;
  std::optional<S3Credentials> credentials_;
  std::unique_ptr<S3InstanceRole> role_;  // last: its thread sets them
};

}  // namespace kvtier
