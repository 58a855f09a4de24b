// SPDX-License-Identifier: Apache-2.0
// Opening the library at run time, on machines with and without a GPU.
#include "kernels/service/kernel_library.h"

#include <gtest/gtest.h>

namespace kvtier::kernels {
namespace {

TEST(KernelLibrary, SaysWhyItIsNotThere) {
  const KernelLibrary library = OpenKernelLibrary("/nowhere/libkvtier_kernels.so");
  EXPECT_EQ(library.table, nullptr);
  EXPECT_NE(library.why_not.find("/nowhere/"), std::string::npos) << library.why_not;
}

TEST(KernelLibrary, RefusesALibraryOfOtherThings) {
  const KernelLibrary library = OpenKernelLibrary(KVTIER_CLIENT_LIBRARY);
  EXPECT_EQ(library.table, nullptr);
  EXPECT_NE(library.why_not.find("no library of kernels"), std::string::npos) << library.why_not;
}

#ifdef KVTIER_HAS_CUDA_KERNELS
TEST(KernelLibrary, IsFoundBesideTheProgram) {
  const KernelLibrary library = OpenKernelLibrary();
  ASSERT_NE(library.table, nullptr) << library.why_not;
  EXPECT_NE(library.path.find("/lib/libkvtier_kernels.so"), std::string::npos) << library.path;
  EXPECT_STREQ(library.table->status_text(KVT_KERNEL_OK), "ok");
  EXPECT_EQ(library.table->abi, static_cast<uint32_t>(KVT_KERNELS_ABI));
}

TEST(KernelLibrary, CallsWithoutADeviceFailCleanly) {
  const KernelLibrary library = OpenKernelLibrary();
  ASSERT_NE(library.table, nullptr) << library.why_not;
  if (library.table->select_device(0) == KVT_KERNEL_OK) GTEST_SKIP() << "there is a GPU";
  void* stream = nullptr;
  EXPECT_NE(library.table->create_stream(&stream), KVT_KERNEL_OK);
  void* memory = nullptr;
  EXPECT_NE(library.table->allocate(&memory, 4096), KVT_KERNEL_OK);
  EXPECT_EQ(memory, nullptr);
  EXPECT_NE(library.table->cuda_error_text(), nullptr);
}
#endif

}  // namespace
}  // namespace kvtier::kernels
