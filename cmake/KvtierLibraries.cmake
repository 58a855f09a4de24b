# SPDX-License-Identifier: Apache-2.0
# The well-kept libraries the project stands on, found once.

# For packages that must run on other distributions than that of the build. libsystemd has no archive
# there, and that of libxxhash lacks the choice by processor: these two stay shared, and a package
# takes them along (tools/packaging/build-wheel.sh).
option(KVTIER_STATIC "Link libraries and the C++ runtime statically, as far as they have archives" OFF)

if(KVTIER_STATIC)
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(Boost_USE_STATIC_LIBS ON)
endif()
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ROCKSDB REQUIRED IMPORTED_TARGET rocksdb)
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)

set(KVTIER_FMT fmt::fmt)
set(KVTIER_SPDLOG spdlog::spdlog)
if(KVTIER_STATIC)
  # Distributions have no archives of these two, but both can be used as headers only.
  set(KVTIER_FMT fmt::fmt-header-only)
  set(KVTIER_SPDLOG spdlog::spdlog_header_only)
  # libgcc_s stays shared: every system has it, and its archive would ask for glibc 2.35.
  add_link_options(-static-libstdc++ LINKER:--as-needed)
  # Packages are the same bytes wherever the source lies: neither names of files in messages, nor the
  # debug information and the paths of libraries, which the build's number is made from, have its path.
  set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
  foreach(directory_and_name "${CMAKE_SOURCE_DIR}=kvtier" "${CMAKE_BINARY_DIR}=build")
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${directory_and_name}>)
  endforeach()

  # kvtier_link_archives(target name...) replaces what an imported target links by lib<name>.a.
  function(kvtier_link_archives target)
    set(archives "")
    foreach(name ${ARGN})
      find_library(KVTIER_ARCHIVE_${name} lib${name}.a REQUIRED)
      list(APPEND archives ${KVTIER_ARCHIVE_${name}})
    endforeach()
    set_property(TARGET ${target} PROPERTY INTERFACE_LINK_LIBRARIES ${archives} ${CMAKE_DL_LIBS})
  endfunction()
  kvtier_link_archives(PkgConfig::URING uring)
  # Its pkg-config file does not name the archive's needs.
  kvtier_link_archives(PkgConfig::ROCKSDB rocksdb snappy lz4 zstd bz2 z)
endif()
