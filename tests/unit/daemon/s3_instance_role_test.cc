// SPDX-License-Identifier: Apache-2.0
// The role's credentials from a service that answers as the test says.
#include "daemon/cold/s3/s3_instance_role.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cold/s3/s3_credentials.h"
#include "tests/fakes/s3_server.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;

constexpr const char* kRolesUrl = "/latest/meta-data/iam/security-credentials/";
constexpr const char* kLongAhead = "2099-01-31T12:00:00Z";

std::string Answer(const std::string& key_id, const std::string& end) {
  return "{\n  \"Code\" : \"Success\",\n  \"AccessKeyId\" : \"" + key_id +
         "\",\n  \"SecretAccessKey\" : \"secret/+\",\n  \"Token\" : \"token==\",\n  "
         "\"Expiration\" : \"" +
         end + "\"\n}";
}

class S3InstanceRoleTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string origin = "http://127.0.0.1:" + std::to_string(service_.port());
    ::setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", origin.c_str(), 1);
    service_.TakeUnsigned();
    service_.Play([this](const S3ServerRequest& request) { return Play(request); });
  }
  void TearDown() override { ::unsetenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"); }

  // The next answers to a question for credentials; the last of them stays.
  void Say(std::vector<std::string> answers) {
    const std::lock_guard lock(mutex_);
    answers_ = std::move(answers);
  }
  // Returns when the service has been asked for credentials so many times.
  void WaitForQuestions(size_t count) {
    std::unique_lock lock(mutex_);
    asked_.wait(lock, [this, count] { return questions_ >= count; });
  }

  S3Server service_;

 private:
  std::optional<S3ServerReply> Play(const S3ServerRequest& request) {
    const std::lock_guard lock(mutex_);
    if (request.path == "/latest/api/token") {
      const bool good = request.method == "PUT" &&
                        request.headers.contains("x-aws-ec2-metadata-token-ttl-seconds");
      return good ? S3ServerReply{.body = "session-token"} : S3ServerReply{.status = 400};
    }
    const auto token = request.headers.find("x-aws-ec2-metadata-token");
    if (token == request.headers.end() || token->second != "session-token") {
      return S3ServerReply{.status = 401};
    }
    if (request.path == kRolesUrl) return S3ServerReply{.body = "reader\nother"};
    if (request.path != std::string(kRolesUrl) + "reader") return S3ServerReply{.status = 404};
    const S3ServerReply reply{.body = answers_.front()};
    if (answers_.size() > 1) answers_.erase(answers_.begin());
    ++questions_;
    asked_.notify_all();
    return reply;
  }

  std::mutex mutex_;
  std::condition_variable asked_;
  std::vector<std::string> answers_ = {Answer("AKIDROLE", kLongAhead)};
  size_t questions_ = 0;
};

TEST_F(S3InstanceRoleTest, TheMachinesRoleGivesCredentials) {
  std::promise<S3Credentials> taken;
  const S3InstanceRole role([&](S3Credentials got) { taken.set_value(std::move(got)); });
  const S3Credentials got = taken.get_future().get();
  EXPECT_EQ(got.key_id, "AKIDROLE");
  EXPECT_EQ(got.secret, "secret/+");
  EXPECT_EQ(got.token, "token==");
}

TEST_F(S3InstanceRoleTest, CredentialsThatEndSoonAreReplaced) {
  Say({Answer("AKIDFIRST", "2001-01-31T12:00:00Z"), Answer("AKIDNEXT", kLongAhead)});
  std::promise<void> replaced;
  std::vector<std::string> taken;
  const S3InstanceRole role(
      [&](const S3Credentials& got) {
        taken.push_back(got.key_id);
        if (taken.size() == 2) replaced.set_value();
      },
      milliseconds(1));
  replaced.get_future().wait();
  EXPECT_EQ(taken, (std::vector<std::string>{"AKIDFIRST", "AKIDNEXT"}));
}

TEST_F(S3InstanceRoleTest, AnswersThatAreNoCredentialsLeaveTheLastOnes) {
  Say({Answer("AKIDGOOD", "2001-01-31T12:00:00Z"), "{}", "", "{\"AccessKeyId\": \"x\"}",
       Answer("AKIDBAD", "tomorrow"), std::string(1 << 20, '{'), "{}"});
  std::promise<void> first;
  std::vector<std::string> taken;
  {
    const S3InstanceRole role(
        [&](const S3Credentials& got) {
          taken.push_back(got.key_id);
          if (taken.size() == 1) first.set_value();
        },
        milliseconds(1));
    WaitForQuestions(8);
  }
  EXPECT_EQ(taken, std::vector<std::string>{"AKIDGOOD"});
}

TEST_F(S3InstanceRoleTest, HeadersCannotBeMadeByTheService) {
  Say({Answer("AKID evil", "2001-01-31T12:00:00Z"), Answer("AKIDROLE", kLongAhead)});
  S3CredentialSource source("/nowhere", true);
  // The source asks a second time after ten seconds; until then it has none.
  WaitForQuestions(1);
  EXPECT_FALSE(source.Current());
}

TEST_F(S3InstanceRoleTest, AServiceThatHangsDoesNotHoldUpTheEnd) {
  service_.StandStill(true);
  {
    const S3InstanceRole role([](const S3Credentials&) { FAIL() << "nothing was answered"; });
  }
  service_.StandStill(false);
}

TEST(StringInJsonTest, ReadsStringsAloneAndOnlyWholeOnes) {
  EXPECT_EQ(StringInJson(R"({"a": "b"})", "a"), "b");
  EXPECT_EQ(StringInJson(R"({ "a"  :  "" })", "a"), "");
  for (const char* const text : {"", "{}", R"({"a")", R"({"a":)", R"({"a": 1})", R"({"a": "b)",
                                 R"({"a": "b\u0041"})", R"({"b": "a"})"}) {
    EXPECT_EQ(StringInJson(text, "a"), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace kvtier
