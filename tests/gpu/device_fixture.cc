// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/result.h"

namespace kvtier {

PinnedBuffer::PinnedBuffer(Device* device, uint64_t bytes) : device_(device), buffer_(bytes) {
  const Status pinned = device_->host_pinner()->Pin(span());
  EXPECT_TRUE(pinned) << pinned.error().ToString();
}

PinnedBuffer::~PinnedBuffer() { device_->host_pinner()->Unpin(span()); }

void CudaDeviceTest::SetUp() {
  const auto presence = FindCudaDevices();
  ASSERT_TRUE(presence) << presence.error().ToString();
  if (presence->devices == 0) GTEST_SKIP() << presence->why_none;
}

void CudaDeviceTest::OpenDevice(CudaDeviceOptions options) {
  auto device = OpenCudaDevice(std::move(options), &loop_);
  ASSERT_TRUE(device) << device.error().ToString();
  device_ = std::move(*device);
}

std::unique_ptr<DevicePool> CudaDeviceTest::MakePool(uint64_t bytes) {
  auto pool = device_->CreatePool(bytes);
  EXPECT_TRUE(pool) << pool.error().ToString();
  KVT_CHECK(pool.has_value());
  (*pool)->AwaitReady();
  return std::move(*pool);
}

std::shared_ptr<client::CudaMapping> CudaDeviceTest::Map(const DevicePool& pool) {
  auto mapping = client::CudaMapping::Map(pool.shareable_fd(), pool.bytes());
  EXPECT_TRUE(mapping) << mapping.error().ToString();
  KVT_CHECK(mapping.has_value());
  return std::move(*mapping);
}

Status CudaDeviceTest::CopyAndWait(CopyRequest request) {
  std::optional<Status> outcome;
  request.done = [&](Status status) { outcome = std::move(status); };
  device_->Copy(std::move(request));
  loop_.RunUntil([&] { return outcome.has_value(); });
  return *outcome;
}

uint64_t CudaDeviceTest::FreeVram() {
  const auto device = OpenCudaDevice({}, &loop_);
  EXPECT_TRUE(device);
  return (*device)->info().free_bytes;
}

PoolPeer::PoolPeer(const DevicePool& pool, const std::string& command, uint64_t seed)
    : PoolPeer(pool.shareable_fd(), pool.bytes(), command, seed) {}

PoolPeer::PoolPeer(int pool_fd, uint64_t pool_bytes, const std::string& command, uint64_t seed) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpu_pool_peer";
  int pipe[2] = {-1, -1};
  KVT_CHECK(::pipe2(pipe, O_CLOEXEC) == 0);
  const std::string fd = std::to_string(pool_fd);
  const std::string bytes = std::to_string(pool_bytes);
  const std::string seed_text = std::to_string(seed);
  pid_ = ::fork();
  KVT_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(pipe[1], STDOUT_FILENO);
    if (pool_fd >= 0) ::fcntl(pool_fd, F_SETFD, 0);
    ::execl(program.c_str(), program.c_str(), fd.c_str(), bytes.c_str(), command.c_str(),
            seed_text.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(pipe[1]);
  output_ = pipe[0];
}

PoolPeer::~PoolPeer() {
  Kill();
  ::close(output_);
}

bool PoolPeer::WaitUntilReady() {
  char byte = 0;
  ssize_t count = 0;
  while ((count = ::read(output_, &byte, 1)) < 0 && errno == EINTR) {
  }
  return count == 1;
}

std::array<uint8_t, 64> PoolPeer::ReadIpcHandle() {
  std::array<uint8_t, 64> handle{};
  for (size_t done = 0; done < handle.size();) {
    const ssize_t count = ::read(output_, handle.data() + done, handle.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return {};
    done += static_cast<size_t>(count);
  }
  return handle;
}

void PoolPeer::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  (void)Wait();
}

int PoolPeer::Wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace kvtier
