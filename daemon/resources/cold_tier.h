// SPDX-License-Identifier: Apache-2.0
// The cold tier as it is configured: its library, the circuit breaker in front of it and, if blocks
// are encrypted, what encrypts its objects.
#pragma once

#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/executor.h"
#include "base/result.h"
#include "daemon/cold/loaded_store.h"
#include "daemon/config/config.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "tiers/cold/encrypted_store.h"
#include "tiers/cold/guarded_store.h"

namespace kvtier {

// The first line of the password's file; empty if none is named, or if the store's library reads a
// file of credentials itself: a start does not wait for that. Blocks. Errors: kUnavailable
// "cold_password", and those of ParseColdEndpoint.
[[nodiscard]] Result<std::string> ReadColdPassword(const ColdConfig& cold);
// A success if the password can be had here, or the file of credentials opened. Blocks. Errors: as
// ReadColdPassword.
[[nodiscard]] Status CheckColdPasswordFile(const ColdConfig& cold);

// A success if the store's library can be had here. Errors: those of LoadedStore::CheckLibrary and
// ParseColdEndpoint.
[[nodiscard]] Status CheckColdLibrary(const ColdConfig& cold);

// Event loop only. The cache borrows the store and has to go first.
class ColdTier {
 public:
  // Null if none is configured. Connects later: a store that is away is no reason not to start.
  // `executor` encrypts and decrypts; `log` hears when the store goes away and comes back, and
  // what its sweeps leave out. All are borrowed, `config` too, which a reload changes. Errors:
  // those of LoadedStore::Open, LoadRootKey, AesAlgorithms::Fetch and ReadColdPassword.
  [[nodiscard]] static Result<std::unique_ptr<ColdTier>> Open(const Config& config,
                                                              const Clock* clock, EventLoop* loop,
                                                              Executor* executor, Log* log);

  [[nodiscard]] ColdStore* store() {
    return encrypted_ ? static_cast<ColdStore*>(encrypted_.get()) : &guarded_;
  }

 private:
  ColdTier(std::unique_ptr<LoadedStore> loaded, const Clock* clock, EventLoop* loop,
           GuardedStore::OnChange on_change)
      : loaded_(std::move(loaded)), guarded_(loaded_.get(), clock, loop, std::move(on_change)) {}

  std::unique_ptr<LoadedStore> loaded_;
  GuardedStore guarded_;
  std::unique_ptr<EncryptedStore> encrypted_;  // null: objects are plain
};

}  // namespace kvtier
