// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/http_server.h"

#include <gtest/gtest.h>

#include "tests/fakes/http_get.h"

namespace kvtier {
namespace {

std::unique_ptr<HttpServer> Serve(HttpServer::Handler handler) {
  auto server = HttpServer::Start({.host = "127.0.0.1", .port = 0}, std::move(handler));
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
