# Targets with a ## line are listed by `make help`. Go alone builds and tests everything but the NVML plugin and the race
# detector, which need a C compiler; its absence is said.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
ENGINES ?= llamacpp
MODEL ?=
# The scripts of ./broker run whole matrices: under the race detector, with neighbours on two cores, they took Go's own ten minutes.
TEST_TIMEOUT ?= 20m
ADAPTERS := llamacpp sglang simulated vllm vllmcpp
VERSION := $(shell git describe --always --dirty --tags 2>/dev/null || echo unknown)
LDFLAGS := -X enginebroker/broker/cli.version=$(VERSION)
# Without gRPC's request traces, which bring a template engine that finds methods by reflection, the linker drops what is not called: a
# plugin is a quarter smaller, in the file and in memory.
PLUGIN_FLAGS := -tags=grpcnotrace
HAVE_CC := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo yes)

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/broker and bin/plugins/*
	@mkdir -p bin/plugins
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o bin/broker ./broker
	CGO_ENABLED=0 $(GO) build $(PLUGIN_FLAGS) -ldflags "-s -w" -o bin/plugins/ $(addprefix ./plugins/,$(ADAPTERS))
ifeq ($(HAVE_CC),yes)
	CGO_ENABLED=1 CGO_CFLAGS="-w" $(GO) build $(PLUGIN_FLAGS) -ldflags "-s -w -extldflags=-Wl,-z,lazy" -o bin/plugins/nvml ./plugins/nvml
else
	@echo "no C compiler: bin/plugins/nvml is built without NVML and will say so; install gcc for GPU telemetry"
	CGO_ENABLED=0 $(GO) build $(PLUGIN_FLAGS) -ldflags "-s -w" -o bin/plugins/nvml ./plugins/nvml
endif

matrix: build ## build, then run the main job on simulated engines (the shipped default)
	bin/broker matrix --model qwen3.8-27b --config broker/config/simulated.yaml || \
		case $$? in \
		4 | 5) echo "The run is complete. broker says by its exit code that cells are void or withheld; they name their reasons." ;; \
		*) exit 1 ;; \
		esac

test: ## run every test; needs Go alone
	$(GO) test -timeout $(TEST_TIMEOUT) ./...

race: ## run every test under the race detector (needs a C compiler)
ifeq ($(HAVE_CC),yes)
	CGO_ENABLED=1 CGO_CFLAGS="-O1 -g -w" $(GO) test -race -timeout $(TEST_TIMEOUT) ./...
else
	@echo "no C compiler: the race detector is skipped; install gcc to run it"
endif

bench: ## run the benchmarks; they print, nothing is asserted
	$(GO) test -run '^$$' -bench . -benchmem ./...

bench-peers: build ## our client and the others that are installed against one server of known times, alternating
	@scripts/bench-peers.sh

fuzz: ## run every fuzz target for FUZZTIME each (default 30s)
	@scripts/fuzz.sh $(or $(FUZZTIME),30s)

generate: ## regenerate proto/gen from proto (installs buf from npm into .tools)
	@scripts/proto.sh generate

lint: ## gofmt, vet, golangci-lint, buf lint and breaking, generated code up to date
	@scripts/lint.sh

engines: ## install real engines for a CPU box into .engines: ENGINES="llamacpp vllm sglang"
	@for e in $(ENGINES); do echo "installing $$e into .engines/$$e"; engines/install/$$e.sh .engines/$$e; done

real: build ## run the main job, profile quick, on the real engines that are installed
	@scripts/real.sh

calibrate-protocol: ## simulate the whole protocol on scripted leg values and print its error rates
	$(GO) run ./broker protocol calibrate

dist: ## archives for linux/arm64 (GB10) and linux/amd64 in dist/
	@scripts/dist.sh '$(VERSION)' '$(LDFLAGS)' '$(PLUGIN_FLAGS)'

clean: ## remove what build and dist made
	rm -rf bin dist

.PHONY: help build matrix test race bench bench-peers fuzz generate lint engines real calibrate-protocol dist clean
