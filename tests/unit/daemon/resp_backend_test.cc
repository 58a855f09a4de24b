// SPDX-License-Identifier: Apache-2.0
// The library's table against a server that answers as the test says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/cold/cold_backend.h"
#include "tests/fakes/resp_server.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

constexpr int64_t kTimeoutMs = 60'000;
constexpr kvt_cold_name kName = {"kvtier/1/a/m/1", 14};

struct Told {
  int status = 0;
  std::string text;
};

class RespBackendTest : public testing::Test {
 protected:
  void Start(RespServer::Answer answer, const char* password = "") {
    server_ = std::make_unique<RespServer>(path_, std::move(answer));
    Open(password);
  }
  void Open(const char* password = "") {
    const kvt_cold_config config{.endpoint = path_.c_str(),
                                 .user = "",
                                 .password = password,
                                 .password_file = "",
                                 .max_bytes = 0};
    store_ = backend_.open(&config, &RespBackendTest::OnDone, this);
    ASSERT_NE(store_, nullptr);
  }
  void TearDown() override {
    if (store_ != nullptr) backend_.close(store_);
    server_.reset();
  }
  Told Exists() {
    return Call([this](uint64_t call) { backend_.exists(store_, call, &kName, 1, 0, kTimeoutMs); });
  }
  Told Get() {
    return Call(
        [this](uint64_t call) { backend_.get(store_, call, kName, into_.data(), 10, kTimeoutMs); });
  }
  Told Put() {
    return Call(
        [this](uint64_t call) { backend_.put(store_, call, kName, "x", 1, 60, 0, kTimeoutMs); });
  }
  Told Remove() {
    return Call([this](uint64_t call) { backend_.remove(store_, call, &kName, 1, kTimeoutMs); });
  }
  Told RemoveSome(uint64_t cursor = 0) {
    return Call([this, cursor](uint64_t call) {
      backend_.remove_some(store_, call, kName, cursor, kTimeoutMs);
    });
  }

  TestDirectory directory_;
  const std::string path_ = directory_.path().string() + "/server";
  std::unique_ptr<RespServer> server_;

 private:
  template <typename Begin>
  Told Call(const Begin& begin) {
    std::future<Told> end;
    uint64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      number = ++last_;
      end = ends_[number].get_future();
    }
    begin(number);
    return end.get();
  }
  static void OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes,
                     int /*more*/) {
    auto* const test = static_cast<RespBackendTest*>(context);
    Told told{.status = status, .text = {}};
    if (data != nullptr) told.text.assign(static_cast<const char*>(data), bytes);
    const std::lock_guard lock(test->mutex_);
    test->ends_.at(call).set_value(std::move(told));
  }

  const kvt_cold_backend& backend_ = *kvt_cold_backend_table(KVT_COLD_ABI);
  std::mutex mutex_;
  std::map<uint64_t, std::promise<Told>> ends_;
  uint64_t last_ = 0;
  std::string into_ = std::string(11, '\0');
  void* store_ = nullptr;
};

RespServer::Answer Always(const char* text) {
  return [text](std::string_view) { return std::string(text); };
}

TEST_F(RespBackendTest, AServerThatRefusesQuestionsIsUnavailableWithItsReason) {
  Start(Always("-NOPERM this user has no permissions to run the 'exists' command\r\n"));
  const Told told = Exists();
  EXPECT_EQ(told.status, KVT_COLD_UNAVAILABLE);
  EXPECT_THAT(told.text, HasSubstr("NOPERM this user has no permissions"));
}

TEST_F(RespBackendTest, ARefusedReadOrWriteHasItsReason) {
  Start(Always("-OOM command not allowed when used memory > 'maxmemory'.\r\n"));
  for (const Told& told : {Get(), Put(), Remove(), RemoveSome()}) {
    EXPECT_EQ(told.status, KVT_COLD_REFUSED);
    EXPECT_THAT(told.text, HasSubstr("OOM command not allowed"));
  }
}

TEST_F(RespBackendTest, AnAnswerOfAnotherKindIsAFailureWithAReason) {
  Start(Always("$1\r\nx\r\n"));
  EXPECT_EQ(Exists().status, KVT_COLD_UNAVAILABLE);
  for (const Told& told : {Remove(), RemoveSome()}) {
    EXPECT_EQ(told.status, KVT_COLD_REFUSED);
    EXPECT_THAT(told.text, HasSubstr("of another kind"));
  }
}

TEST_F(RespBackendTest, ARefusedPasswordIsTheReasonOfTheCallsThatItEnds) {
  Start(Always("-WRONGPASS invalid username-password pair or user is disabled.\r\n"), "secret");
  for (const Told& told : {Exists(), Get(), Put()}) {
    EXPECT_EQ(told.status, KVT_COLD_UNAVAILABLE);
    EXPECT_THAT(told.text, HasSubstr("AUTH was refused: WRONGPASS invalid"));
    EXPECT_THAT(told.text, testing::Not(HasSubstr("secret")));
  }
}

TEST_F(RespBackendTest, AReasonIsALineOfTheLog) {
  Start([](std::string_view) { return "-ERR \x1b[31mred " + std::string(10'000, 'x') + "\r\n"; });
  const Told told = Put();
  EXPECT_THAT(told.text, HasSubstr("ERR ?[31mred xxx"));
  EXPECT_LE(told.text.size(), 300u);
}

TEST_F(RespBackendTest, AServerThatIsNotThereIsToldAsSuch) {
  Open();
  const Told absent = Exists();
  EXPECT_EQ(absent.status, KVT_COLD_UNAVAILABLE);
  EXPECT_THAT(absent.text, HasSubstr("No such file"));
}

TEST_F(RespBackendTest, AConnectionThatEndsIsToldAsSuch) {
  Start([](std::string_view) { return std::string(); });
  EXPECT_THAT(Exists().text, HasSubstr("has ended the connection"));
}

// A server that knows no MATCH, or a proxy.
TEST_F(RespBackendTest, AListOfOthersObjectsGetsNoneDeleted) {
  std::string heard;
  Start([&heard](std::string_view received) {
    heard += received;
    return "*2\r\n$1\r\n0\r\n*2\r\n$15\r\nkvtier/1/a/m/11\r\n$14\r\nkvtier/1/b/m/1\r\n";
  });
  const Told told = RemoveSome();
  EXPECT_EQ(told.status, KVT_COLD_REFUSED);
  EXPECT_THAT(told.text, HasSubstr("list is not to be read"));
  EXPECT_THAT(heard, testing::Not(HasSubstr("UNLINK")));
}

TEST_F(RespBackendTest, AListThatComesNoFurtherFailsAnErasure) {
  Start(Always("*2\r\n$1\r\n7\r\n*0\r\n"));
  EXPECT_EQ(RemoveSome().status, KVT_COLD_OK);
  EXPECT_EQ(RemoveSome(7).status, KVT_COLD_REFUSED);
}

// The server may have got its bytes, and look at them when it likes.
TEST_F(RespBackendTest, AnErasureDoesNotEndWellWhileAPutThatWasGivenUpMayCome) {
  Start([](std::string_view received) {
    return received.find("SCAN") == received.npos ? "" : "*2\r\n$1\r\n0\r\n*0\r\n";
  });
  ASSERT_EQ(Put().status, KVT_COLD_UNAVAILABLE);
  EXPECT_EQ(RemoveSome().status, KVT_COLD_BUSY);
}

TEST_F(RespBackendTest, AnErasureDeletesAllBeforeItFailsForAPutThatMayCome) {
  std::string heard;
  Start([&heard](std::string_view received) -> std::string {
    heard += received;
    if (received.find("UNLINK") != received.npos) return ":1\r\n";
    if (received.find("SCAN") == received.npos) return "";
    const bool is_first = received.find("$1\r\n0\r\n") != received.npos;
    const char* const cursor = is_first ? "7" : "0";
    return std::string("*2\r\n$1\r\n") + cursor + "\r\n*1\r\n$15\r\nkvtier/1/a/m/1" + cursor +
           "\r\n";
  });
  ASSERT_EQ(Put().status, KVT_COLD_UNAVAILABLE);
  ASSERT_EQ(RemoveSome().status, KVT_COLD_OK);
  EXPECT_EQ(RemoveSome(7).status, KVT_COLD_BUSY);
  EXPECT_THAT(heard, testing::ContainsRegex("UNLINK.*kvtier/1/a/m/17"));
  EXPECT_THAT(heard, testing::ContainsRegex("UNLINK.*kvtier/1/a/m/10"));
}

TEST_F(RespBackendTest, AnErasureDoesNotWaitForAPutThatNoServerHas) {
  Open();
  ASSERT_EQ(Put().status, KVT_COLD_UNAVAILABLE);
  server_ = std::make_unique<RespServer>(path_, Always("*2\r\n$1\r\n0\r\n*0\r\n"));
  EXPECT_EQ(RemoveSome().status, KVT_COLD_OK);
}

}  // namespace
}  // namespace kvtier
