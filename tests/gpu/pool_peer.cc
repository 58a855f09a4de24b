// Another process that maps a pool from its descriptor, for tests:
//   gpu_pool_peer FD BYTES fill SEED    writes the whole pool from the seed and ends
//   gpu_pool_peer FD BYTES check SEED   ends with 0 if the pool is as filled from the seed
//   gpu_pool_peer FD BYTES churn SEED   writes the first half over and over until it is killed
//   gpu_pool_peer FD BYTES kernel SEED  the same by a kernel that never ends
//   gpu_pool_peer FD BYTES kernel-and-child SEED   likewise, with a child that outlives it by 5 s
// Prints one byte once it has mapped the pool and done its first piece of work.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/cuda_mapping.h"
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

int RunKernel(const CudaMapping& pool, uint64_t bytes, bool with_child) {
  auto* const memory = reinterpret_cast<void*>(pool.address());
  cudaStream_t stream = nullptr;
  if (cudaSetDevice(pool.ordinal()) != cudaSuccess ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
      WriteEndlessly(memory, bytes / 2, stream) != cudaSuccess) {
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

int Main(int fd, uint64_t pool_bytes, const std::string& command, uint64_t seed) {
  const auto pool = CudaMapping::Map(fd, pool_bytes);
  if (!pool) return Fail(pool.error());
  if (command.starts_with("kernel")) {
    return RunKernel(**pool, pool_bytes, command == "kernel-and-child");
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

}  // namespace
}  // namespace kvtier::client

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  return kvtier::client::Main(std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10), argv[3],
                              std::strtoull(argv[4], nullptr, 10));
}
