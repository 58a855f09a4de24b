// SPDX-License-Identifier: Apache-2.0
// The page for people, in a browser without a screen.
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "tests/fakes/http_get.h"
#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);

class LivePageTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    REQUIRE_PROGRAM("chromium-headless-shell");
  }
  // Loads the page and lets `seconds` pass in the browser's own time, waiting for no clock. The
  // page's final content is the output, its complaints on its console the errors.
  ProgramResult Browse(int seconds, int width = 390) {
    return RunProgram({"chromium-headless-shell", "--no-sandbox", "--disable-gpu",
                       "--enable-logging=stderr", "--window-size=" + std::to_string(width) + ",844",
                       "--user-data-dir=" + directory() + "/browser",
                       "--virtual-time-budget=" + std::to_string(seconds * 1000), "--dump-dom",
                       MetricsUrl()});
  }
  // Until the first interval of the history has ended.
  void WaitForHistory() {
    for (;;) {
      const HttpReply reply = HttpGet(MetricsUrl() + "status.json");
      ASSERT_EQ(reply.status, 200u);
      const boost::json::value status = boost::json::parse(reply.body);
      if (!status.at("history").at("blocks").as_array().empty()) return;
      std::this_thread::sleep_for(kPoll);
    }
  }
  static int UpdatesIn(const std::string& page) {
    static constexpr std::string_view kAttribute = "data-updates=\"";
    const size_t at = page.find(kAttribute);
    return at == std::string::npos ? -1 : std::stoi(page.substr(at + kAttribute.size()));
  }
};

TEST_F(LivePageTest, RendersUpdatesAndHasNothingToComplainAbout) {
  StartDaemon({}, {kMetricsSetting});
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  WaitForHistory();
  ASSERT_TRUE(client->Play(Prompt("a", 30)));
  ASSERT_TRUE(client->Play(Prompt("a", 30)));
  const size_t shown = [&] {
    for (;;) {
      const boost::json::value status =
          boost::json::parse(HttpGet(MetricsUrl() + "status.json").body);
      const auto& points = status.at("history").at("blocks").as_array();
      if (points.size() >= 2) return points.size();
      std::this_thread::sleep_for(kPoll);
    }
  }();
  EXPECT_GE(shown, 2u);

  const ProgramResult page = Browse(9);
  EXPECT_EQ(page.exit_code, 0) << page.errors;
  EXPECT_EQ(page.errors.find("CONSOLE"), std::string::npos) << page.errors;
  EXPECT_GE(UpdatesIn(page.output), 3) << page.output;
  for (const char* text : {">serving<", "kvtier-replay", "never seen, or forgotten", ">50.0 %<",
                           "<rect", "class=\"missed\"", "default"}) {
    EXPECT_NE(page.output.find(text), std::string::npos) << text << "\n" << page.output;
  }
}

TEST_F(LivePageTest, ShowsALineForEachOfSeveralDevices) {
  StartDaemon({}, {kMetricsSetting, R"(pool.device=["host", "host"])"});
  const ProgramResult page = Browse(3);
  EXPECT_EQ(page.errors.find("CONSOLE"), std::string::npos) << page.errors;
  for (const char* text : {"device 0: host memory", "device 1: host memory"}) {
    EXPECT_NE(page.output.find(text), std::string::npos) << text << "\n" << page.output;
  }
}

TEST_F(LivePageTest, CardsAreWideEnoughForTheirTablesAtAnyWidth) {
  StartDaemon({}, {kMetricsSetting});
  for (const auto& [width, columns] :
       std::map<int, int>{{390, 1}, {860, 1}, {1016, 2}, {1920, 2}}) {
    const ProgramResult page = Browse(3, width);
    const std::string expected = "data-columns=\"" + std::to_string(columns) + "\"";
    EXPECT_NE(page.output.find(expected), std::string::npos) << width << "\n" << page.output;
  }
}

TEST_F(LivePageTest, NamesItsMachine) {
  StartDaemon({}, {kMetricsSetting});
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  const ProgramResult page = Browse(3);
  EXPECT_NE(page.output.find("<title>" + std::string(name.data()) + " - kvtier"), std::string::npos)
      << page.output;
}

TEST_F(LivePageTest, SaysThatTheDaemonDoesNotAnswerAnyMore) {
  StartDaemon({}, {kMetricsSetting});
  const std::string page = HttpGet(MetricsUrl()).body;
  const std::string path = directory() + "/page.html";
  // The same page with no daemon behind it.
  std::ofstream(path) << page;
  const ProgramResult result =
      RunProgram({"chromium-headless-shell", "--no-sandbox", "--disable-gpu",
                  "--user-data-dir=" + directory() + "/browser", "--virtual-time-budget=3000",
                  "--dump-dom", "file://" + path});
  EXPECT_NE(result.output.find("what you see is old"), std::string::npos);
  EXPECT_NE(result.output.find("data-updates=\"0\""), std::string::npos);
}

}  // namespace
}  // namespace kvtier
