// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/s3_server.h"

#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace kvtier {
namespace {

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", static_cast<unsigned>(byte) & 0xff);
    hex += two.data();
  }
  return hex;
}

std::string Sha256(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  KVT_CHECK(
      ::EVP_Digest(text.data(), text.size(), digest.data(), &bytes, ::EVP_sha256(), nullptr) == 1);
  return {digest.begin(), digest.begin() + bytes};
}

std::string Hmac(const std::string& key, const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &bytes);
  return {digest.begin(), digest.begin() + bytes};
}

std::string Decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = static_cast<unsigned char>(text[i]);
    if (text[i] == '%' && i + 2 < text.size()) {
      std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16);
      i += 2;
    }
    decoded += static_cast<char>(value);
  }
  return decoded;
}

std::string Encode(const std::string& text, std::string_view kept) {
  std::string encoded;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || kept.find(c) != kept.npos) {
      encoded += c;
      continue;
    }
    std::array<char, 4> three{};
    std::snprintf(three.data(), three.size(), "%%%02X", static_cast<unsigned>(c) & 0xff);
    encoded += three.data();
  }
  return encoded;
}

std::map<std::string, std::string> Parameters(const std::string& query) {
  std::map<std::string, std::string> parameters;
  std::istringstream stream(query);
  for (std::string part; std::getline(stream, part, '&');) {
    const size_t equals = std::min(part.find('='), part.size());
    parameters[Decode(part.substr(0, equals))] =
        Decode(part.substr(std::min(equals + 1, part.size())));
  }
  return parameters;
}

std::string Between(const std::string& text, const std::string& begin, const char* end) {
  const size_t at = text.find(begin);
  if (at == std::string::npos) return {};
  const size_t from = at + begin.size();
  return text.substr(from, text.find_first_of(end, from) - from);
}

std::string HeaderOf(const S3ServerRequest& request, const std::string& name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? std::string() : found->second;
}

// The signature that the request ought to have, as AWS describes it.
std::string Signature(const S3ServerRequest& request, const std::string& secret,
                      const std::string& names, const std::string& scope) {
  std::string canonical = request.method + '\n' + Encode(Decode(request.path), "-._~/") + '\n';
  std::string query;
  for (const auto& [name, value] : Parameters(request.query)) {
    query += (query.empty() ? "" : "&") + Encode(name, "-._~") + '=' + Encode(value, "-._~");
  }
  canonical += query + '\n';
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ';');) {
    canonical += name + ':' + HeaderOf(request, name) + '\n';
  }
  canonical += '\n' + names + '\n' + HeaderOf(request, "x-amz-content-sha256");
  const std::string text = "AWS4-HMAC-SHA256\n" + HeaderOf(request, "x-amz-date") + '\n' + scope +
                           '\n' + Hex(Sha256(canonical));
  std::string key = "AWS4" + secret;
  std::istringstream parts(scope);
  for (std::string part; std::getline(parts, part, '/');) key = Hmac(key, part);
  return Hex(Hmac(key, text));
}

// Reads until `bytes` bytes are there; false if the connection ends before.
bool Fill(int client, size_t bytes, std::string* received) {
  std::array<char, 65536> part;
  while (received->size() < bytes) {
    const ssize_t got = ::recv(client, part.data(), part.size(), 0);
    if (got <= 0) return false;
    received->append(part.data(), static_cast<size_t>(got));
  }
  return true;
}

// The next request of the connection, whose bytes go from `received`.
std::optional<S3ServerRequest> Receive(int client, std::string* received) {
  size_t end = std::string::npos;
  while ((end = received->find("\r\n\r\n")) == std::string::npos) {
    if (!Fill(client, received->size() + 1, received)) return std::nullopt;
  }
  std::istringstream lines(received->substr(0, end + 2));
  received->erase(0, end + 4);
  S3ServerRequest request;
  std::string target, line;
  lines >> request.method >> target;
  std::getline(lines, line);
  const size_t question = std::min(target.find('?'), target.size());
  request.path = target.substr(0, question);
  request.query = target.substr(std::min(question + 1, target.size()));
  while (std::getline(lines, line)) {
    if (line.ends_with('\r')) line.pop_back();
    const size_t colon = std::min(line.find(':'), line.size());
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const size_t value = line.find_first_not_of(' ', std::min(colon + 1, line.size()));
    request.headers[name] = value == std::string::npos ? "" : line.substr(value);
  }
  const std::string length = HeaderOf(request, "content-length");
  const size_t bytes = length.empty() ? 0 : std::stoull(length);
  if (!Fill(client, bytes, received)) return std::nullopt;
  request.body = received->substr(0, bytes);
  received->erase(0, bytes);
  return request;
}

bool Send(int client, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(client, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string DateText(std::time_t now) {
  std::array<char, 64> text{};
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

}  // namespace

S3ServerReply S3ErrorReply(int status, const std::string& code) {
  return {.status = status,
          .body = "<?xml version=\"1.0\"?>\n<Error><Code>" + code +
                  "</Code><Message>as the test wants it</Message></Error>"};
}

S3Server::S3Server() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  KVT_CHECK(::bind(listener_, generic, bytes) == 0 && ::listen(listener_, 64) == 0);
  KVT_CHECK(::getsockname(listener_, generic, &bytes) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Accept(); });
}

S3Server::~S3Server() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  EndConnections();
  for (Client& client : clients_) {
    if (client.thread.joinable()) client.thread.join();
    ::close(client.socket);
  }
  ::close(listener_);
}

std::string S3Server::Endpoint() const {
  return std::string(kBucket) + "?region=" + kRegion +
         "&endpoint=http://127.0.0.1:" + std::to_string(port_);
}

void S3Server::Play(Script script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void S3Server::SetCredentials(std::string key_id, std::string secret, std::string token) {
  const std::lock_guard lock(mutex_);
  key_id_ = std::move(key_id);
  secret_ = std::move(secret);
  token_ = std::move(token);
}

void S3Server::StandStill(bool stands_still) {
  stands_still ? standing_.lock() : standing_.unlock();
}

void S3Server::EndConnections() {
  const std::lock_guard lock(mutex_);
  for (const Client& client : clients_) ::shutdown(client.socket, SHUT_RDWR);
}

std::vector<std::string> S3Server::Names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : objects_) names.push_back(name);
  return names;
}

std::optional<std::string> S3Server::Find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(name);
  return found == objects_.end() ? std::nullopt : std::optional(found->second);
}

void S3Server::Set(const std::string& name, std::string bytes) {
  const std::lock_guard lock(mutex_);
  objects_[name] = std::move(bytes);
}

void S3Server::Accept() {
  for (;;) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (socket >= 0) ++connections_;
    if (socket >= 0) clients_.push_back({.socket = socket, .thread = {}});
    if (socket < 0 || is_ending_) return;
    clients_.back().thread = std::thread([this, socket] { Serve(socket); });
  }
}

void S3Server::Serve(int client) {
  std::string received;
  while (const std::optional<S3ServerRequest> request = Receive(client, &received)) {
    ++requests_;
    { const std::lock_guard still(standing_); }
    const S3ServerReply reply = Answer(*request);
    std::string head = "HTTP/1.1 " + std::to_string(reply.status) +
                       " Told\r\ncontent-length: " + std::to_string(reply.body.size()) +
                       "\r\ndate: " + DateText(std::time(nullptr) + ahead_s_) + "\r\n";
    for (const std::string& header : reply.headers) head += header + "\r\n";
    head += "\r\n";
    if (request->method != "HEAD") head += reply.body.substr(0, reply.cut_at.value_or(-1));
    if (!Send(client, head) || reply.cut_at) break;
  }
  ::shutdown(client, SHUT_RDWR);
}

S3ServerReply S3Server::Answer(const S3ServerRequest& request) {
  Script script;
  {
    const std::lock_guard lock(mutex_);
    script = script_;
  }
  if (std::optional<S3ServerReply> reply = Check(request); reply && !takes_unsigned_) return *reply;
  if (script) {
    if (std::optional<S3ServerReply> reply = script(request)) return *reply;
  }
  const std::string path = Decode(request.path);
  const std::string base = std::string("/") + kBucket + '/';
  if (!path.starts_with(base)) return S3ErrorReply(404, "NoSuchBucket");
  if (path == base) return List(request.query);
  return AnswerWithObject(request, path.substr(base.size()));
}

std::optional<S3ServerReply> S3Server::Check(const S3ServerRequest& request) const {
  const std::lock_guard lock(mutex_);
  const std::string told = HeaderOf(request, "authorization");
  const std::string credential = Between(told, "Credential=", ",");
  const std::string names = Between(told, "SignedHeaders=", ",");
  const std::string time = HeaderOf(request, "x-amz-date");
  std::tm utc{};
  if (::strptime(time.c_str(), "%Y%m%dT%H%M%SZ", &utc) == nullptr) {
    return S3ErrorReply(403, "AccessDenied");
  }
  const std::time_t skew = std::time(nullptr) + ahead_s_ - ::timegm(&utc);
  if (skew > 900 || skew < -900) return S3ErrorReply(403, "RequestTimeTooSkewed");
  const std::string scope = time.substr(0, 8) + '/' + kRegion + "/s3/aws4_request";
  if (HeaderOf(request, "x-amz-security-token") != token_) return S3ErrorReply(400, "ExpiredToken");
  if (credential != key_id_ + '/' + scope) return S3ErrorReply(403, "InvalidAccessKeyId");
  // All of these have to be signed.
  const std::string least = std::string("host;x-amz-content-sha256;x-amz-date") +
                            (token_.empty() ? "" : ";x-amz-security-token");
  const std::string hash = HeaderOf(request, "x-amz-content-sha256");
  const bool is_hashed = hash == "UNSIGNED-PAYLOAD" || hash == Hex(Sha256(request.body));
  if (names != least || !is_hashed ||
      Between(told, "Signature=", ",") != Signature(request, secret_, names, scope)) {
    return S3ErrorReply(403, "SignatureDoesNotMatch");
  }
  return std::nullopt;
}

S3ServerReply S3Server::AnswerWithObject(const S3ServerRequest& request, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (request.method == "PUT") {
    if (HeaderOf(request, "if-none-match") == "*" && objects_.contains(name)) {
      return S3ErrorReply(412, "PreconditionFailed");
    }
    objects_[name] = request.body;
    return {};
  }
  if (request.method == "DELETE") {
    objects_.erase(name);
    return {.status = 204, .body = {}};
  }
  const auto found = objects_.find(name);
  if (found == objects_.end()) return S3ErrorReply(404, "NoSuchKey");
  if (HeaderOf(request, "range") == "bytes=0-0") {
    return {.status = 206, .body = found->second.substr(0, 1)};
  }
  return {.status = 200, .body = found->second};
}

S3ServerReply S3Server::List(const std::string& query) const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> asked = Parameters(query);
  size_t left = std::stoull(asked["max-keys"]);
  std::string keys;
  bool has_more = false;
  for (const auto& [name, bytes] : objects_) {
    if (!name.starts_with(asked["prefix"]) || name <= asked["start-after"]) continue;
    has_more = left == 0;
    if (has_more) break;
    --left;
    keys += "<Contents><Key>" + Encode(name, "-._~/") + "</Key></Contents>";
  }
  return {.status = 200,
          .body = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>" +
                  std::string(has_more ? "true" : "false") + "</IsTruncated>" + keys +
                  "</ListBucketResult>"};
}

}  // namespace kvtier
