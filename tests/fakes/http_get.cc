// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/http_get.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>

namespace kvtier {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

HttpReply HttpGet(const std::string& url, const HttpHeaders& headers, const std::string& method) {
  const size_t host_at = url.find("//") + 2;
  const size_t path_at = url.find('/', host_at);
  const std::string authority = url.substr(host_at, path_at - host_at);
  const size_t colon = authority.rfind(':');
  uint16_t port = 0;
  std::from_chars(authority.data() + colon + 1, authority.data() + authority.size(), port);

  asio::io_context context;
  boost::beast::tcp_stream stream(context);
  boost::system::error_code error;
  stream.connect(tcp::endpoint(asio::ip::make_address(authority.substr(0, colon), error), port),
                 error);
  if (error) return {};
  http::request<http::string_body> request;
  request.method_string(method);
  request.target(url.substr(path_at));
  request.version(11);
  request.set(http::field::host, authority);
  request.keep_alive(false);
  for (const auto& [name, value] : headers) request.set(name, value);
  http::write(stream, request, error);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  parser.skip(method == "HEAD");
  http::read(stream, buffer, parser, error);
  if (!parser.is_header_done()) return {};
  auto& response = parser.get();
  return {.status = response.result_int(),
          .content_type = std::string(response[http::field::content_type]),
          .body = std::move(response.body())};
}

}  // namespace kvtier
