// SPDX-License-Identifier: Apache-2.0
// Addresses at which the daemon listens: each key has its own.
#include <gtest/gtest.h>

#include <string>

#include "daemon/config/config_loader.h"

namespace kvtier {
namespace {

std::string ComplaintAbout(const std::string& text) {
  const Result<Config> config = ParseConfig(text, "test.toml", {});
  return config ? "" : config.error().context;
}

TEST(ConfigAddresses, OfTwoKeysAreRefused) {
  const std::string page = "[metrics]\nlisten = \"127.0.0.1:9400\"\n[events]\n";
  EXPECT_EQ(ComplaintAbout(page + "endpoint = \"tcp://127.0.0.1:9400\"\n"),
            "test.toml:4:12: metrics.listen and events.endpoint are one address; give one of them "
            "another");
  const std::string all = "[server]\nlisten_beyond_loopback = true\n" + page;
  for (const std::string& text :
       {std::string("[server]\nsocket = \"/a\"\nadmin_socket = \"/a\"\n"),
        std::string("[server]\nsocket = \"/a\"\n[events]\nendpoint = \"ipc:///x/../a\"\n"),
        std::string("[events]\nendpoint = \"ipc:///e\"\nreplay_endpoint = \"ipc:///e\"\n"),
        std::string("[events]\nendpoint = \"tcp://[::1]:5557\"\n"
                    "replay_endpoint = \"tcp://[0:0:0:0:0:0:0:1]:5557\"\n"),
        all + "endpoint = \"tcp://0.0.0.0:9400\"\n", all + "endpoint = \"tcp://[::]:9400\"\n"}) {
    EXPECT_NE(ComplaintAbout(text).find("are one address"), std::string::npos) << text;
  }
  for (const std::string& text :
       {page + "endpoint = \"tcp://127.0.0.1:9401\"\n", page + "endpoint = \"tcp://[::1]:9400\"\n",
        all + "endpoint = \"tcp://10.0.0.1:9400\"\n",
        // Any port that is free.
        std::string("[events]\nendpoint = \"tcp://127.0.0.1:0\"\n"
                    "replay_endpoint = \"tcp://127.0.0.1:0\"\n")}) {
    EXPECT_EQ(ComplaintAbout(text), "") << text;
  }
}

TEST(ConfigAddresses, OfAPathThatIsTooLongForTheKernelAreRefused) {
  const auto told = [](size_t bytes) {
    return ComplaintAbout("[events]\nendpoint = \"ipc:///" + std::string(bytes - 1, 'x') + "\"\n");
  };
  EXPECT_EQ(told(107), "");
  EXPECT_NE(told(108).find("a path of more than 107 bytes"), std::string::npos) << told(108);
}

}  // namespace
}  // namespace kvtier
