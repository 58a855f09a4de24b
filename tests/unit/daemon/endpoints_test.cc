// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/endpoints.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(ListenAddress, IsAnAddressOfThisMachineAndAPort) {
  const auto four = ParseListenAddress("127.0.0.1:9400", false);
  ASSERT_TRUE(four) << four.error().ToString();
  EXPECT_EQ(four->host, "127.0.0.1");
  EXPECT_EQ(four->port, 9400);
  EXPECT_EQ(ParseListenAddress("127.8.9.10:1", false)->host, "127.8.9.10");
  EXPECT_EQ(ParseListenAddress("[::1]:65535", false)->host, "::1");
  EXPECT_EQ(ParseListenAddress("127.0.0.1:0", false)->port, 0);
}

TEST(ListenAddress, NobodyElseMayBeListenedTo) {
  for (const char* text :
       {"0.0.0.0:9400", "192.168.1.2:9400", "[::]:9400", "128.0.0.1:9400", "[fe80::1]:9400",
        "localhost:9400", "example.org:9400", "127.0.0.1.example.org:9400"}) {
    const auto address = ParseListenAddress(text, false);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().reason, "bad_listen");
    EXPECT_NE(address.error().context.find("this machine"), std::string::npos) << text;
  }
}

TEST(ListenAddress, MistakesAreExplained) {
  for (const char* text :
       {"", "127.0.0.1", "9400", ":9400", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:94x",
        "127.0.0.1:-1", "[::1]", "[::1:9400", "[::1]x9400", "127.0.0.1 :9400"}) {
    const auto address = ParseListenAddress(text, false);
    ASSERT_FALSE(address) << text;
    EXPECT_NE(address.error().context.find("127.0.0.1:9400"), std::string::npos) << text;
  }
}

TEST(ListenAddress, MayBeAnyWhereOtherMachinesMayAsk) {
  EXPECT_EQ(ParseListenAddress("0.0.0.0:9400", true)->host, "0.0.0.0");
  EXPECT_EQ(ParseListenAddress("[::]:9400", true)->host, "::");
  EXPECT_EQ(ParseListenAddress("192.168.1.2:9400", true)->port, 9400);
  EXPECT_EQ(ParseListenAddress("127.0.0.1:9400", true)->host, "127.0.0.1");
  for (const char* text : {"gpu-17:9400", "0.0.0.0", "0.0.0.0:x", "1.2.3:4"}) {
    EXPECT_FALSE(ParseListenAddress(text, true)) << text;
  }
  EXPECT_NE(ParseListenAddress("0.0.0.0:9400", false)
                .error()
                .context.find("server.listen_beyond_loopback"),
            std::string::npos);
}

TEST(EventEndpoint, IsAnAddressOfTcpOrAPath) {
  EXPECT_EQ(ParseEventEndpoint("ipc:///run/kvtier/events", false)->path, "/run/kvtier/events");
  const auto tcp = ParseEventEndpoint("tcp://[::1]:5557", false);
  ASSERT_TRUE(tcp) << tcp.error().ToString();
  EXPECT_EQ(tcp->path, "");
  EXPECT_EQ(tcp->address.host, "::1");
  EXPECT_EQ(tcp->address.port, 5557);
  EXPECT_EQ(ParseEventEndpoint("tcp://0.0.0.0:5557", true)->address.host, "0.0.0.0");
  for (const char* text : {"127.0.0.1:5557", "ipc://events", "ipc://", "inproc://x", "udp://x:1"}) {
    const auto endpoint = ParseEventEndpoint(text, true);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error().reason, "bad_endpoint");
  }
}

TEST(EventEndpoint, OtherMachinesMayNotSubscribeUnlessTheyAreLetIn) {
  for (const char* text : {"tcp://0.0.0.0:5557", "tcp://*:5557", "tcp://10.0.0.1:5557"}) {
    EXPECT_FALSE(ParseEventEndpoint(text, false)) << text;
  }
  EXPECT_NE(ParseEventEndpoint("tcp://0.0.0.0:5557", false)
                .error()
                .context.find("server.listen_beyond_loopback"),
            std::string::npos);
}

TEST(ColdEndpoint, IsAnAddressOrAPathWithAUserOrWithout) {
  EXPECT_EQ(ParseColdEndpoint("resp://10.0.0.7:6379")->address, "10.0.0.7:6379");
  EXPECT_EQ(ParseColdEndpoint("resp://10.0.0.7:6379")->user, "");
  const auto named = ParseColdEndpoint("resp://kvtier@[::1]:6379");
  ASSERT_TRUE(named) << named.error().ToString();
  EXPECT_EQ(named->user, "kvtier");
  EXPECT_EQ(named->address, "[::1]:6379");
  EXPECT_EQ(ParseColdEndpoint("resp:///run/a@b/redis.sock")->address, "/run/a@b/redis.sock");
  EXPECT_EQ(ParseColdEndpoint("resp://kvtier@/run/redis.sock")->user, "kvtier");
  for (const char* text : {"", "resp://", "resp://user@", "resp://@host:1", "resp://localhost",
                           "127.0.0.1:6379", "ftp://x"}) {
    const auto endpoint = ParseColdEndpoint(text);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error().reason, "cold_endpoint");
  }
}

TEST(ColdEndpoint, IsADirectoryWithABoundOrWithout) {
  const auto plain = ParseColdEndpoint("file:///mnt/shared/kvtier");
  ASSERT_TRUE(plain) << plain.error().ToString();
  EXPECT_EQ(plain->library, "kvtier-cold-files.so");
  EXPECT_EQ(plain->address, "/mnt/shared/kvtier");
  EXPECT_EQ(plain->max_bytes, 0u);
  EXPECT_EQ(ParseColdEndpoint("file:///mnt/a@b?max_bytes=2KiB")->address, "/mnt/a@b");
  EXPECT_EQ(ParseColdEndpoint("file:///mnt/a@b?max_bytes=2KiB")->max_bytes, 2048u);
  for (const char* text : {"file://", "file:///", "file://mnt/x", "file:///mnt?max_bytes=",
                           "file:///mnt?max_bytes=0B", "file:///mnt?max=1GiB", "file:///mnt?"}) {
    const auto endpoint = ParseColdEndpoint(text);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error().reason, "cold_endpoint");
  }
}

TEST(ColdEndpoint, IsABucketWithItsSettings) {
  const auto bucket = ParseColdEndpoint("s3://blocks?region=eu-west-1");
  ASSERT_TRUE(bucket) << bucket.error().ToString();
  EXPECT_EQ(bucket->library, "kvtier-cold-s3.so");
  EXPECT_EQ(bucket->address, "blocks?region=eu-west-1");
  EXPECT_FALSE(ParseColdEndpoint("s3://"));
  EXPECT_FALSE(ParseColdEndpoint("s3://blocks?endpoint=ftp://gw.example"));
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
