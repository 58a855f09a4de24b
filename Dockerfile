# SPDX-License-Identifier: Apache-2.0
# The daemon's image: kvtierd, kvtierctl and what they link, on a small Debian, for a user without rights.
#
#   docker build -t kvtier .                          # the image to run; docs/CONTAINERS.md
#   docker build -t kvtier-build --target build .     # a place to build and test in:
#   docker run --rm -it -v "$PWD:/kvtier" kvtier-build ./tools/test.sh
#
# CUDA_PACKAGES names packages of NVIDIA's repository for Debian 12. Without them the build says so,
# and leaves out pools in VRAM and the kernels:
#
#   docker build -t kvtier --build-arg CUDA_PACKAGES="cuda-nvcc-13-0 cuda-cudart-dev-13-0" .
ARG BASE=debian:12

# The compiler and its libraries.
FROM ${BASE} AS compiler
ARG CUDA_PACKAGES=
ARG CUDA_REPOSITORY=https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64
COPY tools/setup.sh /tmp/setup.sh
RUN /tmp/setup.sh --build && rm -rf /var/lib/apt/lists/*
RUN if [ -n "$CUDA_PACKAGES" ]; then \
      apt-get update && apt-get install --yes --no-install-recommends ca-certificates curl && \
      curl -fsSLo /tmp/keyring.deb "$CUDA_REPOSITORY/cuda-keyring_1.1-1_all.deb" && \
      dpkg -i /tmp/keyring.deb && apt-get update && \
      apt-get install --yes --no-install-recommends $CUDA_PACKAGES && \
      rm -rf /tmp/keyring.deb /var/lib/apt/lists/*; \
    fi
ENV PATH=/usr/local/cuda/bin:$PATH
WORKDIR /kvtier

# Packages that the tests use besides, and that the image to run is not made of.
FROM compiler AS build
RUN /tmp/setup.sh && rm -rf /var/lib/apt/lists/*
CMD ["bash"]

FROM compiler AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv && \
    rm -rf /var/lib/apt/lists/*
# Seconds since 1970 of the files in the wheel: the context has no commit to take them from.
ARG SOURCE_DATE_EPOCH
COPY . .
RUN tools/packaging/build-wheel.sh /wheel && tools/packaging/unpack-wheel.sh /wheel/*.whl /opt/kvtier

FROM ${BASE}-slim
COPY --from=wheel /opt/kvtier /opt/kvtier
# The number is fixed, so that files of the disk tier keep their owner from image to image.
RUN groupadd --gid 10001 kvtier && \
    useradd --uid 10001 --gid kvtier --home-dir /var/lib/kvtier --no-create-home kvtier && \
    install -d -o kvtier -g kvtier -m 0755 /run/kvtier && \
    install -d -o kvtier -g kvtier -m 0700 /var/lib/kvtier && \
    ln -s /opt/kvtier/bin/kvtierd /opt/kvtier/bin/kvtierctl /usr/local/bin/
USER 10001:10001
# The capabilities that NVIDIA's container runtime lets in.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME ["/run/kvtier", "/var/lib/kvtier"]
# Long enough for the index of a large disk to be rebuilt.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["kvtierctl", "--timeout", "3", "status"]
ENTRYPOINT ["kvtierd"]
