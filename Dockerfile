# The image contains Python, the packages of requirements-image.lock, and this project. Its user can't write any file, and it
# has no package installer. `make image` builds it; see docs/development/image.md.

# Debian 13 ships Python 3.13, so the tests can build on the same base without a registry (tests/image/image.py).
# The tag follows the security fixes of Debian and Python. `make image` replaces it by BASE. Not an ARG: Dependabot reads
# only the names in FROM lines (https://github.com/dependabot/dependabot-core/issues/2057).
FROM docker.io/library/python:3.13-slim-trixie AS base


FROM base AS build
WORKDIR /build
# A fixed hash seed makes builds reproducible: a .pyc stores sets in the order of their hashes.
ENV PYTHONHASHSEED=0 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# One environment has pip and setuptools, the other gets the packages. Both come before the sources, to stay cached.
COPY requirements-image.lock requirements-dev.lock ./
RUN python3 -m venv tools \
 && awk '/^[a-z]/ { wanted = /^setuptools==/ } wanted' requirements-dev.lock > build.lock \
 && tools/bin/pip install --quiet --require-hashes --only-binary :all: -r build.lock
RUN python3 -m venv --without-pip /opt/kubevirt-scheduler \
 && tools/bin/pip --python /opt/kubevirt-scheduler/bin/python3 install --quiet \
    --require-hashes --only-binary :all: --no-compile -r requirements-image.lock

# Sets the wheel's timestamps. Declared this late because it changes with each commit and invalidates the cache.
ARG SOURCE_DATE_EPOCH=0
COPY LICENSE README.md pyproject.toml setup.cfg ./
COPY certs certs
COPY webhook webhook
RUN tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist . \
 && tools/bin/pip --python /opt/kubevirt-scheduler/bin/python3 install --quiet \
    --no-index --no-deps --no-compile dist/*.whl
# -f: pip's .pyc files are checked by timestamp. A build that sets timestamps (SOURCE_DATE_EPOCH) makes them stale.
RUN tools/bin/python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/kubevirt-scheduler


FROM base
# Compiles the standard library too: slim images lack its .pyc files, and Python can't add them on a read-only root.
RUN find / -xdev \( -path '*-packages/pip*' -o -path '*-packages/setuptools*' -o -path '*/bin/pip*' \
    -o -path '*/ensurepip' -o -path '*/share/python-wheels' \) -prune -exec rm -rf {} + \
 && find / -xdev ! -type l -perm -o+w -exec chmod o-w {} + \
 && python3 -m compileall -q -f --invalidation-mode unchecked-hash -x '/(test|tests|idlelib|turtledemo)/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/kubevirt-scheduler /opt/kubevirt-scheduler
# Kubernetes mounts memory at /dev/shm, even if the root is read-only.
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
