// SPDX-License-Identifier: Apache-2.0
// Addresses of buckets, and the signatures of requests to them.
#include "daemon/cold/s3/s3_signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "daemon/config/s3_endpoint.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

TEST(S3Endpoint, SaysWhereABucketIs) {
  const auto aws = S3Endpoint::Parse("blocks?region=eu-west-1");
  ASSERT_TRUE(aws);
  EXPECT_EQ(aws->origin, "https://blocks.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(aws->PathOf("a/b c%"), "/a/b%20c%25");
  const auto ceph = S3Endpoint::Parse("blocks?endpoint=https://gw.example:443");
  ASSERT_TRUE(ceph);
  EXPECT_EQ(ceph->origin, "https://gw.example");
  EXPECT_EQ(ceph->PathOf("a"), "/blocks/a");
  const auto in_host = S3Endpoint::Parse("blocks?style=virtual&endpoint=http://gw.example:8080");
  ASSERT_TRUE(in_host);
  EXPECT_EQ(in_host->host, "blocks.gw.example:8080");
  EXPECT_EQ(in_host->PathOf("a"), "/a");
  EXPECT_EQ(S3Endpoint::Parse("b?endpoint=http://[::1]:9000")->host, "[::1]:9000");
}

TEST(S3Endpoint, IsNothingElse) {
  for (const char* const text :
       {"", "?region=x", "a/b", "a?region=", "a?region=x&y", "a?endpoint=gw.example",
        "a?endpoint=ftp://gw", "a?endpoint=http://", "a?endpoint=http://gw/path",
        "a?endpoint=http://user@gw", "a?endpoint=http://gw:0", "a?endpoint=http://gw:70000",
        "a?endpoint=http://gw:", "a?style=other", "a b", "a?endpoint=http://[::1"}) {
    EXPECT_FALSE(S3Endpoint::Parse(text)) << text;
  }
}

// Examples of AWS's documentation, "Signature Calculations for the Authorization Header".
TEST(S3Signer, SignsAsTheSpecificationsExamplesDo) {
  const S3Credentials credentials{.key_id = "AKIAIOSFODNN7EXAMPLE",
                                  .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                  .token = {}};
  constexpr std::time_t kTime = 1'369'353'600;  // 2013-05-24
  S3Signer signer("examplebucket.s3.amazonaws.com", "us-east-1");
  EXPECT_THAT(
      signer.Sign({.method = "GET", .path = "/", .query = "lifecycle="}, credentials, kTime).back(),
      HasSubstr("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  EXPECT_THAT(
      signer
          .Sign({.method = "GET", .path = "/", .query = "max-keys=2&prefix=J"}, credentials, kTime)
          .back(),
      HasSubstr("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

}  // namespace
}  // namespace kvtier
