// SPDX-License-Identifier: Apache-2.0
// The table beside kept memory: which hash each block of it holds, if its bytes are complete. Its
// layout is that of kvtier_kept_memory.h.
//
// A process may die between any two instructions. So a block counts only while its state is not 0,
// and the data that the state vouches for changes only while it is 0.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/posix.h"
#include "base/result.h"
#include "protocol/kept_table_layout.h"

namespace kvtier::client {

// The contents of a table at some moment.
struct KeptTableContents {
  struct Block {
    uint32_t block = 0;
    uint32_t group = 0;
    BlockHash hash;
  };
  Digest256 root;             // zeros: not known yet
  std::vector<Block> blocks;  // in the order in which they were published
};

// Checks that the memory cannot become smaller under a process that maps it, and has at least so
// many bytes. Errors: kCorrupt "kept_memory".
[[nodiscard]] Status CheckMemoryFile(int fd, uint64_t bytes);

// Thread-safe. Others may read the table meanwhile; only the owner of the memory writes it.
class KeptTable {
 public:
  static constexpr uint32_t kMaxGroups = 16;

  // An empty one. Errors: as MakeMemoryFile; kIoError.
  [[nodiscard]] static Result<std::unique_ptr<KeptTable>> Create(uint32_t blocks);
  // One that another process has left. Errors: kCorrupt "kept_memory", "kept_table" (of another
  // version or size); kIoError.
  [[nodiscard]] static Result<std::unique_ptr<KeptTable>> Open(UniqueFd fd, uint32_t blocks);
  // The present contents of another process's table. Errors: as Open.
  [[nodiscard]] static Result<KeptTableContents> Read(int fd);
  ~KeptTable();
  KeptTable(const KeptTable&) = delete;
  KeptTable& operator=(const KeptTable&) = delete;

  // blocks[i] holds hashes[i] from now on. REQUIRES: as many hashes as blocks; their bytes are
  // complete. Errors, before anything is changed: kInvalidArgument "bad_group",
  // "block_out_of_range".
  [[nodiscard]] Status Publish(uint32_t group, std::span<const uint32_t> blocks,
                               std::span<const BlockHash> hashes);
  // When this returns, whatever the caller does next to the blocks comes after it, for every reader
  // of the table. Errors: as Publish.
  [[nodiscard]] Status Retract(std::span<const uint32_t> blocks);
  void Clear();
  // Another root than there was clears the table first.
  void SetRoot(const Digest256& root);
  [[nodiscard]] Digest256 root() const;
  [[nodiscard]] KeptTableContents Contents() const;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] uint64_t bytes() const { return BytesOf(blocks_); }

 private:
  using Header = wire::KeptTableHeader;
  using Record = wire::KeptTableRecord;
  [[nodiscard]] static uint64_t BytesOf(uint32_t blocks);
  KeptTable(UniqueFd fd, Header* header, uint32_t blocks)
      : fd_(std::move(fd)), header_(header), blocks_(blocks) {}
  [[nodiscard]] static Result<std::unique_ptr<KeptTable>> Map(UniqueFd fd, uint32_t blocks);
  [[nodiscard]] static KeptTableContents Copy(Header* header, uint32_t blocks);
  [[nodiscard]] static Record* RecordsOf(Header* header);
  [[nodiscard]] static Status CheckHeader(const Header& header, uint64_t file_bytes);
  [[nodiscard]] Status CheckBlocks(std::span<const uint32_t> blocks) const;
  void ClearLocked();

  const UniqueFd fd_;
  Header* const header_;
  const uint32_t blocks_;
  mutable std::mutex mutex_;  // of the writers
};

}  // namespace kvtier::client
