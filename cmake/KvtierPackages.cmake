# SPDX-License-Identifier: Apache-2.0
# Debian packages: `cpack --config build/release/CPackConfig.cmake`.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvtier)
set(CPACK_PACKAGE_VENDOR kvtier)
set(CPACK_PACKAGE_CONTACT "${KVTIER_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV cache of LLM inference in three tiers")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL kvtierd kvtier-tools libkvtier0 libkvtier-dev ${KVTIER_COLD_PACKAGES})

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Where dpkg-shlibdeps finds libkvtier.so.0 while it is not installed.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})

set(packaging ${CMAKE_SOURCE_DIR}/tools/packaging)
set(same_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")

set(CPACK_DEBIAN_KVTIERD_PACKAGE_NAME kvtierd)
set(CPACK_COMPONENT_KVTIERD_DESCRIPTION
  "KV cache of LLM inference in three tiers: daemon
 Keeps the KV blocks of inference processes in a shared pool, in host memory
 and on disk, and finds them again by what they hold.")
set(CPACK_DEBIAN_KVTIERD_PACKAGE_PREDEPENDS "init-system-helpers (>= 1.54~)")
# procps: the unit reloads with kill.
set(CPACK_DEBIAN_KVTIERD_PACKAGE_DEPENDS "systemd, procps")
set(CPACK_DEBIAN_KVTIERD_PACKAGE_RECOMMENDS "kvtier-tools")
if(KVTIER_COLD_PACKAGES)
  list(JOIN KVTIER_COLD_PACKAGES ", " CPACK_DEBIAN_KVTIERD_PACKAGE_SUGGESTS)
endif()
# CPack takes a control file's name from the file.
foreach(script postinst prerm postrm)
  configure_file(${packaging}/kvtierd.${script} ${CMAKE_BINARY_DIR}/packaging/${script} COPYONLY)
  list(APPEND control_files ${CMAKE_BINARY_DIR}/packaging/${script})
endforeach()
set(CPACK_DEBIAN_KVTIERD_PACKAGE_CONTROL_EXTRA ${control_files} ${packaging}/conffiles)
set(CPACK_DEBIAN_KVTIERD_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_KVTIER-TOOLS_PACKAGE_NAME kvtier-tools)
# dpkg-shlibdeps looks for the package of a library on this machine, where it is not installed.
set(CPACK_DEBIAN_KVTIER-TOOLS_PACKAGE_DEPENDS "libkvtier0 (>= ${PROJECT_VERSION})")
# For `kvtierctl bench --plot`.
set(CPACK_DEBIAN_KVTIER-TOOLS_PACKAGE_SUGGESTS "gnuplot-nox")
set(CPACK_COMPONENT_KVTIER-TOOLS_DESCRIPTION
  "KV cache of LLM inference in three tiers: tools
 kvtierctl looks into a running kvtierd and at its disk, and measures.")

# The daemon opens it at run time and takes one of its own version only.
set(CPACK_DEBIAN_KVTIER-COLD-RESP_PACKAGE_NAME kvtier-cold-resp)
set(CPACK_DEBIAN_KVTIER-COLD-RESP_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_KVTIER-COLD-RESP_PACKAGE_DEPENDS "kvtierd ${same_version}")
set(CPACK_COMPONENT_KVTIER-COLD-RESP_DESCRIPTION
  "KV cache of LLM inference in three tiers: cold tier
 Lets kvtierd keep blocks in a store that hosts share:
 servers that speak RESP, as Valkey and Redis do.")
set(CPACK_DEBIAN_KVTIER-COLD-S3_PACKAGE_NAME kvtier-cold-s3)
set(CPACK_DEBIAN_KVTIER-COLD-S3_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_KVTIER-COLD-S3_PACKAGE_DEPENDS "kvtierd ${same_version}")
set(CPACK_COMPONENT_KVTIER-COLD-S3_DESCRIPTION
  "KV cache of LLM inference in three tiers: cold tier
 Lets kvtierd keep blocks in a store that hosts share:
 servers that speak S3, as Ceph, MinIO and AWS do.")

set(CPACK_DEBIAN_LIBKVTIER0_PACKAGE_NAME libkvtier0)
set(CPACK_DEBIAN_LIBKVTIER0_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBKVTIER0_PACKAGE_CONTROL_EXTRA ${packaging}/triggers)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_COMPONENT_LIBKVTIER0_DESCRIPTION
  "KV cache of LLM inference in three tiers: client library
 The C interface through which inference processes use kvtierd.")

set(CPACK_DEBIAN_LIBKVTIER-DEV_PACKAGE_NAME libkvtier-dev)
set(CPACK_DEBIAN_LIBKVTIER-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBKVTIER-DEV_PACKAGE_DEPENDS "libkvtier0 ${same_version}")
set(CPACK_COMPONENT_LIBKVTIER-DEV_DESCRIPTION
  "KV cache of LLM inference in three tiers: headers
 C and C++ headers and the pkg-config file of libkvtier.")

include(CPack)
