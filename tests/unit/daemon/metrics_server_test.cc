// SPDX-License-Identifier: Apache-2.0
// The web pages when the event loop is well, and when it hangs.
#include "daemon/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <chrono>
#include <future>
#include <thread>

#include "tests/fakes/http_get.h"

namespace kvtier {
namespace {

class MetricsServerTest : public testing::Test {
 protected:
  void SetUp() override { Start({.listen = "127.0.0.1:0"}); }
  void Start(const MetricsConfig& config) {
    auto server = MetricsServer::Start(config, &loop_, &lag_, [this] {
      MetricsSnapshot snapshot;
      snapshot.stats.acquires = ++snapshots_;
      snapshot.taken_in_us = taken_in_us_;
      return snapshot;
    });
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
  }
  void TearDown() override {
    server_.reset();
    loop_.Stop();
    if (thread_.joinable()) thread_.join();
  }
  void RunLoop() {
    thread_ = std::thread([this] { loop_.Run(); });
  }
  HttpReply Get(const std::string& path) { return HttpGet(server_->Url() + path); }

  // The value of an unlabelled sample, or -1.
  static double ValueOf(const std::string& page, const std::string& name) {
    const size_t at = page.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(page.substr(at + name.size() + 2));
  }

  EventLoop loop_;
  LoopLag lag_;
  uint64_t snapshots_ = 0;
  int64_t taken_in_us_ = 0;
  std::unique_ptr<MetricsServer> server_;
  std::thread thread_;
};

TEST_F(MetricsServerTest, EachScrapeSeesTheCountersOfItsMoment) {
  RunLoop();
  EXPECT_EQ(ValueOf(Get("metrics").body, "kvtier_acquires_total"), 1);
  EXPECT_EQ(ValueOf(Get("metrics").body, "kvtier_acquires_total"), 2);
}

// Any local user may ask without pause, and each snapshot takes the loop's time from clients.
TEST_F(MetricsServerTest, SnapshotsLeaveNineTenthsOfTheLoopsTimeToClients) {
  taken_in_us_ = 20'000;
  RunLoop();
  EXPECT_EQ(Get("metrics").status, 200u);
  const auto first = std::chrono::steady_clock::now();
  EXPECT_EQ(ValueOf(Get("metrics").body, "kvtier_acquires_total"), 2) << "of its moment";
  EXPECT_EQ(ValueOf(Get("metrics").body, "kvtier_acquires_total"), 3);
  EXPECT_GE(std::chrono::steady_clock::now() - first, std::chrono::milliseconds(300));
}

// An address of this machine that is not loopback: what comes from there could be another
// machine's.
std::string OuterAddress() {
  std::string found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN];
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text));
    if (!std::string_view(text).starts_with("127.")) found = text;
  }
  ::freeifaddrs(all);
  return found;
}

TEST_F(MetricsServerTest, OtherMachinesGetTheMetricsAndNothingElse) {
  const std::string outer = OuterAddress();
  if (outer.empty()) GTEST_SKIP() << "this machine has no other address";
  server_.reset();
  Start({.listen = "0.0.0.0:0"});
  RunLoop();
  const std::string port = server_->Url().substr(server_->Url().rfind(':') + 1);
  const auto status = [&](const std::string& host, const std::string& page,
                          const std::string& named) {
    return HttpGet("http://" + host + ":" + port + page, {{"Host", named}}).status;
  };
  EXPECT_EQ(status(outer, "metrics", "gpu-17.example"), 200u);
  EXPECT_EQ(status(outer, "healthz", outer), 200u);
  // Whatever its client says of itself.
  for (const char* page : {"", "status.json", "nothing"}) {
    EXPECT_EQ(status(outer, page, "localhost"), 403u) << page;
  }
  EXPECT_EQ(status("127.0.0.1", "", "localhost"), 200u);
  EXPECT_EQ(status("127.0.0.1", "metrics", "rebound.example"), 403u);
}

TEST_F(MetricsServerTest, PagesHaveTheirTypes) {
  RunLoop();
  EXPECT_EQ(Get("").content_type, "text/html; charset=utf-8");
  EXPECT_EQ(Get("status.json").content_type, "application/json");
  EXPECT_EQ(Get("metrics").content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(HttpGet(server_->Url() + "metrics", {{"Accept", "application/openmetrics-text"}})
                .content_type,
            "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_EQ(Get("etc/passwd").status, 404u);
}

TEST_F(MetricsServerTest, LoopThatNeverAnsweredIsToldSo) {
  EXPECT_EQ(Get("metrics").status, 503u);
  EXPECT_EQ(Get("status.json").status, 503u);
  EXPECT_EQ(Get("").status, 200u) << "the page itself needs no loop";
}

TEST_F(MetricsServerTest, HealthIsWhetherTheLoopAnswers) {
  EXPECT_EQ(Get("healthz").status, 503u) << "the loop has not begun";
  RunLoop();
  const HttpReply reply = Get("healthz");
  EXPECT_EQ(reply.status, 200u);
  EXPECT_EQ(reply.body, "ok\n");
  std::promise<void> go_on;
  loop_.Post([&go_on] { go_on.get_future().wait(); });
  EXPECT_EQ(Get("healthz").status, 503u) << "old figures are no sign of life";
  go_on.set_value();
  // The server ends on the loop's thread or beside a loop that has nothing of it to run.
  EXPECT_EQ(Get("healthz").status, 200u);
}

TEST_F(MetricsServerTest, ProbesCostNoSnapshot) {
  RunLoop();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Get("healthz").status, 200u);
  EXPECT_EQ(ValueOf(Get("metrics").body, "kvtier_acquires_total"), 1) << "snapshots so far";
}

TEST_F(MetricsServerTest, LoopThatHangsShowsInOldFiguresAndItsSilence) {
  RunLoop();
  const auto before = std::chrono::steady_clock::now();
  loop_.Post([this] { lag_.ObserveTick(100); });
  const double silence = ValueOf(Get("metrics").body, "kvtier_loop_silence_seconds");
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - before;
  EXPECT_GE(silence, 0);
  EXPECT_LE(silence, since.count()) << "the loop has run an event meanwhile";
  std::promise<void> hang;
  loop_.Post([&hang] { hang.get_future().wait(); });
  const HttpReply reply = Get("metrics");
  EXPECT_EQ(reply.status, 200u);
  EXPECT_EQ(ValueOf(reply.body, "kvtier_acquires_total"), 1);
  EXPECT_GE(ValueOf(reply.body, "kvtier_loop_silence_seconds"), 1);
  hang.set_value();
  EXPECT_GE(ValueOf(Get("metrics").body, "kvtier_acquires_total"), 2);
}

TEST_F(MetricsServerTest, EndsWhileAScrapeWaitsForTheLoop) {
  // The loop never runs; the scrape must not keep the server from ending.
  const std::string url = server_->Url();
  std::thread scrape([&url] { (void)HttpGet(url + "metrics"); });
  server_.reset();
  scrape.join();
}

}  // namespace
}  // namespace kvtier
