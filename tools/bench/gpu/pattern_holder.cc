// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/pattern_holder.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/digest.h"
#include "kernels/bench/cuda_bench.h"
#include "kvtier/block_ops.h"
#include "tools/bench/gpu/player.h"
#include "tools/replay/block_pattern.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

using kernels::bench::CheckCuda;
using kernels::bench::DeviceMemory;
using kernels::bench::ToDevice;

constexpr uint32_t kBlocks = 64;

BlockHash HashOf(uint32_t block) {
  const std::string name = fmt::format("kvtier.bench held {}", block);
  return Sha256(std::as_bytes(std::span(name)));
}

}  // namespace

Result<PatternHolder> PatternHolder::Open(const std::string& socket) {
  KVT_ASSIGN_OR_RETURN(ReplayClient client, ConnectPlayer(socket));
  PatternHolder holder(std::move(client));
  kvt::Pool& pool = holder.client_.pool();
  auto acquired = pool.Acquire({}, {}, kBlocks);
  if (!acquired) return FromClient(acquired.error());
  std::vector<kvt_commit_entry> entries(kBlocks);
  std::vector<std::byte> bytes(kPlayedBlockBytes);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    FillBlock(HashOf(i), bytes);
    holder.written_.push_back(ChecksumPayload(bytes));
    if (const auto filled = pool.Write(acquired->new_blocks[i], bytes); !filled) {
      return FromClient(filled.error());
    }
    entries[i].block = acquired->new_blocks[i];
    entries[i].hash = ToWire({HashOf(i)}).front();
    entries[i].depth = i;
    entries[i].tokens = kPlayedBlockTokens;
    entries[i].retention = KVT_RETENTION_EXTENDED;
  }
  if (const auto committed = pool.CommitAndWait(entries); !committed) {
    return FromClient(committed.error());
  }
  holder.held_ = std::move(acquired->new_blocks);
  return holder;
}

Result<uint64_t> PatternHolder::CountWrong() {
  const bool on_gpu = client_.pool().Info().device_kind == KVT_DEVICE_CUDA;
  KVT_ASSIGN_OR_RETURN(const std::vector<PayloadChecksum> found,
                       on_gpu ? ChecksumOnGpu() : ChecksumOnHost());
  uint64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) wrong += found[i] == written_[i] ? 0 : 1;
  return wrong;
}

Result<std::vector<PayloadChecksum>> PatternHolder::ChecksumOnHost() {
  std::vector<PayloadChecksum> checksums;
  for (const kvt_block& block : held_.blocks()) {
    const auto bytes = client_.pool().Bytes(block);
    if (!bytes) return FromClient(bytes.error());
    checksums.push_back(ChecksumPayload(*bytes));
  }
  return checksums;
}

Result<std::vector<PayloadChecksum>> PatternHolder::ChecksumOnGpu() {
  const auto mapping = client_.pool().MapDevice();
  if (!mapping) return FromClient(mapping.error());
  std::vector<int32_t> ids;
  for (const kvt_block& block : held_.blocks()) ids.push_back(static_cast<int32_t>(block.index));
  std::vector<PayloadChecksum> checksums(ids.size());
  const DeviceMemory device_ids = ToDevice(ids);
  const DeviceMemory device_sums(checksums.size() * sizeof(PayloadChecksum));
  const kvt_block_list list = {.base = reinterpret_cast<void*>(mapping->base),
                               .block_stride = static_cast<int64_t>(kPlayedBlockBytes),
                               .block_bytes = static_cast<int64_t>(kPlayedBlockBytes),
                               .block_ids = device_ids.get<int32_t>(),
                               .blocks = static_cast<int32_t>(ids.size())};
  const kvt_kernel_status launched =
      kvt_checksum_blocks(&list, device_sums.get<uint8_t>(), nullptr);
  if (launched != KVT_KERNEL_OK) return MakeError(ErrorCode::kIoError, "kernel_refused");
  static_assert(sizeof(PayloadChecksum) == 16);
  CheckCuda(
      cudaMemcpy(checksums.data(), device_sums.get(), device_sums.bytes(), cudaMemcpyDeviceToHost),
      "copy of checksums");
  return checksums;
}

}  // namespace kvtier
