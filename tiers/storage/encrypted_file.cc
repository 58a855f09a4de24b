// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/encrypted_file.h"

#include <string>
#include <utility>

namespace kvtier {
namespace {

// Kept for the next writes: to allocate and clear as many bytes as a slot has costs as much as to
// copy them.
constexpr size_t kMostFreeBuffers = 16;

}  // namespace

EncryptedFile::EncryptedFile(BlockFile* file, std::shared_ptr<const SlotCipher> cipher,
                             Executor* executor)
    : file_(file), cipher_(std::move(cipher)), executor_(executor) {}

void EncryptedFile::ReadAndCheck(uint64_t offset, std::span<std::byte> buffer, IoCheck check,
                                 IoDone done) {
  if (buffer.size() <= kSlotHeaderBytes) {
    file_->ReadAndCheck(offset, buffer, std::move(check), std::move(done));
    return;
  }
  file_->ReadAndCheck(
      offset, buffer,
      [cipher = cipher_, buffer, check = std::move(check)] {
        // The outcome stands in the header; see above.
        (void)cipher->Decrypt(buffer);
        if (check) check();
      },
      std::move(done));
}

void EncryptedFile::Write(uint64_t offset, std::span<const std::byte> buffer, IoDone done) {
  if (buffer.size() <= kSlotHeaderBytes) {
    file_->Write(offset, buffer, std::move(done));
    return;
  }
  const auto write = std::make_shared<Encryption>();
  write->offset = offset;
  write->slot = buffer;
  write->encrypted = TakeBuffer(buffer.size());
  write->done = std::move(done);
  executor_->Run(
      [write, cipher = cipher_] {
        AlignedBuffer& encrypted = write->encrypted;
        if (encrypted.span().empty()) encrypted = AlignedBuffer(write->slot.size());
        write->status = cipher->Encrypt(write->slot, encrypted.span());
      },
      gate_.WhileOpen([this, write] { OnEncrypted(write); }));
}

void EncryptedFile::OnEncrypted(const std::shared_ptr<Encryption>& write) {
  if (!write->status) {
    const Error& error = write->status.error();
    write->done(MakeError(error.code, std::string(kNotEncrypted), error.ToString()));
    return;
  }
  file_->Write(write->offset, write->encrypted.span(),
               [this, write, pass = gate_.MakePass()](const Status& status) {
                 if (pass.open() && free_buffers_.size() < kMostFreeBuffers) {
                   free_buffers_.push_back(std::move(write->encrypted));
                 }
                 write->done(status);
               });
}

AlignedBuffer EncryptedFile::TakeBuffer(size_t bytes) {
  if (!free_buffers_.empty() && free_buffers_.back().span().size() != bytes) free_buffers_.clear();
  if (free_buffers_.empty()) return {};
  AlignedBuffer buffer = std::move(free_buffers_.back());
  free_buffers_.pop_back();
  return buffer;
}

}  // namespace kvtier
