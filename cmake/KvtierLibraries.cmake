# SPDX-License-Identifier: Apache-2.0
# The well-kept libraries the project stands on, found once.

# Packages must run on other distributions than that of the build, so they link libraries and the C++ runtime
# statically, as far as these have archives. libsystemd has none, and that of libxxhash lacks the choice by
# processor: these two stay shared, and the wheel takes them along (tools/packaging/build-wheel.sh).
# AUTO, which the preset for release says, means ON where the archives are, as on Debian, so that
# tests run the shipped files.
set(KVTIER_STATIC OFF CACHE STRING "Link statically what has archives: ON, OFF, or AUTO")
set_property(CACHE KVTIER_STATIC PROPERTY STRINGS ON OFF AUTO)
if(KVTIER_STATIC STREQUAL "AUTO")
  set(KVTIER_STATIC ON)
  foreach(name boost_json bz2 crypto lz4 rocksdb snappy uring z zstd)
    find_library(KVTIER_ARCHIVE_${name} lib${name}.a)
    if(NOT KVTIER_ARCHIVE_${name})
      set(KVTIER_STATIC OFF)
      message(NOTICE "kvtier: lib${name}.a is missing: libraries are linked as shared ones.")
      break()
    endif()
  endforeach()
endif()

# A build directory that was configured the other way remembers the other kind of OpenSSL.
if(NOT "${KVTIER_OPENSSL_STATIC}" STREQUAL "${KVTIER_STATIC}")
  unset(OPENSSL_CRYPTO_LIBRARY CACHE)
  unset(OPENSSL_SSL_LIBRARY CACHE)
  set(KVTIER_OPENSSL_STATIC ${KVTIER_STATIC} CACHE INTERNAL "Which kind of OpenSSL was found")
endif()
if(KVTIER_STATIC)
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(Boost_USE_STATIC_LIBS ON)
endif()
# Where tools/setup.sh unpacks it if it cannot be installed.
set(boost_beside ${CMAKE_SOURCE_DIR}/build/boost/usr)
if(EXISTS ${boost_beside})
  list(PREPEND CMAKE_PREFIX_PATH ${boost_beside})
  include_directories(BEFORE SYSTEM ${boost_beside}/include)
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
  # Distributions have no archives of these two, but both can be used as headers only. Compiling fmt
  # so takes long, and most sources use it, so where its version is known the build makes an archive
  # of the headers.
  if(fmt_VERSION MATCHES "^9[.]")
    add_library(kvtier_fmt STATIC cmake/fmt_archive.cc)
    set(KVTIER_FMT kvtier_fmt)
  else()
    set(KVTIER_FMT fmt::fmt-header-only)
  endif()
  add_library(kvtier_spdlog INTERFACE)
  target_compile_definitions(kvtier_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(kvtier_spdlog INTERFACE ${KVTIER_FMT})
  set(KVTIER_SPDLOG kvtier_spdlog)
  # libgcc_s stays shared: every system has it, and its archive would ask for glibc 2.35.
  add_link_options(-static-libstdc++ LINKER:--as-needed)
  # Packages are the same bytes wherever they are built: neither the debug information nor the paths of libraries,
  # which the build's number is made from, have the build directory's name (KvtierCompiler.cmake: the source's).
  set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${CMAKE_BINARY_DIR}=./build/release>)

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
