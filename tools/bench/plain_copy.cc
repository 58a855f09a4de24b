// SPDX-License-Identifier: Apache-2.0
// The ceiling for a store of files: a process that only writes, or reads, files of one size.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using SteadyClock = std::chrono::steady_clock;

// As many directories, files that are read, and bytes that are written before names are used again,
// as kvtier-cold-bench has.
constexpr size_t kDirectories = 64;
constexpr size_t kRead = 128;
constexpr size_t kWrittenBytes = size_t{1} << 30;

double CpuSeconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

// Every call of the system has to move something.
void Move(const std::string& path, int flags, std::vector<std::byte>* bytes) {
  const int file = ::open(path.c_str(), flags, 0660);
  for (size_t done = 0; done < bytes->size();) {
    std::byte* const at = bytes->data() + done;
    const auto offset = static_cast<off_t>(done);
    const ssize_t moved = flags == O_RDONLY ? ::pread(file, at, bytes->size() - done, offset)
                                            : ::pwrite(file, at, bytes->size() - done, offset);
    if (moved <= 0) {
      std::perror(path.c_str());
      std::exit(1);
    }
    done += static_cast<size_t>(moved);
  }
  if (::close(file) != 0) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: {} DIRECTORY put|get BYTES DEPTH SECONDS\n", argv[0]);
    return 2;
  }
  const std::string root = argv[1];
  const bool reads = std::string_view(argv[2]) == "get";
  const size_t bytes = std::strtoull(argv[3], nullptr, 10);
  const size_t depth = std::strtoull(argv[4], nullptr, 10);
  const double seconds = std::strtod(argv[5], nullptr);
  const size_t files = reads ? kRead : std::max(kRead, kWrittenBytes / bytes);
  const auto path_of = [&](size_t i) {
    return fmt::format("{}/{:02x}/{:064x}", root, i % kDirectories, i);
  };
  constexpr int kWrite = O_WRONLY | O_CREAT | O_EXCL;
  std::vector<std::byte> object(bytes, std::byte{7});
  for (size_t i = 0; i < kDirectories; ++i)
    (void)::mkdir(fmt::format("{}/{:02x}", root, i).c_str(), 0770);
  for (size_t i = 0; i < kRead; ++i) Move(path_of(i), kWrite, &object);

  std::atomic<size_t> next = reads ? 0 : kRead, moved = 0;
  const double cpu_begin = CpuSeconds();
  const auto begin = SteadyClock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(SteadyClock::now() - begin).count();
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < depth; ++i) {
    threads.emplace_back([&] {
      std::vector<std::byte> own(bytes, std::byte{7});
      for (; elapsed() < seconds; moved += bytes) {
        const size_t number = next++;
        const std::string path = path_of(number % files);
        // As the store does it: a new file in an old one's place.
        if (!reads && number >= files) (void)::unlink(path.c_str());
        Move(path, reads ? O_RDONLY : kWrite, &own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double mib = static_cast<double>(moved) / 1048576;
  fmt::print("{:.1f} {:.1f}\n", mib / elapsed(), mib / (CpuSeconds() - cpu_begin));
  return 0;
}
