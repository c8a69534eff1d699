# Carve. `make help` explains every target.

GO        ?= go
CACHE     := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/carve
TOOLS     := $(CACHE)/tools
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   := -s -w -X main.version=$(VERSION)
GOLANGCI  := $(TOOLS)/golangci-lint-v2.15.0
PROGRAMS  := lvmd node controller
# Packages whose tests need a kernel with device-mapper, LVM and real disks. Two
# machines share them, and the tests of each.
VM_TESTS  := ../pkg/lvmd/... ../pkg/lvm/... ../pkg/filesystem/... ../pkg/driver/... ../pkg/luks ../pkg/devmapper
# Name of a demo cluster that may live beside the one the tests use.
DEMO      ?= demo

# The programs are static, whatever the C library of the machine.
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### See it run

.PHONY: demo
demo: ## Bring up a real cluster, install Carve, tell its story; leaves the cluster up
	cd e2e && $(GO) run ./cmd/demo --cluster $(DEMO)

.PHONY: demo-down
demo-down: ## Remove the demo's cluster and everything it started
	cd e2e && $(GO) run ./cmd/cluster down --name $(DEMO)

##### Build

.PHONY: build
build: $(addprefix bin/,$(PROGRAMS)) ## Build the programs into bin/

.PHONY: $(addprefix bin/,$(PROGRAMS))
$(addprefix bin/,$(PROGRAMS)): bin/%:
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/$*

.PHONY: image
image: ## Build the OCI image into bin/carve-image.tar, without a container engine
	cd e2e && $(GO) run ./cmd/image carve --output ../bin/carve-image.tar

.PHONY: generate
generate: deps ## Generate the gRPC code from api/
	$(GO) build -o $(TOOLS)/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc \
	  github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto
	PATH="$(TOOLS):$$PATH" protoc \
	  --go_out=. --go_opt=module=github.com/carve-csi/carve \
	  --go-grpc_out=. --go-grpc_opt=module=github.com/carve-csi/carve \
	  api/lvmd/v1/*.proto
	PATH="$(TOOLS):$$PATH" protoc \
	  --go-vtproto_out=. --go-vtproto_opt=module=github.com/carve-csi/carve,features=unmarshal_unsafe \
	  api/lvmd/v1/lvmd.proto

.PHONY: deps
deps: ## Install the Debian packages that code generation and the race detector need
	@for package in gcc libc6-dev protobuf-compiler libprotobuf-dev; do \
	  dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then apt-get update -q && apt-get install -q -y --no-install-recommends $$missing; fi

##### Check

.PHONY: test
test: ## Everything: generated code, unit tests with the race detector, real API server, real LVM, real cluster
	@$(MAKE) --no-print-directory check-generated
	@$(MAKE) --no-print-directory test-race
	@$(MAKE) --no-print-directory test-apiserver
	@$(MAKE) --no-print-directory test-vm
	@$(MAKE) --no-print-directory test-e2e

.PHONY: test-unit
test-unit: ## Tests that run anywhere, in seconds
	$(GO) vet ./...
	$(GO) test ./...
	cd e2e && $(GO) vet ./... && $(GO) test ./...

.PHONY: test-race
test-race: deps ## The same with the race detector
	CGO_ENABLED=1 $(GO) test -race ./...
	cd e2e && CGO_ENABLED=1 $(GO) test -race ./...

# Packages whose tests want a real API server beside fake nodes.
APISERVER_TESTS := pkg/controller pkg/controller/trust

.PHONY: test-apiserver
test-apiserver: ## Tests of the controller against a real API server and scheduler, with fake nodes
	@for package in $(APISERVER_TESTS); do \
	  $(GO) test -tags apiserver -c -o bin/tests/$$(basename $$package) ./$$package || exit 1; \
	done
	@cd e2e && for package in $(APISERVER_TESTS); do \
	  names=$$(sed -n 's/^func \(Test[A-Za-z0-9]*\).*/\1/p' ../$$package/*_apiserver_test.go | paste -s -d '|'); \
	  $(GO) run ./cmd/controlplane env --chdir=../$$package $(CURDIR)/bin/tests/$$(basename $$package) \
	    -test.v -test.timeout 15m -test.run "^($$names)$$" || exit 1; \
	done

.PHONY: test-vm
test-vm: ## Tests against real LVM, in a virtual machine; its power is cut, too
	cd e2e && $(GO) run ./cmd/vmtest -machines 2 -parts 2 -timeout 30m -with lvmd,node $(VM_TESTS)
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 20m -v ./powercut

.PHONY: test-systemd
test-systemd: ## Tests of lvmd's systemd unit, in a virtual machine that systemd boots; a part of soak
	cd e2e && $(GO) run ./cmd/vmtest -systemd -timeout 15m -with lvmd ../deploy/systemd

# Rounds of power cuts in a soak, decks of cards of a cluster's random life, and what
# orders them.
ROUNDS    ?= 50
DECKS     ?= 20
SEED      ?= $(shell date +%s)

.PHONY: soak
soak: test-systemd ## What takes long: many power cuts, lvmd and LVM killed everywhere, random machines, lvmd under systemd, a cluster's life (ROUNDS=n DECKS=n SEED=n)
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 6h -v ./powercut -args -rounds $(ROUNDS)
	cd e2e && $(GO) run ./cmd/vmtest -timeout 8h -with lvmd -env CARVE_SOAK=1 -run 'Killed|RandomMachines' ../pkg/lvmd
	CARVE_SOAK=1 $(GO) test -count=1 -timeout 1h -run 'Cycles' ./pkg/lvmd
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 1h -v ./cluster
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 10h -v -run RandomLife ./tests -args -decks $(DECKS) -seed $(SEED)

.PHONY: test-e2e
test-e2e: ## Tests on a real Kubernetes cluster (RUN=regexp chooses, KEEP=1 leaves the cluster up)
	cd e2e && $(GO) test -tags e2e -count=1 ./netns ./controlplane
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 75m -v $(if $(RUN),-run '$(RUN)') ./tests $(if $(KEEP),-args -keep)

.PHONY: bench
bench: bench-lvmd bench-io bench-controller bench-pod ## All measurements, each a ratio within one run

.PHONY: bench-lvmd
bench-lvmd: ## Measure lvmd against lvcreate and lvremove by hand, in a virtual machine (VOLUMES=0,100,500,1000)
	cd e2e && $(GO) run ./cmd/vmtest -timeout 2h -with lvmd $(if $(VOLUMES),-env CARVE_BENCH_VOLUMES=$(VOLUMES)) -run '^$$' -bench . ../pkg/lvmd

.PHONY: bench-mount
bench-mount: ## Measure stage and publish against a bare mount, in a virtual machine
	cd e2e && $(GO) run ./cmd/vmtest -run '^$$' -bench RealMounting ../pkg/driver

.PHONY: bench-io
bench-io: ## Measure file systems and the scratch profile against a bare volume with fio, in a virtual machine
	cd e2e && $(GO) run ./cmd/vmtest -run '^$$' -bench RealIO ../pkg/driver

.PHONY: bench-controller
bench-controller: ## Measure the controller with a real control plane and fake nodes
	cd e2e && $(GO) run ./cmd/benchcontroller

.PHONY: bench-pod
bench-pod: bench-mount ## Measure stage and publish against a bare mount, then Pod start and volumes per second on a real cluster
	cd e2e && $(GO) run ./cmd/benchpod

.PHONY: check-generated
check-generated: generate ## Fail when generated code is not current
	@git diff --exit-code -- '*.pb.go' || { echo "generated code is not current: run make generate"; exit 1; }

.PHONY: lint
lint: $(GOLANGCI) ## Run golangci-lint with the committed configuration
	$(GOLANGCI) run ./...
	cd e2e && $(GOLANGCI) run --config ../.golangci.yml --build-tags e2e ./...

$(GOLANGCI):
	GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(TOOLS)/golangci-lint $@

.PHONY: clean
clean: ## Remove what was built here (the cache of the harness stays)
	rm -rf bin e2e/bin
