// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <span>

namespace kvtier {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::string_view kNoPayload =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";  // SHA-256 of no bytes
constexpr std::string_view kAnyPayload = "UNSIGNED-PAYLOAD";

std::string LowerHex(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) hex += {kDigits[byte >> 4], kDigits[byte & 15]};
  return hex;
}

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string HexOfHash(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash{};
  ::SHA256(Bytes(text), text.size(), hash.data());
  return LowerHex(hash);
}

// "20261129T031500Z".
std::string TimeText(std::time_t now) {
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 24> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc)};
}

}  // namespace

std::string_view S3Signer::Text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

S3Signer::Digest S3Signer::Mac(std::string_view key, std::string_view text) {
  Digest digest{};
  unsigned int bytes = 0;
  ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), Bytes(text), text.size(),
         digest.data(), &bytes);
  return digest;
}

const S3Signer::Digest& S3Signer::KeyOf(const std::string& secret, std::string_view day) {
  if (secret != secret_ || day != day_) {
    key_ = Mac("AWS4" + secret, day);
    for (const std::string_view part :
         {std::string_view(region_), std::string_view("s3"), std::string_view("aws4_request")}) {
      key_ = Mac(Text(key_), part);
    }
    secret_ = secret;
    day_ = day;
  }
  return key_;
}

std::vector<std::string> S3Signer::Sign(const S3Signed& request, const S3Credentials& credentials,
                                        std::time_t now) {
  const std::string time = TimeText(now);
  const std::string day = time.substr(0, 8);
  // In the order of their names, as they are signed.
  std::vector<std::pair<std::string, std::string>> headers = {
      {"host", host_},
      {"x-amz-content-sha256", std::string(request.has_payload ? kAnyPayload : kNoPayload)},
      {"x-amz-date", time}};
  if (!credentials.token.empty()) headers.emplace_back("x-amz-security-token", credentials.token);
  std::string canonical;
  for (const std::string_view part : {request.method, request.path, request.query}) {
    canonical.append(part).append("\n");
  }
  std::string names;
  std::vector<std::string> lines;
  for (const auto& [name, value] : headers) {
    canonical.append(name).append(":").append(value).append("\n");
    names.append(names.empty() ? "" : ";").append(name);
    lines.push_back(name + ": " + value);
  }
  canonical.append("\n").append(names).append("\n").append(headers[1].second);
  const std::string scope = day + '/' + region_ + "/s3/aws4_request";
  const std::string text =
      std::string(kAlgorithm) + '\n' + time + '\n' + scope + '\n' + HexOfHash(canonical);
  lines.push_back("authorization: " + std::string(kAlgorithm) +
                  " Credential=" + credentials.key_id + '/' + scope + ", SignedHeaders=" + names +
                  ", Signature=" + LowerHex(Mac(Text(KeyOf(credentials.secret, day)), text)));
  return lines;
}

}  // namespace kvtier
