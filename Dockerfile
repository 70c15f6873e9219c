# The image: Python, what requirements.lock names, and this project. Its user may write nothing, nothing in it installs.
# Made by `make image`; docs/image.md says more.

# Debian 13 has Python 3.13 itself, so the tests build on the same without a registry (tests/support/image.py). The tag follows
# the security fixes of both; a digest in its place stands still.
ARG BASE=docker.io/library/python:3.13-slim-trixie


FROM ${BASE} AS build
WORKDIR /build
# The hash seed: a .pyc holds sets in the order of their hashes, and would be another one in each build.
ENV PYTHONHASHSEED=0 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# The one environment has pip and setuptools, the other gets what they install. Both before the sources, to stay cached.
COPY requirements.lock requirements-dev.lock ./
RUN python3 -m venv tools \
 && awk '/^[a-z]/ { wanted = /^setuptools==/ } wanted' requirements-dev.lock > build.lock \
 && tools/bin/pip install --quiet --require-hashes --only-binary :all: -r build.lock
RUN python3 -m venv --without-pip /opt/kubevirt-scheduler \
 && tools/bin/pip --python /opt/kubevirt-scheduler/bin/python3 install --quiet \
    --require-hashes --only-binary :all: --no-compile -r requirements.lock \
 # The client's asyncio twin, 64 MB that nobody here imports. It fails when a new client has none: then drop this line.
 && rm -r /opt/kubevirt-scheduler/lib/python3*/site-packages/kubernetes/aio

# The wheel's time stamps. Not further up: it changes with each commit.
ARG SOURCE_DATE_EPOCH=0
COPY LICENSE README.md pyproject.toml setup.cfg ./
COPY certs certs
COPY webhook webhook
RUN tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist . \
 && tools/bin/pip --python /opt/kubevirt-scheduler/bin/python3 install --quiet \
    --no-index --no-deps --no-compile dist/*.whl
# -f: pip leaves .pyc files that go by time stamps, and a build that sets those (SOURCE_DATE_EPOCH) makes them stale.
RUN tools/bin/python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/kubevirt-scheduler


FROM ${BASE}
# Python's own modules as well: slim images have none of their .pyc files, and a read-only root never gets any.
RUN find / -xdev \( -path '*-packages/pip*' -o -path '*-packages/setuptools*' -o -path '*/bin/pip*' \
    -o -path '*/ensurepip' -o -path '*/share/python-wheels' \) -prune -exec rm -rf {} + \
 && find / -xdev ! -type l -perm -o+w -exec chmod o-w {} + \
 && python3 -m compileall -q -f --invalidation-mode unchecked-hash -x '/(test|tests|idlelib|turtledemo)/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/kubevirt-scheduler /opt/kubevirt-scheduler
# Kubernetes mounts memory at /dev/shm, also in a container whose root is read-only: a key never comes to a disk there.
ENV PATH=/opt/kubevirt-scheduler/bin:/usr/local/bin:/usr/bin:/bin TMPDIR=/dev/shm
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["kubevirt-scheduler"]
CMD ["serve", "--bind", "0.0.0.0"]

ARG VERSION=""
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="kubevirt-scheduler" \
      org.opencontainers.image.description="A mutating admission webhook that puts KubeVirt VMs on the node that serves their Longhorn storage" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
