# The static server, run as user 65532, in an otherwise empty image. It writes no files, and makes a socket in /tmp, so its root can be
# read-only:
#
#	docker run --read-only --tmpfs /tmp --cap-drop=ALL -p 8081:8081 -p 8080:8080 \
#		-e BACKEND_TYPE=memory -e RUNTIME_ROOT=/rules -e RUNTIME_WATCH_ROOT=false -v "$PWD/rules:/rules/config:ro" ratelimitd
FROM golang:1.26 AS build
WORKDIR /src
# The Git history is included for the version that the go command writes into the binary.
COPY . .
ENV CGO_ENABLED=0
RUN --mount=type=cache,target=/go/pkg/mod \
	go build -trimpath -ldflags="-s -w" -o /out/bin/ratelimitd ./cmd/ratelimitd
# Istio's sample and Envoy Gateway start envoyproxy/ratelimit under the first of these names, under which the server
# ignores its arguments. The others are the names of envoyproxy/ratelimit's tools.
RUN for name in ratelimit ratelimit_client ratelimit_config_check; do ln -s ratelimitd /out/bin/$name; done
# The admin socket is below /tmp.
RUN mkdir -m 1777 /out/tmp && mkdir -p /out/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/

FROM scratch
COPY --from=build /out /
USER 65532:65532
# HTTP, gRPC, debug, Prometheus
EXPOSE 8080 8081 6070 9090
ENTRYPOINT ["/bin/ratelimitd"]
