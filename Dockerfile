# syntax=docker/dockerfile:1

# Image for all roles: `docker build -t kafleet .`, then `docker run kafleet worker`, `tracker`, `api`, …

ARG RUST=1.95
ARG DEBIAN=bookworm

FROM rust:${RUST}-slim-${DEBIAN} AS build
# librdkafka and zstd are built from the sources in their crates; OpenSSL and zlib are those of the system.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ libssl-dev make perl pkg-config zlib1g-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The caches stay on the build machine: after a change of the sources only kafleet itself is compiled again.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --bin kafleet \
 && install -D --strip target/dist/kafleet /out/kafleet

FROM debian:${DEBIAN}-slim
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/kafleet /usr/local/bin/kafleet
# A numeric id lets Kubernetes verify `runAsNonRoot`.
USER 65532:65532
# A mounted kafleet.toml is read from here; its paths are relative to this folder.
WORKDIR /etc/kafleet
# Ports of the API, and of health and metrics of workers and trackers.
EXPOSE 8080 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["kafleet"]
