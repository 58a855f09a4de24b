# SPDX-License-Identifier: Apache-2.0
# A place to build kvtier in: Debian 12 with everything that tools/setup.sh installs.
#
#   docker build -t kvtier-build .
#   docker run --rm -it -v "$PWD:/kvtier" kvtier-build ./tools/test.sh
#
# There is no CUDA toolkit in it: the build says so, and leaves out the CUDA device and the kernels.
#
ARG BASE=debian:12
FROM ${BASE}
COPY tools/setup.sh /tmp/setup.sh
RUN /tmp/setup.sh && rm -rf /var/lib/apt/lists/*
WORKDIR /kvtier
CMD ["bash"]
