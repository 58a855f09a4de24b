// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/posix.h"
#include "tests/fakes/http_get.h"

namespace kvtier {
namespace {

std::unique_ptr<HttpServer> Serve(HttpServer::Handler handler, const HttpPatience& patience = {}) {
  auto server = HttpServer::Start({.host = "127.0.0.1", .port = 0}, std::move(handler), patience);
  EXPECT_TRUE(server) << server.error().ToString();
  return std::move(*server);
}

HttpResponse Echo(const HttpRequest& request) {
  return {.body = std::string(request.path) + " " + std::string(request.accept)};
}

TEST(HttpServer, HandsPathAndAcceptHeaderToItsHandler) {
  const auto server = Serve(Echo);
  const HttpReply reply = HttpGet(server->Url() + "page?query=1", {{"Accept", "text/plain"}});
  EXPECT_EQ(reply.status, 200u);
  EXPECT_EQ(reply.body, "/page text/plain");
}

TEST(HttpServer, RefusesToWriteAnything) {
  const auto server = Serve(Echo);
  EXPECT_EQ(HttpGet(server->Url(), {}, "POST").status, 405u);
  EXPECT_EQ(HttpGet(server->Url(), {{"Content-Length", "1000000"}}, "PUT").status, 405u);
  EXPECT_EQ(HttpGet(server->Url(), {}, "DELETE").status, 405u);
}

TEST(HttpServer, HeadIsAGetWithoutItsBody) {
  const auto server = Serve(Echo);
  const HttpReply reply = HttpGet(server->Url(), {}, "HEAD");
  EXPECT_EQ(reply.status, 200u);
  EXPECT_EQ(reply.body, "");
}

// A name that an attacker has made to resolve to 127.0.0.1.
TEST(HttpServer, RefusesPagesOfOtherSites) {
  const auto server = Serve(Echo);
  EXPECT_EQ(HttpGet(server->Url(), {{"Host", "rebound.example"}}).status, 403u);
  EXPECT_EQ(HttpGet(server->Url(), {{"Host", "localhost:80"}}).status, 200u);
}

TEST(HttpServer, SurvivesHeadersWithoutEnd) {
  const auto server = Serve(Echo);
  HttpHeaders headers;
  for (int i = 0; i < 100; ++i)
    headers.emplace_back("X-" + std::to_string(i), std::string(1000, 'x'));
  EXPECT_EQ(HttpGet(server->Url(), headers).status, 0u);
  EXPECT_EQ(HttpGet(server->Url()).status, 200u);
}

// A client that sends byte by byte, as the test says.
class RawClient {
 public:
  // `from` is an address of this machine.
  explicit RawClient(const HttpServer& server, const std::string& from = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = Address(from, 0);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    const std::string url = server.Url();
    sockaddr_in its = Address("127.0.0.1", std::stoi(url.substr(url.rfind(':') + 1)));
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&its), sizeof(its)), 0);
  }
  void Send(std::string_view text) {
    EXPECT_EQ(::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Whether the server has closed it, without waiting; what there is to read is dropped.
  [[nodiscard]] bool IsClosed() {
    char bytes[4096];
    while (true) {
      const ssize_t got = ::recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got <= 0) return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
  }
  void WaitUntilClosed() {
    while (!IsClosed()) std::this_thread::yield();
  }
  // Waits for an answer; false if the server closes the connection without one.
  [[nodiscard]] bool IsAnswered() {
    char byte;
    return ::recv(socket_.get(), &byte, 1, 0) == 1;
  }

 private:
  static sockaddr_in Address(const std::string& host, int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(::inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1);
    return address;
  }

  UniqueFd socket_;
};

constexpr std::string_view kWholeRequest = "GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr std::string_view kHalfRequest = "GET /page HTTP/1.1\r\nHost: loc";

TEST(HttpServer, ConnectionsThatSayNothingOrHalfARequestOrReadNothingTakeThePageFromNoOther) {
  const auto server =
      Serve([](const HttpRequest&) { return HttpResponse{.body = std::string(8 << 20, 'x')}; });
  for (const std::string_view sent : {std::string_view(), kHalfRequest, kWholeRequest}) {
    std::vector<std::unique_ptr<RawClient>> held;
    for (size_t i = 0; i < 3 * kMaxHttpConnections; ++i) {
      held.push_back(std::make_unique<RawClient>(*server));
      held.back()->Send(sent);
      if (i % kMaxHttpConnections == 0) {
        EXPECT_EQ(HttpGet(server->Url()).status, 200u) << "after " << i << " of \"" << sent << '"';
      }
    }
    EXPECT_EQ(HttpGet(server->Url()).status, 200u);
    // The connections that waited longest have made way.
    held.front()->WaitUntilClosed();
  }
}

TEST(HttpServer, AnOwnerWithManyConnectionsTakesNoneFromAnotherAndAmongEqualsTheOldestGoes) {
  EXPECT_EQ(MostDispensable({"a", "b", "c", "b"}), 1u);
  EXPECT_EQ(MostDispensable({"c", "a", "b"}), 0u);
}

TEST(HttpServer, TheAddressesOfLoopbackAreOneOwnerWhoseOldestConnectionGoesFirst) {
  const auto server = Serve(Echo, {.header = std::chrono::hours(1)});
  std::vector<std::unique_ptr<RawClient>> many;
  for (size_t i = 0; i + 1 < kMaxHttpConnections; ++i) {
    many.push_back(std::make_unique<RawClient>(*server, "127.0.0." + std::to_string(i + 2)));
  }
  // It has the lowest address.
  RawClient scraper(*server);
  RawClient next(*server, "127.0.0.200");
  many.front()->WaitUntilClosed();
  scraper.Send(kWholeRequest);
  EXPECT_FALSE(scraper.IsClosed());
  EXPECT_FALSE(many[1]->IsClosed());
}

TEST(HttpServer, OwnersAreAddressesOfTheOldFamilyAndNetworksOfTheNew) {
  const auto owner = [](const char* text) { return HttpOwnerOf(text); };
  EXPECT_EQ(owner("127.0.0.1"), owner("127.9.9.9"));
  EXPECT_EQ(owner("127.0.0.1"), owner("::1"));
  EXPECT_EQ(owner("::ffff:192.0.2.1"), owner("192.0.2.1"));
  EXPECT_NE(owner("192.0.2.1"), owner("192.0.2.2"));
  EXPECT_EQ(owner("2001:db8:1:2::1"), owner("2001:db8:1:2:ffff::2"));
  EXPECT_NE(owner("2001:db8:1:2::1"), owner("2001:db8:1:3::1"));
}

TEST(HttpServer, ARequestIsWaitedForLessLongOnceItHasBegun) {
  const auto server = Serve(Echo, {.header = std::chrono::milliseconds(20)});
  RawClient silent(*server);
  silent.WaitUntilClosed();
  RawClient half(*server);
  half.Send(kHalfRequest);
  half.WaitUntilClosed();
  RawClient second(*server);
  second.Send(std::string(kWholeRequest) + std::string(kHalfRequest));
  second.WaitUntilClosed();
}

TEST(HttpServer, AScraperKeepsItsConnectionForLongerThanItMayTakeForARequest) {
  const auto server =
      Serve(Echo, {.header = std::chrono::milliseconds(300), .idle = std::chrono::hours(1)});
  std::optional<RawClient> scraper;
  // A busy machine may send too late.
  do {
    scraper.emplace(*server);
    scraper->Send(kWholeRequest);
  } while (!scraper->IsAnswered());
  RawClient silent(*server);
  silent.WaitUntilClosed();
  EXPECT_FALSE(scraper->IsClosed());
}

TEST(HttpServer, SaysWhichAddressIsTaken) {
  const auto server = Serve(Echo);
  const std::string url = server->Url();
  const size_t colon = url.rfind(':');
  const auto port = static_cast<uint16_t>(std::stoi(url.substr(colon + 1)));
  const auto second = HttpServer::Start({.host = "127.0.0.1", .port = port}, Echo);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().reason, "EADDRINUSE");
  EXPECT_NE(second.error().context.find("metrics.listen"), std::string::npos);
}

TEST(HttpServer, ListensOnTheOtherLoopbackToo) {
  auto server = HttpServer::Start({.host = "::1", .port = 0}, Echo);
  if (!server && server.error().reason == "EADDRNOTAVAIL") GTEST_SKIP() << "no IPv6 here";
  ASSERT_TRUE(server) << server.error().ToString();
  EXPECT_TRUE((*server)->Url().starts_with("http://[::1]:"));
}

}  // namespace
}  // namespace kvtier
