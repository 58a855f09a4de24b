// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/endpoints.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/units.h"
#include "daemon/config/resp_endpoint.h"
#include "daemon/config/s3_endpoint.h"

namespace kvtier {
namespace {

struct HostAndPort {
  std::string host;
  std::optional<std::string_view> port;
};

// Takes "host", "host:port", "[v6]" or "[v6]:port". Nothing if the brackets do not match or
// something else follows them. The parts themselves are not checked here.
std::optional<HostAndPort> Split(std::string_view text) {
  const size_t close = text.starts_with('[') ? text.find(']') : std::string_view::npos;
  if (text.starts_with('[') && close == std::string_view::npos) return std::nullopt;
  const size_t host_end = close == std::string_view::npos ? text.find(':') : close + 1;
  const std::string_view rest = host_end < text.size() ? text.substr(host_end) : "";
  const std::string_view host =
      close == std::string_view::npos ? text.substr(0, host_end) : text.substr(1, close - 1);
  if (rest.empty()) return HostAndPort{std::string(host), std::nullopt};
  if (rest.front() != ':') return std::nullopt;
  return HostAndPort{std::string(host), rest.substr(1)};
}

bool IsLiteral(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// An address of IPv4 as those of IPv6 that stand for them.
in6_addr InSix(const std::string& host) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, host.c_str(), &address) == 1) return address;
  (void)::inet_pton(AF_INET6, ("::ffff:" + host).c_str(), &address);
  return address;
}

// Listening there takes the port at `other`, too: "::" stands for all addresses of both kinds.
bool IsAnyBeside(const in6_addr& any, const in6_addr& other) {
  const in6_addr any_four = InSix("0.0.0.0");
  return IN6_IS_ADDR_UNSPECIFIED(&any) ||
         (IN6_ARE_ADDR_EQUAL(&any, &any_four) && IN6_IS_ADDR_V4MAPPED(&other));
}

// Names are refused, since what a name resolves to can change after the check.
bool IsLoopbackLiteral(const std::string& host) {
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{};
  return ::inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

}  // namespace

Result<ListenAddress> ParseListenAddress(std::string_view text, bool beyond_loopback) {
  const auto bad = [text](std::string_view why) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_listen",
                     fmt::format("\"{}\" {}; write for example \"127.0.0.1:9400\" or "
                                 "\"[::1]:9400\"",
                                 text, why));
  };
  const std::optional<HostAndPort> parts = Split(text);
  if (!parts || !parts->port) return bad("is not an address and a port");
  if (!IsLiteral(parts->host)) {
    return bad("is not an address of this machine in figures: a name may come to mean another");
  }
  if (!beyond_loopback && !IsLoopbackLiteral(parts->host)) {
    return bad(
        "is not an address of this machine alone; server.listen_beyond_loopback = true lets others "
        "in");
  }
  uint16_t port = 0;
  const std::string_view digits = *parts->port;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return bad("has no port between 0 and 65535");
  }
  return ListenAddress{parts->host, port};
}

bool Collide(const ListenAddress& one, const ListenAddress& other) {
  if (one.port != other.port || one.port == 0) return false;
  const in6_addr a = InSix(one.host);
  const in6_addr b = InSix(other.host);
  return IN6_ARE_ADDR_EQUAL(&a, &b) || IsAnyBeside(a, b) || IsAnyBeside(b, a);
}

Result<EventEndpoint> ParseEventEndpoint(std::string_view text, bool beyond_loopback) {
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kIpc = "ipc://";
  if (text.starts_with(kIpc) && text.substr(kIpc.size()).starts_with('/')) {
    constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
    if (text.size() - kIpc.size() > kMaxPathBytes) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_endpoint",
                       fmt::format("\"{}\" has a path of more than {} bytes", text, kMaxPathBytes));
    }
    return EventEndpoint{.path = std::string(text.substr(kIpc.size())), .address = {}};
  }
  if (!text.starts_with(kTcp)) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_endpoint",
                     fmt::format("\"{}\" is neither tcp://ADDRESS:PORT nor ipc:///PATH", text));
  }
  KVT_ASSIGN_OR_RETURN(ListenAddress address,
                       ParseListenAddress(text.substr(kTcp.size()), beyond_loopback));
  return EventEndpoint{.path = {}, .address = std::move(address)};
}

namespace {

Result<ColdEndpoint> ParseDirectory(std::string_view rest) {
  constexpr std::string_view kBound = "?max_bytes=";
  const size_t query = rest.rfind('?');
  ColdEndpoint endpoint{
      .library = "kvtier-cold-files.so", .user = {}, .address = std::string(rest.substr(0, query))};
  if (endpoint.address.size() < 2 || endpoint.address.front() != '/') {
    return MakeError(ErrorCode::kInvalidArgument, "cold_endpoint",
                     fmt::format("\"{}\" is no absolute path of a directory", endpoint.address));
  }
  if (query == std::string_view::npos) return endpoint;
  const std::string_view bound = rest.substr(query);
  const Result<uint64_t> bytes = ParseByteSize(bound.substr(std::min(kBound.size(), bound.size())));
  if (!bound.starts_with(kBound) || !bytes || *bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "cold_endpoint",
                     fmt::format("\"{}\" is no size such as ?max_bytes=10TiB", bound));
  }
  endpoint.max_bytes = *bytes;
  return endpoint;
}

}  // namespace

Result<ColdEndpoint> ParseColdEndpoint(std::string_view text) {
  constexpr std::string_view kResp = "resp://";
  constexpr std::string_view kFile = "file://";
  constexpr std::string_view kS3 = "s3://";
  if (text.starts_with(kFile)) return ParseDirectory(text.substr(kFile.size()));
  if (text.starts_with(kS3) && S3Endpoint::Parse(text.substr(kS3.size()))) {
    return ColdEndpoint{.library = "kvtier-cold-s3.so",
                        .user = {},
                        .address = std::string(text.substr(kS3.size()))};
  }
  const std::string_view rest = text.starts_with(kResp) ? text.substr(kResp.size()) : "";
  // A path may have an @, a user has no slash.
  const size_t at = rest.substr(0, rest.find('/')).rfind('@');
  const bool has_user = at != std::string_view::npos;
  ColdEndpoint endpoint{.library = "kvtier-cold-resp.so",
                        .user = std::string(has_user ? rest.substr(0, at) : ""),
                        .address = std::string(has_user ? rest.substr(at + 1) : rest),
                        .takes_password = true};
  if (RespEndpoint::Parse(endpoint.address) && (!has_user || at > 0)) return endpoint;
  return MakeError(ErrorCode::kInvalidArgument, "cold_endpoint",
                   fmt::format("\"{}\" is none of resp://HOST:PORT, resp:///PATH, file:///PATH and "
                               "s3://BUCKET?region=REGION&endpoint=https://HOST:PORT",
                               text));
}

bool IsLoopbackHost(std::string_view host_header) {
  const std::optional<HostAndPort> parts = Split(host_header);
  return parts && (parts->host == "localhost" || IsLoopbackLiteral(parts->host));
}

}  // namespace kvtier
