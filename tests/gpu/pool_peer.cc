// SPDX-License-Identifier: Apache-2.0
// Another process that maps a pool from its descriptor, for tests:
//   gpu_pool_peer FD BYTES fill SEED    writes the whole pool from the seed and ends
//   gpu_pool_peer FD BYTES check SEED   ends with 0 if the pool is as filled from the seed
//   gpu_pool_peer FD BYTES churn SEED   writes the first half over and over until it is killed
//   gpu_pool_peer FD BYTES kernel SEED  the same by a kernel that never ends
//   gpu_pool_peer FD BYTES kernel-and-child SEED   likewise, with a child that lives for 5 s
//   gpu_pool_peer 0 BYTES lend1 SEED    fills memory of its own on GPU 1 from the seed, prints its
//                                       IPC handle and waits until it is killed
//   gpu_pool_peer SOCKET 0 session 0    the same as a client of a daemon, in one block of its own
// Prints one byte once it has mapped the pool and done its first piece of work.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/cuda/cuda_mapping.h"
#include "kvtier/kvtier.hpp"
#include "tests/gpu/endless_writer/endless_writer.h"
#include "tests/gpu/seeded_bytes.h"

namespace kvtier::client {
namespace {

void SayReady() { (void)!::write(STDOUT_FILENO, "r", 1); }

int Fail(const Error& error) {
  std::fprintf(stderr, "gpu_pool_peer: %s\n", error.ToString().c_str());
  return 1;
}

int Churn(const CudaMapping& pool, const std::vector<std::byte>& bytes) {
  for (bool said = false;; said = true) {
    if (const Status written = pool.Write(0, bytes.data(), bytes.size() / 2); !written) {
      return Fail(written.error());
    }
    if (!said) SayReady();
  }
}

int RunKernel(uint64_t address, int ordinal, uint64_t bytes, bool with_child) {
  cudaStream_t stream = nullptr;
  if (cudaSetDevice(ordinal) != cudaSuccess ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
      WriteEndlessly(reinterpret_cast<void*>(address), bytes, stream) != cudaSuccess) {
    return 3;
  }
  // Whatever the process has open, its child has, too.
  if (with_child && ::fork() == 0) {
    ::sleep(5);
    ::_exit(0);
  }
  SayReady();
  while (true) ::pause();
}

int RunSession(const char* socket) {
  auto connection = kvt::Connection::Connect(socket);
  if (!connection) return 4;
  kvt_model_record record;
  kvt_model_record_init(&record);
  record.name = "written endlessly";
  record.groups[0].layers = 1;
  record.groups[0].kv_heads = 8;
  record.groups[0].k_head_dim = record.groups[0].v_head_dim = 128;
  const auto model = connection->RegisterModel(record);
  if (!model) return 5;
  auto pool = connection->Attach(model->model);
  if (!pool) return 6;
  const auto acquired = pool->Acquire({}, {}, 1);
  const auto mapping = pool->MapDevice();
  if (!acquired || !mapping) return 7;
  return RunKernel(mapping->base + acquired->new_blocks[0].index * model->block_bytes,
                   mapping->ordinal, model->block_bytes, true);
}

int Main(int fd, uint64_t pool_bytes, const std::string& command, uint64_t seed) {
  const auto pool = CudaMapping::Map(fd, pool_bytes);
  if (!pool) return Fail(pool.error());
  if (command.starts_with("kernel")) {
    return RunKernel((*pool)->address(), (*pool)->ordinal(), pool_bytes / 2,
                     command == "kernel-and-child");
  }
  std::vector<std::byte> bytes(pool_bytes);
  FillFromSeed(seed, bytes);
  if (command == "churn") return Churn(**pool, bytes);
  std::vector<std::byte> found(pool_bytes);
  const Status moved = command == "fill" ? (*pool)->Write(0, bytes.data(), pool_bytes)
                                         : (*pool)->Read(0, found.data(), pool_bytes);
  if (!moved) return Fail(moved.error());
  SayReady();
  return command == "fill" || found == bytes ? 0 : 2;
}

// Plays an engine whose memory the daemon borrows.
int Lend(int ordinal, uint64_t bytes, uint64_t seed) {
  std::vector<std::byte> content(bytes);
  FillFromSeed(seed, content);
  void* memory = nullptr;
  cudaIpcMemHandle_t handle{};
  if (cudaSetDevice(ordinal) != cudaSuccess || cudaMalloc(&memory, bytes) != cudaSuccess ||
      cudaMemcpy(memory, content.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess ||
      cudaIpcGetMemHandle(&handle, memory) != cudaSuccess) {
    return 3;
  }
  if (::write(STDOUT_FILENO, &handle, sizeof(handle)) != sizeof(handle)) return 3;
  ::pause();
  return 0;
}

}  // namespace
}  // namespace kvtier::client

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  if (std::string(argv[3]) == "session") return kvtier::client::RunSession(argv[1]);
  if (std::string(argv[3]).starts_with("lend")) {
    return kvtier::client::Lend(std::atoi(argv[3] + 4), std::strtoull(argv[2], nullptr, 10),
                                std::strtoull(argv[4], nullptr, 10));
  }
  return kvtier::client::Main(std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10), argv[3],
                              std::strtoull(argv[4], nullptr, 10));
}
