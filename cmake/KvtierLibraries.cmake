# SPDX-License-Identifier: Apache-2.0
# The well-kept libraries the project stands on, found once.

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
