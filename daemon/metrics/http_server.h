// SPDX-License-Identifier: Apache-2.0
// A small web server for status pages: GET only, a few connections, a thread of its own.
//
// Built on Boost.Beast, which stays inside http_server.cc.
//
// Its clients are scrapers and this machine's browsers, but a browser also runs scripts of other
// sites: of connections over loopback the Host header is checked, no response may be read across
// origins, and nothing can be changed through this server. Which pages other machines get is the
// handler's to decide.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/config/endpoints.h"

namespace kvtier {

// Each costs a descriptor, and clients of the cache need theirs more. One that comes beyond these
// takes the place of another: of the owners that have most of them, the one that has waited longest
// for its peer. So a process that opens many and says nothing, says it slowly or reads nothing
// takes the page from no other.
inline constexpr size_t kMaxHttpConnections = 16;

// The owner of connections from `address`, a literal: one process may have all addresses of
// loopback, and all of a network of IPv6 (/64).
[[nodiscard]] std::string HttpOwnerOf(const std::string& address);
// Which of the connections makes way. `owners` are theirs, in the order in which they began to
// wait. REQUIRES: there are some.
[[nodiscard]] size_t MostDispensable(const std::vector<std::string_view>& owners);

// How long the server waits for its peers.
struct HttpPatience {
  // For a request, from its first byte to the end of its header, and for the first of a connection.
  std::chrono::milliseconds header = std::chrono::seconds(5);
  // For the next request. A scraper keeps its connection from one scrape to the next, which are a
  // minute or two apart.
  std::chrono::milliseconds idle = std::chrono::seconds(150);
  // For more of a response to be taken.
  std::chrono::milliseconds write = std::chrono::seconds(10);
};

// Valid during the handler's call.
struct HttpRequest {
  std::string_view path;    // without the query
  std::string_view accept;  // the Accept header
  // Whether it came over loopback, and its Host header names this machine.
  bool from_this_machine = true;
};

struct HttpResponse {
  unsigned status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Owns its thread and all connections. Start and the destructor may be called from any thread but
// its own; it does not touch the event loop.
class HttpServer {
 public:
  // Called on the server's thread, one request at a time; may block for as long as a reader can
  // wait.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // Errors: kIoError, as of bind (for example EADDRINUSE), naming the address.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> Start(const ListenAddress& address,
                                                                 Handler handler,
                                                                 const HttpPatience& patience = {});
  // Waits for a handler that is running.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Where it listens, for example "http://127.0.0.1:9400/".
  [[nodiscard]] std::string Url() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier
