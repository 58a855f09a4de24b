// SPDX-License-Identifier: Apache-2.0
// A cache whose files and index are encrypted.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/temporary_directory.h"
#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/index/encrypted_index.h"
#include "tiers/storage/encrypted_file.h"
#include "tiers/storage/key_file.h"
#include "tiers/storage/slot_cipher.h"

namespace kvtier {

// Lets a cache use an index that it does not own.
class BorrowedIndex final : public Index {
 public:
  explicit BorrowedIndex(Index* index) : index_(*index) {}
  void Apply(IndexBatch batch, std::function<void(Status)> done) override {
    index_.Apply(std::move(batch), std::move(done));
  }

 private:
  Index& index_;
};

class EncryptedCacheTest : public CacheTest {
 protected:
  EncryptedCacheTest() {
    NewKeys();
    change_environment_ = [this](CacheEnvironment* environment, IndexSnapshot* snapshot) {
      encrypted_files_.clear();
      for (BlockFile*& file : environment->files) {
        encrypted_files_.push_back(
            std::make_unique<EncryptedFile>(file, cipher_, environment->executor));
        file = encrypted_files_.back().get();
      }
      // As a start does: a snapshot that cannot be decrypted is of no use.
      if (!DecryptSnapshot(*cipher_, snapshot)) *snapshot = {};
      index_ = std::make_unique<EncryptedIndex>(std::make_unique<BorrowedIndex>(environment->index),
                                                cipher_, *snapshot, environment->loop);
      environment->index = index_.get();
      environment->keys = &cipher_->keys();
      if (key_file_) {
        const auto save = [file = key_file_](const KeyRing::Contents& keys) -> Result<bool> {
          KVT_RETURN_IF_ERROR(file->Save(keys));
          return true;
        };
        cipher_->keys().KeepStored(save, environment->executor);
      }
      machine_->owner.on_keys_expired = [this](uint64_t keys) { keys_expired_ += keys; };
      machine_->owner.on_erasure_resumed = [this](const std::string& tenant, const EraseReport&,
                                                  const Status& status) {
        EXPECT_TRUE(status);
        resumed_.push_back(tenant);
      };
    };
  }
  // The cache goes before the objects that it uses.
  ~EncryptedCacheTest() override {
    cache_.reset();
    machine_->loop.DropAll();
  }

  void NewKeys() { cipher_ = SlotCipher::Create(KeyRing::Create().value()).value(); }
  // The keys come back as an earlier daemon left them.
  void AdoptKeys() {
    UniqueFd kept(::dup(cipher_->keys().descriptor()));
    cipher_ = SlotCipher::Create(KeyRing::Adopt(std::move(kept)).value()).value();
  }

  void Erase(const EraseRequest& request) {
    erasure_ended_ = false;
    (void)cache_->Erase(request, [this](const EraseReport& report, const Status& status) {
      EXPECT_TRUE(status);
      erased_ = report;
      erasure_ended_ = true;
    });
  }
  // Until the index remembers it, and no further.
  void BeginErasure(const EraseRequest& request) {
    Erase(request);
    ASSERT_TRUE(machine_->loop.RunOneOf(machine_->index->source()));
  }
  // Blocks that were on the move are looked at again with each tick.
  [[nodiscard]] bool FinishErasure() {
    Settle();
    for (int ticks = 0; ticks < 5 && !erasure_ended_; ++ticks) AdvanceAndTick(1);
    return erasure_ended_;
  }

  // From the next start on.
  void KeepKeysInFile() {
    key_file_ =
        std::make_shared<KeyFile>(directory_.path(), Root(), AesAlgorithms::Fetch().value());
  }
  [[nodiscard]] static RootKey Root() {
    const std::array<std::byte, kGcmKeyBytes> bytes{std::byte{7}};
    return RootKey(bytes);
  }
  // The machine starts anew: memory is gone, and the keys come from the file.
  void Reboot() {
    NewKeys();
    KeepKeysInFile();
    cipher_->keys().Load(key_file_->Load(std::nullopt).value());
    CrashAndRestart();
  }

  [[nodiscard]] bool OnDisk(std::span<const std::byte> bytes) {
    return !std::ranges::search(file().contents(), bytes).empty();
  }

  TestDirectory directory_;
  std::shared_ptr<KeyFile> key_file_;  // null: keys are in memory only
  std::shared_ptr<SlotCipher> cipher_;
  std::vector<std::unique_ptr<EncryptedFile>> encrypted_files_;
  std::unique_ptr<Index> index_;
  uint64_t keys_expired_ = 0;
  EraseReport erased_;
  bool erasure_ended_ = false;
  std::vector<std::string> resumed_;  // whose erasures a later daemon has ended
};

}  // namespace kvtier
