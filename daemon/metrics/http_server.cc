// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/posix.h"

namespace kvtier {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// A longer header is no scraper's; it bounds what a connection can make the server keep.
constexpr uint32_t kMaxHeaderBytes = 16 * 1024;
// Enough for most headers.
constexpr size_t kFirstReadBytes = 1024;

// The browser loads nothing from elsewhere and sends nothing elsewhere, even if a name that a
// client chose found its way into the page as a script.
constexpr std::string_view kContentPolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src "
    "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// A socket that listens to both families shows addresses of the old one as parts of the new.
asio::ip::address Unmapped(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

// The peer's address, which cannot be forged, unlike a header; a peer that has gone has none.
asio::ip::address AddressOf(const tcp::socket& socket) {
  error_code error;
  return Unmapped(socket.remote_endpoint(error).address());
}

HttpResponse Answer(const http::request<http::empty_body>& request, bool over_loopback,
                    const HttpServer::Handler& handler) {
  const std::string_view host = request[http::field::host];
  // Against DNS rebinding: a page of another site whose name resolves to 127.0.0.1 has the site's
  // name in the Host header.
  if (over_loopback && !host.empty() && !IsLoopbackHost(host)) {
    return {.status = 403, .body = "This page is for 127.0.0.1 and localhost only.\n"};
  }
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    return {.status = 405, .body = "Only GET is served here.\n"};
  }
  const std::string_view target = request.target();
  return handler({.path = target.substr(0, target.find('?')),
                  .accept = request[http::field::accept],
                  .from_this_machine = over_loopback});
}

http::response<http::string_body> ToBeast(const http::request<http::empty_body>& request,
                                          HttpResponse answer) {
  http::response<http::string_body> response{static_cast<http::status>(answer.status),
                                             request.version()};
  response.set(http::field::content_type, answer.content_type);
  // Figures are out of date at once, and no intermediary should keep them.
  response.set(http::field::cache_control, "no-store");
  response.set("Content-Security-Policy", kContentPolicy);
  response.set("X-Content-Type-Options", "nosniff");
  if (answer.status == 405) response.set(http::field::allow, "GET, HEAD");
  response.keep_alive(request.keep_alive());
  const size_t length = answer.body.size();
  if (request.method() != http::verb::head) response.body() = std::move(answer.body);
  response.content_length(length);
  return response;
}

}  // namespace

std::string HttpOwnerOf(const std::string& text) {
  error_code error;
  const asio::ip::address address = Unmapped(asio::ip::make_address(text, error));
  if (address.is_loopback()) return "loopback";
  if (!address.is_v6()) return address.to_string();
  return asio::ip::make_network_v6(address.to_v6(), 64).canonical().to_string();
}

size_t MostDispensable(const std::vector<std::string_view>& owners) {
  std::map<std::string_view, size_t> counts;
  for (const std::string_view owner : owners) ++counts[owner];
  const auto most =
      std::ranges::max_element(owners, {}, [&](std::string_view owner) { return counts[owner]; });
  return static_cast<size_t>(most - owners.begin());
}

class HttpConnection;
// In the order in which they began to wait for their peers.
using HttpConnections = std::list<HttpConnection*>;

// One client. Lives as long as an operation of its socket is under way.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(tcp::socket socket, const HttpServer::Handler* handler,
                 const HttpPatience& patience, HttpConnections* all)
      : address_(AddressOf(socket)),
        owner_(HttpOwnerOf(address_.to_string())),
        stream_(std::move(socket)),
        handler_(*handler),
        patience_(patience),
        all_(*all),
        place_(all->insert(all->end(), this)) {}
  ~HttpConnection() { Leave(); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  [[nodiscard]] const std::string& owner() const { return owner_; }

  void Start() { ReadHeader(); }
  // Makes way for another. Its operation ends, and the connection with it, in a later event.
  void Close() {
    Leave();
    stream_.close();
  }

 private:
  void Await(std::chrono::milliseconds patience) {
    stream_.expires_after(patience);
    if (listed_) all_.splice(all_.end(), all_, place_);
  }
  void Leave() {
    if (std::exchange(listed_, false)) all_.erase(place_);
  }

  void ReadHeader() {
    Await(patience_.header);
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, size_t) {
                              if (!error) self->Write();
                            });
  }

  void AwaitNext() {
    if (buffer_.size() > 0) return ReadHeader();
    Await(patience_.idle);
    stream_.async_read_some(buffer_.prepare(kFirstReadBytes),
                            [self = shared_from_this()](error_code error, size_t bytes) {
                              if (error) return;
                              self->buffer_.commit(bytes);
                              self->ReadHeader();
                            });
  }

  void Write() {
    const auto& request = parser_->get();
    response_ = ToBeast(request, Answer(request, address_.is_loopback(), handler_));
    // A body is not read: what follows it would be taken for a request.
    if (!parser_->is_done()) response_.keep_alive(false);
    Await(patience_.write);
    http::async_write(stream_, response_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return;
      if (self->response_.keep_alive()) {
        self->AwaitNext();
      } else {
        error_code ignored;
        self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
      }
    });
  }

  const asio::ip::address address_;
  const std::string owner_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMaxHeaderBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> response_;
  const HttpServer::Handler& handler_;
  const HttpPatience patience_;
  HttpConnections& all_;
  const HttpConnections::iterator place_;
  bool listed_ = true;
};

class HttpServer::Impl {
 public:
  Impl(Handler handler, const HttpPatience& patience)
      : handler_(std::move(handler)), patience_(patience) {}
  ~Impl() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  // Binds before the thread starts, so that an address in use is an error of the daemon's start.
  Status Start(const ListenAddress& address) {
    const tcp::endpoint endpoint(asio::ip::make_address(address.host), address.port);
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return tl::unexpected(ErrnoError(
          ErrorCode::kIoError, error.value(),
          fmt::format("listening on {}:{} (metrics.listen)", address.host, address.port)));
    }
    Accept();
    thread_ = std::thread([this] { context_.run(); });
    return {};
  }

  [[nodiscard]] std::string Url() const {
    error_code ignored;
    const tcp::endpoint endpoint = acceptor_.local_endpoint(ignored);
    const std::string host = endpoint.address().to_string();
    if (endpoint.address().is_v6()) return fmt::format("http://[{}]:{}/", host, endpoint.port());
    return fmt::format("http://{}:{}/", host, endpoint.port());
  }

 private:
  void MakeWay() {
    std::vector<std::string_view> owners;
    for (const HttpConnection* each : connections_) owners.push_back(each->owner());
    (*std::next(connections_.begin(), static_cast<ptrdiff_t>(MostDispensable(owners))))->Close();
  }

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!error) {
        if (connections_.size() >= kMaxHttpConnections) MakeWay();
        std::make_shared<HttpConnection>(std::move(socket), &handler_, patience_, &connections_)
            ->Start();
      }
      // Most likely the process is out of descriptors. The pause keeps this thread from accepting
      // in a busy loop; only this server's clients wait for it.
      if (error) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      Accept();
    });
  }

  const Handler handler_;
  const HttpPatience patience_;
  HttpConnections connections_;
  asio::io_context context_{/*concurrency_hint=*/1};
  tcp::acceptor acceptor_{context_};
  std::thread thread_;
};

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const ListenAddress& address, Handler handler,
                                                      const HttpPatience& patience) {
  auto impl = std::make_unique<Impl>(std::move(handler), patience);
  KVT_RETURN_IF_ERROR(impl->Start(address));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
std::string HttpServer::Url() const { return impl_->Url(); }

}  // namespace kvtier
