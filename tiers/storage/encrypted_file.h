// SPDX-License-Identifier: Apache-2.0
// A file of slots that are encrypted on their way to another file and decrypted on their way back.
// Its users see plain slots only.
//
// A slot whose key is gone is read as it lies on disk, encrypted, with a good status: the check of
// slots tells it by its header (CheckDiskSlot). One that was changed is read with a header of
// zeros.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/executor.h"
#include "base/gate.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/slot_cipher.h"

namespace kvtier {

// Event loop only, as every BlockFile. Reads and writes are of one slot each, or of one page, which
// passes unchanged: a slab's header, or the zeros that void a slot's. Reads are decrypted where
// their checks run; writes are encrypted by the executor, into memory of the file's own.
class EncryptedFile final : public BlockFile {
 public:
  // `file` and `executor` are borrowed and outlive this. Destroying it drops the writes that have
  // not been encrypted yet; nothing is called for them.
  EncryptedFile(BlockFile* file, std::shared_ptr<const SlotCipher> cipher, Executor* executor);

  [[nodiscard]] uint64_t bytes() const override { return file_->bytes(); }
  [[nodiscard]] std::string_view engine() const override { return file_->engine(); }
  void ReadAndCheck(uint64_t offset, std::span<std::byte> buffer, IoCheck check,
                    IoDone done) override;
  // Errors besides the file's: those of SlotCipher::Encrypt.
  void Write(uint64_t offset, std::span<const std::byte> buffer, IoDone done) override;
  void Sync(IoDone done) override { file_->Sync(std::move(done)); }
  void SetBytes(uint64_t bytes) override { file_->SetBytes(bytes); }
  void RegisterMemory(std::span<std::byte> memory) override { file_->RegisterMemory(memory); }
  void UnregisterFrom(std::byte* from, std::function<void()> done) override {
    file_->UnregisterFrom(from, std::move(done));
  }

 private:
  // One write, shared with the thread that encrypts it.
  struct Encryption {
    uint64_t offset = 0;
    std::span<const std::byte> slot;
    AlignedBuffer encrypted;
    Status status;
    IoDone done;
  };

  // Empty if none is kept: the thread that fills it makes it.
  [[nodiscard]] AlignedBuffer TakeBuffer(size_t bytes);
  void OnEncrypted(const std::shared_ptr<Encryption>& write);

  BlockFile* const file_;
  const std::shared_ptr<const SlotCipher> cipher_;
  Executor* const executor_;
  std::vector<AlignedBuffer> free_buffers_;  // all of one size, the last one asked for
  Gate gate_;
};

}  // namespace kvtier
