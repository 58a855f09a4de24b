// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/s3_endpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>
#include <utility>

namespace kvtier {
namespace {

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Made of letters, digits and `others`, and not empty.
bool IsMadeOf(std::string_view text, std::string_view others) {
  return !text.empty() && std::ranges::all_of(text, [others](char c) {
    return IsAlphanumeric(c) || others.find(c) != std::string_view::npos;
  });
}

// The text's beginning up to `separator`, both of which go.
std::string_view TakeUntil(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return part;
}

struct Settings {
  std::string_view endpoint;
  std::string_view style;
  std::string_view region = "us-east-1";
  bool uses_instance_role = false;
};

std::optional<Settings> ReadSettings(std::string_view query) {
  Settings settings;
  while (!query.empty()) {
    std::string_view value = TakeUntil(&query, '&');
    const std::string_view name = TakeUntil(&value, '=');
    if (name == "endpoint") {
      settings.endpoint = value;
    } else if (name == "style" && (value == "path" || value == "virtual")) {
      settings.style = value;
    } else if (name == "region" && IsMadeOf(value, "-")) {
      settings.region = value;
    } else if (name == "credentials" && value == "instance") {
      settings.uses_instance_role = true;
    } else {
      return std::nullopt;
    }
  }
  return settings;
}

struct Server {
  std::string_view scheme;
  std::string_view host;  // with its port, unless it is the scheme's own
};

bool IsPort(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port != 0;
}

// No path: a store below one would be asked for other names than were signed.
std::optional<Server> ReadServer(std::string_view url) {
  Server server;
  for (const auto& [scheme, port] :
       {std::pair<std::string_view, std::string_view>("https://", ":443"),
        std::pair<std::string_view, std::string_view>("http://", ":80")}) {
    if (!url.starts_with(scheme)) continue;
    server = {.scheme = scheme, .host = url.substr(scheme.size())};
    if (server.host.ends_with(port)) server.host.remove_suffix(port.size());
  }
  const size_t name_end = server.host.starts_with('[') ? server.host.find(']') : 0;
  if (name_end == std::string_view::npos) return std::nullopt;
  const size_t colon = server.host.find(':', name_end);
  const std::string_view name = server.host.substr(0, colon);
  if (!IsMadeOf(name, name_end > 0 ? "[]:." : ".-_")) return std::nullopt;
  if (colon != std::string_view::npos && !IsPort(server.host.substr(colon + 1))) {
    return std::nullopt;
  }
  return server;
}

int ValueOf(char digit) {
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  const size_t value = kHexDigits.find(digit);
  return value == std::string_view::npos ? -1 : static_cast<int>(value);
}

}  // namespace

std::string S3Encoded(std::string_view text, bool keeps_slashes) {
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsMadeOf({&c, 1}, "-._~") || (c == '/' && keeps_slashes)) {
      encoded += c;
    } else {
      encoded += {'%', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
    }
  }
  return encoded;
}

std::optional<std::string> S3Decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? ValueOf(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? ValueOf(text[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

std::optional<S3Endpoint> S3Endpoint::Parse(std::string_view text) {
  const std::string bucket(TakeUntil(&text, '?'));
  const std::optional<Settings> settings = ReadSettings(text);
  if (!settings || !IsMadeOf(bucket, ".-_")) return std::nullopt;
  std::string url(settings->endpoint);
  if (url.empty()) url = "https://s3." + std::string(settings->region) + ".amazonaws.com";
  const std::optional<Server> server = ReadServer(url);
  if (!server) return std::nullopt;
  const std::string_view usual = settings->endpoint.empty() ? "virtual" : "path";
  const bool in_host = (settings->style.empty() ? usual : settings->style) == "virtual";
  S3Endpoint endpoint{.origin = {},
                      .host = (in_host ? bucket + '.' : "") + std::string(server->host),
                      .base_path = in_host ? "" : '/' + bucket,
                      .region = std::string(settings->region),
                      .uses_instance_role = settings->uses_instance_role};
  endpoint.origin = std::string(server->scheme) + endpoint.host;
  return endpoint;
}

}  // namespace kvtier
