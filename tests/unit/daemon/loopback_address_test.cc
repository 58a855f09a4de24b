// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/loopback_address.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(LoopbackAddress, IsAnAddressOfThisMachineAndAPort) {
  const auto four = ParseLoopbackAddress("127.0.0.1:9400");
  ASSERT_TRUE(four) << four.error().ToString();
  EXPECT_EQ(four->host, "127.0.0.1");
  EXPECT_EQ(four->port, 9400);
  EXPECT_EQ(ParseLoopbackAddress("127.8.9.10:1")->host, "127.8.9.10");
  EXPECT_EQ(ParseLoopbackAddress("[::1]:65535")->host, "::1");
  EXPECT_EQ(ParseLoopbackAddress("127.0.0.1:0")->port, 0);
}

TEST(LoopbackAddress, NobodyElseMayBeListenedTo) {
  for (const char* text :
       {"0.0.0.0:9400", "192.168.1.2:9400", "[::]:9400", "128.0.0.1:9400", "[fe80::1]:9400",
        "localhost:9400", "example.org:9400", "127.0.0.1.example.org:9400"}) {
    const auto address = ParseLoopbackAddress(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().reason, "bad_listen");
    EXPECT_NE(address.error().context.find("this machine"), std::string::npos) << text;
  }
}

TEST(LoopbackAddress, MistakesAreExplained) {
  for (const char* text :
       {"", "127.0.0.1", "9400", ":9400", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:94x",
        "127.0.0.1:-1", "[::1]", "[::1:9400", "[::1]x9400", "127.0.0.1 :9400"}) {
    const auto address = ParseLoopbackAddress(text);
    ASSERT_FALSE(address) << text;
    EXPECT_NE(address.error().context.find("127.0.0.1:9400"), std::string::npos) << text;
  }
}

TEST(LoopbackAddress, HostHeadersOfOtherNamesAreToldApart) {
  for (const char* host :
       {"localhost", "localhost:9400", "127.0.0.1:9400", "[::1]:9400", "[::1]"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"", "example.org", "localhost.example.org:9400", "10.0.0.1", "[::2]:1",
                           "127.0.0.1.example.org"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

}  // namespace
}  // namespace kvtier
