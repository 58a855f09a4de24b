// SPDX-License-Identifier: Apache-2.0
// Signatures of requests, as AWS describes them under the name "Signature Version 4".
#pragma once

#include <array>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtier {

struct S3Credentials {
  std::string key_id;
  std::string secret;
  std::string token;  // empty: these have no end

  [[nodiscard]] bool operator==(const S3Credentials&) const = default;
};

struct S3Signed {
  std::string_view method;
  std::string_view path;   // encoded
  std::string_view query;  // encoded, its parameters in the order of their names
  bool has_payload = false;
};

// One thread. A key is derived once for each day and secret, so that a request costs some
// microseconds. A payload is not signed: its bytes would have to be hashed before the first is
// sent, TLS keeps them whole on their way, and blocks have a checksum of their own.
class S3Signer {
 public:
  S3Signer(std::string host, std::string region)
      : host_(std::move(host)), region_(std::move(region)) {}

  // The headers to be sent with the request, each a line.
  [[nodiscard]] std::vector<std::string> Sign(const S3Signed& request,
                                              const S3Credentials& credentials, std::time_t now);

 private:
  using Digest = std::array<unsigned char, 32>;
  [[nodiscard]] const Digest& KeyOf(const std::string& secret, std::string_view day);
  [[nodiscard]] static Digest Mac(std::string_view key, std::string_view text);
  [[nodiscard]] static std::string_view Text(const Digest& digest);

  const std::string host_;
  const std::string region_;
  // The key's origin, and the key.
  std::string secret_;
  std::string day_;
  Digest key_{};
};

}  // namespace kvtier
