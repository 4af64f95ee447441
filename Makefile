# `make help` lists the targets. Variables assigned with ?= can be set on the command line or in the environment.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
PKG ?= ./...
FUZZTIME ?= 30s
EXACT ?= 1m
SOAK ?= 5m
PLAY ?= whole
BENCH ?= .
IMAGE ?= ratelimitd:dev
RUN ?=
DEPLOYMENTS ?= sentinel cluster twemproxy old valkey acl
CONFORMANCE_DIR ?= ../shared/conformance

# Modules below tools/ whose tests make test runs, but for those in SKIP.
TOOLS := api bench chaos demo dist e2e exact loadgen manifests schema

GOLANGCI := bin/golangci-lint
# The same in a module below tools/, without the warnings of which exclusions are of no use there.
GOLANGCI_TOOL := LOG_LEVEL=error ../../$(GOLANGCI)
# Runs a command in each module below tools/ that has Go of its own, and fails if it failed in any.
in-tools = failed=; for tool in $(TOOLS) ui; do echo "tools/$$tool: $(1)"; (cd tools/$$tool && $(1)) || failed=1; done; [ -z "$$failed" ]
BUF := bin/buf
VALE := bin/vale
# What make lint holds to the words of docs/glossary.md.
WORDS := cmd internal pkg proto tools config deploy Makefile docs README.md SECURITY.md CONTRIBUTING.md CHANGELOG.md $(wildcard examples/*/README.md)
PROTO_BREAKS = $(BUF) breaking --against api/proto.yaml || { echo 'This may break those who rely on it; see api/README.md' >&2; exit 1; }
VULNCHECK := $(GO) tool -modfile=tools/govulncheck/go.mod govulncheck

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build bin/ratelimitd, static
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto -o bin/ratelimitd ./cmd/ratelimitd

run: export BACKEND_TYPE ?= memory
run: export RUNTIME_ROOT ?= config
run: export RUNTIME_APPDIRECTORY ?= example
run: export RUNTIME_WATCH_ROOT ?= false
run: export HOST ?= 127.0.0.1
run: export GRPC_HOST ?= 127.0.0.1
run: export DEBUG_HOST ?= 127.0.0.1
run: export ADMIN ?= true
run: export GRPC_REFLECTION ?= true
run: export DECISION_METADATA ?= true
run: export USE_STATSD ?= false
run: export DRAIN_DELAY ?= 0s
.PHONY: run
run: build ## serve config/example on 127.0.0.1 with counters in memory; Ctrl-C ends it
	@exec bin/ratelimitd

.PHONY: demo
demo: build ## show ratelimitd behind Envoy, without Docker: a tour of seven steps, then serve until Ctrl-C; TOUR=only ends after it
	@tools/need redis-server redis-server
	@$(GO) -C tools/demo build -o '$(CURDIR)/bin/demo' .
	@envoy=$$(tools/need envoy) && exec bin/demo -envoy "$$envoy" $(if $(TOUR),-tour '$(TOUR)') $(DEMO)

.PHONY: needs
needs: ## install the programs that make test needs, where that is possible without a question
	@tools/need redis-server redis-server
	@tools/need memcached memcached
	@tools/need -x nutcracker nutcracker libyaml-0-2
	@tools/need -x promtool prometheus
	@tools/need -x prometheus prometheus
	@tools/need curl curl
	@tools/need openssl openssl
	@tools/need npm npm
	@tools/need chromium chromium
	@tools/need zsh zsh fish bash-completion || echo 'going on without zsh, fish or bash-completion: their completion is not tried' >&2
	@tools/need envoy >/dev/null || echo 'going on without Envoy: its cases are skipped' >&2

.PHONY: test
test: export TEST_BIN := $(CURDIR)/bin/test
test: needs ## run every test; with the race detector where it can find something and there is a C compiler, which it alone needs
	@tools/need "$$($(GO) env CC)" gcc libc6-dev || echo 'going on without the race detector' >&2
	$(GO) build -ldflags=-w -o '$(TEST_BIN)/' ./cmd/ratelimitd ./examples/client
	$(MAKE) -j1 test-race
	$(MAKE) -j2 test-plain test-tools

.PHONY: test-race test-plain test-tools $(TOOLS:%=test-in-%)
test-race:
	GO='$(GO)' tools/test race $(PKG)
test-plain:
	GO='$(GO)' tools/test plain $(PKG)
test-tools:
	$(MAKE) -k ui-test $(patsubst %,test-in-%,$(filter-out $(SKIP),$(TOOLS)))
$(TOOLS:%=test-in-%): test-in-%:
	$(GO) -C tools/$* test -vet=off ./...

.PHONY: ui
ui: tools/ui/node_modules ## copy what the console serves of others from npm, as tools/ui/package-lock.json has it
	cp tools/ui/node_modules/htmx.org/dist/htmx.min.js internal/operate/console/static/

tools/ui/node_modules: tools/ui/package-lock.json
	@tools/need npm npm
	npm --prefix tools/ui ci --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: ui-test
ui-test: tools/ui/node_modules ## try the console out in headless Chromium, in three minutes
	@tools/need chromium chromium
	cmp tools/ui/node_modules/htmx.org/dist/htmx.min.js internal/operate/console/static/htmx.min.js
	$(GO) -C tools/ui test -vet=off -count=1 ./...

.PHONY: screenshots
screenshots: tools/ui/node_modules ## make the pictures in docs/console, in two minutes
	@tools/need chromium chromium
	$(GO) -C tools/ui run ./screenshots '$(CURDIR)' '$(CURDIR)/docs/console'

.PHONY: check
check: ## run go vet, the linters where make lint has built them, and the tests that start no process: while one writes
	$(GO) vet $(PKG)
	@if $(MAKE) -sq $(GOLANGCI); then $(GOLANGCI) run $(PKG); else echo 'golangci-lint is left out: make lint builds it' >&2; fi
	@if $(MAKE) -sq $(BUF); then $(BUF) lint; else echo 'buf is left out: make lint builds it' >&2; fi
	$(GO) test -short -vet=off $(PKG)

bin/golangci-lint: tools/golangci-lint/go.mod tools/golangci-lint/go.sum
	$(GO) build -modfile=tools/golangci-lint/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/buf: tools/buf/go.mod tools/buf/go.sum
	$(GO) build -modfile=tools/buf/go.mod -o $@ github.com/bufbuild/buf/cmd/buf

bin/vale: tools/vale/go.mod tools/vale/go.sum
	@tools/need "$$($(GO) env CC)" gcc libc6-dev
	CGO_ENABLED=1 $(GO) build -modfile=tools/vale/go.mod -o $@ github.com/vale-cli/vale/v3/cmd/vale

bin/envoy-gateway: tools/gateways/go.mod tools/gateways/go.sum
	$(GO) build -modfile=tools/gateways/go.mod -o $@ github.com/envoyproxy/gateway/cmd/envoy-gateway

.PHONY: words
words: $(VALE) ## say what docs/glossary.md would have put in other words, in WORDS; LEVEL=warning is less sure
	$(VALE) --config tools/vale/.vale.ini --minAlertLevel $(or $(LEVEL),error) $(WORDS)

.PHONY: lint
lint: $(GOLANGCI) $(BUF) words ## run go vet, golangci-lint, here and in the modules below tools/, buf lint and buf breaking, and compare what is generated from proto
	$(GO) vet ./...
	$(GOLANGCI) run ./...
	$(call in-tools,$(GOLANGCI_TOOL) run ./...)
	$(BUF) lint
	@$(PROTO_BREAKS)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; $(BUF) generate -o "$$dir"; \
	diff -r --brief --exclude='*.proto' --exclude=http.yaml --exclude='number*.go' "$$dir/proto" proto || \
	{ echo 'what is generated in proto is not what its sources say: run make proto' >&2; exit 1; }
	@$(BUF) build --exclude-source-info -o -#format=yaml | cmp - api/proto.yaml || { echo 'api/proto.yaml is not what proto has: run make api' >&2; exit 1; }

.PHONY: vuln
vuln: ## look for known vulnerabilities in what is called here; asks vuln.go.dev
	@rc=0; $(VULNCHECK) ./... || rc=$$?; \
	case $$rc in \
	0|3) exit $$rc;; \
	*) echo "govulncheck ended with $$rc and checked nothing; it has to reach https://vuln.go.dev" >&2;; \
	esac

.PHONY: fmt
fmt: $(GOLANGCI) ## format the Go files
	$(GOLANGCI) fmt ./...
	$(call in-tools,$(GOLANGCI_TOOL) fmt ./...)

# Plays all scenarios. Only the differences of docs/differences.md that have one are accepted: larger limits are valid here.
play = cd '$(CONFORMANCE_DIR)/scenarios' && { '$(CURDIR)/bin/conformance' $(1) *.yaml || true; } | \
	awk '{print} /^DIFF/ && !/: a limit over 32 bits$$/ {bad = 1} / passed, / {ended = 1} END {exit bad || !ended}'

.PHONY: conformance
conformance: build ## play recorded answers of envoyproxy/ratelimit against bin/ratelimitd (CONFORMANCE_DIR)
	@test -d '$(CONFORMANCE_DIR)/scenarios' || \
	{ echo 'no scenarios in $(CONFORMANCE_DIR): set CONFORMANCE_DIR to the directory that holds the player (go.mod) and scenarios/' >&2; exit 1; }
	$(GO) -C '$(CONFORMANCE_DIR)' build -o '$(CURDIR)/bin/conformance' .
	@tools/need redis-server redis-server
	$(call play,-redis '' -backend memory -server '$(CURDIR)/bin/ratelimitd')
	$(call play,-server '$(CURDIR)/bin/ratelimitd')
	export REDIS_KEY_FORMAT=reference; $(call play,-server '$(CURDIR)/bin/ratelimitd')
	@tools/need memcached memcached
	export MEMCACHE_OP_TIMEOUT=1s; $(call play,-redis '' -backend memcache -server '$(CURDIR)/tools/with-memcached $(CURDIR)/bin/ratelimitd')

.PHONY: conformance-redis
conformance-redis: build ## the same in each of DEPLOYMENTS: sentinel, cluster, twemproxy, old, valkey, acl; RUN chooses scenarios
	@test -d '$(CONFORMANCE_DIR)/scenarios' || { echo 'no scenarios in $(CONFORMANCE_DIR): set CONFORMANCE_DIR' >&2; exit 1; }
	$(GO) -C '$(CONFORMANCE_DIR)' build -o '$(CURDIR)/bin/conformance' .
	@tools/need redis-server redis-server
	@tools/need -x nutcracker nutcracker libyaml-0-2
	cd '$(CONFORMANCE_DIR)/scenarios' && for kind in $(DEPLOYMENTS); do for format in '' reference; do \
		[ "$$kind$$format" != old ] || continue; \
		echo "$$kind $$format"; \
		REDIS_OP_TIMEOUT=1s REDIS_KEY_FORMAT=$$format '$(CURDIR)/tools/with-redis' "$$kind" '$(CURDIR)/bin/conformance' -redis '' -backend redis -run '$(RUN)' \
			-server '$(CURDIR)/tools/with-redis - $(CURDIR)/bin/ratelimitd' *.yaml; \
	done; done

.PHONY: bench-go
bench-go: ## run the benchmarks whose names match BENCH
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

.PHONY: bench
bench: build-bench ## measure what requests, rules and counters cost in 22 minutes; BENCH='^Redis' chooses, ROUNDS and DURATION say how long, PEER=/path/to/ratelimit and LIMITADOR=/path/to/limitador-server compare, ENVOY is another Envoy, WRITE=1 writes docs/benchmarks.md
	$(MEASURE) $(if $(WRITE),-write docs)

.PHONY: bench-check
bench-check: build-bench ## name each request, rule and counter that costs 20 % more than in docs/benchmarks.md; in a quarter of an hour, on a quiet machine
	$(MEASURE) -check docs

MEASURE = bin/bench -run '$(BENCH)' $(if $(ROUNDS),-rounds '$(ROUNDS)') $(if $(DURATION),-duration '$(DURATION)') $(if $(SEED),-seed '$(SEED)') \
	$(if $(PEER),-peer '$(PEER)' -peer-version '$(PEER_VERSION)') $(if $(LIMITADOR),-limitador '$(LIMITADOR)') \
	-envoy "$$(tools/need envoy)"

.PHONY: build-bench
build-bench: build
	@tools/need redis-server redis-server
	@tools/need taskset util-linux
	$(GO) -C tools/loadgen build -o '$(CURDIR)/bin/' .
	$(GO) -C tools/bench build -o '$(CURDIR)/bin/' . ./idle

.PHONY: exact
exact: build ## attack three servers on one Redis for EXACT, and look for hits too many or lost; SEED repeats what was found, QUOTAS what Envoys did that decide by themselves
	@tools/need redis-server redis-server
	$(GO) -C tools/exact build -o '$(CURDIR)/bin/exact' .
	bin/exact -server bin/ratelimitd -for '$(EXACT)' $(if $(SEED),-seed '$(SEED)') $(if $(QUOTAS),-quotas '$(QUOTAS)')

.PHONY: chaos
chaos: build ## hold bin/ratelimitd to its promises: 30 checks in 12 minutes; CHAOS='B9|C18' chooses, SEED repeats, PEER=/path/to/ratelimit compares, WRITE=1 writes docs/reliability.md
	@tools/need redis-server redis-server
	$(GO) -C tools/chaos build -o '$(CURDIR)/bin/chaos' .
	bin/chaos -server bin/ratelimitd -run '$(CHAOS)' $(if $(SEED),-seed '$(SEED)') \
		$(if $(PEER),-peer '$(PEER)' -peer-version '$(PEER_VERSION)') $(if $(WRITE),-write docs/reliability.md)

.PHONY: e2e
e2e: build ## play the examples, and failures, through a real Envoy (tools/need finds it, or ENVOY=/path/to/envoy); PLAY=most leaves out the longest; SEED, PEER as for chaos; WRITE=1 writes docs/envoy-results.md
	@tools/need redis-server redis-server
	@tools/need openssl openssl
	$(GO) -C tools/e2e test -count=1 -timeout 40m -args -play '$(PLAY)' -server '$(CURDIR)/bin/ratelimitd' \
		-envoy "$$(tools/need envoy)" $(if $(SEED),-seed '$(SEED)') $(if $(PEER),-peer '$(abspath $(PEER))') \
		$(if $(WRITE),-write '$(CURDIR)/docs/envoy-results.md')

.PHONY: gateways
gateways: ## play policies through a real Envoy Gateway without Kubernetes, in two minutes; it is built once, in ten. Needs root and namespaces; STREAMS says how many to settle, RECORD=1 writes what make test replays
	@[ "$$(tools/with-namespaces echo allowed)" != allowed ] || $(MAKE) gateways-allowed

.PHONY: gateways-allowed
gateways-allowed: build bin/envoy-gateway
	@tools/need redis-server redis-server
	$(GO) -C tools/e2e test -c -o '$(CURDIR)/bin/gateways' .
	cd tools/e2e && ../with-namespaces '$(CURDIR)/bin/gateways' -test.run '^TestEnvoyGateway$$' -test.timeout 40m -server '$(CURDIR)/bin/ratelimitd' \
		-envoy "$$(../need envoy)" -gateway '$(CURDIR)/bin/envoy-gateway' $(if $(STREAMS),-streams '$(STREAMS)') $(if $(RECORD),-record)

.PHONY: soak
soak: build ## run three servers at half their peak for SOAK, with a fault every ten seconds; SEED repeats the faults
	@tools/need redis-server redis-server
	$(GO) -C tools/chaos build -o '$(CURDIR)/bin/chaos' .
	bin/chaos -server bin/ratelimitd -soak '$(SOAK)' $(if $(SEED),-seed '$(SEED)')

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME
	@$(GO) test -run '^$$' -list '^Fuzz' $(PKG) | \
	awk '/^Fuzz/ {name[++n] = $$1} /^ok/ {for (i = 1; i <= n; i++) print $$2, name[i]; n = 0}' | \
	while read -r pkg name; do \
		echo "$$pkg $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null; \
	done

.PHONY: lines
lines: ## count the lines of code of each folder and part
	@tools/lines

.PHONY: proto
proto: $(BUF) ## generate Go and the OpenAPI file from the .proto files
	$(BUF) generate

.PHONY: docs
docs: ## write what is generated into docs: settings.md, metrics.md, algorithms.md, differences.md, sizing.md and rules.schema.json
	$(GO) generate ./internal/process/settings ./internal/process/stats ./pkg/engine ./internal/rules/ruleschema ./cmd/ratelimitd

.PHONY: api
api: $(BUF) ## write what users rely on into api/, for tests to compare, unless something breaks; BREAK=1 accepts that
	@$(if $(BREAK),,$(PROTO_BREAKS))
	$(GO) -C tools/api run . $(if $(BREAK),-break)
	$(BUF) build --exclude-source-info -o api/proto.yaml

.PHONY: dashboards
dashboards: ## copy deploy/grafana into the Helm chart, which can only use files of its own
	cp deploy/grafana/* examples/kubernetes/chart/files/

.PHONY: image
image: ## build the container image IMAGE
	docker build -t '$(IMAGE)' .

.PHONY: dist
dist: ## make what a release consists of in dist/: archives, image, chart, bills of materials and checksums; PLATFORMS chooses
	$(GO) -C tools/dist build -o '$(CURDIR)/bin/dist' .
	bin/dist $(if $(PLATFORMS),-platforms '$(PLATFORMS)')

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
