// SPDX-License-Identifier: Apache-2.0
// A cold store whose objects are encrypted on their way there and decrypted on their way back, as
// slots are on disk. Its users see plain objects only.
//
// The keys are derived from a root key (DerivedKeys): every host that has it can read the objects,
// and the store has nothing of use to who has not. Hashes in names are encrypted, too, the same
// hash always to the same bytes, so that hosts with one root key meet in the names; one with
// another key, or with none, asks for other names and misses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/gate.h"
#include "tiers/cold/cold_store.h"
#include "tiers/storage/aes.h"
#include "tiers/storage/derived_keys.h"

namespace kvtier {

// Event loop only. An object that was not encrypted under its name's tenant is returned with a
// header of zeros, which its check takes for damage. A call that brings bytes may end later than
// its timeout by the time that the executor needs.
class EncryptedStore final : public ColdStore {
 public:
  // `store`, `executor` and `loop` are borrowed and outlive this.
  EncryptedStore(ColdStore* store, Executor* executor, EventQueue* loop, RootKey root,
                 AesAlgorithms aes);

  [[nodiscard]] bool Available() override { return store_.Available(); }
  [[nodiscard]] bool TakesWrites() override { return store_.TakesWrites(); }
  [[nodiscard]] uint64_t lost_calls() const override { return store_.lost_calls(); }
  void Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
              ExistsDone done) override;
  void Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) override;
  // Errors besides the store's: those of DerivedKeys; kIoError "encryption".
  void Put(std::string name, ColdBytes bytes, ColdPut how, int64_t timeout_ms, Done done) override;
  void Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) override;
  void DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                  DeletedDone done) override;

 private:
  struct Cipher;

  // The name with its hash encrypted; one that is none of a block stays as it is.
  [[nodiscard]] Result<std::string> Hidden(const std::string& name);
  [[nodiscard]] Status Hide(std::vector<std::string>* names);
  [[nodiscard]] Result<const SecretKey*> KeyOf(std::string_view tenant);
  template <typename Answer>
  void Fail(std::function<void(Answer)> done, Error error);

  ColdStore& store_;
  Executor& executor_;
  EventQueue& loop_;
  const std::shared_ptr<Cipher> cipher_;                     // shared with the threads that use it
  std::map<std::string, SecretKey, std::less<>> name_keys_;  // by tenant
  Gate gate_;
};

}  // namespace kvtier
