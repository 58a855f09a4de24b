// SPDX-License-Identifier: Apache-2.0
// Where a bucket is, and how its objects are named in requests.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvtier {

// Each byte that is none of A-Z a-z 0-9 - . _ ~ as %XX, which is how signatures want it.
[[nodiscard]] std::string S3Encoded(std::string_view text, bool keeps_slashes);
// The bytes that a server's list of names stands for; nothing if it is not encoded well.
[[nodiscard]] std::optional<std::string> S3Decoded(std::string_view text);

struct S3Endpoint {
  std::string origin;     // "https://HOST" or "http://HOST:PORT"
  std::string host;       // as the request's header has it
  std::string base_path;  // "/BUCKET" where the host's name does not say it
  std::string region;
  bool uses_instance_role = false;

  // "BUCKET?region=REGION&endpoint=URL&style=path|virtual&credentials=instance", each part behind
  // the ? or none. Without an endpoint it is that of AWS for the region, and the bucket is part of
  // the host's name; with one it is part of the path, unless the style says otherwise. Nothing if
  // it is none of these.
  [[nodiscard]] static std::optional<S3Endpoint> Parse(std::string_view text);

  // The encoded path of an object, or of the bucket.
  [[nodiscard]] std::string PathOf(std::string_view name) const {
    return base_path + '/' + S3Encoded(name, true);
  }
};

}  // namespace kvtier
