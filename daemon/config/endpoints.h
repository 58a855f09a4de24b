// SPDX-License-Identifier: Apache-2.0
// The addresses that the configuration names: where the metrics page and events may be listened
// for, which is on this machine's own addresses unless others are allowed, and where a store is.
//
// The pages tell the names of models and tenants to every process that can reach them and ask for
// no password, so that other machines get the metrics alone, and only where an operator wants it.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

struct ListenAddress {
  std::string host;   // a literal: "127.0.0.1" or "::1"
  uint16_t port = 0;  // 0: any that is free
};

// "127.0.0.1:9400" (any of 127.0.0.0/8) or "[::1]:9400"; with `beyond_loopback` any literal
// address, as "0.0.0.0:9400". Errors: kInvalidArgument "bad_listen".
[[nodiscard]] Result<ListenAddress> ParseListenAddress(std::string_view text, bool beyond_loopback);

// Whether a socket that listens at the one keeps others from listening at the other.
[[nodiscard]] bool Collide(const ListenAddress& one, const ListenAddress& other);

// Where events are listened for: "tcp://" and a ListenAddress, or "ipc://" and an absolute path.
struct EventEndpoint {
  std::string path;  // empty: `address` counts
  ListenAddress address;
};
// Errors: kInvalidArgument "bad_endpoint", or those of ParseListenAddress.
[[nodiscard]] Result<EventEndpoint> ParseEventEndpoint(std::string_view text, bool beyond_loopback);

// Where a store is that hosts share: "resp://" and "HOST:PORT" or an absolute path, with "USER@"
// before it or not; "file://" and the absolute path of a directory, with "?max_bytes=SIZE" behind
// it or not; or "s3://" and what S3Endpoint reads.
struct ColdEndpoint {
  std::string library;     // that speaks to the store
  std::string user;        // empty: the store's default user
  std::string address;     // "HOST:PORT" or a path, for the library
  uint64_t max_bytes = 0;  // of all objects; 0: no bound
  // Else the library reads a file of credentials itself, if there is one.
  bool takes_password = false;
};
// Errors: kInvalidArgument "cold_endpoint", also for an address that the library would not take.
[[nodiscard]] Result<ColdEndpoint> ParseColdEndpoint(std::string_view text);

// Whether an HTTP Host header names this machine: a page from elsewhere, whose name was made to
// resolve to 127.0.0.1, must not be able to read ours.
[[nodiscard]] bool IsLoopbackHost(std::string_view host_header);

}  // namespace kvtier
